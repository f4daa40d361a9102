"""`finetune check`: the rows, masks and steps of a training, and their cost by real steps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from chatapp.common.foreign import printable
from finetune.config.sections import FinetuneConfig
from finetune.data.preparation import dropped_lines
from finetune.training.building import steps_of_run, timed_steps, too_few
from finetune.training.display import duration, memory
from finetune.training.setup import RunSetup, set_up_run


@dataclass(frozen=True, slots=True)
class Examination:
    """The rows and cost of a training. steps: of the whole run."""

    setup: RunSetup
    steps: int
    trainable_parameters: int
    seconds_per_step: float
    peak_memory_bytes: int

    @property
    def kept(self) -> int:
        """Rows for training or evaluation."""
        data = self.setup.data
        if data.report:
            return data.report.kept
        return data.examples + sum(len(rows) for rows in data.held_out.values())

    def document(self) -> dict[str, Any]:
        """The output of `--json`: tokens are labels of L2 and of L1 in one epoch."""
        data = self.setup.data
        return {
            "kept": self.kept,
            "dropped": dict(data.dropped),
            "truncated": dict(data.report.truncated) if data.report else {},
            "held_out": {name: len(rows) for name, rows in data.held_out.items()},
            "prompt_tokens": data.aux_labels,
            "response_tokens": data.response_labels,
            "effective_prompt_weight": 0.0,
            "trainable_parameters": self.trainable_parameters,
            "steps": self.steps,
            "seconds_per_step": self.seconds_per_step,
            "peak_memory_bytes": self.peak_memory_bytes,
            **self.setup.objective.preview_figures(data, self.setup.tokenizer),
        }


def examine(
    config: FinetuneConfig, device: str = "auto", *, runs_code: bool = False
) -> Examination:
    """Prepare everything and take a few steps that leave nothing behind.

    device, runs_code: see `set_up_run`. Raises ConfigError and ModelError.
    """
    setup = set_up_run(config, device, runs_code=runs_code)
    return Examination(
        setup, steps_of_run(config.train, len(setup.data.train)), *timed_steps(setup)
    )


def show(examination: Examination, console: Console) -> None:
    """Print an examination; foreign text stays plain characters."""
    setup, marked = examination.setup, console.color_system is None
    cost = [Text(_cost(examination))]
    if warning := too_few(examination.steps):
        cost.append(Text(warning, "yellow"))
    parts: dict[str, Sequence[RenderableType]] = {
        "Rows": list(_rows(examination)),
        **setup.objective.preview(setup.data, setup.tokenizer, marked),
        "Cost": cost,
    }
    for title, lines in parts.items():
        console.print(Text(title, "bold"))
        for line in lines:
            console.print(Padding(line, (0, 0, 0, 2), expand=False))


def _rows(examination: Examination) -> Iterator[RenderableType]:
    """The rows that were read, kept and dropped."""
    data = examination.setup.data
    lines = data.report.lines() if data.report else dropped_lines(data.dropped)
    yield from (Text(printable(line)) for line in lines)
    held_out = ", ".join(f"{printable(name)} {len(rows):,}" for name, rows in data.held_out.items())
    yield Text(
        f"{data.examples:,} examples in {len(data.train):,} rows to learn from; "
        f"to measure: {held_out or 'none'}"
    )


def _cost(examination: Examination) -> str:
    seconds, method = examination.seconds_per_step, examination.setup.config.train.method
    return (
        f"{examination.trainable_parameters:,} parameters are trained ({method}); "
        f"{examination.steps:,} steps of {seconds:.2f} s, about "
        f"{duration(examination.steps * seconds)}; the longest step took "
        f"{memory(examination.peak_memory_bytes)} of memory, and measuring and saving take more"
    )
