"""Results of evaluations: figures with their intervals, replies, and both as tables."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from chatapp.common.foreign import one_line
from chatapp.tasks.metrics import difference
from finetune.training.answers import SampledReply

PER_TOKEN = ("loss", "perplexity", "token_accuracy")
SCORES = ("exact_match", "rouge_l")
"""The scores of replies."""

NAMES = {"loss_per_byte": "loss a byte", "rouge_l": "ROUGE-L"}


@dataclass(frozen=True, slots=True)
class GreedyAnswer:
    """A greedy reply with the row's own."""

    prompt: str
    reference: str
    reply: SampledReply

    def document(self) -> dict[str, str]:
        """Plain data for --json; an error only if the reply failed."""
        plain = {"prompt": self.prompt, "reference": self.reference, "reply": self.reply.text}
        return plain | ({"error": self.reply.error} if self.reply.error else {})


@dataclass(frozen=True, slots=True)
class SetResult:
    """A model on one set of rows.

    figures: by name; loss in nats per token, loss_per_byte in nats per byte of the replies as
    UTF-8. intervals: of 95 %, over the rows, of those figures that have one. left_out: rows that
    another model cannot hold. predictions: of a head, its answer to each row with the row's label.
    """

    examples: int
    figures: dict[str, float]
    answers: list[GreedyAnswer] = field(default_factory=list)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    left_out: int = 0
    predictions: list[dict[str, Any]] = field(default_factory=list)

    @property
    def failed(self) -> list[GreedyAnswer]:
        """The answers whose generation failed, which no figure counts."""
        return [answer for answer in self.answers if answer.reply.error]

    def document(self) -> dict[str, Any]:
        """Plain data for --json."""
        plain = {"examples": self.examples, "left_out": self.left_out, **self.figures}
        if self.predictions:
            return {**plain, "predictions": self.predictions}
        return {
            **plain,
            "intervals": {name: list(interval) for name, interval in self.intervals.items()},
            "scored_replies": len(self.answers) - len(self.failed),
            **({"failed_replies": len(self.failed)} if self.failed else {}),
            "replies": [answer.document() for answer in self.answers],
        }


@dataclass(frozen=True, slots=True)
class ModelResult:
    """A model on every set. vocabulary: a hash of its tokenizer's pieces."""

    model: str
    template: str
    sets: dict[str, SetResult]
    vocabulary: int = 0

    def document(self) -> dict[str, Any]:
        """Plain data for --json."""
        return {
            "model": self.model,
            "template": self.template,
            "sets": {name: result.document() for name, result in self.sets.items()},
        }


def differences(name: str, evaluations: Sequence[ModelResult]) -> list[dict[str, Any]]:
    """Each two models on the rows of a set, in what both were scored: exact match and ROUGE-L of
    their replies, or the accuracy of their heads; see `metrics.Difference`."""
    having = [evaluation for evaluation in evaluations if name in evaluation.sets]
    rows = []
    for one, other in combinations(having, 2):
        first, second = one.sets[name], other.sets[name]
        for measure, ours, theirs, golds in _scored_alike(first, second):
            between = difference(measure, [ours], [theirs], golds)
            names = {"first": one.model, "second": other.model, "measure": measure}
            rows.append({"set": name, **names, "n": len(golds), **asdict(between)})
            rows[-1]["words"] = between.words(one.model, other.model)
    return rows


def _scored_alike(
    first: SetResult, second: SetResult
) -> Iterator[tuple[str, list[str], list[str], list[str]]]:
    """Measures with both models' answers and the right ones, row by row."""
    if first.predictions and "output" in first.predictions[0]:
        rights = [
            [str(row["output"] == row["label"]) for row in result.predictions]
            for result in (first, second)
        ]
        yield "accuracy", rights[0], rights[1], ["True"] * len(rights[0])
        return
    pairs = [
        (one.reply.text, other.reply.text, one.reference)
        for one, other in zip(first.answers, second.answers, strict=False)
        if not (one.reply.error or other.reply.error)
    ]
    for measure in SCORES if pairs else ():
        ours, theirs, golds = (list(column) for column in zip(*pairs, strict=True))
        yield measure, ours, theirs, golds


def show(evaluations: Sequence[ModelResult], replies: int) -> RenderableType:
    """Tables of one model, or of several side by side, with some of their replies."""
    parts: list[RenderableType] = []
    for name in evaluations[0].sets:
        columns = [
            (evaluation, evaluation.sets[name])
            for evaluation in evaluations
            if name in evaluation.sets
        ]
        parts.append(_figures(name, columns))
        if len({evaluation.vocabulary for evaluation, _ in columns}) > 1:
            parts.append(Text("The models cut text into other tokens: compare the loss a byte."))
        for row in differences(name, evaluations):
            label = NAMES.get(row["measure"], row["measure"].replace("_", " "))
            words = f"{label} of the same {row['n']:,} rows, {row['words']}"
            parts.append(Text(one_line(words)))
        for evaluation, result in columns:
            if result.failed:
                reason = f"not scored, failed: {result.failed[0].reply.error}"
                parts.append(
                    Text(one_line(f"{evaluation.model}: {len(result.failed):,} replies {reason}"))
                )
        for number in range(min(replies, *(len(evaluation.answers) for _, evaluation in columns))):
            parts += [_replies(number, columns), Text("")]
    return Group(*parts)


Columns = Sequence[tuple[ModelResult, SetResult]]
"""The models that have a set of rows, and the results of each."""


def _figures(name: str, columns: Columns) -> Table:
    first = columns[0][1]
    title = f"{name}: {first.examples:,} rows"
    if first.left_out:
        title += f" that all can hold, {first.left_out:,} left out"
    table = Table(title=Text(one_line(title)))
    table.add_column("")
    for evaluation, _ in columns:
        label = Text(one_line(f"{evaluation.model} ({evaluation.template})"))
        table.add_column(label, justify="right")
    unlike = len({evaluation.vocabulary for evaluation, _ in columns}) > 1
    for figure in first.figures:
        if not (unlike and figure in PER_TOKEN):
            row_name = NAMES.get(figure, figure.replace("_", " "))
            table.add_row(row_name, *(_cell(result, figure) for _, result in columns))
    return table


def _cell(result: SetResult, figure: str) -> str:
    if figure not in result.figures:
        return ""
    text = f"{result.figures[figure]:.4f}"
    if figure in result.intervals:
        low, high = result.intervals[figure]
        answered = len(result.answers) - len(result.failed)
        scored = answered if figure in SCORES else result.examples
        text += f" ({low:.3f} to {high:.3f}, n {scored:,})"
    return text


def _replies(number: int, columns: Columns) -> Table:
    """One prompt, the row's answer, and each model's."""
    first = columns[0][1].answers[number]
    block = Table.grid(padding=(0, 1))
    block.add_column()
    block.add_column(overflow="fold")
    block.add_row(Text("prompt", "dim"), Text(one_line(first.prompt), "bold"))
    block.add_row(Text("row", "dim"), Text(one_line(first.reference), "green"))
    for evaluation, result in columns:
        reply = Text(one_line(str(result.answers[number].reply)))
        block.add_row(Text(one_line(evaluation.model), "dim"), reply)
    return block
