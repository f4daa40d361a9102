"""Pictures of the screen: SVG, and PNG drawn from it."""

import asyncio
import time
from pathlib import Path
from typing import Any

from textual.app import App

from chatapp.common.foreign import printable
from chatapp.common.userfiles import reason, write_named

_FONT = "DejaVu Sans Mono"
_OF_TEXTUAL = "Fira Code"
_SCALE = 2
"""Pixels for each of the SVG's, enough for a projector."""


async def save_screen(app: App[Any], suffix: str) -> None:
    """Write the current screen into a new file of this folder. suffix: .svg or .png."""
    path = Path(time.strftime("chatapp-%Y-%m-%d-%H%M%S")).with_suffix(suffix)
    svg = app.export_screenshot(title="chatapp")
    try:
        await asyncio.to_thread(_write, path, svg)
    except (OSError, ValueError) as error:
        app.notify(f"{path}: cannot be written: {reason(error)}", severity="error", markup=False)
    else:
        app.notify(printable(f"The screen is saved as {path.absolute()}."), markup=False)


def _write(path: Path, svg: str) -> None:
    write_named(path, svg if path.suffix == ".svg" else png(svg))


def png(svg: str) -> bytes:
    """An SVG picture of Textual as PNG. Takes about a second."""
    import matplotlib
    from resvg_py import svg_to_bytes

    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return bytes(
        svg_to_bytes(
            svg_string=svg.replace(_OF_TEXTUAL, _FONT),
            font_files=[str(fonts / f"DejaVuSansMono{kind}.ttf") for kind in ("", "-Bold")],
            monospace_family=_FONT,
            skip_system_fonts=True,
            zoom=_SCALE,
        )
    )
