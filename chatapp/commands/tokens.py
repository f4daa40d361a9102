"""`chatapp tokens`: how a model cuts a text. `chatapp render`: the exact prompt of a chat.

Keep: no weights are loaded for either, and what is printed is what a chat would send.
"""

import json
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chatapp.commands.console import write, write_json
from chatapp.commands.options import JsonOption, ModelOption, TemplateOption
from chatapp.common.userfiles import UserError, read_required, shown

if TYPE_CHECKING:
    from chatapp.prompting.messages import Message

# Two backgrounds in turn, so that where a token ends is seen.
_STYLES = ("black on cyan", "black on white")

_ROLES = ("system", "user", "assistant")


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
        raise UserError("tokens takes a text, or a file with --file")
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


def render(
    messages: Annotated[Path, typer.Argument(help='JSON: [{"role": …, "content": …}, …].')],
    model: ModelOption = None,
    template: TemplateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the exact prompt of a chat, in the template that a model is chatted with."""
    from chatapp.common.settings import load_settings
    from chatapp.dialogue.writers.choosing import template_of
    from chatapp.encoding import ids_of
    from chatapp.models.loading import read_tokenizer
    from chatapp.models.resolving import find_model
    from chatapp.prompting.messages import text_of

    chat = _read_messages(messages)
    settings = load_settings({"model": model, "template": template})
    files = find_model(settings.model)
    tokenizer = read_tokenizer(str(files.tokenizer))
    chosen = template_of(files, tokenizer.special, settings.template)
    try:
        segments = chosen.render(chat, open_reply=True)
    except ValueError as error:
        raise UserError(f"{messages}: {error}") from None
    if not as_json:
        write(text_of(segments) + "\n")
        return
    ids = ids_of(segments, tokenizer)
    parts = [{"kind": segment.kind, "text": segment.text} for segment in segments]
    write_json({"text": text_of(segments), "segments": parts, "ids": ids})


def _read_messages(path: Path) -> "list[Message]":
    """The chat in a file of OpenAI messages. Raises UserError, naming what is wrong."""
    from chatapp.prompting.messages import Message

    try:
        data: Any = json.loads(read_required(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(data, list) or not data:
        raise UserError(f"{path}: is {shown(data)}, expected a list of messages")
    chat = []
    for number, message in enumerate(data, 1):
        place = f"{path}: message {number}"
        if not isinstance(message, dict):
            raise UserError(f"{place} is {shown(message)}, expected a table")
        if message.get("role") not in _ROLES:
            known = ", ".join(_ROLES)
            raise UserError(f"{place}: role is {shown(message.get('role'))}, expected {known}")
        if not isinstance(message.get("content"), str):
            raise UserError(
                f"{place}: content is {shown(message.get('content'))}, expected a string"
            )
        chat.append(Message(message["role"], message["content"]))
    return chat


def _show_pieces(pieces: list[str]) -> None:
    """The tokens one after the other, coloured where the terminal has colours."""
    from rich.console import Console
    from rich.text import Text

    from chatapp.common.shading import visible

    line = Text()
    for piece, style in zip(pieces, cycle(_STYLES), strict=False):
        line.append(visible(piece), style)
    Console(highlight=False, soft_wrap=True).print(line)
