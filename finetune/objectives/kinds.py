"""Which objective a configuration asks for.

Keep: what distinguishes one kind from another stands in its own file; here is the table.
"""

from collections.abc import Callable, Mapping
from typing import Any

from chatapp.engine.model import PieceTokenizer
from chatapp.prompting.chat_template import Template
from finetune.config.sections import FinetuneConfig
from finetune.objectives.dpo import make_dpo
from finetune.objectives.grpo import make_grpo
from finetune.objectives.kto import make_kto
from finetune.objectives.l3 import make_l3
from finetune.objectives.objective import Objective, RowSets
from finetune.objectives.orpo import make_orpo
from finetune.objectives.reward import make_reward

_PREPARE: Mapping[str, Callable[..., tuple[Objective, RowSets]]] = {
    "l3": make_l3,
    "dpo": make_dpo,
    "kto": make_kto,
    "orpo": make_orpo,
    "reward": make_reward,
    "grpo": make_grpo,
}


def make_objective(
    config: FinetuneConfig,
    template: Template,
    tokenizer: PieceTokenizer,
    window: int,
    start: list[int],
) -> tuple[Objective, RowSets]:
    """The objective and its rows; see `read_chat_rows`. Raises ConfigError."""
    settings: Any = config.objective
    return _PREPARE[settings.kind](config, settings, template, tokenizer, window, start)
