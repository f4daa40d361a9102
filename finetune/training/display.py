"""The terminal display of a run: figures, a loss curve, sample replies; and its peak memory."""

import gc
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from chatapp.common.foreign import one_line
from chatapp.lab.drawing.pictures import rich_html

Points = Sequence[tuple[float, float]]
"""(step, nats per token), by rising step."""

STYLES = {
    **{"L3": "dim", "L2": "cyan", "L1": "magenta", "held-out": "yellow"},
    **{"previous": "cyan", "induction": "magenta", "last word": "yellow"},
}
_OTHER_STYLES = ("cyan", "yellow", "magenta", "green", "blue", "red")
CURVE_ROWS = 8


@dataclass(slots=True)
class RunView:
    """The state of a run at one moment.

    figures: name -> text, in display order. curves: name -> points. samples: (prompt, reply) of the
    last time. learned: curves from 0 to 1, at the watched steps. seconds_left: None while unknown.
    """

    title: str = ""
    step: int = 0
    steps: int = 0
    seconds_left: float | None = None
    figures: dict[str, str] = field(default_factory=dict)
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    samples: list[tuple[str, str]] = field(default_factory=list)
    sampled_at: int = 0
    learned: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


def render(view: RunView, width: int, height: int) -> RenderableType:
    """The live display, `width` characters wide, for a terminal of `height` lines."""
    rows = max(4, min(CURVE_ROWS, height // 5))
    parts: list[RenderableType] = [_progress(view), _figures(view)]
    if any(len(points) > 1 for points in view.curves.values()):
        parts.append(draw_curves(view.curves, width - 4, rows))
    if any(len(points) > 1 for points in view.learned.values()):
        parts.append(draw_curves(view.learned, width - 4, rows, geometric=True))
    if view.samples:
        replies = Table.grid(padding=(0, 1))
        replies.add_column()
        replies.add_column(overflow="fold")
        for prompt, reply in view.samples:
            replies.add_row(Text(one_line(prompt), "dim"), Text(one_line(reply)))
        parts.append(Group(Text(f"replies at step {view.sampled_at}", "bold"), replies))
    return Panel(Group(*parts), title=Text(one_line(view.title)), title_align="left", width=width)


class NotebookLive:
    """The live display in the output of a notebook's cell, in place of Rich's `Live`."""

    def start(self) -> None:
        """Make room below the cell."""
        from IPython.display import HTML, display

        self._shown = display(HTML(""), display_id=True)

    def update(self, shown: RenderableType, *, refresh: bool) -> None:
        """Show this instead of what was shown before."""
        from IPython.display import HTML

        self._shown.update(HTML(rich_html(shown, 100)))

    def stop(self) -> None:
        """The last display stays."""


def line(view: RunView) -> str:
    """The same in one line, for a log."""
    left = "" if view.seconds_left is None else f"  {duration(view.seconds_left)} left"
    figures = "  ".join(f"{name} {text}" for name, text in view.figures.items())
    return f"step {view.step}/{view.steps}  {figures}{left}"


def _progress(view: RunView) -> RenderableType:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column()
    grid.add_column(ratio=1)
    grid.add_column()
    left = "" if view.seconds_left is None else f"{duration(view.seconds_left)} left"
    grid.add_row(
        Text(f"{view.step}/{view.steps}"), ProgressBar(max(1, view.steps), view.step), Text(left)
    )
    return grid


def _figures(view: RunView) -> RenderableType:
    text = Text()
    for name, value in view.figures.items():
        text.append(f"{name} ", STYLES.get(name, "dim")).append(f"{value}   ")
    return text


def draw_curves(
    curves: Mapping[str, Points], width: int, rows: int, *, geometric: bool = False
) -> Text:
    """Curves as braille dots, two by four per character, with a scale and a legend.

    geometric: the distance between two steps is that of their logarithms. Two values in a hundred
    may be above the scale: a first loss far higher than the rest would flatten the curve.
    """
    shown = {name: points for name, points in curves.items() if points}
    values = sorted(y for points in shown.values() for _, y in points if math.isfinite(y))
    if not values:
        return Text("")
    low, high = values[0], values[min(len(values) - 1, int(0.98 * len(values)))]
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    first = min(points[0][0] for points in shown.values())
    last = max(points[-1][0] for points in shown.values())
    margin = max(len(f"{bound:.2f}") for bound in (low, high)) + 1
    columns = max(8, width - margin)
    styles = {
        name: STYLES.get(name, _OTHER_STYLES[number % len(_OTHER_STYLES)])
        for number, name in enumerate(shown)
    }
    cells: dict[tuple[int, int], tuple[int, str]] = {}
    for name, points in shown.items():
        placed = points
        if geometric:
            placed = [(math.log1p(x - first), y) for x, y in points]
        start, end = (0.0, math.log1p(last - first)) if geometric else (first, last)
        for x, y in _filled(placed, start, end, columns * 2):
            height = (min(max(y, low), high) - low) / (high - low)
            dot_row = round((1 - height) * (rows * 4 - 1))
            cell = (dot_row // 4, x // 2)
            dots, _ = cells.get(cell, (0, ""))
            cells[cell] = (dots | _DOTS[x % 2][dot_row % 4], styles[name])
    text = Text()
    for row in range(rows):
        label = {0: f"{high:.2f}", rows - 1: f"{low:.2f}"}.get(row, "")
        text.append(label.rjust(margin - 1) + " ", "dim")
        for column in range(columns):
            dots, style = cells.get((row, column), (0, ""))
            text.append(chr(0x2800 + dots) if dots else " ", style)
        text.append("\n")
    text.append(" " * margin)
    for name in shown:
        text.append("● ", styles[name]).append(f"{name}  ", "dim")
    text.append(f"steps {first:g} to {last:g}", "dim")
    return text


# Bits of the braille dots of a character: left column top to bottom, then the right one.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def _filled(points: Points, first: float, last: float, columns: int) -> list[tuple[int, float]]:
    """One value per dot column from a curve's first to its last point, interpolated linearly."""
    span = max(last - first, 1e-9)
    known: dict[int, list[float]] = {}
    for x, y in points:
        if math.isfinite(y):
            known.setdefault(round((x - first) / span * (columns - 1)), []).append(y)
    columns_known = sorted(known)
    means = {column: sum(known[column]) / len(known[column]) for column in columns_known}
    filled = list(means.items())
    for left, right in itertools.pairwise(columns_known):
        for column in range(left + 1, right):
            share = (column - left) / (right - left)
            filled.append((column, means[left] * (1 - share) + means[right] * share))
    return filled


def duration(seconds: float) -> str:
    """1:05:09, 5:09, 0:09."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def memory(size: float) -> str:
    """Bytes in GiB or MiB."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def restart_peak_memory() -> None:
    """Begin a new peak, where the system can: several runs of one process each have their own."""
    gc.collect()  # the run before may be held by circles
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak becomes what is held now


def peak_memory() -> int:
    """Most bytes held so far: of the GPU if there is one, else of this process."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        held = psutil.Process().memory_info()
        return int(getattr(held, "peak_wset", held.rss))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
