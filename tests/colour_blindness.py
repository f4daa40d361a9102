"""The palettes as viewers without one kind of cone see them.

`python tests/colour_blindness.py` prints the least difference between two colours of each palette.

Colours of a linear RGB space are multiplied by the matrices of Machado, Oliveira and Fernandes 2009
(doi 10.1109/TVCG.2009.113, severity 1.0); a difference is CIE 1976 ΔE in L*a*b*, where 2.3 is just
visible.

Invariant: `tests/tui/test_contrast.py` asserts what is printed here.
"""

from collections.abc import Sequence
from itertools import combinations

from textual.color import Color

from chatapp.common.shading import RGB, likelihood_color, signed_color, weight_color
from chatapp.tui.theme import PARTS

Matrix = tuple[tuple[float, float, float], ...]

VIEWERS: dict[str, Matrix] = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}

PALETTES = {
    "likelihood": [likelihood_color(p) for p in (0.005, 0.05, 0.3, 1.0)],
    "attention": [weight_color(share) for share in (0.05, 0.4, 0.7, 1.0)],
    "shares": [signed_color(share) for share in (-1.0, -0.2, 0.0, 0.2, 1.0)],
    "parts of a prompt": [Color.parse(color).rgb for color in PARTS.values()],
}
"""The colours of the legends; of shares negative and positive ones, and none."""


def least_difference(colors: Sequence[RGB], viewer: Matrix) -> float:
    """The least ΔE between two colours as a viewer sees them."""
    seen = [_lab(_seen(color, viewer)) for color in colors]
    return min(
        sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5
        for one, other in combinations(seen, 2)
    )


def _seen(color: RGB, viewer: Matrix) -> list[float]:
    """The linear RGB that a viewer sees, each from 0 to 1."""
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (value / 255 for value in color)
    ]
    mixed = (sum(a * b for a, b in zip(row, linear, strict=True)) for row in viewer)
    return [min(1.0, max(0.0, part)) for part in mixed]


def _lab(linear: Sequence[float]) -> tuple[float, float, float]:
    """CIE L*a*b* of a linear sRGB colour, under D65."""
    red, green, blue = linear
    white = (0.95047, 1.0, 1.08883)
    xyz = (
        0.4124564 * red + 0.3575761 * green + 0.1804375 * blue,
        0.2126729 * red + 0.7151522 * green + 0.0721750 * blue,
        0.0193339 * red + 0.1191920 * green + 0.9503041 * blue,
    )
    x, y, z = (
        t ** (1 / 3) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116
        for t in (value / full for value, full in zip(xyz, white, strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def main() -> None:
    """Print the table."""
    print(f"{'palette':20}" + "".join(f"{name:>14}" for name in VIEWERS))
    for name, colors in PALETTES.items():
        row = (least_difference(colors, viewer) for viewer in VIEWERS.values())
        print(f"{name:20}" + "".join(f"{difference:14.1f}" for difference in row))


if __name__ == "__main__":
    main()
