"""What a view shows as two files: a page and a picture."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path

from chatapp.common.userfiles import write_named
from chatapp.lab.figures.page import html_page
from chatapp.lab.figures.svg import svg_picture
from chatapp.lab.findings import Finding


def save_view(findings: Sequence[Finding], folder: Path, name: str) -> list[Path]:
    """Write NAME.html and NAME.svg, or NAME-2 and so on where one of them exists.

    Returns the paths. Raises OSError.
    """
    drawn = {".html": html_page(findings), ".svg": svg_picture(findings)}
    stems = (f"{name}-{number}" if number > 1 else name for number in count(1))
    free = (stem for stem in stems if not any((folder / (stem + end)).exists() for end in drawn))
    stem = next(free)
    paths = [folder / (stem + end) for end in drawn]
    for path, text in zip(paths, drawn.values(), strict=True):
        write_named(path, text)
    return paths
