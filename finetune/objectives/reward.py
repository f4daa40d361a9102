"""Reward models: a linear head that scores a whole reply (Ouyang et al., 2022, arXiv 2203.02155).

With r the head's score of the last token's state and m the row's margin (Touvron et al., 2023,
arXiv 2307.09288, equation 2), a pair's loss is that of Bradley and Terry (1952),

    -log σ(r(chosen) - r(rejected) - m) + c·(r(chosen) + r(rejected))²

The second term centres scores around 0, which the first leaves free (Eisenstein et al., 2023, arXiv
2312.09244, equation 2).

Invariant: a reply is scored after its prompt, closed as the template closes it, at its last token;
the engine's `RewardModel` reads it there too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from chatapp.engine.backends.head import REWARD, HeadSpec
from finetune.config.objectives import RewardSettings
from finetune.data.batches import Tensors
from finetune.objectives.heads import MODULE, add_head, load_head_weights, save_head
from finetune.objectives.log_probs import reply_sums, side
from finetune.objectives.pairs import PairObjective, PairScores, replies_of

REWARD_SPEC = HeadSpec(REWARD, (), "")


@dataclass(frozen=True, kw_only=True)
class Reward(PairObjective):
    """centring: c."""

    centring: float = 0.0

    name = "reward"
    title = "Bradley-Terry"
    added = MODULE
    replies = False
    logp_figures: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def of(cls, settings: RewardSettings) -> "Reward":
        return cls(centring=settings.centring)

    def extend(self, model: Any, seed: int) -> None:
        add_head(model, REWARD_SPEC, seed)

    def save(self, model: Any, folder: Path) -> None:
        save_head(model, REWARD_SPEC, folder)

    def load(self, model: Any, folder: Path) -> None:
        load_head_weights(model, folder)

    def score_pairs(self, hidden: Tensor, logps: Tensor, model: Any, batch: Tensors) -> PairScores:
        scores = model.task_head(hidden.float())[..., 0].float() * _last_tokens(batch)
        chosen, rejected = (
            reply_sums(values, side(batch, number))
            for number, values in enumerate((scores[0::2], scores[1::2]))
        )
        replies = replies_of(logps[0::2], side(batch, 0))
        losses = -functional.logsigmoid(chosen - rejected - replies.value)
        losses = losses + self.centring * (chosen + rejected) ** 2
        return PairScores(losses, chosen, rejected, replies.tokens > 0)

    def _log_probs(self, hidden: Tensor, model: Any, batch: Tensors) -> Tensor:
        return torch.zeros(batch["input_ids"].shape, device=hidden.device)


def _last_tokens(batch: Tensors) -> Tensor:
    """The tokens that end an example, (sequences, tokens) bool."""
    ids = batch["example_ids"]
    return (ids > 0) & (ids != functional.pad(ids, (0, 1))[:, 1:])
