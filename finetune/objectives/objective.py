"""What a training run minimises: the interface between the trainer and an objective.

Keep: a label's weight is fixed before the first micro-batch of an optimizer step, from counts
over the whole step, so the sum over micro-batches and processes is the same loss however the
step is cut.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from finetune.data.batches import Collate, Tensors, TrainingRows
from finetune.data.preparation import Report


class Objective(Protocol):
    """A loss, and what it counts. `done` is the share of the run's steps already taken, 0 to 1."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the scalars that `losses` computes; the first is minimised."""
        ...

    @property
    def figures(self) -> Mapping[str, str]:
        """What the terminal shows: key of the log -> its name there."""
        ...

    @property
    def curves(self) -> Sequence[str]:
        """Those of the figures that are drawn over the steps."""
        ...

    @property
    def added(self) -> str:
        """The name of the module that the model gets for this objective, or ""."""
        ...

    @property
    def replies(self) -> bool:
        """Whether what is trained is to reply; a head only judges."""
        ...

    @property
    def dropout(self) -> bool:
        """Whether the model's own dropout stays on."""
        ...

    @property
    def needs_reference(self) -> bool:
        """Whether rows need what the model at the beginning gave them, see `reference`."""
        ...

    def summary(self, data: "RowSets") -> str:
        """What is minimised, and over how much, in one line."""
        ...

    def extend(self, model: Any, seed: int) -> None:
        """Put the added module on a model, with weights drawn by the seed."""
        ...

    def save(self, model: Any, folder: Path) -> None:
        """Write the added module beside the model's own files."""
        ...

    def load(self, model: Any, folder: Path) -> None:
        """Read the weights that `save` wrote. Raises ModelError."""
        ...

    def settings(self, done: float) -> dict[str, float]:
        """The weights that may change in the course of a run, by their keys in the log."""
        ...

    def count(self, batches: Iterable[Tensors], call: nn.Module, model: Any) -> Tensor:
        """What the losses of a step of these micro-batches are divided by, float64.

        The counts of processes are summed. call, model: as in `losses`, for what hangs on the
        weights and has to be known of the whole step before its first loss; the batches may be
        on the CPU.
        """
        ...

    def losses(
        self, call: nn.Module, model: Any, batch: Tensors, counts: Tensor, done: float
    ) -> Tensor:
        """The share of a micro-batch in the step's scalars, (names,). The first has a gradient.

        call: the model as it is called, which may be wrapped for several processes. model: the
        language model inside. counts: of `count`, over the whole step and all processes.
        """
        ...

    def metrics(self, means: Mapping[str, float], done: float) -> dict[str, float]:
        """What is told of rows that were measured. means: of the scalars, by name."""
        ...


@dataclass(frozen=True, slots=True)
class RowSets:
    """The rows an objective needs: what is trained on and measured.

    examples: of training, several of which may share a row. dropped: rows by reason.
    hashes: name -> digest of what was made of each source. response_labels, aux_labels: over
    the training rows. report: what became of every row; None for a head.
    """

    train: TrainingRows
    held_out: Mapping[str, TrainingRows]
    collate: Collate
    examples: int
    dropped: Mapping[str, int]
    hashes: dict[str, str]
    response_labels: int
    aux_labels: int
    report: Report | None = None


def has_adapter(model: Any) -> bool:
    """Whether peft has wrapped a model.

    Decided by what the wrapper holds, not by the method that is needed of it, so that a wrapper
    without that method is an error and never taken for a model without an adapter.
    """
    return hasattr(model, "peft_config")


def model_inputs(batch: Tensors) -> dict[str, Any]:
    """What the model is called with.

    Rows of several examples need their positions, from which transformers makes the
    block-causal mask in each model's own way; this works only without a cache. A row of one
    example needs nothing: padding stands at its right, where causal attention cannot see it.
    """
    inputs = {"input_ids": batch["input_ids"], "use_cache": False}
    if int(batch["example_ids"].max()) > 1:
        inputs["position_ids"] = batch["position_ids"]
    return inputs
