"""The results of an evaluation as data and as a table for a terminal."""

import platform
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, replace
from importlib.metadata import version
from itertools import chain, combinations
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, cast

from chatapp import __version__
from chatapp.common.foreign import printable
from chatapp.tasks.evaluation.evaluate import Task
from chatapp.tasks.evaluation.journal import Cell, JournalRow, cell_of, decided
from chatapp.tasks.files.promptfile import CHOICE_SCORINGS
from chatapp.tasks.metrics import MEASURES, Difference, difference, estimate
from chatapp.tasks.settings import Scoring

if TYPE_CHECKING:
    from rich.table import Table

Vote = Callable[[Cell], list[str] | None]
"""The majority of the k nearest examples for each item."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the figures of a result are computed from.

    rows: the answers in one setting. voted, by_head: the answers of the vote and of the model's
    head to the items; None where there is none.
    """

    task: Task
    rows: Sequence[JournalRow]
    metric: str
    mean: float
    voted: Sequence[str] | None
    by_head: Sequence[str] | None

    def score(self, answers: Sequence[str] | None) -> float | None:
        """The metric of other answers to the items; None for none."""
        golds = [item.gold for item in self.task.items]
        return None if answers is None else MEASURES[self.metric].score(answers, golds)

    @property
    def majority(self) -> float:
        """The metric of the most common gold answer; with choices, of a random one."""
        if chances := [1 / len(item.choices) for item in self.task.items if item.choices]:
            return fmean(chances)
        commonest = Counter(item.output for item in self.task.items).most_common(1)[0][0]
        return cast(float, self.score([commonest] * len(self.task.items)))

    def golden(self) -> list[list[bool]]:
        """Whether each demonstration of each answer has the item's gold answer."""
        outputs = self.task.prompt.pool.outputs
        shown = [[outputs[i] == row["gold"] for i in row["examples"]] for row in self.rows]
        return shown if any(shown) else []

    def mean_of(self, name: Literal["dropped", "tokens", "seconds"]) -> float:
        """The mean of a field of the rows."""
        return fmean(row[name] for row in self.rows)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the printed table, and a key of the report.

    name: above it. meaning: what an unclear name means, printed below the table. form: how a value
    is written; None is blank. compute: the figure; None for what the setting or the estimate says.
    is_text: set at the left, not at the right. narrow: when a narrow terminal leaves it out, the
    lowest first; None for one that always stays. optional: left out where it is blank in all rows.
    """

    name: str
    meaning: str = ""
    form: str = "{}"
    compute: Callable[[Measured], float | None] | None = None
    is_text: bool = False
    narrow: float | None = None
    optional: bool = False
    field: str = ""

    def show(self, result: "Result") -> str:
        """The text of a result in it."""
        value = getattr(result, self.field)
        return "" if value is None else self.form.format(value)


def _column(name: str, meaning: str = "", **declared: Any) -> Any:
    """A field of `Result` with its column. declared: the rest of `Column`, and a `default`."""
    default = declared.pop("default", MISSING)
    return field(default=default, metadata={"column": Column(name, meaning, **declared)})


def _fraction(name: str, meaning: str, **declared: Any) -> Any:
    return _column(name, meaning, **{"form": "{:.3f}", **declared})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One measure in one setting; each field is a column of the table, in this order.

    selection, order: "none" where there are no demonstrations, as the style of a vote. scoring:
    also "text" (generated) and "vote". mean, spread, interval, interval_of: see `metrics.Estimate`.
    seeds: one where nothing is drawn. model, parameters: where several models are compared;
    parameters is None for a server's. runs: the answers of each seed.
    """

    model: str = _column("model", is_text=True, optional=True, default="")
    parameters: int | None = _column("parameters", form="{:,}", optional=True, default=None)
    task: str = _column("task", is_text=True)
    metric: str = _column("measure", is_text=True)
    shots: int = _column("shots")
    selection: str = _column("selection", is_text=True)
    order: str = _column("order", is_text=True, narrow=9)
    scoring: str = _column("scoring", is_text=True)
    style: str = _column("style", is_text=True)
    instruction: str = _column("instruction", is_text=True)
    mean: float = _fraction("mean", "mean of the metric over seeds")
    spread: float | None = _fraction("spread", "standard deviation over seeds", narrow=8)
    interval: tuple[float, float] = _column(
        "95 %", "95 % confidence interval of the metric", form="{0[0]:.3f}–{0[1]:.3f}"
    )
    interval_of: str = _column("95 % by", "how the interval is computed", is_text=True, narrow=5)
    seeds: int = _column("seeds", narrow=7)
    n: int = _column("n", "items", narrow=6)
    majority: float = _fraction(
        "majority",
        "what always giving the most common answer, or a random choice, scores",
        compute=lambda of: of.majority,
    )
    vote: float | None = _fraction(
        "vote",
        "what a vote of the nearest examples scores, without the model",
        compute=lambda of: of.score(of.voted),
    )
    over_vote: float | None = _column(
        "over vote",
        "mean less vote: what the model adds to the nearest examples",
        form="{:+.3f}",
        compute=lambda of: None if of.voted is None else of.mean - (of.score(of.voted) or 0.0),
    )
    head: float | None = _fraction(
        "head",
        "what the model's head scores, without examples",
        compute=lambda of: of.score(of.by_head),
        optional=True,
    )
    gold_label_share: float | None = _fraction(
        "gold share",
        "share of the examples shown that have the item's right answer",
        compute=lambda of: fmean(chain(*of.golden())) if of.golden() else None,
        narrow=4,
    )
    gold_in_demonstrations: float | None = _fraction(
        "gold shown",
        "share of items for which an example shown has the right answer",
        compute=lambda of: fmean(map(any, of.golden())) if of.golden() else None,
        narrow=3,
    )
    dropped: float = _column(
        "dropped",
        "examples of an item that did not fit the window",
        form="{:.1f}",
        compute=lambda of: of.mean_of("dropped"),
        narrow=2,
    )
    tokens: float = _column(
        "tokens",
        "mean length of a prompt",
        form="{:.0f}",
        compute=lambda of: of.mean_of("tokens"),
        narrow=1,
    )
    seconds_per_item: float = _fraction(
        "s/item", "seconds per item", compute=lambda of: of.mean_of("seconds"), narrow=0
    )
    runs: Sequence[Sequence[str]] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the answers."""
        return {name: value for name, value in asdict(self).items() if name != "runs"}

    @property
    def setting(self) -> tuple[Any, ...]:
        """What models are compared in, the measure last."""
        return tuple(getattr(self, name) for name in (*SETTING, "scoring", "metric"))


SETTING = ("task", "shots", "selection", "order", "style", "instruction")
"""What a result has of a `Cell`."""

COLUMNS: tuple[Column, ...] = tuple(
    replace(declared, field=name)
    for name, item in Result.__dataclass_fields__.items()
    if (declared := item.metadata.get("column")) is not None
)
"""The setting, the measure and the baselines stay in a narrow terminal."""

_LEAST_USED = 5
"""How many of the columns that a narrow terminal leaves out are shown on request alone."""


def results(
    tasks: Sequence[Task],
    rows: Iterable[JournalRow],
    scorings: Sequence[Scoring],
    votes: Mapping[str, Vote],
    heads: Mapping[str, Sequence[str]] | None = None,
) -> list[Result]:
    """Every measure of every setting, in the order of the rows.

    scorings: decision rules, empty for the prompt files' own. votes: by the task's name. heads: the
    answers of the model's head to the items, by the task's name.
    """
    by_name = {task.name: task for task in tasks}
    settings: dict[Cell, list[JournalRow]] = defaultdict(list)
    for row in rows:
        settings[replace(cell_of(row), seed=0)].append(row)
    rows_of_report = []
    for setting, group in settings.items():
        name, task = setting.task, by_name[setting.task]
        given: dict[str, Any] = {key: getattr(setting, key) for key in SETTING}
        voted, by_head = votes[name](cell_of(group[0])), (heads or {}).get(name)
        golds = [item.gold for item in task.items]
        for scoring in _deciding(setting.layout, scorings or (task.prompt.scoring,)):
            runs = _runs(group, scoring)
            for metric in task.prompt.metrics:
                estimated = estimate(metric, runs, golds)
                measured = Measured(task, group, metric, estimated.mean, voted, by_head)
                given |= {"scoring": scoring, "metric": metric, **asdict(estimated)}
                given |= {"n": len(golds), "seeds": len(runs), "runs": runs}
                given |= {it.field: it.compute(measured) for it in COLUMNS if it.compute}
                rows_of_report.append(Result(**given))
    return rows_of_report


def compared(
    tasks: Sequence[Task], results: Sequence[Result]
) -> list[tuple[Result, Result, Difference]]:
    """Each two models on the same items in the same setting; a vote asks no model."""
    golds = {task.name: [item.gold for item in task.items] for task in tasks}
    return [
        (one, other, difference(one.metric, one.runs, other.runs, golds[one.task]))
        for one, other in combinations(results, 2)
        if one.model != other.model and one.setting == other.setting and one.scoring != "vote"
    ]


def _deciding(layout: str, scorings: Sequence[Scoring]) -> list[str]:
    """The requested decision rules that the answers of a layout allow."""
    allowed = {
        "direct": ("direct",),
        "calibrated": ("direct", "calibrated"),
        "channel": ("channel",),
        "choices": CHOICE_SCORINGS,
    }
    if layout not in allowed:
        return [layout]
    return [scoring for scoring in scorings if scoring in allowed[layout]]


def _runs(group: Sequence[JournalRow], scoring: str) -> list[list[str]]:
    """The answers of each seed, in the order of the items."""
    answers: dict[int, dict[int, str]] = defaultdict(dict)
    for row in group:
        answers[row["seed"]][row["item"]] = decided(row, scoring)
    return [[run[item] for item in sorted(run)] for _, run in sorted(answers.items())]


def document(config: dict[str, Any], results: Iterable[Result]) -> dict[str, Any]:
    """The report as plain data, for report.json."""
    packages = ("torch", "transformers", "tokenizers", "numpy", "bm25s", "sacrebleu")
    own = {"chatapp": __version__, "python": platform.python_version()}
    return {
        "config": config,
        "versions": own | {package: version(package) for package in packages},
        "results": [result.to_json() for result in results],
    }


def explanation(shown: "Table") -> str:
    """The meaning of a table's columns, one line each, for those with an unclear name."""
    names = [str(column.header) for column in shown.columns]
    width = max(map(len, names))
    return "".join(
        f"{column.name:<{width}}  {column.meaning}\n"
        for column in COLUMNS
        if column.meaning and column.name in names
    )


def table(
    results: Sequence[Result], width: int | None = None, *, all_columns: bool = False
) -> "Table":
    """The results for a terminal; values equal in all of them are in the title.

    width: in columns; if they do not fit, those with a `Column.narrow` are left out, and named
    below; the order only if no two rows differ by it alone. all_columns: whether the least used,
    which are the first of those, are shown where they fit.
    """
    from rich.console import Console

    console = Console(width=10_000)
    orders = {(result.selection, result.order) for result in results}
    order_is_needed = len(orders) > len({result.selection for result in results})
    leave_out = [
        column.name
        for column in sorted(COLUMNS, key=lambda column: column.narrow or 0)
        if column.narrow is not None and not (column.name == "order" and order_is_needed)
    ]
    for number in range(0 if all_columns else _LEAST_USED, len(leave_out) + 1):
        shown = _table(results, leave_out[:number])
        if width is None or console.measure(shown).maximum <= width:
            break
    return shown


def _table(results: Sequence[Result], leave_out: Sequence[str]) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    common, shown, left_out = [], [], []
    for column in COLUMNS:
        cells = [printable(column.show(result)) for result in results]
        if column.optional and not any(cells):
            continue
        if len(results) > 1 and len(set(cells)) == 1 and column.name != "mean":
            common += [f"{column.name} {cells[0]}"] if cells[0] else []
        elif column.name in leave_out:
            left_out.append(column.name)
        else:
            shown.append((column, cells))
    table = Table(
        title=Text(", ".join(common)),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    if left_out:
        words = f"left out: {', '.join(left_out)}; --all-columns in a wide terminal shows them"
        table.caption = Text(words)
    for column, _ in shown:
        table.add_column(column.name, justify="left" if column.is_text else "right", no_wrap=True)
    for row in zip(*(cells for _, cells in shown), strict=True):
        table.add_row(*map(Text, row))
    return table
