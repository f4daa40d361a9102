"""Chats from files: this program's own JSON, OpenAI messages, and ChatGPT's data export.

The documents, each alone, in a list, or one per line:

- {"messages": [{"role", "content"}], "title", "system", "template", "model"}, where all but
  the messages may be missing. `role` is system (only the first message), user or assistant,
  which alternate; messages of a `tool` are left out; `content` is text or a list of parts {"text"};
  a message may have the `status`, `thoughts`, `sources`, `calls`, `changes` and `original` of this
  program's export, and a chat its `tags`.
- {"mapping": {node: {"parent", "message"}}, "current_node", "title"}, which is ChatGPT's tree.
  The path from its root to the current node, or to the last one without any below, is read.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from chatapp.common.foreign import parse_json, without_surrogates
from chatapp.common.userfiles import UserError, quoted, read_text, reason, shown
from chatapp.dialogue.documents.sources import Source
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.rows import Status
from chatapp.prompting.calls import DEEPEST, depth
from chatapp.prompting.messages import Call, Role

_TITLE_LENGTH = 200

_PROGRESS_EVERY = 100
_INDEX_EVERY = 5_000
"""Messages."""

_Part = TypeVar("_Part", Source, Call)


class ImportingError(UserError):
    """Why a file cannot be read as chats, in one sentence that names the place."""


@dataclass(frozen=True, slots=True)
class ImportedMessage:
    """A message to be stored."""

    role: Role
    text: str
    status: Status = "complete"
    thoughts: str = ""
    sources: tuple[Source, ...] = ()
    calls: tuple[Call, ...] = ()
    changes: str = ""
    original: str | None = None


@dataclass(frozen=True, slots=True)
class ImportedChat:
    """A chat to be stored: alternating messages of the user and the assistant, at least one."""

    title: str
    system: str | None
    template: str
    model: str
    messages: tuple[ImportedMessage, ...]
    tags: str = ""


@dataclass(frozen=True, slots=True)
class ImportedFile:
    """The contents of a file. empty: the number of chats without a message, which are left out.
    faults: a sentence on each chat that cannot be read.
    """

    chats: tuple[ImportedChat, ...]
    empty: int
    faults: tuple[str, ...] = ()


def read_chats(
    path: Path, progress: Callable[[int, int], object] = lambda done, of: None
) -> ImportedFile:
    """The chats in a file, at least one. Raises ImportingError.

    progress: called with how many chats are read, and of how many. What it raises stops reading.
    """
    try:
        text = read_text(path, ImportingError)
    except FileNotFoundError as error:
        raise ImportingError(f"{path}: cannot be read: {reason(error)}") from None
    documents, chats, faults = list(_documents(text, str(path))), list[ImportedChat](), list[str]()
    for number, (place, document) in enumerate(documents):
        progress(number, len(documents))
        try:
            chats.append(_chat(document, place))
        except ImportingError as error:
            faults.append(str(error))
    if faults and not any(chat.messages for chat in chats):
        raise ImportingError(faults[0])
    if not chats:
        raise ImportingError(f"{path}: contains no chat")
    filled = tuple(chat for chat in chats if chat.messages)
    if not filled:
        raise ImportingError(f"{path}: has no message")
    return ImportedFile(filled, len(chats) - len(filled), tuple(faults))


def store_chats(
    store: Store,
    chats: Sequence[ImportedChat],
    progress: Callable[[int, int], object] = lambda done, of: None,
) -> list[int]:
    """Store chats, all or none of them; returns their ids. Raises StoreError.

    progress: called with how many messages are stored, and of how many. What it raises stops the
    import, and then nothing is stored.
    """
    count, done, ids = sum(len(chat.messages) for chat in chats), itertools.count(), list[int]()

    def counted(messages: Iterable[ImportedMessage]) -> Iterator[ImportedMessage]:
        for message in messages:
            if (number := next(done)) % _PROGRESS_EVERY == 0:
                progress(number, count)
            if number % _INDEX_EVERY == 0:
                index()
            yield message

    with store.indexed_together() as index:
        for chat in chats:
            chat_id = store.create_chat(
                title=chat.title, system=chat.system, template=chat.template, model=chat.model
            )
            store.add_messages(chat_id, counted(chat.messages))
            store.set_tags(chat_id, chat.tags)
            ids.append(chat_id)
    return ids


def _documents(text: str, path: str) -> Iterator[tuple[str, Any]]:
    """Each document and its place in the file."""
    try:
        whole = parse_json(text)
    except ValueError as error:
        lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
        if len(lines) < 2 or not lines[0][1].rstrip().endswith("}"):
            raise ImportingError(f"{path}: is not valid JSON: {error}") from None
        for number, line in lines:
            try:
                yield f"{path}, line {number}", parse_json(line)
            except ValueError as problem:
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
    """A chat, without messages if the document has none."""
    if not isinstance(document, dict):
        raise ImportingError(f"{place}: is {shown(document)}, expected an object")
    if "mapping" in document:
        system, messages = "", _chatgpt_messages(document, place)
    else:
        system, messages = _messages(document, place)
    return ImportedChat(
        title=_text(document, "title", place)[:_TITLE_LENGTH],
        system=system or _text(document, "system", place) or None,
        template=_text(document, "template", place),
        model=_text(document, "model", place),
        messages=tuple(messages),
        tags=_text(document, "tags", place),
    )


def _messages(document: dict[str, Any], place: str) -> tuple[str, list[ImportedMessage]]:
    """The text of a first system message, "" without one, and all other messages."""
    rows = document.get("messages")
    if not isinstance(rows, list):
        raise _unexpected(place, document, "messages", "a list of messages")
    system, messages = "", list[ImportedMessage]()
    for number, row in enumerate(rows, 1):
        where = f"{place}, message {number}"
        if not isinstance(row, dict):
            raise ImportingError(f"{where}: is {shown(row)}, expected an object")
        role = row.get("role")
        if role == "tool":  # the result of a call; the reply continues after it
            continue
        if role not in ("system", "user", "assistant"):
            raise _unexpected(where, row, "role", "'system', 'user' or 'assistant'")
        content = row.get("content")
        if content is None and role == "assistant" and row.get("tool_calls"):
            content = ""
        if isinstance(content, list):
            content = _joined_parts(content, where)
        if not isinstance(content, str):
            raise _unexpected(where, row, "content", "text")
        if role == "system" and number > 1:
            raise ImportingError(f"{where}: only the first message may be from 'system'")
        if role == "system":
            system = content
            continue
        goes_on = role == "assistant" and rows[number - 2].get("role") == "tool" and messages
        before = messages.pop() if goes_on and messages[-1].role == role else None
        _check_turn(role, messages, where)
        thoughts = _text(row, "thoughts", where)
        sources = _parts(row, "sources", Source, where)
        calls = _parts(row, "calls", Call, where)
        _check_calls(calls, role, content, where)
        status = _status(row, where)
        changes = _text(row, "changes", where)
        original = _text(row, "original", where) if "original" in row else None
        parts = status, thoughts, sources, calls, changes, original
        message = ImportedMessage(cast(Role, role), content, *parts)
        messages.append(_continued(before, message) if before else message)
    return system, messages


def _continued(before: ImportedMessage, message: ImportedMessage) -> ImportedMessage:
    """Join the beginning of a reply and its continuation after a call."""
    beginning = f"{before.text}\n\n" if before.text else ""
    return replace(
        message,
        text=beginning + message.text,
        thoughts="\n\n".join(filter(None, (before.thoughts, message.thoughts))),
        sources=before.sources + message.sources,
        calls=(*before.calls, *(replace(c, at=c.at + len(beginning)) for c in message.calls)),
    )


def _check_turn(role: str, before: Sequence[ImportedMessage], where: str) -> None:
    expected = "assistant" if len(before) % 2 else "user"
    if role != expected:
        raise ImportingError(f"{where}: is from {role!r}, expected {expected!r}")


def _status(row: dict[str, Any], where: str) -> Status:
    status = row.get("status", "complete")
    if status not in get_args(Status):
        raise _unexpected(where, row, "status", f"one of {', '.join(get_args(Status))}")
    return cast(Status, status)


def _parts(row: dict[str, Any], key: str, kind: type[_Part], where: str) -> tuple[_Part, ...]:
    """Parse a list of tables in a message."""
    from chatapp.common.validation import strict_model, validated

    tables = row.get(key, [])
    if tables == []:
        return ()
    if not isinstance(tables, list):
        raise _unexpected(where, row, key, "a list")
    model, what = strict_model(kind), key.removesuffix("s")
    for number, table in enumerate(tables, 1):
        if depth(table) > 1 + DEEPEST:  # the table itself, and a call's arguments
            problem = f"nests lists and objects deeper than {DEEPEST} levels"
            raise ImportingError(f"{where}, {what} {number}: {problem}")
    # An escape may be half of a character, which no tokenizer accepts.
    tables = parse_json(without_surrogates(json.dumps(tables, ensure_ascii=False)))
    parts = (
        validated(model, table, ImportingError, origin=f"{where}, {what} {number}", what=what)
        for number, table in enumerate(tables, 1)
    )
    return tuple(kind(**dict(part)) for part in parts)


def _check_calls(calls: Sequence[Call], role: str, content: str, where: str) -> None:
    if calls and role == "user":
        raise ImportingError(f"{where}: is from 'user' and has calls, which only replies may have")
    end = 0
    for number, call in enumerate(calls, 1):
        if not (end <= call.at <= call.at + call.inside <= len(content)):
            raise ImportingError(f"{where}, call {number}: its place is not in the content")
        end = call.at + call.inside


def _joined_parts(parts: list[Any], where: str) -> str:
    """The text of a message that is a list of parts."""
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            raise ImportingError(f"{where}: {shown(part)} is not a text part")
        texts.append(text)
    return "".join(texts)


def _chatgpt_messages(document: dict[str, Any], place: str) -> list[ImportedMessage]:
    """The messages of the user and the assistant on the path to the current node.

    System and tool messages are left out; consecutive messages of one side are merged.
    """
    merged: list[ImportedMessage] = []
    for number, message in enumerate(_chatgpt_path(document, place), 1):
        where = f"{place}, message {number}"
        if not isinstance(message, dict):
            raise ImportingError(f"{where}: is {shown(message)}, expected an object")
        author, content = message.get("author"), message.get("content")
        role = author.get("role") if isinstance(author, dict) else None
        parts = content.get("parts") if isinstance(content, dict) else None
        parts = parts if isinstance(parts, list) else []
        text = "".join(_chatgpt_text(part) for part in parts)
        # A picture that the user sent without words is a message, too: it has a reply.
        pictured = role == "user" and any(not isinstance(part, str) for part in parts)
        if role not in ("user", "assistant") or not (text.strip() or pictured):
            continue
        if merged and merged[-1].role == role:
            text = "\n\n".join(filter(None, (merged.pop().text, text)))
        if not merged and role == "assistant":
            merged.append(ImportedMessage("user", ""))  # a reply without a question
        merged.append(ImportedMessage(cast(Role, role), text))
    return merged


def _chatgpt_text(part: Any) -> str:
    """The text of a part, which is a string, or an object with one if it was spoken."""
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else ""


def _chatgpt_path(document: dict[str, Any], place: str) -> list[Any]:
    """The messages from the root to the current node, or without one to the last leaf; a node may
    have none.
    """
    mapping, node = document["mapping"], document.get("current_node")
    if not isinstance(mapping, dict):
        raise _unexpected(place, document, "mapping", "an object")
    if mapping and node is None:
        above = {str(e.get("parent")) for e in mapping.values() if isinstance(e, dict)}
        node = next((name for name in reversed(mapping) if name not in above), next(iter(mapping)))
    path: list[Any] = []
    visited: set[str] = set()
    while node is not None:
        entry = mapping.get(node) if isinstance(node, str) else None
        if not isinstance(entry, dict):
            raise ImportingError(f"{place}: 'mapping' has no node {quoted(str(node))}")
        if node in visited:
            raise ImportingError(f"{place}: 'mapping' has a cycle at node {quoted(str(node))}")
        visited.add(node)
        if entry.get("message") is not None:
            path.append(entry["message"])
        node = entry.get("parent")
    return path[::-1]


def _text(document: dict[str, Any], key: str, place: str) -> str:
    value = document.get(key)
    if value is not None and not isinstance(value, str):
        raise _unexpected(place, document, key, "text")
    return value or ""


def _unexpected(place: str, row: dict[str, Any], key: str, expected: str) -> ImportingError:
    """The error on a missing value or one of another type."""
    value = shown(row[key]) if key in row else "missing"
    return ImportingError(f"{place}: {key!r} is {value}, expected {expected}")
