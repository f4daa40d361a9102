"""What an evaluation found: results as data, as a table for a terminal, as a plot.

The one invariant: beside each figure stands what is reached without the model's
understanding: the commonest answer, and the vote of the nearest examples.
"""

import platform
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from chatapp import __version__
from chatapp.evaluation.answers import decided, setting_of
from chatapp.evaluation.evaluate import Cell, Task
from chatapp.evaluation.journal import Row
from chatapp.evaluation.metrics import MEASURES, estimate
from chatapp.prompting.promptfile import Measure, Scoring

if TYPE_CHECKING:
    from rich.table import Table

Vote = Callable[[Cell], list[str] | None]
"""What the majority of the k nearest examples says of each item."""


@dataclass(frozen=True, slots=True)
class Result:
    """One measure in one setting.

    task, shots, selection, order, scoring: the setting; selection and order are "none" where
        there are no demonstrations. scoring: also "text" (generated) and "vote".
    mean, spread, interval, interval_of: over seeds, see `metrics.Estimate`.
    n: items. seeds: runs, one where nothing is drawn.
    majority: the measure of always giving the commonest gold answer of these items.
    vote: the measure of the vote of the k nearest examples; None without demonstrations.
    gold_label_share: of the demonstrations, how many have the item's gold answer; None
        without demonstrations. gold_in_demonstrations: of the items, how many have a
        demonstration with their gold answer.
    dropped: demonstrations an item that did not fit the window. tokens: of a prompt, the
        mean. seconds_per_item: the mean.
    """

    task: str
    shots: int
    selection: str
    order: str
    scoring: str
    metric: Measure
    mean: float
    spread: float | None
    interval: tuple[float, float]
    interval_of: Literal["wilson", "bootstrap", "t"]
    n: int
    seeds: int
    majority: float
    vote: float | None
    gold_label_share: float | None
    gold_in_demonstrations: float | None
    dropped: float
    tokens: float
    seconds_per_item: float


def results(
    tasks: Sequence[Task],
    rows: Iterable[Row],
    scorings: Sequence[Scoring],
    votes: Mapping[str, Vote],
) -> list[Result]:
    """Every measure of every setting, in the order of the rows.

    scorings: to decide by, empty for the prompt files' own. votes: by the task's name.
    """
    by_name = {task.name: task for task in tasks}
    settings: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        settings[setting_of(row)].append(row)
    found = []
    for (name, shots, selection, order, layout), group in settings.items():
        task = by_name[name]
        cell = Cell(name, shots, selection, order, layout, group[0]["seed"])
        beside = _beside(task, group, votes[name](cell))
        for scoring in _deciding(layout, scorings or (task.prompt.scoring,)):
            runs = _runs(group, scoring)
            for metric in task.prompt.metrics:
                golds = [item.output for item in task.items]
                measured = estimate(metric, runs, golds)
                found.append(
                    Result(
                        name,
                        shots,
                        selection,
                        order,
                        scoring,
                        metric,
                        **asdict(measured),
                        n=len(golds),
                        seeds=len(runs),
                        **beside(metric),
                    )
                )
    return found


def _deciding(layout: str, scorings: Sequence[Scoring]) -> list[str]:
    """The ways to decide that the answers of a layout allow for, of those asked for."""
    allowed = {
        "direct": ("direct",),
        "calibrated": ("direct", "calibrated"),
        "channel": ("channel",),
    }
    if layout not in allowed:
        return [layout]
    return [scoring for scoring in scorings if scoring in allowed[layout]]


def _runs(group: Sequence[Row], scoring: str) -> list[list[str]]:
    """The answers of each seed, in the order of the items."""
    answers: dict[int, dict[int, str]] = defaultdict(dict)
    for row in group:
        answers[row["seed"]][row["item"]] = decided(row, scoring)
    return [[run[item] for item in sorted(run)] for _, run in sorted(answers.items())]


def _beside(
    task: Task, group: Sequence[Row], voted: list[str] | None
) -> Callable[[Measure], dict[str, Any]]:
    """What stands beside a measure of these answers."""
    golds = [item.output for item in task.items]
    commonest = Counter(golds).most_common(1)[0][0]
    shown = [
        [task.prompt.pool.outputs[index] == row["gold"] for index in row["examples"]]
        for row in group
    ]
    each = [right for rights in shown for right in rights]

    def beside(metric: Measure) -> dict[str, Any]:
        score = MEASURES[metric]
        return {
            "majority": score([commonest] * len(golds), golds),
            "vote": None if voted is None else score(voted, golds),
            "gold_label_share": fmean(each) if each else None,
            "gold_in_demonstrations": fmean(map(any, shown)) if each else None,
            "dropped": fmean(row["dropped"] for row in group),
            "tokens": fmean(row["tokens"] for row in group),
            "seconds_per_item": fmean(row["seconds"] for row in group),
        }

    return beside


def document(config: dict[str, Any], found: Iterable[Result]) -> dict[str, Any]:
    """The report as plain data; report.json holds this."""
    packages = ("torch", "transformers", "tokenizers", "numpy", "bm25s", "sacrebleu")
    own = {"chatapp": __version__, "python": platform.python_version()}
    return {
        "config": config,
        "versions": own | {package: version(package) for package in packages},
        "results": [asdict(each) for each in found],
    }


_COLUMNS: tuple[tuple[str, Callable[[Result], str]], ...] = (
    ("task", lambda r: r.task),
    ("measure", lambda r: r.metric),
    ("shots", lambda r: str(r.shots)),
    ("selection", lambda r: r.selection),
    ("order", lambda r: r.order),
    ("scoring", lambda r: r.scoring),
    ("mean", lambda r: f"{r.mean:.3f}"),
    ("spread", lambda r: "" if r.spread is None else f"{r.spread:.3f}"),
    ("95 %", lambda r: f"{r.interval[0]:.3f}–{r.interval[1]:.3f} {r.interval_of}"),
    ("seeds", lambda r: str(r.seeds)),
    ("n", lambda r: str(r.n)),
    ("majority", lambda r: f"{r.majority:.3f}"),
    ("vote", lambda r: _or_blank(r.vote)),
    ("gold share", lambda r: _or_blank(r.gold_label_share)),
    ("gold shown", lambda r: _or_blank(r.gold_in_demonstrations)),
    ("dropped", lambda r: f"{r.dropped:.1f}"),
    ("tokens", lambda r: f"{r.tokens:.0f}"),
    ("s/item", lambda r: f"{r.seconds_per_item:.3f}"),
)


def _or_blank(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def table(found: Sequence[Result]) -> "Table":
    """The results for a terminal; what is the same in all of them stands in the title."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from chatapp.foreign import printable

    cells = {name: [printable(show(each)) for each in found] for name, show in _COLUMNS}
    common = {
        name: values[0]
        for name, values in cells.items()
        if len(found) > 1 and len(set(values)) == 1 and name != "mean"
    }
    title = ", ".join(f"{name} {value}" for name, value in common.items() if value)
    made = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    names = [name for name in cells if name not in common]
    for name in names:
        is_text = name in ("task", "measure", "selection", "order", "scoring")
        made.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    for row in zip(*(cells[name] for name in names), strict=True):
        made.add_row(*map(Text, row))
    return made


def plot(found: Sequence[Result], path: Path) -> None:
    """The first measure of each task over the number of shots, with its intervals, as a PNG.

    As the figures of the GPT-3 paper that show accuracy against examples in context. What
    needs no demonstrations is the first point of every curve.
    """
    from matplotlib.figure import Figure

    by_task: dict[str, list[Result]] = defaultdict(list)
    for each in found:
        if not by_task[each.task] or each.metric == by_task[each.task][0].metric:
            by_task[each.task].append(each)
    figure = Figure(figsize=(6.4, 4.4 * len(by_task)), layout="constrained")
    for axes, (task, group) in zip(
        figure.subplots(len(by_task), squeeze=False)[:, 0], by_task.items(), strict=True
    ):
        shots = sorted({each.shots for each in group})
        for number, (name, points) in enumerate(_curves(group).items()):
            # Side by side, so that no interval hides another.
            x = [shots.index(each.shots) + 0.03 * number for each in points]
            below = [max(0.0, each.mean - each.interval[0]) for each in points]
            above = [max(0.0, each.interval[1] - each.mean) for each in points]
            means = [each.mean for each in points]
            axes.errorbar(x, means, [below, above], marker="o", capsize=3, label=_plain(name))
        axes.axhline(group[0].majority, color="grey", linestyle=":", label="majority")
        for name, votes in _votes(group).items():
            places = [shots.index(k) for k in votes]
            values = list(votes.values())
            axes.plot(places, values, color="grey", linestyle="--", marker="x", label=_plain(name))
        axes.set_title(_plain(task))
        axes.set_xticks(range(len(shots)), [str(k) for k in shots])
        axes.set_xlabel("demonstrations")
        axes.set_ylim(-0.02, 1.02)
        axes.set_ylabel(f"{group[0].metric} (n = {group[0].n}; bars: 95 %)")
        axes.legend(fontsize="small")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name may be in a script the font has not
        figure.savefig(path, format="png", dpi=150)


def _curves(group: Sequence[Result]) -> dict[str, list[Result]]:
    """The points of each curve, by its name."""
    zero = {each.scoring: each for each in group if not each.shots}
    curves: dict[str, list[Result]] = {}
    orders = {(each.selection, each.order) for each in group}
    several_orders = len(orders) > len({each.selection for each in group})
    for each in group:
        if not each.shots and any(other.shots for other in group):
            continue
        name = f"{each.selection}, {each.scoring}" + f", {each.order}" * several_orders
        first = [zero[each.scoring]] if each.shots and each.scoring in zero else []
        curves.setdefault(name, first).append(each)
    return {name: sorted(points, key=lambda each: each.shots) for name, points in curves.items()}


def _votes(group: Sequence[Result]) -> dict[str, dict[int, float]]:
    """The different baselines by vote, each over shots, by its name."""
    by_selection: dict[str, dict[int, float]] = defaultdict(dict)
    for each in sorted(group, key=lambda each: each.shots):
        if each.vote is not None:
            by_selection[each.selection][each.shots] = each.vote
    different: dict[str, dict[int, float]] = {}
    for selection, votes in by_selection.items():
        if votes not in different.values():
            different[f"vote beside {selection}"] = votes
    if len(different) == 1:
        return {"vote": next(iter(different.values()))}
    return different


def _plain(text: str) -> str:
    """Foreign text that matplotlib does not take for mathematics."""
    from chatapp.foreign import printable

    return printable(text).replace("$", r"\$")
