"""`chatapp render`: the exact prompt of a chat."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chatapp.commands.console import write, write_json
from chatapp.commands.options import JsonOption, ModelOption, TemplateOption
from chatapp.common.foreign import parse_json
from chatapp.common.userfiles import UserError, read_required, shown

if TYPE_CHECKING:
    from chatapp.prompting.messages import Message

_ROLES = ("system", "user", "assistant")


def render(
    messages: Annotated[Path, typer.Argument(help='JSON: [{"role": …, "content": …}, …].')],
    model: ModelOption = None,
    template: TemplateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the exact prompt of a chat, in the template that a model is chatted with."""
    from chatapp.common.settings import load_settings
    from chatapp.dialogue.writers.choosing import template_of
    from chatapp.engine.encoding import ids_of
    from chatapp.engine.models.resolving import find_model
    from chatapp.engine.tokenizers import chat_tokenizer
    from chatapp.prompting.messages import text_of

    chat = _read_messages(messages)
    settings = load_settings({"model": model, "template": template})
    files = find_model(settings.model)
    tokenizer, _ = chat_tokenizer(files)
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
    """The chat in a file of OpenAI messages. Raises UserError, naming the fault."""
    from chatapp.prompting.messages import Message

    try:
        data: Any = parse_json(read_required(path))
    except ValueError as error:
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
