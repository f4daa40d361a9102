"""`finetune compare`: what several runs learned, and when, side by side.

Runs that differ only in their seed are one line: the mean of their figures, and their sample
standard deviation.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Column, Table
from rich.text import Text

from chatapp.common.extras import require
from chatapp.common.foreign import printable
from chatapp.common.paths import RUN_RECORD
from chatapp.common.userfiles import whole_file
from finetune.config.sections import ConfigError
from finetune.training.display import Points, draw_curves
from finetune.training.record import (
    LOG_FILE,
    LOSSES_FILE,
    PRETRAIN_RECORD,
    RESULT_FILE,
    is_figure,
    read_log,
    read_record,
    read_written,
)

FIGURES = {
    "loss": "loss",
    "eval_loss": "held-out loss",
    "eval_memory_loss": "held-out loss with memory",
    "masked": "masked loss",
    "eval_masked": "held-out masked loss",
    "eval_accuracy": "held-out accuracy",
    "eval_exact_match": "exact match",
    "window_loss": "loss of windows",
    "in_context": "in context",
    "previous": "previous token",
    "duplicate": "duplicate token",
    "induction": "induction",
    "last_word": "last word",
}
"""Keys of a log, and what they are called; see `finetune.training.record`."""

COSTS = {"tokens_per_second": ("tokens/s", 1), "memory_bytes": ("peak memory, MiB", 2**20)}
"""What a run costs by its log: what it is called, and the unit that it is divided by."""

PANELS = (
    ("window_loss", "eval_loss", "loss"),
    ("eval_masked", "masked"),
    ("in_context",),
    ("previous", "induction"),
)
"""What is drawn: of losses, the first figure that all runs with such a loss have."""

_MASKED = {"loss": "masked", "eval_loss": "eval_masked"}
"""The losses of masked models, which see both sides of a token, by names of their own."""

FORMED = 0.3
"""A run has formed induction from the first watched step whose largest score is at least this."""


@dataclass(frozen=True, slots=True)
class Course:
    """One run. curves: key of `FIGURES` and `COSTS` -> (step, value), as far as its log has them.

    parameters, formula: their number, and how it comes about; None where the run does not
    record them.
    """

    name: str
    config: Mapping[str, Any]
    curves: Mapping[str, Points]
    parameters: int | None = None
    formula: str | None = None

    @property
    def formed(self) -> int | None:
        """The watched step at which induction has formed; None where it never did."""
        points = self.curves.get("induction", ())
        return next((int(step) for step, score in points if score >= FORMED), None)


def read_course(run: Path) -> Course:
    """The course of a run, from its folder. Raises ConfigError."""
    for record, log in ((PRETRAIN_RECORD, LOSSES_FILE), (RUN_RECORD, LOG_FILE)):
        if (run / record).exists() and (run / log).exists():
            config = read_record(run, record)["config"]
            rows = read_log(run / log)
            curves = {
                key: [(row["step"], row[key]) for row in rows if is_figure(row.get(key))]
                for key in ("l3", *FIGURES, *COSTS)
            }
            curves["loss"] = curves["loss"] or curves.pop("l3")
            if _is_masked(config):
                curves |= {own: curves.pop(key) or curves[own] for key, own in _MASKED.items()}
            end = run / RESULT_FILE
            result = read_written(end) if end.exists() else {}
            return Course(
                run.name,
                config,
                {key: points for key, points in curves.items() if points},
                result.get("parameters"),
                result.get("formula"),
            )
    raise ConfigError(f"{run}: expected the folder of a run that has begun, with its log")


def _is_masked(config: Mapping[str, Any]) -> bool:
    """Whether the run of a configuration fills masks."""
    sections = [config[key] for key in ("objective", "shape") if isinstance(config.get(key), dict)]
    return any(
        part.get("kind") == "masked" or part.get("architecture") == "bert" for part in sections
    )


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Runs in groups that differ in nothing but their seed."""

    groups: Sequence[Sequence[Course]]

    @classmethod
    def of(cls, runs: Iterable[Path]) -> "RunComparison":
        """Read the runs. Raises ConfigError."""
        courses = sorted(map(read_course, runs), key=_setting)
        return cls([list(group) for _, group in groupby(courses, _setting)])

    def document(self) -> dict[str, Any]:
        """Plain data for --json."""
        return {
            "runs": [
                {
                    "run": course.name,
                    "group": number,
                    "induction_formed": course.formed,
                    "parameters": course.parameters,
                    "formula": course.formula,
                    "curves": {
                        key: list(map(list, points)) for key, points in course.curves.items()
                    },
                }
                for number, group in enumerate(self.groups)
                for course in group
            ]
        }

    def table(self) -> Table:
        """The last value of each figure, the step at which induction formed, and the costs; a
        group a column."""
        table = Table("", *(Column(Text(_name(group))) for group in self.groups))
        for key, title in FIGURES.items():
            self._add_last(table, title, key, 1, 3)
        if any("induction" in run.curves for group in self.groups for run in group):
            table.add_row("induction formed at step", *map(_formed, self.groups))
        for key, (title, unit) in COSTS.items():
            self._add_last(table, title, key, unit, 0)
        sizes = [group[0].parameters for group in self.groups]
        if any(sizes):
            table.add_row("parameters", *(f"{size:,}" if size else "" for size in sizes))
        return table

    def _add_last(self, table: Table, title: str, key: str, unit: float, digits: int) -> None:
        """Add the last value of each group's runs, divided by a unit, if any run has one."""
        last = [
            [run.curves[key][-1][1] / unit for run in group if key in run.curves]
            for group in self.groups
        ]
        if any(last):
            table.add_row(title, *(spread(values, digits) for values in last))

    def notes(self) -> RenderableType:
        """How the number of parameters of each group comes about, and what does not compare."""
        lines = [
            f"{_name(group)}: {group[0].parameters:,} parameters = {group[0].formula}"
            for group in self.groups
            if group[0].formula
        ]
        if any("masked" in run.curves for group in self.groups for run in group):
            lines.append(
                "A masked loss is that of hidden tokens, seen from both sides; it does not compare "
                "with a loss, which is that of each token given those before."
            )
        return Text("\n".join(lines))

    def panels(self, width: int, rows: int) -> RenderableType:
        """The curves for a terminal, one panel a figure; a group is its mean."""
        parts: list[RenderableType] = []
        for keys in PANELS:
            for key in self._drawn(keys):
                curves = {_name(group): mean_curve(group, key) for group in self.groups}
                parts.append(Text(FIGURES[key], "bold"))
                parts.append(draw_curves(curves, width, rows, geometric=True))
        return Group(*parts)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, the notes on it, and the curves below."""
        yield self.table()
        yield self.notes()
        yield self.panels(max(40, options.max_width - 2), 8)

    def save_plot(self, path: Path) -> None:
        """The same as a picture, each run thin and each mean thick. Raises OSError."""
        require("matplotlib")
        from matplotlib.figure import Figure

        keys = [key for panel in PANELS for key in self._drawn(panel)]
        figure = Figure(figsize=(7, 2.6 * len(keys)), layout="constrained")
        for number, key in enumerate(keys, 1):
            axes = figure.add_subplot(len(keys), 1, number, xlabel="step", ylabel=FIGURES[key])
            axes.set_xscale("symlog")
            for color, group in enumerate(self.groups):
                for run in group if len(group) > 1 else ():
                    points = run.curves.get(key, ())
                    axes.plot(*_columns(points), color=f"C{color}", alpha=0.25)
                mean = mean_curve(group, key)
                axes.plot(*_columns(mean), color=f"C{color}", label=_name(group))
            axes.grid(alpha=0.3)
        figure.axes[0].legend()
        kind = path.suffix.lstrip(".").lower() or "png"
        if kind not in ("png", "svg", "pdf"):
            raise ConfigError(f"{path}: expected a name that ends in .png, .svg or .pdf")
        with whole_file(path) as draft:
            figure.savefig(draft, format=kind, dpi=120)

    def _drawn(self, keys: Sequence[str]) -> list[str]:
        """The first loss that all runs with one have, and the scores that all have."""
        is_loss = keys[0].endswith(("loss", "masked"))
        runs = [run for group in self.groups for run in group]
        if is_loss:
            runs = [run for run in runs if not run.curves.keys().isdisjoint(keys)]
        common = [key for key in keys if runs and all(key in run.curves for run in runs)]
        return common[:1] if is_loss else common


def _columns(points: Points) -> tuple[list[float], list[float]]:
    return [step for step, _ in points], [value for _, value in points]


def _formed(group: Sequence[Course]) -> str:
    """At which step, in how many runs."""
    steps = [step for run in group if (step := run.formed) is not None]
    if not steps:
        return "never"
    never = len(group) - len(steps)
    return spread(steps, 0) + (f", never in {never}" if never else "")


def mean_curve(group: Sequence[Course], key: str) -> list[tuple[float, float]]:
    """The mean over runs at the steps that all of them have."""
    values = [dict(run.curves.get(key, ())) for run in group]
    steps = sorted(set.intersection(*(set(value) for value in values)))
    return [(step, fmean(value[step] for value in values)) for step in steps]


def spread(values: Sequence[float], digits: int) -> str:
    """Mean ± sample standard deviation; without it for a single value."""
    if not values:
        return ""
    mean = f"{fmean(values):,.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {stdev(values):,.{digits}f}"


def _setting(course: Course) -> str:
    """What the runs of a group share: the configuration without seed and folder."""
    return json.dumps(
        {
            key: value
            for key, value in course.config.items()
            if key not in ("seed", "output", "digests")
        },
        sort_keys=True,
    )


def _name(group: Sequence[Course]) -> str:
    """The name of a run, or that of the first of a group without its seed, and their number."""
    name = printable(group[0].name)
    if len(group) == 1:
        return name
    shared = "_".join(part for part in name.split("_") if not part.startswith("seed="))
    return f"{shared or name} (of {len(group)} seeds)"
