"""Linear heads on a language model (Radford et al., 2018, section 3.3).

A linear layer reads the last block's state at the extract token. As in the paper the objective
is L2, here the cross-entropy of the labels, or the mean squared error of numbers, plus λ·L1 over
the sequences.

Keep: L1 is computed by `l3` alone, so that a head's auxiliary loss is that of a chat.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from chatapp.engine.head import HeadSpec
from finetune.data.batches import Tensors
from finetune.objectives.head_module import (
    MODULE,
    add_head,
    class_logits,
    load_head_weights,
    owners,
    save_head,
)
from finetune.objectives.l3 import L3, count_labels
from finetune.objectives.objective import in_place_of, model_inputs


@dataclass(frozen=True, kw_only=True)
class HeadObjective(L3):
    """L2 of the labels plus λ·L1 of the text; accuracy is the share of right labels.

    Of regression L2 is the mean squared error in variances of the labels learnt from.
    """

    spec: HeadSpec
    added = MODULE
    replies = False

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return L3.names[:3] if self.spec.scale else L3.names

    def extend(self, model: Any, seed: int) -> None:
        add_head(model, self.spec, seed)

    def save(self, model: Any, folder: Path) -> None:
        save_head(model, self.spec, folder)

    def load(self, model: Any, folder: Path) -> None:
        load_head_weights(model, folder)

    def count(self, batches: Iterable[Tensors], call: nn.Module, model: Any) -> Tensor:
        """Examples, and tokens or sequences of L1."""
        batches = list(batches)
        counts = count_labels(batches, self.aux_norm)
        counts[0] = sum(map(_examples_read, batches))
        return counts

    def losses(
        self, call: nn.Module, model: Any, batch: Tensors, counts: Tensor, done: float
    ) -> Tensor:
        lm_head = model.get_output_embeddings()
        unread = {**batch, "response_mask": torch.zeros_like(batch["response_mask"])}

        def compute(hidden: Tensor) -> Tensor:
            text = self.of_hidden(hidden, lm_head, unread, counts, done)
            logits, counted = class_logits(model.task_head, hidden, batch, self.spec.task)
            n_examples = counts[0].clamp(min=1).item()
            l2, *right = self._of_labels(logits[counted].float(), batch["label"][counted])
            l2 = l2 / n_examples
            rest = (each / n_examples for each in right)
            return torch.stack([l2 + text.l3, l2.detach(), text.l1, *rest])

        with in_place_of(lm_head, compute):
            losses: Tensor = call(**model_inputs(batch)).logits
        return losses

    def _of_labels(self, logits: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        """The loss of examples, and of classes how many are right; sums over the examples."""
        if self.spec.scale:
            mean, deviation = self.spec.scale
            return ((logits[:, 0] - (label - mean) / deviation).square().sum(),)
        loss = functional.cross_entropy(logits, label, reduction="sum")
        return loss, (logits.argmax(1) == label).sum()

    def metrics(self, means: Mapping[str, float], done: float) -> dict[str, float]:
        """loss in nats a row and accuracy, or loss and mse, in squares of what is counted; l1 in
        nats a token."""
        if self.spec.scale:
            mse = means["l2"] * self.spec.scale[1] ** 2
            l1 = {"l1": means["l1"]} if self.weight(done) else {}
            return {"loss": means["l2"], "mse": mse, **l1}
        metrics = super().metrics(means, done)
        del metrics["perplexity"]  # of labels it says nothing
        return metrics


def _examples_read(batch: Tensors) -> int:
    return len(set(owners(batch)[batch["response_mask"].any(1)].tolist()))
