"""Chats from files: this program's own JSON, OpenAI messages, and ChatGPT's data export.

The one invariant: a file is understood as a whole before anything is stored, so that a file
with a mistake in it imports nothing, and says where the mistake is.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from chatapp.dialogue.store import Status, Store
from chatapp.prompting.messages import Role
from chatapp.userfiles import UserError

_TITLE_LENGTH = 200
_SHOWN = 40


class ImportingError(UserError):
    """What in a file cannot be read as chats, in one sentence that names the place."""


@dataclass(frozen=True, slots=True)
class ImportedMessage:
    """A message to be stored."""

    role: Role
    text: str
    status: Status = "complete"


@dataclass(frozen=True, slots=True)
class ImportedChat:
    """A chat to be stored: messages of the user and of the assistant in turn."""

    title: str
    system: str | None
    template: str
    model: str
    messages: tuple[ImportedMessage, ...]


def read_chats(path: Path) -> list[ImportedChat]:
    """The chats in a file.

    It holds a JSON document, an object or a list of them, or one object a line. Objects are
    this program's export, {"messages": [{"role", "content"}]}, or ChatGPT's {"mapping": …}.
    Raises ImportingError.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ImportingError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ImportingError(f"{path}: is not valid UTF-8: {error}") from None
    chats = [_chat(document, place) for place, document in _documents(text, str(path))]
    if not chats:
        raise ImportingError(f"{path}: holds no chat")
    return chats


def store_chats(store: Store, chats: list[ImportedChat]) -> list[int]:
    """Store chats, all or none of them; returns their ids. Raises StoreError."""
    with store.transaction():
        return [_store(store, chat) for chat in chats]


def _store(store: Store, chat: ImportedChat) -> int:
    chat_id = store.create_chat(
        title=chat.title, system=chat.system, template=chat.template, model=chat.model
    )
    parent: int | None = None
    for message in chat.messages:
        parent = store.add_message(
            chat_id, parent, message.role, message.text, status=message.status
        ).id
    return chat_id


def _documents(text: str, path: str) -> Iterator[tuple[str, Any]]:
    """Each document and where it stands."""
    try:
        whole = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
        if len(lines) < 2 or not lines[0][1].rstrip().endswith("}"):
            raise ImportingError(f"{path}: is not valid JSON: {error}") from None
        for number, line in lines:
            try:
                yield f"{path}, line {number}", json.loads(line)
            except (json.JSONDecodeError, RecursionError) as problem:
                raise ImportingError(
                    f"{path}, line {number}: is not valid JSON: {problem}"
                ) from None
        return
    if not isinstance(whole, list):
        yield path, whole
    else:
        for number, document in enumerate(whole, 1):
            yield f"{path}, chat {number}", document


def _chat(document: Any, place: str) -> ImportedChat:
    if not isinstance(document, dict):
        raise ImportingError(f"{place}: is {_shown(document)}, expected an object")
    if "mapping" in document:
        turns = list(_chatgpt_turns(document, place))
    else:
        turns = list(_turns(document, place))
    system = [text for role, text, _ in turns if role == "system"]
    if any(role == "system" for role, _, _ in turns[1:]):
        raise ImportingError(f"{place}: only the first message may be from 'system'")
    messages = [
        ImportedMessage(cast(Role, role), text, status)
        for role, text, status in turns
        if role != "system"
    ]
    for number, message in enumerate(messages):
        expected = "assistant" if number % 2 else "user"
        if message.role != expected:
            raise ImportingError(
                f"{place}, message {number + len(system) + 1}: is from {message.role!r}, "
                f"expected {expected!r}"
            )
    if not messages:
        raise ImportingError(f"{place}: has no message")
    return ImportedChat(
        title=_text(document, "title", place)[:_TITLE_LENGTH],
        system=(system[0] if system else _text(document, "system", place)) or None,
        template=_text(document, "template", place),
        model=_text(document, "model", place),
        messages=tuple(messages),
    )


def _turns(document: dict[str, Any], place: str) -> Iterator[tuple[str, str, Status]]:
    """(role, text, status) of each message."""
    messages = document.get("messages")
    if not isinstance(messages, list):
        raise ImportingError(
            f"{place}: 'messages' is {_shown(messages)}, expected a list of messages"
        )
    for number, message in enumerate(messages, 1):
        where = f"{place}, message {number}"
        if not isinstance(message, dict):
            raise ImportingError(f"{where}: is {_shown(message)}, expected an object")
        role, content = message.get("role"), message.get("content")
        if role not in ("system", "user", "assistant"):
            raise ImportingError(
                f"{where}: 'role' is {_shown(role)}, expected 'system', 'user' or 'assistant'"
            )
        if isinstance(content, list):
            content = _parts(content, where)
        if not isinstance(content, str):
            raise ImportingError(f"{where}: 'content' is {_shown(content)}, expected text")
        status = message.get("status", "complete")
        if status not in get_args(Status):
            raise ImportingError(
                f"{where}: 'status' is {_shown(status)}, expected one of "
                f"{', '.join(get_args(Status))}"
            )
        yield role, content, status


def _parts(parts: list[Any], where: str) -> str:
    """The text of a message that is written as a list of parts."""
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            raise ImportingError(f"{where}: {_shown(part)} is no part with text")
        texts.append(text)
    return "".join(texts)


def _chatgpt_turns(document: dict[str, Any], place: str) -> Iterator[tuple[str, str, Status]]:
    """The texts on the way from the root to the current node; what tools said is left out."""
    mapping = document["mapping"]
    node = document.get("current_node")
    path: list[tuple[str, str]] = []
    seen: set[str] = set()
    while isinstance(node, str) and node not in seen:
        seen.add(node)
        entry = mapping.get(node) if isinstance(mapping, dict) else None
        if not isinstance(entry, dict):
            raise ImportingError(f"{place}: 'mapping' has no node {_shown(node)}")
        message = entry.get("message") or {}
        author, content = message.get("author"), message.get("content")
        role = author.get("role") if isinstance(author, dict) else None
        parts = content.get("parts") if isinstance(content, dict) else None
        text = "".join(part for part in parts or () if isinstance(part, str))
        if role in ("user", "assistant") and text.strip():
            path.append((role, text))
        node = entry.get("parent")
    merged: list[tuple[str, str]] = []
    for role, text in reversed(path):
        if merged and merged[-1][0] == role:
            merged[-1] = role, f"{merged[-1][1]}\n\n{text}"
        else:
            merged.append((role, text))
    for role, text in merged:
        yield role, text, "complete"


def _text(document: dict[str, Any], key: str, place: str) -> str:
    value = document.get(key)
    if value is not None and not isinstance(value, str):
        raise ImportingError(f"{place}: {key!r} is {_shown(value)}, expected text")
    return value or ""


def _shown(value: Any) -> str:
    """A value in a sentence."""
    if value is None:
        return "missing"
    words = repr(value)
    return words if len(words) <= _SHOWN else words[: _SHOWN - 1] + "…"
