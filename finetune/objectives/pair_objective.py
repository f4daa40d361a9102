"""What the objectives on pairs of replies share: DPO, ORPO and reward models.

A pair's loss comes of what the two replies are worth, and the step's loss is the mean over its
pairs, beside a supervised term if there is one: weight · L1, the mean negative log-likelihood of
tokens of the chosen sequences.

Keep: a pair's weight is one through the pairs of the whole optimizer step, so the loss is the
same however the step is cut, padded or packed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from chatapp.engine.backends.head import in_place_of
from finetune.data.batches import Tensors
from finetune.objectives.log_probs import reply_sums, side, token_log_probs
from finetune.objectives.objective import RowSets, model_inputs

REWARD_FIGURES = {
    "accuracy": "pairs right",
    "margin": "margin",
    "chosen_reward": "chosen",
    "rejected_reward": "rejected",
}
LOGP_FIGURES = {"chosen_logp": "log p chosen", "rejected_logp": "log p rejected"}


class Replies(NamedTuple):
    """The replies of one side of a batch, each (pairs,).

    logps: log-probability, a sum over the reply's tokens. reference: the same by the reference.
    tokens: how many. value: see `PairRows`.
    """

    logps: Tensor
    reference: Tensor
    tokens: Tensor
    value: Tensor


class Worth(NamedTuple):
    """What pairs are worth, each (pairs,). loss has a gradient, the others are told.

    counts: False for a pair without labels, which is there to fill a batch.
    """

    loss: Tensor
    chosen_reward: Tensor
    rejected_reward: Tensor
    counts: Tensor
    chosen_logp: Tensor | None = None
    rejected_logp: Tensor | None = None

    def told(self) -> dict[str, Tensor]:
        """The figures of each pair, by name."""
        margin = (self.chosen_reward - self.rejected_reward).detach()
        told = {
            "accuracy": (margin > 0).float(),
            "margin": margin,
            "chosen_reward": self.chosen_reward.detach(),
            "rejected_reward": self.rejected_reward.detach(),
        }
        if self.chosen_logp is not None and self.rejected_logp is not None:
            told |= {
                "chosen_logp": self.chosen_logp.detach(),
                "rejected_logp": self.rejected_logp.detach(),
            }
        return told


def replies_of(logps: Tensor, batch: Tensors) -> Replies:
    """The replies of a batch whose tokens have these log-probabilities, (sequences, tokens)."""
    labels = batch["response_mask"]
    tokens = reply_sums(labels, batch)
    return Replies(
        reply_sums(logps * labels, batch),
        reply_sums(batch["reference"] * labels, batch),
        tokens,
        reply_sums(batch["value"] * labels, batch) / tokens.clamp(min=1),
    )


@dataclass(frozen=True, kw_only=True)
class PairObjective:
    """Losses of pairs, and weight · L1. A kind of it says what pairs are worth, in `worth`.

    weight: of the supervised term. name: of what is minimised, in the log; title: in words.
    """

    weight: float = 0.0
    name = "pairs"
    title = "pairs"

    added = ""
    replies = True
    dropout = False
    needs_reference = False
    logp_figures: ClassVar[Mapping[str, str]] = LOGP_FIGURES

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, "pair_loss", "l1", *REWARD_FIGURES, *self.logp_figures)

    @property
    def figures(self) -> Mapping[str, str]:
        parts = {"pair_loss": "pairs", "l1": "L1"} if self.weight else {}
        return {self.name: self.title} | parts | REWARD_FIGURES | dict(self.logp_figures)

    @property
    def curves(self) -> tuple[str, ...]:
        return (self.name,)

    def extend(self, model: Any, seed: int) -> None: ...
    def save(self, model: Any, folder: Path) -> None: ...
    def load(self, model: Any, folder: Path) -> None: ...

    def settings(self, done: float) -> dict[str, float]:
        return {}

    def summary(self, data: RowSets) -> str:
        """What is minimised, and over how much."""
        text = f"{self.title} over {data.examples:,} pairs"
        if self.weight:
            text += f", and {self.weight:g} · L1 over {data.aux_labels:,} tokens of chosen replies"
        return text

    def count(self, batches: Iterable[Tensors], call: nn.Module, model: Any) -> Tensor:
        """Pairs, and tokens of L1."""
        counts = torch.zeros(2, dtype=torch.float64)
        for batch in batches:
            pairs = reply_sums(side(batch, 0)["response_mask"], side(batch, 0)) > 0
            counts += torch.stack([pairs.sum(), batch["aux_mask"].sum()]).to(counts)
        return counts

    def losses(
        self, call: nn.Module, model: Any, batch: Tensors, counts: Tensor, done: float
    ) -> Tensor:
        n_pairs, n_aux = counts.clamp(min=1).tolist()

        def compute(hidden: Tensor) -> Tensor:
            logps = self._log_probs(hidden, model, batch)
            l1 = -(logps * batch["aux_mask"]).sum() / n_aux if self.weight else torch.zeros(())
            worth = self.worth(hidden, logps, model, batch)
            share = worth.counts / n_pairs
            pair_loss = (worth.loss * share).sum()
            told = [(each * share).sum() for each in worth.told().values()]
            l1 = l1.to(pair_loss)
            whole = pair_loss + self.weight * l1
            return torch.stack([whole, pair_loss.detach(), l1.detach(), *told])

        with in_place_of(model.get_output_embeddings(), compute):
            losses: Tensor = call(**model_inputs(batch)).logits
        return losses

    @torch.no_grad()
    def each(self, model: Any, batch: Tensors) -> dict[str, Tensor]:
        """The figures of each pair of a batch."""
        found: dict[str, Tensor] = {}

        def compute(hidden: Tensor) -> Tensor:
            logps = self._log_probs(hidden, model, batch)
            worth = self.worth(hidden, logps, model, batch)
            found.update({"loss": worth.loss, **worth.told()})
            return hidden

        with in_place_of(model.get_output_embeddings(), compute):
            model(**model_inputs(batch))
        return found

    def worth(self, hidden: Tensor, logps: Tensor, model: Any, batch: Tensors) -> Worth:
        """What the pairs of a batch are worth.

        hidden: what the language-model head reads. logps: of the labels, see `token_log_probs`.
        """
        chosen, rejected = (
            replies_of(each, side(batch, number))
            for number, each in enumerate((logps[0::2], logps[1::2]))
        )
        return self.of_replies(chosen, rejected)

    def of_replies(self, chosen: Replies, rejected: Replies) -> Worth:
        """What pairs are worth by the log-probabilities of their replies."""
        raise NotImplementedError

    def _log_probs(self, hidden: Tensor, model: Any, batch: Tensors) -> Tensor:
        labelled = batch["response_mask"]
        if self.weight:
            labelled = labelled | batch["aux_mask"]
        return token_log_probs(hidden, model.get_output_embeddings(), batch, labelled)

    def metrics(self, means: Mapping[str, float], done: float) -> dict[str, float]:
        """loss in nats a pair, and the figures of the pairs."""
        measured = {"loss": means[self.name]}
        measured |= {name: means[name] for name in (*REWARD_FIGURES, *self.logp_figures)}
        return measured | ({"l1": means["l1"]} if self.weight else {})
