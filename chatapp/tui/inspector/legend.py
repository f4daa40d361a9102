"""What the colours of the inspector say, in a line.

Keep: each swatch is painted by the function that paints the tokens.
"""

from collections.abc import Iterable

from textual.content import Content
from textual.style import Style

from chatapp.shading import hexadecimal, ink_on
from chatapp.tui.inspector.token_text import LEVELS, Paint, attended, surprise

_PROBABILITIES = (("under 1 %", 0.005), ("10 %", 0.05), ("50 %", 0.3), ("100 %", 1.0))
_WEIGHTS = (("little", 0.05), ("some", 0.4), ("much", 0.7), ("most", 1.0))


def likelihood_legend(few_colors: bool) -> Content:
    """How probable the model found each token."""
    swatches = ((words, surprise(probability)) for words, probability in _PROBABILITIES)
    return Content("probability ") + _swatches(swatches, few_colors)


def weight_legend(few_colors: bool) -> Content:
    """How much of the attention each token has."""
    swatches = ((words, attended(weight, 1.0)) for words, weight in _WEIGHTS)
    return Content("attention ") + _swatches(swatches, few_colors)


def _swatches(swatches: Iterable[tuple[str, Paint]], few_colors: bool) -> Content:
    parts = []
    for words, paint in swatches:
        style: str | Style = f"{hexadecimal(ink_on(paint.color))} on {hexadecimal(paint.color)}"
        if few_colors:
            style = Style.from_rich_style(LEVELS[paint.level])
        parts.append(Content.styled(f" {words} ", style))
    return Content(" ").join(parts)
