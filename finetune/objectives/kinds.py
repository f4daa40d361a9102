"""Which objective a configuration asks for.

Keep: what distinguishes one kind from another stands in its own file; here is the table.
"""

from collections.abc import Callable, Mapping
from typing import Any

from chatapp.engine.model import PieceTokenizer
from chatapp.prompting.chat_template import Template
from finetune.config.sections import FinetuneConfig
from finetune.objectives.dpo import prepare_dpo
from finetune.objectives.grpo import prepare_grpo
from finetune.objectives.kto import prepare_kto
from finetune.objectives.l3 import prepare_l3
from finetune.objectives.objective import Objective, RowSets
from finetune.objectives.orpo import prepare_orpo
from finetune.objectives.reward import prepare_reward

_PREPARE: Mapping[str, Callable[..., tuple[Objective, RowSets]]] = {
    "l3": prepare_l3,
    "dpo": prepare_dpo,
    "kto": prepare_kto,
    "orpo": prepare_orpo,
    "reward": prepare_reward,
    "grpo": prepare_grpo,
}


def prepare_objective(
    config: FinetuneConfig,
    template: Template,
    tokenizer: PieceTokenizer,
    window: int,
    start: list[int],
) -> tuple[Objective, RowSets]:
    """The objective and its rows; see `prepare_chats`. Raises ConfigError."""
    settings: Any = config.objective
    return _PREPARE[settings.kind](config, settings, template, tokenizer, window, start)
