"""The picture of an evaluation: the first measure of each task, with its baselines, as a PNG."""

import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chatapp.common.extras import require
from chatapp.common.foreign import printable
from chatapp.common.userfiles import whole_file
from chatapp.tasks.evaluation.report import Result
from chatapp.tasks.selection.methods import method_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

_MARKERS = "osD^vP*X"
_LINES = ("-", "--", "-.", ":")
_RANGE = (-0.02, 1.02)
_BASELINE = "0.35"
# Inches.
_PANEL, _LEGEND, _NARROWEST = 3.4, 2.2, 7.5


def plot(results: Sequence[Result], path: Path) -> None:
    """Write the picture of these results as a PNG."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name may use a script that the font lacks
        with whole_file(path) as draft:
            picture(results).savefig(draft, format="png", dpi=150)


def picture(results: Sequence[Result]) -> "Figure":
    """Results over the number of demonstrations if that varies, else by selection.

    Over demonstrations as in Figures 13 and 17 of the GPT-3 paper, with a panel for each scoring;
    settings without demonstrations are the first point of every curve.
    """
    require("matplotlib")
    from matplotlib.figure import Figure

    groups = _by_task(results)
    compared = [
        group
        for group in _by_task(results, by_model=False)
        if len({result.parameters for result in group} - {None}) > 1
    ]
    heights = [3.8 if _shots(group)[1:] else 1.7 + 0.55 * len(_rows(group)) for group in groups]
    heights += [3.8] * len(compared)
    panels = max(len(_scorings(group)) if _shots(group)[1:] else 0 for group in groups)
    width = max(_NARROWEST, _PANEL * panels + _LEGEND)
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    parts = figure.subfigures(len(heights), squeeze=False, height_ratios=heights)[:, 0]
    for part, group in zip(parts[len(groups) :], compared, strict=True):
        part.suptitle(_plain(f"{group[0].task}, over the parameters of the models"))
        _over_parameters(part, group)
    for part, group in zip(parts[: len(groups)], groups, strict=True):
        name = f"{group[0].task}, {group[0].model}" if group[0].model else group[0].task
        part.suptitle(_plain(f"{name}, {group[0].n} items; bars: 95 % intervals"))
        if _shots(group)[1:]:
            _over_shots(part, group)
        else:
            _over_selections(part, group)
    return figure


def _over_shots(part: "SubFigure", group: Sequence[Result]) -> None:
    """A curve for each selection and order, in a panel for each scoring."""
    shots, scorings = _shots(group), _scorings(group)
    selections = list(dict.fromkeys(result.selection for result in group if result.shots))
    legend: dict[str, Any] = {}
    all_axes = part.subplots(1, len(scorings), sharey=True, squeeze=False)[0]
    for axes, scoring in zip(all_axes, scorings, strict=True):
        curves = _curves([result for result in group if _scoring_of(result) == scoring])
        for number, ((selection, order), points) in enumerate(curves.items()):
            style = selections.index(selection) if selection in selections else 0
            orders = [other for name, other in curves if name == selection]
            # Side by side, so that no interval hides another.
            aside = 0.04 * (number - (len(curves) - 1) / 2)
            drawn = axes.errorbar(
                [shots.index(result.shots) + aside for result in points],
                [result.mean for result in points],
                _bars(points),
                color=f"C{style % 10}",
                marker=_MARKERS[style % len(_MARKERS)],
                linestyle=_LINES[orders.index(order) % len(_LINES)],
                capsize=3,
            )
            legend.setdefault(f"{selection}, {order}" if orders[1:] else selection, drawn)
        for number, (name, votes) in enumerate(_votes(group).items()):
            (line,) = axes.plot(
                [shots.index(k) for k in votes],
                list(votes.values()),
                color=_BASELINE,
                linestyle=_LINES[1 + number % 3],
                linewidth=1,
                marker=_MARKERS[-1 - number % len(_MARKERS)],
                markersize=4,
            )
            legend.setdefault(name, line)
        legend["majority"] = axes.axhline(group[0].majority, color=_BASELINE, linestyle=":")
        axes.set_title(scoring, fontsize="medium")
        axes.set_xticks(range(len(shots)), [str(k) for k in shots])
        axes.set_xlim(-0.4, len(shots) - 0.6)
        axes.set_xlabel("demonstrations")
        axes.set_ylim(*_RANGE)
        axes.grid(axis="y", alpha=0.3)
    all_axes[0].set_ylabel(group[0].metric)
    names = [_plain(name) for name in legend]
    part.legend(legend.values(), names, loc="outside right center", fontsize="small")


def _over_selections(part: "SubFigure", group: Sequence[Result]) -> None:
    """A row for each selection and order, in it a point for each scoring."""
    rows, scorings = _rows(group), _scorings(group)
    axes = part.subplots()
    legend: dict[str, Any] = {}
    for number, scoring in enumerate(scorings):
        points = [result for result in group if _scoring_of(result) == scoring]
        aside = 0.22 * (number - (len(scorings) - 1) / 2)
        legend[scoring] = axes.errorbar(
            [result.mean for result in points],
            [rows.index((result.selection, result.order)) + aside for result in points],
            xerr=_bars(points),
            color=f"C{number % 10}",
            marker=_MARKERS[number % len(_MARKERS)],
            linestyle="none",
            capsize=3,
        )
    votes = {
        (result.selection, result.order): result.vote for result in group if result.vote is not None
    }
    if votes:
        places = [rows.index(row) for row in votes]
        (legend["vote of the nearest"],) = axes.plot(
            list(votes.values()), places, color=_BASELINE, linestyle="none", marker="x", ms=8
        )
    legend["majority"] = axes.axvline(group[0].majority, color=_BASELINE, linestyle=":")
    several = len(rows) > len({selection for selection, _ in rows})
    names = [f"{selection}, {order}" if several else selection for selection, order in rows]
    axes.set_yticks(range(len(rows)), [_plain(name) for name in names])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(*_RANGE)
    axes.set_xlabel(f"{group[0].metric} with {group[0].shots} demonstrations")
    axes.grid(axis="x", alpha=0.3)
    part.legend(legend.values(), legend.keys(), loc="outside right center", fontsize="small")


def _over_parameters(part: "SubFigure", group: Sequence[Result]) -> None:
    """A curve for each setting, over the number of parameters of the models."""
    axes = part.subplots()
    places = _places(group)
    curves: dict[str, list[Result]] = defaultdict(list)
    for result in sorted(group, key=lambda result: places.get(result.model, 0)):
        if result.model in places:
            setting = f"{result.shots} shots, {result.selection}, {_scoring_of(result)}"
            curves[setting].append(result)
    legend: dict[str, Any] = {}
    for number, (setting, points) in enumerate(curves.items()):
        legend[setting] = axes.errorbar(
            [places[result.model] * 1.03 ** (number - len(curves) / 2) for result in points],
            [result.mean for result in points],
            _bars(points),
            color=f"C{number % 10}",
            marker=_MARKERS[number % len(_MARKERS)],
            capsize=3,
        )
    legend["majority"] = axes.axhline(group[0].majority, color=_BASELINE, linestyle=":")
    axes.set_xscale("log")
    axes.set_xlabel("parameters; equal sizes stand side by side")
    axes.set_ylabel(group[0].metric)
    axes.set_ylim(*_RANGE)
    axes.grid(axis="y", alpha=0.3)
    above = axes.secondary_xaxis("top")
    above.set_xticks(list(places.values()), [_plain(name) for name in places], fontsize="small")
    above.minorticks_off()
    names = [_plain(name) for name in legend]
    part.legend(legend.values(), names, loc="outside right center", fontsize="small")


def _places(group: Sequence[Result]) -> dict[str, float]:
    """Where each model stands on the axis of parameters; equal sizes stand side by side."""
    sizes = {(result.parameters, result.model) for result in group if result.parameters is not None}
    beside: Counter[int] = Counter()
    places: dict[str, float] = {}
    for size, name in sorted(sizes):
        places[name] = size * 1.8 ** beside[size]
        beside[size] += 1
    return places


def _by_task(results: Sequence[Result], *, by_model: bool = True) -> list[list[Result]]:
    """The results of each task, and of each model, in the task's first measure."""
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        group = groups[result.task, result.model if by_model else ""]
        if not group or result.metric == group[0].metric:
            group.append(result)
    return list(groups.values())


def _shots(group: Sequence[Result]) -> list[int]:
    return sorted({result.shots for result in group})


def _scoring_of(result: Result) -> str:
    """How labels were scored, whether in turns of a chat, and whether without the instruction."""
    turns = ", in turns" if result.style == "turns" else ""
    return f"{result.scoring}{turns}" + ", no instruction" * (result.instruction == "off")


def _scorings(group: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(_scoring_of(result) for result in group))


def _rows(group: Sequence[Result]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((result.selection, result.order) for result in group))


def _bars(points: Sequence[Result]) -> tuple[list[float], list[float]]:
    """The distances of the intervals' ends below and above the means."""
    below = [max(0.0, result.mean - result.interval[0]) for result in points]
    above = [max(0.0, result.interval[1] - result.mean) for result in points]
    return below, above


def _curves(group: Sequence[Result]) -> dict[tuple[str, str], list[Result]]:
    """The points of each selection and order of one scoring, by rising shots."""
    zero = [result for result in group if not result.shots]
    curves: dict[tuple[str, str], list[Result]] = {}
    for result in sorted(group, key=lambda result: result.shots):
        if result.shots:
            curves.setdefault((result.selection, result.order), list(zero)).append(result)
    return curves or dict.fromkeys(_rows(zero), zero)


def _votes(group: Sequence[Result]) -> dict[str, dict[int, float]]:
    """The different baselines by vote, each over shots, by its name."""
    by_selection: dict[str, dict[int, float]] = defaultdict(dict)
    for result in sorted(group, key=lambda result: result.shots):
        if result.vote is not None:
            by_selection[result.selection][result.shots] = result.vote
    different: dict[str, dict[int, float]] = {}
    # A method that does not rank is compared with the vote of the nearest as well, and does not
    # name it.
    for selection in sorted(by_selection, key=lambda name: not method_of(name).ranks):
        if by_selection[selection] not in different.values():
            different[f"vote beside {selection}"] = by_selection[selection]
    return {"vote": by_selection.popitem()[1]} if len(different) == 1 else different


def _plain(text: str) -> str:
    """Foreign text that matplotlib does not parse as mathematics."""
    return printable(text).replace("$", r"\$")
