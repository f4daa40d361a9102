"""The interface of an objective: its rows, loss, preview, metrics and evaluation; and the checks
that a model can be trained, or teach, on such rows.

Invariant: everything specific to an objective is in its own file; other code calls the methods
declared here. A label's weight is fixed before the first micro-batch of an optimizer step, from
counts over the whole step, so the sum over micro-batches and processes is the same loss however the
step is cut. A model whose loss would silently be wrong is refused before the first step.
"""

# ruff: noqa: B027 (what most objectives need not do is empty here)
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from rich.console import RenderableType
from torch import Tensor, nn
from torch.nn import functional

from chatapp.engine.backends.head import in_place_of
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import PieceTokenizer, Tokenizer
from chatapp.prompting.chat_template import ChatTemplate
from finetune.config.objectives import OBJECTIVES, L3Settings, Metric
from finetune.config.sections import ConfigError, FinetuneConfig
from finetune.data.batches import Collate, Tensors, TrainingRows
from finetune.data.encoding import Encoded, Span, last_response
from finetune.data.preparation import Report
from finetune.data.prompts import EncodedPrompt


@dataclass(frozen=True, slots=True)
class ModelText:
    """The conversion of rows to the tokens of one model.

    name, files: of the model. template: of its chats; None for an objective without one. window:
    tokens of the longest sequence, without `start`, the special tokens before each one.
    """

    name: str
    files: ModelFiles
    template: ChatTemplate | None
    tokenizer: PieceTokenizer
    window: int
    start: list[int]

    @property
    def chat_template(self) -> ChatTemplate:
        """The template, for objectives whose rows are chats."""
        assert self.template is not None
        return self.template


@dataclass(frozen=True, slots=True)
class RowSets:
    """The rows of an objective, for training and evaluation.

    examples: of training, several of which may share a row. hashes: name -> digest of the examples
    of each source. response_labels, aux_labels: over the training rows. report: statistics of all
    rows; of a head those dropped alone.
    """

    train: TrainingRows
    held_out: Mapping[str, TrainingRows]
    collate: Collate
    examples: int
    hashes: dict[str, str]
    response_labels: int
    aux_labels: int
    report: Report


@dataclass(frozen=True, slots=True)
class RowPrompt:
    """A prompt of a row. ids: its tokens, without those that start every sequence.

    text: the user's text. reference: the row's own reply, or "". prompt: of the row, for an
    objective that rewards replies.
    """

    ids: Sequence[int]
    text: str
    reference: str = ""
    prompt: EncodedPrompt | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """The results for a set of rows.

    values: by name. intervals: of 95 %, of those that have one. predictions: of a head, its answer
    to each row with the row's label.
    """

    values: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    predictions: list[dict[str, Any]] = field(default_factory=list)


EVALUATION_BATCH = 8
"""Rows of a batch in evaluation."""

Tell = Callable[[str, int], None]
"""Called with the current work, and the number of finished rows."""


@dataclass(frozen=True)
class Evaluator(ABC):
    """Reads the rows of a run for one model, and evaluates that model on them.

    config: of the run. text: of the model, which need not be the run's. Raises ConfigError for a
    model that cannot be evaluated so.
    """

    config: FinetuneConfig
    text: ModelText

    @abstractmethod
    def read_rows(self) -> tuple[Sequence[Any], Mapping[str, Sequence[Any]]]:
        """The training rows, and the held-out ones by the name of their set, each with a `key` that
        distinguishes it from others. Raises ConfigError.
        """

    @abstractmethod
    def measure(self, model: Any, rows: Sequence[Any], tell: Tell) -> Figures:
        """Evaluate a network on some of the rows."""

    @property
    def title(self) -> str:
        """The label of the evaluation: the name of the model's template."""
        return self.text.chat_template.name

    def extend(self, model: Any) -> None:
        """Add the module stored with a network. Raises ModelError."""

    def is_whole(self, row: Any) -> bool:
        """Whether a row fits this model's window without cuts."""
        return not getattr(row, "is_window", False)

    def questions(self, rows: Sequence[Any]) -> Iterator[RowPrompt]:
        """The prompts of the rows, for replies that are compared with the rows' own."""
        return iter(())


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value that a step computes, a mean over it, and what is made of it.

    label: in the display, "" hides it. curve: whether it is drawn over the steps. metric: its name
    among the figures of held-out rows, "" for none. is_nats: whether it is a token's loss, so that
    a metric comes with its perplexity. held_out: label of the metric in the display, drawn too.
    over: the place in `Objective.count` of what it is a mean over; None for the whole step.
    """

    label: str = ""
    curve: bool = False
    metric: str = ""
    is_nats: bool = False
    held_out: str = ""
    over: int | None = None


def perplexity(loss: float) -> float:
    """exp of a mean loss in nats, at most the largest float."""
    return math.exp(min(loss, 700.0))


class Objective(ABC):
    """A loss with its rows. `done` is the finished fraction of the run's steps, 0 to 1.

    evaluator: of `finetune eval`. uses_template: whether its rows are chats. added: the name of the
    module that it adds to the model, or "". replies: whether the trained model replies; a head does
    not. dropout: whether the model's own dropout stays on. needs_reference: whether rows need
    values of the initial model, see `rows`. draws_replies: whether a step trains on replies drawn
    in it, see `finetune.training.building`.
    """

    evaluator: ClassVar[type[Evaluator]]
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
        """The objective of a configuration, and its rows.

        Raises ConfigError and ModelError.
        """

    def questions(
        self, rows: TrainingRows, tokenizer: Tokenizer, context: int, skip: int = 0
    ) -> Iterator[RowPrompt]:
        """The prompts of rows, each with room for a reply. skip: tokens at the start of a row that
        the model itself puts there.
        """
        return row_questions(cast(Any, rows).examples, tokenizer, context, skip)

    def reward(self, question: RowPrompt, reply: str, tokenizer: Tokenizer) -> float | None:
        """The reward of a reply; None without rewards."""
        return None

    # --- its loss ---

    @property
    @abstractmethod
    def scalars(self) -> Mapping[str, Scalar]:
        """The values of `losses`, by their keys in the log; the first is minimized."""

    @property
    def names(self) -> tuple[str, ...]:
        """The keys of `scalars`."""
        return tuple(self.scalars)

    @abstractmethod
    def count(self, batches: Iterable[Tensors], call: nn.Module, model: Any) -> Tensor:
        """The divisors of a step's losses over these micro-batches, float64.

        The counts of processes are summed. call, model: as in `losses`, for values that depend on
        the weights and are needed for the whole step before its first loss; the batches may be on
        the CPU.
        """

    @abstractmethod
    def losses(
        self, call: nn.Module, model: Any, batch: Tensors, counts: Tensor, done: float
    ) -> Tensor:
        """The part of a micro-batch in the step's scalars, (names,). The first has a gradient.

        call: the callable model, which may be wrapped for several processes. model: the language
        model inside. counts: of `count`, over the whole step and all processes.
        """

    def weights(self, counts: Tensor) -> Tensor:
        """What a step weighs in the mean of each scalar over several steps, (names,): how many it
        is a mean over, so that one without any does not count as 0; 1 for means of whole steps.
        """
        over = (scalar.over for scalar in self.scalars.values())
        return torch.stack([torch.ones_like(counts[0]) if n is None else counts[n] for n in over])

    def means(self, sums: Tensor, weights: Tensor) -> dict[str, float]:
        """The scalars of several steps, weighted and summed, as means; without what none had."""
        known = zip(self.names, sums.tolist(), weights.tolist(), strict=True)
        return {name: value / weight for name, value, weight in known if weight}

    def extend(self, model: Any, seed: int) -> None:
        """Add the objective's module to a model, with weights drawn by the seed."""

    def close(self) -> None:
        """End the processes that it has started."""

    def save(self, model: Any, folder: Path) -> None:
        """Write the added module next to the model's own files."""

    def load(self, model: Any, folder: Path) -> None:
        """Read the weights that `save` wrote. Raises ModelError."""

    # --- its display ---

    @property
    def figures(self) -> dict[str, str]:
        """The figures in the terminal: key of the log -> label."""
        labels = {key: scalar.label for key, scalar in self.scalars.items() if scalar.label}
        measured = (scalar for scalar in self.scalars.values() if scalar.held_out)
        return labels | {f"eval_{scalar.metric}": scalar.held_out for scalar in measured}

    @property
    def curves(self) -> list[str]:
        """The figures that are drawn over the steps."""
        drawn = [key for key, scalar in self.scalars.items() if scalar.curve]
        return drawn + [key for key in self.figures if key.startswith("eval_")]

    @abstractmethod
    def summary(self, data: RowSets) -> str:
        """A description of the loss and the amount of data, in one line."""

    @abstractmethod
    def preview(
        self, data: RowSets, tokenizer: PieceTokenizer, marked: bool
    ) -> Mapping[str, Sequence[RenderableType]]:
        """The part of `finetune check` on the training rows: lines by their heading.

        marked: brackets around responses, for terminals without colours.
        """

    def preview_figures(self, data: RowSets, tokenizer: PieceTokenizer) -> dict[str, Any]:
        """The additional data of --json."""
        return {}

    # --- its metrics and its evaluation ---

    @property
    def best_metrics(self) -> tuple[Metric, ...]:
        """The held-out figures that can select the weights to keep."""
        return ("loss", "accuracy")

    def metrics(self, means: Mapping[str, float], done: float) -> dict[str, float]:
        """The figures of evaluated rows. means: of the scalars, by name."""
        metrics = {}
        for key, scalar in self.scalars.items():
            if scalar.metric and key in means:
                metrics[scalar.metric] = means[key]
                if scalar.is_nats:
                    metrics["perplexity"] = perplexity(means[key])
        return metrics

    def answer_figures(self, model: Any, rows: TrainingRows, text: ModelText) -> dict[str, float]:
        """Those of `best_metrics` that no loss gives."""
        return {}

    def settings(self, done: float) -> dict[str, float]:
        """The weights that may change during a run, by their keys in the log."""
        return {}


def objective_class(config: FinetuneConfig) -> type[Objective]:
    """The objective of a configuration, from the table `OBJECTIVES`."""
    module, name = OBJECTIVES[type(config.head or config.objective)].split(":")
    objective: type[Objective] = getattr(import_module(f"finetune.objectives.{module}"), name)
    return objective


def row_questions(
    examples: Sequence[Encoded], tokenizer: Tokenizer, context: int, skip: int = 0
) -> Iterator[RowPrompt]:
    """The last question of each example, in their order.

    A plain text has none, and a prompt that fills the window is left out. skip: tokens at the start
    of a row that the model itself puts there.
    """
    for example in examples:
        ids, spans = example.ids[skip:], example.spans[skip:]
        response = last_response(spans)
        first = response.start
        if 0 < first < context:
            yield RowPrompt(
                ids[:first].tolist(),
                tokenizer.decode(ids[:first][spans[:first] == Span.PROMPT].tolist()).strip(),
                tokenizer.decode(ids[response].tolist()).strip(),
            )


def model_inputs(batch: Tensors, *, sees_all: bool = False) -> dict[str, Any]:
    """The arguments of the model for a batch.

    sees_all: whether a token sees later ones, from which padding is then hidden.

    Rows of several examples need their positions, from which transformers makes the block-causal
    mask in each model's own way; this works only without a cache. A row of one example needs
    nothing: padding is at its right, where causal attention cannot see it.
    """
    if sees_all:
        real = (batch["example_ids"] > 0).long()
        return {"input_ids": batch["input_ids"], "attention_mask": real}
    inputs = {"input_ids": batch["input_ids"], "use_cache": False}
    if int(batch["example_ids"].max()) > 1:
        inputs["position_ids"] = batch["position_ids"]
    return inputs


def through_head(
    call: Any,
    model: Any,
    batch: Tensors,
    compute: Callable[[Tensor], Tensor],
    *,
    sees_all: bool = False,
) -> Tensor:
    """What `compute` makes of the input of a model's head, (sequences, tokens, width).

    It stands in the head's place, so one call of a wrapped model does all. call: the callable
    model. sees_all: see `model_inputs`.
    """
    with in_place_of(model.get_output_embeddings(), compute):
        result: Tensor = call(**model_inputs(batch, sees_all=sees_all)).logits
    return result


def has_adapter(model: Any) -> bool:
    """Whether peft has wrapped a model.

    Decided by the contents of the wrapper, not by the method that callers need, so that a wrapper
    without that method is an error and not taken for a model without an adapter.
    """
    return hasattr(model, "peft_config")


def check_kind(config: FinetuneConfig, files: ModelFiles) -> None:
    """Check that the objective fits the kind of model. Raises ConfigError."""
    kind = config.objective.kind
    if files.is_encoder_decoder:
        _check_encoder_decoder(config, files)
        return
    if files.is_masked and kind != "masked" and config.head is None:
        raise ConfigError(
            f"objective.kind is {kind}, but {config.model} is a masked model ({files.family}), "
            'which sees the tokens that it would learn; set objective.kind = "masked", or a [head]'
        )
    if kind == "masked" and not files.is_masked:
        raise ConfigError(
            f"objective.kind is masked, but {config.model} ({files.family}) is not a masked model; "
            "expected one such as BERT"
        )


def _check_encoder_decoder(config: FinetuneConfig, files: ModelFiles) -> None:
    what = f"{config.model} is an encoder-decoder model ({files.family})"
    if config.head or not isinstance(config.objective, L3Settings):
        raise ConfigError(f"{what}, which learns replies; expected objective.kind l3, and no head")
    if config.objective.aux_weight:
        raise ConfigError(
            f"objective.aux_weight is {config.objective.aux_weight:g}, but {what}: its encoder "
            "reads the prompt in both directions and predicts none of it; set it to 0"
        )
    if config.data.packing:
        raise ConfigError(f"data.packing: {what}, which reads one prompt a row; set it to false")


def check_causal(model: Any) -> None:
    """Check that no token sees a later one. Raises ConfigError.

    Otherwise, as in BERT, each label would be among what the model reads, and the loss say nothing.
    """
    entries = model.get_input_embeddings().weight.shape[0]
    ids = torch.arange(1, 7, device=model.device)[None] % entries
    other = ids.clone()
    other[0, -1] = 0
    model.eval()
    with torch.no_grad():
        logits, changed = (model(input_ids=row, use_cache=False).logits for row in (ids, other))
    # Of weights that have learned nothing yet, a later token changes little, but no rounding error.
    earlier = logits[0, :-1].float()
    if (changed[0, :-1].float() - earlier).abs().max() <= 1e-5 * earlier.std():
        return
    raise ConfigError(
        f"models of type {model.config.model_type} see later tokens, the labels among them; "
        "expected a causal language model, such as GPT-2 or Llama"
    )


def check_head(model: Any) -> None:
    """Check that the logits are the head's plain product, which the objective computes itself.

    Raises ConfigError for models that change them afterwards.
    """
    head = model.get_output_embeddings()
    ids = torch.arange(4, device=model.device)[None] % model.get_input_embeddings().weight.shape[0]
    seen: list[torch.Tensor] = []
    if isinstance(head, torch.nn.Linear):

        def keep(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
            seen.append(inputs[0])

        hook = head.register_forward_pre_hook(keep)
        with torch.no_grad():
            logits = model.eval()(input_ids=ids, use_cache=False).logits
        hook.remove()
        expected = functional.linear(seen[0], head.weight, head.bias).float()
        if torch.allclose(logits.float(), expected, rtol=1e-3, atol=1e-4):
            return
    raise ConfigError(
        f"models of type {model.config.model_type} change their logits after the language-model "
        "head; fine-tuning them is not supported"
    )


def check_packing(model: Any) -> None:
    """Check that two examples in one row do not see each other. Raises ConfigError."""
    entries = model.get_input_embeddings().weight.shape[0]
    first, second = torch.arange(3) % entries, torch.arange(3, 8) % entries
    first, second = first.to(model.device), second.to(model.device)
    batch: Tensors = {
        "input_ids": torch.cat([first, second])[None],
        "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]], device=model.device),
        "example_ids": torch.tensor([[1, 1, 1, 2, 2, 2, 2, 2]]),
    }
    model.eval()
    with torch.no_grad():
        alone = model(input_ids=second[None], use_cache=False).logits
        try:
            packed = model(**model_inputs(batch)).logits[:, 3:]
        except TypeError:  # it takes no positions
            packed = None
    if packed is None or not torch.allclose(packed, alone, rtol=1e-3, atol=1e-3):
        raise ConfigError(
            f"data.packing: models of type {model.config.model_type} cannot keep examples of one "
            "row apart; set data.packing = false"
        )
