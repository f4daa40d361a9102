"""What an objective provides: its rows, its loss, its preview, its metrics and its evaluation.

Keep: what distinguishes one objective from another stands in its own file; everything outside
calls what is declared here. A label's weight is fixed before the first micro-batch of an optimizer
step, from counts over the whole step, so the sum over micro-batches and processes is the same loss
however the step is cut.
"""

# ruff: noqa: B027 (what most objectives need not do is empty here)
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

from rich.console import RenderableType
from torch import Tensor, nn

from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import PieceTokenizer, Tokenizer
from chatapp.prompting.chat_template import Template
from finetune.config.objectives import OBJECTIVES
from finetune.config.sections import FinetuneConfig, Metric
from finetune.data.batches import Collate, Tensors, TrainingRows
from finetune.data.preparation import Report
from finetune.data.prompts import EncodedPrompt


@dataclass(frozen=True, slots=True)
class ModelText:
    """How rows become the tokens of one model.

    name, files: of the model. template: of its chats; None for an objective that has none.
    window: tokens of the longest sequence, without `start`, the special tokens before each one.
    """

    name: str
    files: ModelFiles
    template: Template | None
    tokenizer: PieceTokenizer
    window: int
    start: list[int]

    @property
    def chat_template(self) -> Template:
        """The template, for objectives whose rows are chats."""
        assert self.template is not None
        return self.template


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


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt that a row asks. ids: its tokens, without those that start every sequence.

    text: what the user wrote. reference: the row's own reply, or "". prompt: of the row, of an
    objective that rewards replies.
    """

    ids: Sequence[int]
    text: str
    reference: str = ""
    prompt: EncodedPrompt | None = None


class MeasuredRow(Protocol):
    """A row that an evaluator has read. key: tells it from other rows."""

    @property
    def key(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of a set of rows.

    values: by name. intervals: of 95 %, of those that have one. predictions: of a head, what it
    answers to each row beside the row's label.
    """

    values: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    predictions: list[dict[str, Any]] = field(default_factory=list)


MEASURED_AT_ONCE = 8
"""Rows of a batch that is measured, not learnt from."""

Tell = Callable[[str, int], None]
"""Called with what is being done, and how many rows are done."""


@dataclass(frozen=True)
class Evaluator(ABC):
    """Reads the rows of a run for one model, and measures that model on them.

    config: of the run. text: of the model, which need not be the run's. Raises ConfigError for a
    model that cannot be measured so.
    """

    config: FinetuneConfig
    text: ModelText

    @abstractmethod
    def read_rows(self) -> tuple[Sequence[MeasuredRow], Mapping[str, Sequence[MeasuredRow]]]:
        """The rows to train on, and the held-out ones by the name of their set.

        Raises ConfigError.
        """

    @abstractmethod
    def measure(self, model: Any, rows: Sequence[Any], tell: Tell) -> Figures:
        """What a network makes of some of the rows."""

    @property
    def title(self) -> str:
        """In what the model was measured: the name of its template."""
        return self.text.chat_template.name

    def extend(self, model: Any) -> None:
        """Put on a network what was saved beside it. Raises ModelError."""

    def is_whole(self, row: Any) -> bool:
        """Whether a row was read without being cut for this model's window."""
        return True

    def questions(self, rows: Sequence[Any]) -> Iterator[Question]:
        """The prompts of the rows, for replies that are compared with the rows' own."""
        return iter(())


class Objective(ABC):
    """A loss with the rows it is of. `done` is the share of the run's steps already taken, 0 to 1.

    uses_template: whether its rows are chats. added: the name of the module that the model gets
    for it, or "". replies: whether what is trained is to reply; a head only judges. dropout:
    whether the model's own dropout stays on. needs_reference: whether rows need what the model at
    the beginning gave them, see `reference`. draws_replies: whether a step learns from replies that
    are drawn in it, see `finetune.training.rollouts`.
    """

    uses_template: ClassVar[bool] = True
    added: ClassVar[str] = ""
    replies: ClassVar[bool] = True
    dropout: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = False
    draws_replies: ClassVar[bool] = False

    # --- its rows ---

    @classmethod
    @abstractmethod
    def build(cls, config: FinetuneConfig, text: ModelText) -> tuple["Objective", RowSets]:
        """The objective that a configuration asks for, and its rows.

        Raises ConfigError and ModelError.
        """

    def questions(
        self, rows: TrainingRows, tokenizer: Tokenizer, context: int, skip: int
    ) -> Iterator[Question]:
        """The prompts of rows, each with room for a reply. skip: tokens at the start of a row that
        the model puts there itself."""
        return iter(())

    def reward(self, question: Question, reply: str, tokenizer: Tokenizer) -> float | None:
        """What a reply to a question earns; None where nothing rewards replies."""
        return None

    # --- its loss ---

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Of the scalars that `losses` computes; the first is minimised."""

    @abstractmethod
    def count(self, batches: Iterable[Tensors], call: nn.Module, model: Any) -> Tensor:
        """What the losses of a step of these micro-batches are divided by, float64.

        The counts of processes are summed. call, model: as in `losses`, for what hangs on the
        weights and has to be known of the whole step before its first loss; the batches may be
        on the CPU.
        """

    @abstractmethod
    def losses(
        self, call: nn.Module, model: Any, batch: Tensors, counts: Tensor, done: float
    ) -> Tensor:
        """The share of a micro-batch in the step's scalars, (names,). The first has a gradient.

        call: the model as it is called, which may be wrapped for several processes. model: the
        language model inside. counts: of `count`, over the whole step and all processes.
        """

    def extend(self, model: Any, seed: int) -> None:
        """Put the added module on a model, with weights drawn by the seed."""

    def save(self, model: Any, folder: Path) -> None:
        """Write the added module beside the model's own files."""

    def load(self, model: Any, folder: Path) -> None:
        """Read the weights that `save` wrote. Raises ModelError."""

    # --- what is shown of it ---

    @property
    @abstractmethod
    def figures(self) -> Mapping[str, str]:
        """What the terminal shows: key of the log -> its name there."""

    @property
    @abstractmethod
    def curves(self) -> Sequence[str]:
        """Those of the figures that are drawn over the steps."""

    @abstractmethod
    def summary(self, data: RowSets) -> str:
        """What is minimised, and over how much, in one line."""

    @abstractmethod
    def preview(
        self, data: RowSets, tokenizer: PieceTokenizer, marked: bool
    ) -> Mapping[str, Sequence[RenderableType]]:
        """What `finetune check` shows of the training rows: lines by their heading.

        marked: brackets stand around responses, for where there is no colour.
        """

    def preview_figures(self, data: RowSets, tokenizer: PieceTokenizer) -> dict[str, Any]:
        """What its --json adds."""
        return {}

    # --- its metrics and its evaluation ---

    @property
    def best_metrics(self) -> tuple[Metric, ...]:
        """The held-out figures by which the weights to keep can be chosen."""
        return ("loss", "accuracy")

    @abstractmethod
    def metrics(self, means: Mapping[str, float], done: float) -> dict[str, float]:
        """The figures of rows that were measured. means: of the scalars, by name."""

    def answer_figures(self, model: Any, rows: TrainingRows, text: ModelText) -> dict[str, float]:
        """Those of `best_metrics` that no loss gives."""
        return {}

    def settings(self, done: float) -> dict[str, float]:
        """The weights that may change in the course of a run, by their keys in the log."""
        return {}

    @classmethod
    @abstractmethod
    def evaluator(cls, config: FinetuneConfig, text: ModelText) -> Evaluator:
        """What `finetune eval` measures a model with. Raises ConfigError."""


def objective_class(config: FinetuneConfig) -> type[Objective]:
    """The objective that a configuration asks for, by the table `OBJECTIVES`."""
    module, name = OBJECTIVES[type(config.head or config.objective)].split(":")
    found: type[Objective] = getattr(import_module(f"finetune.objectives.{module}"), name)
    return found


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


def has_adapter(model: Any) -> bool:
    """Whether peft has wrapped a model.

    Decided by what the wrapper holds, not by the method that is needed of it, so that a wrapper
    without that method is an error and never taken for a model without an adapter.
    """
    return hasattr(model, "peft_config")
