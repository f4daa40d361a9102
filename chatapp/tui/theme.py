"""The appearance: our own theme, a fallback for terminals of few colours, and contrast for every
theme.

Invariant: only this module defines colours; widgets use the theme's names.
"""

from collections.abc import Iterable, Mapping

from textual.color import BLACK, WHITE, Color
from textual.constants import DIM_FACTOR
from textual.theme import Theme

from chatapp.common.shading import contrast, hexadecimal, ink_on

CALM = Theme(
    name="chatapp",
    primary="#5fb3a1",
    accent="#5fb3a1",
    secondary="#8aa4b8",
    warning="#d9a55b",
    error="#d9736f",
    success="#7fb069",
    foreground="#d5d9de",
    background="#15181c",
    surface="#1c2026",
    panel="#1c2026",
    variables={"border": "#5fb3a1", "border-blurred": "#39414a", "footer-background": "#15181c"},
)
FEW_COLORS = "ansi-dark"

READABLE = 4.5
"""The least contrast of a text with its background: level AA of WCAG 2.2, 1.4.3."""
PRESENTED = 7.0
"""The same on a projector: level AAA, 1.4.6."""

PARTS = {
    "instruction": "#dfbe76",
    "example": "#6f346e",
    "document": "#8fe3e6",
    "user": "#214f2f",
    "assistant": "#7f92d8",
    "tool": "#db7791",
}
"""The colours behind a prompt's parts, which colour-blind viewers distinguish; `$part-user` and,
for the text on it, `$part-user-ink`, and so on for the others."""
_ANSI_PARTS = ("yellow", "cyan", "bright_yellow", "green", "magenta", "red")

_CURSOR = 0.18
"""The fraction of the accent in the row of a list's cursor."""

_GROUNDS = ("background", "surface", "panel")
_INKS = (
    "primary", "accent", "secondary", "warning", "error", "success",
    "text-primary", "text-accent", "text-secondary", "text-warning", "text-error", "text-success",
    "footer-key-foreground", "footer-description-foreground",
)  # fmt: skip
_STEPS = 20


def with_few_colors(variables: Mapping[str, str]) -> dict[str, str]:
    """The colours of a theme whose colours are the terminal's, with those of a prompt's parts."""
    inks = {f"part-{name}-ink": f"ansi_{ink}" for name, ink in zip(PARTS, _ANSI_PARTS, strict=True)}
    return {
        **variables,
        **inks,
        **dict.fromkeys((f"part-{name}" for name in PARTS), "ansi_default"),
    }


def readable(variables: Mapping[str, str], least: float = READABLE) -> dict[str, str]:
    """A theme's colours by name, with those of texts moved towards white or black until they are
    readable on all backgrounds; the others stay unchanged.

    least: the contrast of a readable text. On the backgrounds of lists, plain text is readable
    where Textual dims it, too. With more contrast than `READABLE`, no text is muted or dim.
    """
    colors = {name: Color.parse(variables[name]) for name in (*_GROUNDS, *_INKS, "foreground")}
    cursor = colors["background"].blend(colors["accent"], _CURSOR)
    grounds = [*(colors[name] for name in _GROUNDS), cursor]
    better = max((WHITE, BLACK), key=lambda end: _least(end, grounds))
    repaired = {name: _moved(colors[name], better, grounds, least).hex for name in _INKS}
    for name, color in PARTS.items():
        ink = hexadecimal(ink_on(Color.parse(color).rgb))
        repaired |= {f"part-{name}": color, f"part-{name}-ink": ink}
    if least > READABLE:
        text = muted = _moved(colors["foreground"], better, grounds, least)
    else:
        text = _moved(colors["foreground"], better, grounds, least, DIM_FACTOR)
        muted = _moved(grounds[0].blend(text, DIM_FACTOR), better, grounds, least)
    repaired |= dict.fromkeys(("foreground", "text", "footer-foreground"), text.hex)
    repaired |= dict.fromkeys(("text-muted", "text-disabled", "foreground-muted"), muted.hex)
    return {
        **variables,
        **repaired,
        "block-cursor-background": cursor.hex,
        "block-cursor-foreground": text.hex,
        "input-selection-background": cursor.hex,
        "input-selection-foreground": text.hex,
        "screen-selection-background": cursor.hex,
        "block-cursor-text-style": "bold",
        "block-cursor-blurred-background": cursor.hex,
        "block-cursor-blurred-foreground": text.hex,
    }


def _moved(
    color: Color, end: Color, grounds: Iterable[Color], least: float, share: float = 1.0
) -> Color:
    """The first colour on the way to `end` that is readable where `share` of it is left."""
    shades = [color.blend(end, step / _STEPS) for step in range(_STEPS + 1)]
    return next((shade for shade in shades if _least(shade, grounds, share) >= least), end)


def _least(color: Color, grounds: Iterable[Color], share: float = 1.0) -> float:
    return min(contrast(ground.blend(color, share).rgb, ground.rgb) for ground in grounds)
