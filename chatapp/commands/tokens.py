"""`chatapp tokens`: how a model cuts a text.

Keep: no weights are loaded.
"""

from itertools import cycle
from pathlib import Path
from typing import Annotated

import typer

from chatapp.commands.console import write, write_json
from chatapp.commands.options import JsonOption, ModelOption
from chatapp.common.userfiles import UserError, read_required

# Two backgrounds in turn, so that where a token ends is seen.
_STYLES = ("black on cyan", "black on white")


def tokens(
    text: Annotated[str | None, typer.Argument(help="The text to tokenize.")] = None,
    file: Annotated[Path | None, typer.Option(help="A text file in UTF-8 instead.")] = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how a model cuts a text into tokens; also by a GGUF file that holds a vocabulary."""
    from chatapp.common.settings import load_settings
    from chatapp.models.loading import read_tokenizer

    if (text is None) == (file is None):
        raise UserError("give either a text or --file")
    given = read_required(file) if file is not None else text or ""
    name = load_settings({"model": model}).model
    tokenizer = read_tokenizer(name)
    ids = tokenizer.encode(given)
    pieces = [tokenizer.piece(id) for id in ids]
    if as_json:
        write_json({"model": name, "ids": ids, "pieces": pieces})
        return
    _show_pieces(pieces)
    write(f"{len(ids):,} tokens of {len(given):,} characters: {' '.join(map(str, ids))}\n")


def _show_pieces(pieces: list[str]) -> None:
    """The tokens one after the other, coloured where the terminal has colours."""
    from rich.console import Console
    from rich.text import Text

    from chatapp.common.shading import visible

    line = Text()
    for piece, style in zip(pieces, cycle(_STYLES), strict=False):
        line.append(visible(piece), style)
    Console(highlight=False, soft_wrap=True).print(line)
