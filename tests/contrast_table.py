"""The contrast of texts, and of keys and labels, with their backgrounds, for every theme.

`python tests/contrast_table.py` prints the lowest of each, as the theme is shown.

Invariant: `tests/tui/test_contrast.py` asserts what is printed here.
"""

from collections.abc import Mapping
from typing import NamedTuple

from textual.color import Color
from textual.constants import DIM_FACTOR
from textual.theme import BUILTIN_THEMES, Theme

from chatapp.common.shading import contrast
from chatapp.tui.theme import CALM, PRESENTED, readable

THEMES = {CALM.name: CALM} | {
    name: theme for name, theme in BUILTIN_THEMES.items() if not theme.ansi
}
"""Those whose colours are not the terminal's own."""

GROUNDS = ("background", "surface", "panel", "block-cursor-background")
LISTS = ("background", "surface", "block-cursor-background")
"""Backgrounds of lists, where plain text is dimmed too."""

TEXTS = ("foreground", "text-muted", "block-cursor-foreground")
LABELS = ("accent", "text-accent", "text-error", "text-success", "text-warning",
          "footer-key-foreground")  # fmt: skip


class Pair(NamedTuple):
    """A colour of a theme on another, and the ratio of their luminances, from 1 to 21."""

    ratio: float
    ink: str
    ground: str


def colors_of(theme: Theme) -> dict[str, str]:
    """A theme's colours by name, as its makers have them."""
    return {**theme.to_color_system().generate(), **theme.variables}


def texts_of(colors: Mapping[str, str]) -> list[Pair]:
    """Every colour of plain text on every background, dimmed too where it is in lists."""
    pairs = _pairs(colors, TEXTS)
    for ground in LISTS:
        behind = Color.parse(colors[ground])
        dim = behind.blend(Color.parse(colors["foreground"]), DIM_FACTOR)
        pairs.append(Pair(contrast(dim.rgb, behind.rgb), "dim foreground", ground))
    return pairs


def labels_of(colors: Mapping[str, str]) -> list[Pair]:
    """Every colour of keys and labels on every background."""
    return _pairs(colors, LABELS)


def _pairs(colors: Mapping[str, str], inks: tuple[str, ...]) -> list[Pair]:
    parsed = {name: Color.parse(colors[name]).rgb for name in (*inks, *GROUNDS)}
    return [
        Pair(contrast(parsed[ink], parsed[ground]), ink, ground)
        for ink in inks
        for ground in GROUNDS
    ]


def main() -> None:
    """Print the table."""
    print(f"{'theme':22}{'text':>7}{'keys':>7}{'presented':>11}    lowest")
    for name, theme in THEMES.items():
        colors = readable(colors_of(theme))
        text, label = min(texts_of(colors)), min(labels_of(colors))
        _, ink, ground = min(text, label)
        presented = readable(colors_of(theme), PRESENTED)
        least = min(*_pairs(presented, TEXTS), *labels_of(presented)).ratio
        print(f"{name:22}{text.ratio:7.2f}{label.ratio:7.2f}{least:11.2f}    {ink} on {ground}")


if __name__ == "__main__":
    main()
