"""How tokens, numbers and sizes are written and coloured in views of a model."""

from itertools import pairwise

from chatapp.common.foreign import printable

_MARKS = str.maketrans({"\n": "⏎", "\t": "⇥"})
_EIGHTHS = " ▏▎▍▌▋▊▉█"

# Viewers who lack one kind of cone distinguish all of these, by their lightness if not by their
# hue; `tests/colour_blindness.py` measures it. Red, green, blue.
# From unlikely, which is to be noticed, over half-likely to certain.
_LIKELIHOOD = ((0.0, (255, 190, 92)), (0.5, (150, 96, 120)), (1.0, (20, 52, 104)))
# From what speaks against something over nothing to what speaks for it: blue and orange.
_SIGNED = ((0.0, (86, 156, 230)), (0.5, (28, 32, 38)), (1.0, (232, 150, 62)))
_WEIGHT = ((0.0, (28, 32, 38)), (0.35, (45, 105, 105)), (1.0, (104, 214, 190)))

LEGIBLE = 7.0
"""The least contrast of a colour with black or white text on it: level AAA of WCAG 2.2, 1.4.6."""

RGB = tuple[int, int, int]

_BLACK: RGB = (0, 0, 0)
_WHITE: RGB = (255, 255, 255)


def visible(piece: str) -> str:
    """A token's text on one line, with marks for line breaks and tabs."""
    return printable(piece).translate(_MARKS)


def percent(share: float) -> str:
    """A probability, five columns wide."""
    if share >= 0.9995:
        return " 100%"
    if 0 < share < 0.0005:
        return "<0.1%"
    return f"{100 * share:4.1f}%"


def bar(share: float, width: int) -> str:
    """A bar of `width` columns, filled in eighths."""
    full, part = divmod(round(min(1.0, max(0.0, share)) * width * 8), 8)
    return ("█" * full + _EIGHTHS[part] * (full < width)).ljust(width)


def likelihood_color(probability: float) -> RGB:
    """Bright orange for a surprising token, dark blue for a certain one.

    The scale is the square root, because most interesting tokens are below 0.25.
    """
    return _legible(_between(_LIKELIHOOD, probability**0.5))


def weight_color(weight: float) -> RGB:
    """Dark for no attention, bright for all of it."""
    return _legible(_between(_WEIGHT, weight))


def cell_color(weight: float) -> RGB:
    """The colour of a weight in a map of all heads, where most weights are small."""
    return weight_color(weight**0.5)


def signed_color(share: float) -> RGB:
    """Blue for a negative share of the largest, orange for a positive one, dark for 0."""
    share = max(-1.0, min(1.0, share))
    sign = 1 if share > 0 else -1
    return _legible(_between(_SIGNED, 0.5 + 0.5 * abs(share) ** 0.5 * sign))


def signed_number(value: float, largest: float, columns: int) -> str:
    """A value in a map: itself where there are six columns, else tenths of the largest.

    In one column, what is negative is a letter: a for one tenth, j for all.
    """
    if columns >= 6:
        return f"{round(value, 2) + 0.0:>{columns}.2f}"  # without a sign before zero
    tenths = round(10 * value / largest) if largest else 0
    if columns > 1:
        return f"{tenths:>{columns}}"
    return "·abcdefghij"[-tenths] if tenths < 0 else str(min(9, tenths)) if tenths else "·"


def cell_number(weight: float, columns: int) -> str:
    """A weight in a map: in percent, or in tenths if the map has one column per weight."""
    number = min(99, round(100 * weight)) if columns > 1 else min(9, int(10 * weight))
    return f"{number:>{columns}}"


def head_name(head: int, columns: int) -> str:
    """The heading of a head's column in a map, from 0; its last digit if there is one column."""
    return f"{head:>{columns}}" if columns > 1 else str(head % 10)


def contrast(one: RGB, other: RGB) -> float:
    """The contrast ratio of two colours by WCAG 2.2, from 1 to 21."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: RGB) -> float:
    """The relative luminance of an sRGB colour by WCAG 2.2, from 0 to 1."""
    parts = (value / 255 for value in color)
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def ink_on(color: RGB) -> RGB:
    """Black or white, whichever is easier to read on a colour: a contrast of 4.5 at least."""
    return max(_BLACK, _WHITE, key=lambda ink: contrast(ink, color))


def _legible(color: RGB) -> RGB:
    """The colour, darker or lighter until its ink has a contrast of `LEGIBLE` with it."""
    ink = ink_on(color)
    away = _WHITE if ink == _BLACK else _BLACK
    while contrast(ink, color) < LEGIBLE:
        red, green, blue = (
            part + round((end - part) / 16) + (end > part) - (end < part) if part != end else part
            for part, end in zip(color, away, strict=True)
        )
        color = (min(255, max(0, red)), min(255, max(0, green)), min(255, max(0, blue)))
    return color


def hexadecimal(color: RGB) -> str:
    """A colour as style sheets have it: #rrggbb."""
    return "#{:02x}{:02x}{:02x}".format(*color)


def _between(scale: tuple[tuple[float, RGB], ...], position: float) -> RGB:
    position = min(1.0, max(0.0, position))
    for (start, low), (end, high) in pairwise(scale):
        if position <= end:
            share = (position - start) / (end - start)
            red, green, blue = (round(a + (b - a) * share) for a, b in zip(low, high, strict=True))
            return red, green, blue
    return scale[-1][1]
