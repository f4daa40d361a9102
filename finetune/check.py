"""`finetune check`: what would be trained on what, at which cost, without training.

Keep: every number is of the very rows, masks and steps that `finetune train`
would use; nothing is estimated from a sample but the time, which is measured on real steps.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from chatapp.common.foreign import printable
from finetune.config.sections import FinetuneConfig
from finetune.data.encoding import Encoded, Span
from finetune.data.packing import Rows
from finetune.data.preparation import dropped_lines
from finetune.objectives.grpo import Grpo, PromptRows
from finetune.objectives.head_rows import HeadRows
from finetune.objectives.heads import HeadObjective
from finetune.objectives.kto import Kto
from finetune.objectives.l3 import L3
from finetune.objectives.rows import PairRows
from finetune.training.display import duration, memory, short_middling_long
from finetune.training.previews import (
    legend,
    masked,
    pair_figures,
    prompt_figures,
    show_pairs,
    show_prompts,
)
from finetune.training.run_setup import RunSetup, set_up_run
from finetune.training.trainer_factory import steps_of_run, timed_steps, too_few

BAR = 14


@dataclass(frozen=True, slots=True)
class Examination:
    """What would be trained, and what it costs. steps: of the whole run."""

    setup: RunSetup
    steps: int
    trainable_parameters: int
    seconds_per_step: float
    peak_memory_bytes: int

    @property
    def kept(self) -> int:
        """Rows that are trained on or measured."""
        data = self.setup.data
        if data.report:
            return data.report.kept
        return data.examples + sum(len(rows) for rows in data.held_out.values())

    def document(self) -> dict[str, Any]:
        """The answer of `--json`: tokens are labels of L1 and of L2 in one epoch."""
        data, objective = self.setup.data, self.setup.objective
        figures = {}
        if isinstance(data.train, PairRows):
            figures = pair_figures(data.train, isinstance(objective, Kto))
        elif isinstance(data.train, PromptRows) and isinstance(objective, Grpo):
            figures = prompt_figures(data.train, objective, self.setup)
        return {
            "kept": self.kept,
            "dropped": dict(data.dropped),
            "truncated": dict(data.report.truncated) if data.report else {},
            "held_out": {name: len(rows) for name, rows in data.held_out.items()},
            "prompt_tokens": data.aux_labels,
            "response_tokens": data.response_labels,
            "effective_prompt_weight": (
                objective.prompt_weight(data) if isinstance(objective, L3) else 0.0
            ),
            "trainable_parameters": self.trainable_parameters,
            "steps": self.steps,
            "seconds_per_step": self.seconds_per_step,
            "peak_memory_bytes": self.peak_memory_bytes,
            **figures,
        }


def examine(config: FinetuneConfig, device: str = "auto") -> Examination:
    """Prepare everything and take a few steps that leave nothing behind.

    device: see `set_up_run`. Raises ConfigError and ModelError.
    """
    setup = set_up_run(config, device)
    return Examination(setup, steps_of_run(config, setup.data), *timed_steps(setup))


def show(examination: Examination, console: Console) -> None:
    """Print an examination; foreign text stays plain characters."""
    train = examination.setup.data.train
    parts: dict[str, list[RenderableType]] = {"Rows": list(_rows(examination))}
    if isinstance(train, Rows):
        parts["Tokens"] = list(_tokens(examination, train))
        marked = console.color_system is None
        parts["Masks"] = list(_masks(train.examples, examination.setup, marked))
    elif isinstance(train, PairRows):
        parts["Pairs"] = list(show_pairs(train, examination.setup, console))
    elif isinstance(train, PromptRows):
        objective = examination.setup.objective
        assert isinstance(objective, Grpo)
        parts["Prompts"] = list(show_prompts(train, objective, examination.setup))
    elif isinstance(train, HeadRows):
        parts["Labels"] = list(_labels(train, examination.setup))
    parts["Cost"] = [Text(_cost(examination))]
    if warning := too_few(examination.steps):
        parts["Cost"].append(Text(warning, "yellow"))
    for title, lines in parts.items():
        console.print(Text(title, "bold"))
        for line in lines:
            console.print(Padding(line, (0, 0, 0, 2), expand=False))


def _rows(examination: Examination) -> Iterator[RenderableType]:
    """What was read, and what became of it."""
    data = examination.setup.data
    lines = data.report.lines() if data.report else dropped_lines(data.dropped)
    yield from (Text(printable(line)) for line in lines)
    measured = ", ".join(f"{printable(name)} {len(rows):,}" for name, rows in data.held_out.items())
    yield Text(
        f"{data.examples:,} examples in {len(data.train):,} rows to learn from; "
        f"to measure: {measured or 'none'}"
    )


def _tokens(examination: Examination, train: Rows) -> Iterator[RenderableType]:
    """How long prompts and responses are, and what the objective makes of them."""
    lengths = np.array([np.bincount(each.spans, minlength=len(Span)) for each in train.examples])
    shown = {
        "whole": lengths.sum(1),
        "prompt": lengths[:, Span.PROMPT],
        "response": lengths[:, Span.RESPONSE],
    }
    edges = _edges(int(shown["whole"].max()))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("tokens", justify="right")
    for name in shown:
        table.add_column(name, min_width=BAR + 6)
    counts = {name: np.histogram(each, edges)[0] for name, each in shown.items()}
    for row, (low, high) in enumerate(pairwise(edges)):
        bars = [_bar(int(each[row]), int(each.max())) for each in counts.values()]
        table.add_row(f"{low}–{high - 1}", *bars)
    table.add_row(
        "mean", *(Text(f"{each.mean():,.0f}, at most {each.max():,}") for each in shown.values())
    )
    yield table
    template = int(lengths[:, Span.TEMPLATE].sum())
    objective, data = examination.setup.objective, examination.setup.data
    yield Text(f"an epoch: {int(lengths.sum()):,} tokens, of them {template:,} of the template")
    assert isinstance(objective, L3)
    yield Text(
        f"labels: {data.response_labels:,} of L2 (responses), {data.aux_labels:,} of L1 "
        f"({train.aux_span}); N_response/N_prompt = "
        f"{data.response_labels / max(1, data.aux_labels):.3g}"
    )
    if data.aux_labels:
        yield Text(
            f"λ = {objective.aux_weight:g}: a token of L1 counts "
            f"{objective.prompt_weight(data):.3g} times as much as one of L2"
        )


def _edges(longest: int) -> list[int]:
    """Doubling bounds from 0 to beyond the longest."""
    edges = [0, 8]
    while edges[-1] <= longest:
        edges.append(edges[-1] * 2)
    return edges


def _bar(count: int, most: int) -> Text:
    return Text("█" * -(-BAR * count // max(1, most)) + (f" {count:,}" if count else ""))


def _masks(examples: Sequence[Encoded], setup: RunSetup, marked: bool) -> Iterator[RenderableType]:
    """A short, a middling and a long example, span by span; see `masked`."""
    yield legend(marked)
    for example in short_middling_long(sorted(examples, key=lambda each: len(each.ids))):
        yield Text(f"── {len(example.ids):,} tokens", "dim")
        yield masked(example, setup.tokenizer, marked)


def _labels(rows: HeadRows, setup: RunSetup) -> Iterator[RenderableType]:
    """How often each class occurs, and how long the rows are."""
    objective = setup.objective
    spec = objective.spec if isinstance(objective, HeadObjective) else None
    if spec and spec.scale:
        numbers = [example.label for example in rows.examples]
        yield Text(
            f"numbers from {min(numbers):g} to {max(numbers):g}, mean {spec.scale[0]:g}, "
            f"standard deviation {spec.scale[1]:g}"
        )
    else:
        counts = Counter(int(example.label) for example in rows.examples)
        for label, count in sorted(counts.items()):
            name = spec.labels[label] if spec and spec.labels else f"choice {label}"
            yield Text(f"{count:,} {printable(name)}")
    yield Text(
        f"{np.mean(rows.lengths):.0f} tokens a row on average, at most {max(rows.lengths):,}"
    )


def _cost(examination: Examination) -> str:
    seconds, method = examination.seconds_per_step, examination.setup.config.train.method
    return (
        f"{examination.trainable_parameters:,} parameters are trained ({method}); "
        f"{examination.steps:,} steps of {seconds:.2f} s, about "
        f"{duration(examination.steps * seconds)}; the longest step took "
        f"{memory(examination.peak_memory_bytes)} of memory, and measuring and saving take more"
    )
