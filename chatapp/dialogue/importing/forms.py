"""The forms in which chats are exported, by this program and by others.

- chatapp, and OpenAI's messages: {"messages": [{"role", "content"}], "title", "system", "template",
  "model"}, where all but the messages may be missing. `role` is system (only the first message),
  user or assistant, which alternate; messages of a `tool` are left out; `content` is text or a list
  of parts {"text"}; a message may have the `status`, `thoughts`, `sources`, `calls`, `changes` and
  `original` of this program's export, and a chat its `tags`;
- ChatGPT: {"mapping": {node: {"parent", "message"}}, "current_node", "title", "id"}, a tree;
- open-webui: {"chat": {"history": {"messages": {id: {"parentId", "role", "content"}}, "currentId"},
  "system"}, "title", "id"}, a tree, with thoughts and results of tools as <details> in the content;
- LibreChat: {"conversationId", "messages": [{"messageId", "parentMessageId", "isCreatedByUser",
  "text" or "content"}], "options", "title"}, a tree in a list, or within each other as "children";
- Claude: {"chat_messages": [{"sender", "text", "content", "attachments", "files"}], "name"}.

Of a tree, the path from its root to its current message is read; where none is named, to its last
one. Messages of a system or a tool, and those that ChatGPT hides, are left out, and those of one
side in a row are joined. A file that was sent with a message is named below its text.
"""

import html
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar, cast, get_args

from chatapp.common.foreign import parse_json, without_surrogates
from chatapp.common.userfiles import UserError, quoted, shown
from chatapp.dialogue.documents.sources import Source
from chatapp.dialogue.store.rows import NewMessage, Status, own_origin
from chatapp.prompting.messages import Call, Role
from chatapp.prompting.thoughts_and_calls import DEEPEST, depth


class ImportingError(UserError):
    """Why a file or a chat cannot be read, in one sentence that names the place."""


@dataclass(frozen=True, slots=True)
class ImportedChat:
    """A chat to be stored: alternating messages of the user and the assistant.

    origin: the program and the chat's id there, by which it is known again; "" for a chat without
    an id, which is known by its content. note: what was read otherwise than it is written, in one
    sentence, or "".
    """

    title: str
    system: str | None
    template: str
    model: str
    messages: tuple[NewMessage, ...]
    tags: str = ""
    origin: str = ""
    note: str = ""


def text_of(document: dict[str, Any], key: str, place: str) -> str:
    """The text of a key, "" where it is missing or null. Raises ImportingError."""
    value = document.get(key)
    if value is not None and not isinstance(value, str):
        raise unexpected(place, document, key, "text")
    return value or ""


def unexpected(place: str, row: dict[str, Any], key: str, expected: str) -> ImportingError:
    """The error on a missing value or one of another type."""
    value = shown(row[key]) if key in row else "missing"
    return ImportingError(f"{place}: {key!r} is {value}, expected {expected}")


_Part = TypeVar("_Part", Source, Call)


def read_own(document: dict[str, Any], place: str) -> ImportedChat:
    """A chat, without messages if the document has none. Raises ImportingError."""
    system, messages = _messages(document, place)
    id, created = document.get("id"), document.get("created")
    origin = ""
    if isinstance(id, int) and isinstance(created, float) and 0 < id < 2**63 > abs(created):
        origin = own_origin(int(id), created)
    return ImportedChat(
        title=text_of(document, "title", place),
        system=system or text_of(document, "system", place) or None,
        template=text_of(document, "template", place),
        model=text_of(document, "model", place),
        messages=tuple(messages),
        tags=text_of(document, "tags", place),
        origin=origin,
    )


def _messages(document: dict[str, Any], place: str) -> tuple[str, list[NewMessage]]:
    """The text of a first system message, "" without one, and all other messages."""
    rows = document.get("messages")
    if not isinstance(rows, list):
        raise unexpected(place, document, "messages", "a list of messages")
    system, messages = "", list[NewMessage]()
    for number, row in enumerate(rows, 1):
        where = f"{place}, message {number}"
        if not isinstance(row, dict):
            raise ImportingError(f"{where}: is {shown(row)}, expected an object")
        role = row.get("role")
        if role == "tool":  # the result of a call; the reply continues after it
            continue
        if role not in ("system", "user", "assistant"):
            raise unexpected(where, row, "role", "'system', 'user' or 'assistant'")
        content = row.get("content")
        if content is None and role == "assistant" and row.get("tool_calls"):
            content = ""
        if isinstance(content, list):
            content = _joined_parts(content, where)
        if not isinstance(content, str):
            raise unexpected(where, row, "content", "text")
        if role == "system" and number > 1:
            raise ImportingError(f"{where}: only the first message may be from 'system'")
        if role == "system":
            system = content
            continue
        goes_on = role == "assistant" and rows[number - 2].get("role") == "tool" and messages
        before = messages.pop() if goes_on and messages[-1].role == role else None
        expected = "assistant" if len(messages) % 2 else "user"
        if role != expected:
            raise ImportingError(f"{where}: is from {role!r}, expected {expected!r}")
        thoughts = text_of(row, "thoughts", where)
        sources = _parts(row, "sources", Source, where)
        calls = _parts(row, "calls", Call, where)
        _check_calls(calls, role, content, where)
        status = row.get("status", "complete")
        if status not in get_args(Status):
            raise unexpected(where, row, "status", f"one of {', '.join(get_args(Status))}")
        changes = text_of(row, "changes", where)
        original = text_of(row, "original", where) if "original" in row else None
        parts = status, thoughts, sources, calls, changes, original
        message = NewMessage(cast(Role, role), content, *parts)
        messages.append(_continued(before, message) if before else message)
    return system, messages


def _continued(before: NewMessage, message: NewMessage) -> NewMessage:
    """Join the beginning of a reply and its continuation after a call."""
    beginning = f"{before.text}\n\n" if before.text else ""
    return replace(
        message,
        text=beginning + message.text,
        thoughts="\n\n".join(filter(None, (before.thoughts, message.thoughts))),
        sources=before.sources + message.sources,
        calls=(*before.calls, *(replace(c, at=c.at + len(beginning)) for c in message.calls)),
    )


def _parts(row: dict[str, Any], key: str, kind: type[_Part], where: str) -> tuple[_Part, ...]:
    """Parse a list of tables in a message."""
    from chatapp.common.validation import strict_model, validated

    tables = row.get(key, [])
    if tables == []:
        return ()
    if not isinstance(tables, list):
        raise unexpected(where, row, key, "a list")
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


_DETAILS = re.compile(r'<details type="(reasoning|tool_calls|code_interpreter)"[^<>]*>')
_SUMMARY = re.compile(r"\s*<summary>[^<>]*</summary>")
_ROLES: Mapping[str, Role] = {"user": "user", "human": "user", "assistant": "assistant"}
_Read = tuple[str, Sequence[NewMessage], str]
"""The instructions, the messages, and a note; see `ImportedChat`."""


class _Node(NamedTuple):
    """A message of a tree. time: of its message, 0 where none is given."""

    parent: object
    message: Any
    time: float = 0


@dataclass(frozen=True, slots=True)
class ForeignProgram:
    """name: what the program is called. key: the one that only its chats have. ids, title:
    the keys of their id, the first that there is, and of their title.
    """

    name: str
    key: str
    ids: tuple[str, ...]
    title: str
    read: Callable[[dict[str, Any], str], _Read]


def program_of(document: dict[str, Any]) -> ForeignProgram | None:
    """The program that has written a chat, as its keys tell; None for none of these."""
    return next((program for program in PROGRAMS if program.key in document), None)


def read_foreign(program: ForeignProgram, document: dict[str, Any], place: str) -> ImportedChat:
    """A chat of another program. Raises ImportingError."""
    system, messages, note = program.read(document, place)
    ids = (document.get(key) for key in program.ids)
    id = next((value for value in ids if isinstance(value, str) and value), "")
    return ImportedChat(
        title=text_of(document, program.title, place),
        system=system or None,
        template="",
        model="",
        messages=_turns(messages),
        origin=f"{program.name}:{id}" if id else "",
        note=note,
    )


def _turns(messages: Iterable[NewMessage]) -> tuple[NewMessage, ...]:
    """Messages that alternate: those of one side in a row as one, the first of the user."""
    turns: list[NewMessage] = []
    for message in messages:
        if turns and turns[-1].role == message.role:
            before = turns.pop()
            text = "\n\n".join(filter(None, (before.text, message.text)))
            thoughts = "\n\n".join(filter(None, (before.thoughts, message.thoughts)))
            message = NewMessage(message.role, text, message.status, thoughts)
        if not turns and message.role == "assistant":
            turns.append(NewMessage("user", ""))  # a reply without a question
        turns.append(message)
    return tuple(turns)


def _path(
    nodes: Mapping[str, _Node], end: object, place: str, key: str, *, is_whole: bool = False
) -> tuple[list[Any], str]:
    """The messages from the root to a node, and a note if there is no such node.

    key: that of the tree in its file. is_whole: a parent that is missing is a fault, not the root.
    """
    parents = {node.parent for node in nodes.values() if isinstance(node.parent, str)}
    leaves = [name for name in nodes if name not in parents] or list(nodes)
    last = max(reversed(leaves), key=lambda name: nodes[name].time, default=None)
    is_known = isinstance(end, str) and end in nodes
    note = (
        ""
        if is_known or end is None or not nodes
        else (f"{place}: {key!r} has no node {quoted(str(end))}, so it is read to its last message")
    )
    node, path, visited = end if is_known else last, list[Any](), set[object]()
    while isinstance(node, str) and node in nodes:
        if node in visited:
            raise ImportingError(f"{place}: {key!r} has a cycle at node {quoted(node)}")
        visited.add(node)
        path.append(nodes[node].message)
        node = nodes[node].parent
    if is_whole and node is not None:
        raise ImportingError(f"{place}: {key!r} has no node {quoted(str(node))}")
    return path[::-1], note


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ImportingError(f"{where}: is {shown(value)}, expected an object")
    return value


def _within(value: object, *keys: str) -> Any:
    """A value in objects within each other; None where one is missing or another value."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _joined(parts: object, kind: str, separator: str = "") -> str:
    """The texts of all parts of a kind. A part is {"type": kind, kind: text}, or a string."""
    texts = []
    for part in _list(parts):
        is_kind = isinstance(part, dict) and part.get("type", kind) == kind
        text = part.get(kind) if is_kind else part if kind == "text" else None
        text = _within(text, "value") if isinstance(text, dict) else text
        texts += [text] if isinstance(text, str) else []
    return separator.join(texts)


def _with_files(text: str, *lists: object) -> str:
    """A text, and below it the names of the files that were sent with it."""
    rows = [row for rows in lists for row in _list(rows)]
    names = [_within(row, key) for row in rows for key in ("file_name", "filename", "name")]
    notes = [f"[file: {name}]" for name in names if isinstance(name, str) and name]
    return "\n\n".join(filter(None, (text, *dict.fromkeys(notes))))


def _read_chatgpt(document: dict[str, Any], place: str) -> _Read:
    if not isinstance(mapping := document["mapping"], dict):
        raise unexpected(place, document, "mapping", "an object")
    nodes = {}
    for name, entry in mapping.items():
        if isinstance(entry, dict):
            time = _within(entry, "message", "create_time")
            time = time if isinstance(time, int | float) else 0
            nodes[name] = _Node(entry.get("parent"), entry.get("message"), time)
    path, note = _path(nodes, document.get("current_node"), place, "mapping", is_whole=True)
    messages = []
    for number, message in enumerate((entry for entry in path if entry is not None), 1):
        _object(message, f"{place}, message {number}")
        is_hidden = _within(message, "metadata", "is_visually_hidden_from_conversation") is True
        role = None if is_hidden else _ROLES.get(str(_within(message, "author", "role")))
        parts = _list(_within(message, "content", "parts"))
        text = _with_files(_joined(parts, "text"), _within(message, "metadata", "attachments"))
        thoughts = _list(_within(message, "content", "thoughts"))
        thought = _joined([_within(part, "content") for part in thoughts], "text", "\n\n")
        # A picture that the user sent without words is a message, too: it has a reply.
        pictured = role == "user" and any(not isinstance(part, str) for part in parts)
        if role and (text.strip() or pictured or thought):
            messages.append(NewMessage(role, text, thoughts=thought))
    return "", messages, note


def _read_open_webui(document: dict[str, Any], place: str) -> _Read:
    chat = _object(document["chat"], f"{place}, 'chat'")
    history = _within(chat, "history", "messages")
    if not isinstance(history, dict):
        raise ImportingError(f"{place}: 'chat' has no 'history' with an object of 'messages'")
    nodes = {name: _Node(_within(entry, "parentId"), entry) for name, entry in history.items()}
    path, note = _path(nodes, _within(chat, "history", "currentId"), place, "messages")
    messages = []
    for number, message in enumerate(path, 1):
        _object(message, f"{place}, message {number}")
        content = message.get("content")
        text = content if isinstance(content, str) else _joined(content, "text")
        role, thoughts = _ROLES.get(str(message.get("role"))), ""
        if role == "assistant":
            text, thoughts = _without_details(text)
        if role:
            text = _with_files(text, message.get("files"))
            messages.append(NewMessage(role, text, thoughts=thoughts))
    system = _within(chat, "params", "system") or chat.get("system")
    return system if isinstance(system, str) else "", messages, note


def _without_details(text: str) -> tuple[str, str]:
    """A reply without its <details> of thoughts and tools, and the thoughts."""
    kept, thoughts, at = [], [], 0
    while opening := _DETAILS.search(text, at):
        end = text.find("</details>", opening.end())
        if end < 0:
            break
        kept.append(text[at : opening.start()])
        if opening[1] == "reasoning":
            inner = _SUMMARY.sub("", text[opening.end() : end], count=1).strip()
            lines = (line.removeprefix("> ") for line in html.unescape(inner).split("\n"))
            thoughts.append("\n".join(lines))
        at = end + len("</details>")
    return "".join((*kept, text[at:])).strip() if at else text, "\n\n".join(thoughts)


def _read_librechat(document: dict[str, Any], place: str) -> _Read:
    rows = document.get("messages", document.get("messagesTree"))
    if not isinstance(rows, list):
        raise unexpected(place, document, "messages", "a list of messages")
    nodes, waiting = dict[str, _Node](), [(row, "") for row in reversed(rows)]
    while waiting:
        row, above = waiting.pop()
        row = _object(row, f"{place}, message {len(nodes) + 1}")
        name = row.get("messageId")
        name = name if isinstance(name, str) else f"message {len(nodes) + 1}"
        nodes[name] = _Node(above or row.get("parentMessageId"), row)
        waiting += [(child, name) for child in reversed(_list(row.get("children")))]
    path, note = _path(nodes, None, place, "messages")
    messages = []
    for number, row in enumerate(path, 1):
        if not isinstance(row.get("isCreatedByUser"), bool):
            where = f"{place}, message {number}"
            raise unexpected(where, row, "isCreatedByUser", "true or false")
        text = row.get("text") or _joined(row.get("content"), "text", "\n\n")
        text = _with_files(text if isinstance(text, str) else "", row.get("files"))
        thoughts = _joined(row.get("content"), "think", "\n\n")
        role: Role = "user" if row["isCreatedByUser"] else "assistant"
        status: Status = "error" if row.get("error") is True else "complete"
        status = "stopped" if row.get("unfinished") is True else status
        messages.append(NewMessage(role, text, status, thoughts))
    system = _within(document, "options", "promptPrefix")
    return system if isinstance(system, str) else "", messages, note


def _read_claude(document: dict[str, Any], place: str) -> _Read:
    rows = document["chat_messages"]
    if not isinstance(rows, list):
        raise unexpected(place, document, "chat_messages", "a list of messages")
    messages = []
    for number, row in enumerate(rows, 1):
        where = f"{place}, message {number}"
        role = _ROLES.get(str(_object(row, where).get("sender")))
        if role is None:
            raise unexpected(where, row, "sender", "'human' or 'assistant'")
        content = row.get("content")
        # The text of older exports is whole; in newer ones it names what the parts hold.
        text = _joined(content, "text", "\n\n") or text_of(row, "text", where)
        text = _with_files(text, row.get("attachments"), row.get("files"))
        messages.append(NewMessage(role, text, thoughts=_joined(content, "thinking", "\n\n")))
    return "", messages, ""


PROGRAMS = (
    ForeignProgram("ChatGPT", "mapping", ("id", "conversation_id"), "title", _read_chatgpt),
    ForeignProgram("Claude", "chat_messages", ("uuid",), "name", _read_claude),
    ForeignProgram("LibreChat", "conversationId", ("conversationId",), "title", _read_librechat),
    ForeignProgram("open-webui", "chat", ("id",), "title", _read_open_webui),
)
"""Every other program whose chats are read."""
