"""Findings as one page of HTML that needs nothing else: the picture, with numbers at the pointer.

Invariant: the page has one script, ours; the browser refuses every other one, and the network.
"""

import base64
import hashlib
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from chatapp.common.userfiles import write_named
from chatapp.lab.figures.drawn import blocks_of
from chatapp.lab.figures.svg import Sheet, picture_style, svg_picture
from chatapp.lab.findings import Finding

_HINT = (
    "<p>Numbers appear at the pointer. Click a head to see its lines, and a token to see the "
    "weight of each head on it.</p>"
)


def html_page(findings: Sequence[Finding]) -> str:
    """The findings as a page, a section each."""
    folder = Path(__file__).parent
    style = picture_style() + (folder / "page.css").read_text(encoding="utf-8")
    script = (folder / "page.js").read_text(encoding="utf-8")
    sections = []
    for finding in findings:
        sheet = Sheet(is_page=True)
        sheet.draw(blocks_of(finding))
        sections.append(f'<section id="{finding.name}">{sheet.svg()}</section>')
    hint = _HINT if any(" data-heads=" in section for section in sections) else ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>chatapp inspect</title><style>{style}</style></head>\n<body>"
        f'{hint}{"".join(sections)}<div id="tip" hidden></div>'
        f"<script>{script}</script></body></html>\n"
    )


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
