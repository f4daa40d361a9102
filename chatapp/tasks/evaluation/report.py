"""The results of an evaluation as data and as a table for a terminal."""

import platform
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING, Any

from chatapp import __version__
from chatapp.tasks.evaluation.evaluate import Task
from chatapp.tasks.evaluation.journal import Cell, JournalRow, cell_of, decided
from chatapp.tasks.evaluation.metrics import (
    MEASURES,
    Difference,
    IntervalMethod,
    difference,
    estimate,
)
from chatapp.tasks.files.keys import CHOICE_SCORINGS, Measure
from chatapp.tasks.settings import Scoring

if TYPE_CHECKING:
    from rich.table import Table

Vote = Callable[[Cell], list[str] | None]
"""The majority of the k nearest examples for each item."""


SETTING = ("task", "shots", "selection", "order", "style", "instruction")
"""What a result has of a `Cell`."""


@dataclass(frozen=True, slots=True)
class Result:
    """One measure in one setting.

    task, shots, selection, order, style, instruction, scoring: the setting; selection and
        order are "none" where there are no demonstrations, style is for a vote. scoring: also
        "text" (generated) and "vote".
    mean, spread, interval, interval_of: over seeds, see `metrics.Estimate`.
    n: items. seeds: runs, one where nothing is drawn.
    majority: the measure of always giving the most common gold answer of these items; with choices,
        of a random choice.
    vote: the measure of the vote of the k nearest examples; None without
        demonstrations or labels.
    head: the measure of the answers of the model's head; None where it has none for the task.
    gold_label_share: of the demonstrations, how many have the item's gold answer; None
        without demonstrations. gold_in_demonstrations: of the items, how many have a
        demonstration with their gold answer.
    dropped: demonstrations an item that did not fit the window. tokens: of a prompt, the
        mean. seconds_per_item: the mean.
    model, parameters: where several models are compared; parameters is None for a server's. runs:
        the answers of each seed.
    """

    task: str
    shots: int
    selection: str
    order: str
    style: str
    instruction: str
    scoring: str
    metric: Measure
    mean: float
    spread: float | None
    interval: tuple[float, float]
    interval_of: IntervalMethod
    n: int
    seeds: int
    majority: float
    vote: float | None
    head: float | None
    gold_label_share: float | None
    gold_in_demonstrations: float | None
    dropped: float
    tokens: float
    seconds_per_item: float
    model: str = ""
    parameters: int | None = None
    runs: Sequence[Sequence[str]] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the answers."""
        return {name: value for name, value in asdict(self).items() if name != "runs"}

    @property
    def setting(self) -> tuple[Any, ...]:
        """What models are compared in, the measure last."""
        return tuple(getattr(self, name) for name in (*SETTING, "scoring", "metric"))


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
        beside = _beside(task, group, votes[name](cell_of(group[0])), (heads or {}).get(name))
        for scoring in _deciding(setting.layout, scorings or (task.prompt.scoring,)):
            runs = _runs(group, scoring)
            for metric in task.prompt.metrics:
                golds = [item.gold for item in task.items]
                estimated = estimate(metric, runs, golds)
                rows_of_report.append(
                    Result(
                        setting.task,
                        setting.shots,
                        setting.selection,
                        setting.order,
                        setting.style,
                        setting.instruction,
                        scoring,
                        metric,
                        **asdict(estimated),
                        n=len(golds),
                        seeds=len(runs),
                        runs=runs,
                        **beside(metric),
                    )
                )
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


def _beside(
    task: Task,
    group: Sequence[JournalRow],
    voted: Sequence[str] | None,
    by_head: Sequence[str] | None,
) -> Callable[[Measure], dict[str, Any]]:
    """Computes the baselines of a measure of these answers."""
    golds = [item.gold for item in task.items]
    commonest = Counter(item.output for item in task.items).most_common(1)[0][0]
    chances = [1 / len(item.choices) for item in task.items if item.choices]
    shown = [
        [task.prompt.pool.outputs[index] == row["gold"] for index in row["examples"]]
        for row in group
    ]
    rights = [right for golden in shown for right in golden]

    def beside(metric: Measure) -> dict[str, Any]:
        score = MEASURES[metric]
        return {
            "majority": fmean(chances) if chances else score([commonest] * len(golds), golds),
            "vote": None if voted is None else score(voted, golds),
            "head": None if by_head is None else score(by_head, golds),
            "gold_label_share": fmean(rights) if rights else None,
            "gold_in_demonstrations": fmean(map(any, shown)) if rights else None,
            "dropped": fmean(row["dropped"] for row in group),
            "tokens": fmean(row["tokens"] for row in group),
            "seconds_per_item": fmean(row["seconds"] for row in group),
        }

    return beside


def document(config: dict[str, Any], results: Iterable[Result]) -> dict[str, Any]:
    """The report as plain data, for report.json."""
    packages = ("torch", "transformers", "tokenizers", "numpy", "bm25s", "sacrebleu")
    own = {"chatapp": __version__, "python": platform.python_version()}
    return {
        "config": config,
        "versions": own | {package: version(package) for package in packages},
        "results": [result.to_json() for result in results],
    }


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the printed table.

    show: the text of a result in it, "" for none. meaning: what an unclear name means, printed
    below the table. is_text: set at the left, not at the right. narrow: its place among the columns
    that a narrow terminal leaves out, the lowest first; None for one that always stays. optional:
    left out where it is blank in all rows.
    """

    name: str
    show: Callable[[Result], str]
    meaning: str = ""
    is_text: bool = False
    narrow: int | None = None
    optional: bool = False


def _fraction(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


COLUMNS = (
    Column("model", lambda r: r.model, is_text=True, optional=True),
    Column(
        "parameters", lambda r: "" if r.parameters is None else f"{r.parameters:,}", optional=True
    ),
    Column("task", lambda r: r.task, is_text=True),
    Column("measure", lambda r: r.metric, is_text=True),
    Column("shots", lambda r: str(r.shots)),
    Column("selection", lambda r: r.selection, is_text=True),
    Column("order", lambda r: r.order, is_text=True, narrow=9),
    Column("scoring", lambda r: r.scoring, is_text=True),
    Column("style", lambda r: r.style, is_text=True),
    Column("instruction", lambda r: r.instruction, is_text=True),
    Column("mean", lambda r: _fraction(r.mean), "mean of the metric over seeds"),
    Column("spread", lambda r: _fraction(r.spread), "standard deviation over seeds", narrow=8),
    Column(
        "95 %",
        lambda r: f"{r.interval[0]:.3f}–{r.interval[1]:.3f}",
        "95 % confidence interval of the metric",
    ),
    Column(
        "95 % by", lambda r: r.interval_of, "how the interval is computed", is_text=True, narrow=5
    ),
    Column("seeds", lambda r: str(r.seeds), narrow=7),
    Column("n", lambda r: str(r.n), "items", narrow=6),
    Column(
        "majority",
        lambda r: _fraction(r.majority),
        "what always giving the most common answer, or a random choice, scores",
    ),
    Column(
        "vote",
        lambda r: _fraction(r.vote),
        "what a vote of the nearest examples scores, without the model",
    ),
    Column(
        "over vote",
        lambda r: "" if r.vote is None else f"{r.mean - r.vote:+.3f}",
        "mean less vote: what the model adds to the nearest examples",
    ),
    Column(
        "head",
        lambda r: _fraction(r.head),
        "what the model's head scores, without examples",
        optional=True,
    ),
    Column(
        "gold share",
        lambda r: _fraction(r.gold_label_share),
        "share of the examples shown that have the item's right answer",
        narrow=4,
    ),
    Column(
        "gold shown",
        lambda r: _fraction(r.gold_in_demonstrations),
        "share of items for which an example shown has the right answer",
        narrow=3,
    ),
    Column(
        "dropped",
        lambda r: f"{r.dropped:.1f}",
        "examples of an item that did not fit the window",
        narrow=2,
    ),
    Column("tokens", lambda r: f"{r.tokens:.0f}", "mean length of a prompt", narrow=1),
    Column("s/item", lambda r: _fraction(r.seconds_per_item), "seconds per item", narrow=0),
)
"""The setting, the measure and the baselines stay in a narrow terminal."""

_LEAST_USED = 5
"""How many of the columns that a narrow terminal leaves out are shown on request alone."""


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

    from chatapp.common.foreign import printable

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
