"""Rows of every common layout to chats: the layout is detected, and every field is checked.

Invariant: a row becomes either a `TrainingExample` or a `BadRow` that names its location, the
missing part and the present fields. Only text becomes text: a label `yes` stays a string, and a
number in place of text is an error.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, cast

from chatapp.common.userfiles import shown
from chatapp.prompting.messages import Message, Role
from chatapp.rows.reading import BadRow, Row, either, names, renamed, tables
from finetune.config.sections import BadRows, TrainSource
from finetune.data.split import content_key


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """A training example: a chat that ends in a reply, a plain text, or a few-shot prompt.

    key: sixteen hex digits of the content. parts: consecutive texts, alternately given and to be
    answered. One of messages, text and parts is not empty. is_cut: the last turn of the chat, which
    nobody answers, was left out.
    """

    location: str
    key: str
    messages: tuple[Message, ...] = ()
    text: str = ""
    parts: tuple[str, ...] = ()
    is_cut: bool = False

    @property
    def reply(self) -> str:
        """The last reply; "" for a plain text."""
        return self.messages[-1].text if self.messages else "".join(self.parts[-1:])


Read = TypeVar("Read", covariant=True)


@dataclass(frozen=True, slots=True)
class Layout(Generic[Read]):
    """A common set of fields and its reader. `read` raises BadRow.

    fields: all that it uses. needs: those that identify it.
    """

    name: str
    fields: tuple[str, ...]
    read: Callable[[Row], Read] = field(repr=False)
    needs: tuple[str, ...] = ()

    def fits(self, row: Row) -> bool:
        """Whether a row has the fields that identify this layout."""
        return all(name in row.fields for name in self.needs)


def text_field(row: Row, name: str) -> str:
    """The text of a required field. Raises BadRow."""
    if name not in row.fields:
        raise BadRow(
            f"no {name}", f"{row.location}: {name!r} is missing; there are {names(row.fields)}"
        )
    text = row.fields[name]
    if not isinstance(text, str):
        hint = "; write it in quotes" if isinstance(text, bool | int | float) else ""
        raise BadRow(
            f"{name} is not text", f"{row.location}: {name!r} is {shown(text)}, expected text{hint}"
        )
    if not text.strip():
        raise BadRow(f"empty {name}", f"{row.location}: {name!r} is empty")
    return text


def _optional_text(row: Row, name: str) -> str:
    """The text of a field that may be absent, null or empty."""
    return text_field(row, name) if row.fields.get(name) not in (None, "") else ""


def chat_example(location: str, messages: Sequence[Message]) -> TrainingExample:
    """An example of a chat whose turns were checked."""
    key = content_key([(message.role, message.text) for message in messages])
    return TrainingExample(location, key, messages=tuple(messages))


# --- one request and its reply -----------------------------------------------------------

# The layout's name, the fields of the request, of an input to it, and of the reply.
_PAIRS = (
    ("Alpaca", "instruction", "input", "output"),
    ("Dolly", "instruction", "context", "response"),
    ("prompt/completion", "prompt", "", "completion"),
    ("prompt/response", "prompt", "", "response"),
    ("question/answer", "question", "", "answer"),
    ("input/output", "input", "", "output"),
    ("query/response", "query", "", "response"),
    ("problem/solution", "problem", "", "solution"),
)


def _pair_layout(name: str, request: str, input_field: str, reply: str) -> Layout[TrainingExample]:
    def read(row: Row) -> TrainingExample:
        if all(isinstance(row.fields.get(name), list) for name in (request, reply)):  # as in TRL
            turns = [turn for name in (request, reply) for turn in turns_of(row, name)]
            check_order(turns, f"{row.location}: {reply} behind its {request}")
            return chat_example(row.location, turns)
        answer = Message("assistant", text_field(row, reply))
        return chat_example(row.location, [*request_of(row, request, input_field), answer])

    fields = (request, input_field, reply) if input_field else (request, reply)
    return Layout(name, (*fields, *BESIDE), read, needs=(request, reply))


# Optional fields of a request and its reply: instructions, and earlier turns.
BESIDE = ("system", "history")


def request_of(row: Row, request: str, input_field: str) -> list[Message]:
    """The chat that ends in the field `request` and its input `given`, after the optional fields.

    Raises BadRow.
    """
    user = text_field(row, request)
    if input_field and (extra := _optional_text(row, input_field).strip()):
        user = f"{user.strip()}\n\n{extra}"
    return [*_system(row), *_history(row), Message("user", user)]


def _system(row: Row) -> list[Message]:
    text = _optional_text(row, "system")
    return [Message("system", text)] if text else []


def _history(row: Row) -> list[Message]:
    """Earlier turns, as pairs: [[request, reply], …]."""
    pairs = row.fields.get("history") or []
    messages = []
    for pair in pairs if isinstance(pairs, list) else [pairs]:
        match pair:
            case [str(request), str(reply)] if request.strip() and reply.strip():
                messages += [Message("user", request), Message("assistant", reply)]
            case _:
                raise BadRow(
                    "bad history",
                    f"{row.location}: 'history' has {shown(pair)}, expected pairs of texts, a "
                    "request and its reply",
                )
    return messages


# --- lists of turns ----------------------------------------------------------------------

_CHAT_FIELDS = ("messages", "conversations")


@dataclass(frozen=True, slots=True)
class _Turns:
    """The notation of a chat's turns."""

    name: str
    speaker: str
    content: str
    roles: dict[str, Role]


_OPENAI = _Turns(
    "OpenAI messages",
    "role",
    "content",
    {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"},
)
_SHAREGPT = _Turns(
    "ShareGPT",
    "from",
    "value",
    {
        "system": "system",
        "human": "user",
        "user": "user",
        "gpt": "assistant",
        "assistant": "assistant",
    },
)


@dataclass(frozen=True, slots=True)
class _ChatLayout(Layout[TrainingExample]):
    """A list of turns. kind: their notation."""

    kind: _Turns = _OPENAI

    def fits(self, row: Row) -> bool:
        (name,) = self.needs
        return name in row.fields and _kind_of(row.fields[name]) is self.kind


def _chat_layout(field: str, kind: _Turns) -> Layout[TrainingExample]:
    def read(row: Row) -> TrainingExample:
        messages = turns_of(row, field)
        location = f"{row.location}: {field}"
        if system := _system(row):
            if messages[0].role == "system":
                raise BadRow(
                    "two system messages",
                    f"{row.location}: 'system' stands beside {field}, turn 1, which is from "
                    "'system' too; expected one of them",
                )
            messages = [*system, *messages]
        is_cut = messages[-1].role == "user" and any(m.role == "assistant" for m in messages)
        messages = messages[:-1] if is_cut else messages
        check_order(messages, location)
        return replace(chat_example(row.location, messages), is_cut=is_cut)

    return _ChatLayout(kind.name, (field, "system"), read, (field,), kind)


def turns_of(row: Row, field: str) -> list[Message]:
    """The turns in a field, in the notation of OpenAI or ShareGPT, in any order of roles.

    Raises BadRow.
    """
    location = f"{row.location}: {field}"
    turns = row.fields.get(field)
    if not isinstance(turns, list) or not turns:
        problem = "an empty list" if turns == [] else shown(turns)
        problem = problem if field in row.fields else "missing"
        raise BadRow(f"no {field}", f"{location} is {problem}, expected a list of turns")
    kind = _kind_of(turns)
    return [
        _message(turn, kind, f"{location}, turn {number}") for number, turn in enumerate(turns, 1)
    ]


def _kind_of(turns: Any) -> _Turns:
    first = turns[0] if isinstance(turns, list) and turns else None
    return _SHAREGPT if isinstance(first, dict) and _SHAREGPT.speaker in first else _OPENAI


def _message(turn: Any, kind: _Turns, location: str) -> Message:
    if not isinstance(turn, dict):
        raise BadRow("bad turn", f"{location} is {shown(turn)}, expected an object")
    speaker, text = turn.get(kind.speaker), turn.get(kind.content)
    role = kind.roles.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        raise BadRow(
            f"unknown {kind.speaker}",
            f"{location}: {kind.speaker!r} is {shown(speaker)}, expected "
            f"{either(tuple(kind.roles))}",
        )
    if isinstance(text, list):
        parts = [part if isinstance(part, dict) else {} for part in text]
        for number, part in enumerate(parts, 1):
            if part.get("type", "text") != "text" or not isinstance(part.get("text"), str):
                problem = f"part {number} is of the type {shown(part.get('type'))}, expected 'text'"
                raise BadRow("no text", f"{location}: {kind.content!r}, {problem}")
        text = "".join(part["text"] for part in parts)
    if not isinstance(text, str):
        raise BadRow("bad turn", f"{location}: {kind.content!r} is {shown(text)}, expected text")
    if not text.strip():
        raise BadRow("empty turn", f"{location}: {kind.content!r} is empty")
    if turn.get("weight", 1) not in (1, None):
        raise BadRow(
            "weighted turn", f"{location}: 'weight' is {shown(turn['weight'])}, expected 1 or none"
        )
    return Message(role, text)


def check_order(messages: Sequence[Message], location: str) -> None:
    start = 1 if messages[0].role == "system" else 0
    for index, message in enumerate(messages[start:]):
        expected = "assistant" if index % 2 else "user"
        if message.role != expected:
            raise BadRow(
                "roles do not alternate",
                f"{location}, turn {start + index + 1} is from {message.role!r}, "
                f"expected {expected!r}",
            )
    if messages[-1].role != "assistant":
        raise BadRow(
            "no last reply",
            f"{location} ends with a turn from {messages[-1].role!r}, expected 'assistant'",
        )


# --- detection ---------------------------------------------------------------------------


def _read_text(row: Row) -> TrainingExample:
    text = text_field(row, "text")
    return TrainingExample(row.location, content_key(text), text=text)


def _read_parts(row: Row) -> TrainingExample:
    parts = row.fields["parts"]
    if (
        not isinstance(parts, list)
        or not parts
        or len(parts) % 2
        or not all(isinstance(part, str) and part for part in parts)
    ):
        raise BadRow(
            "bad parts",
            f"{row.location}: 'parts' is {shown(parts)}, expected texts in turn, "
            "the prompt first and an answer last",
        )
    return TrainingExample(row.location, content_key(parts), parts=tuple(parts))


_SINGLE_FIELDS = (
    Layout("plain text", ("text",), _read_text, needs=("text",)),
    Layout("few-shot prompt", ("parts",), _read_parts, needs=("parts",)),
)

LAYOUTS: tuple[Layout[TrainingExample], ...] = (
    *(_chat_layout(name, kind) for name in _CHAT_FIELDS for kind in (_OPENAI, _SHAREGPT)),
    *(_pair_layout(*pair) for pair in _PAIRS),
    *_SINGLE_FIELDS,
)
"""Every layout of rows that become chats and texts; the first that fits a row is its layout."""

FIELDS = tuple(dict.fromkeys(name for layout in LAYOUTS for name in layout.fields))
"""The fields of all layouts."""


def detect(row: Row) -> Layout[TrainingExample]:
    """The layout of a row, by the names of its fields. Raises BadRow."""
    layout = next((candidate for candidate in LAYOUTS if candidate.fits(row)), None)
    if "label" in row.fields and (layout is None or layout in _SINGLE_FIELDS):
        raise BadRow(
            "no instruction",
            f"{row.location}: {names(row.fields)} are data of a classification task; give them "
            "instruction templates (`template`), or name the columns that are the prompt and "
            "the completion (`columns`)",
        )
    if layout is None:
        by_needs = sorted(LAYOUTS, key=lambda layout: len(layout.needs), reverse=True)
        known = dict.fromkeys(" and ".join(layout.needs) for layout in by_needs)
        raise BadRow(
            "unknown layout",
            f"{row.location}: expected {either(tuple(known))}; there are {names(row.fields)}; "
            "name the right ones with `columns`",
        )
    return layout


# --- labelled data, for heads ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Labelled:
    """A row of labelled data: each requested field as text, or as a list of texts."""

    location: str
    key: str
    fields: dict[str, str | list[str]]


def read_labelled(
    source: TrainSource, roles: Sequence[str], bad_rows: BadRows = "raise"
) -> Iterator[Labelled | BadRow]:
    """The rows of a source with the fields of a task, as text.

    roles: such as ("text", "label"). "choices" is a list of texts; "label" may also be a number.
    Bad rows are raised, or with `bad_rows` = "skip" yielded to be counted.
    """
    for table in tables(source):
        for row in renamed(table, source.columns):
            try:
                if isinstance(row, BadRow):
                    raise row
                labelled = read_fields(row, roles)
            except BadRow as error:
                if bad_rows == "raise":
                    raise
                yield error
            else:
                yield labelled


def read_fields(row: Row, roles: Sequence[str]) -> Labelled:
    """The fields of a row for a task. Raises BadRow."""
    fields = {role: _labelled_field(row, role) for role in roles}
    return Labelled(row.location, content_key(fields), fields)


def _labelled_field(row: Row, role: str) -> str | list[str]:
    value = row.fields.get(role)
    if role == "choices" and role in row.fields:
        texts = value if isinstance(value, list) else []
        if len(texts) < 2 or not all(isinstance(text, str) and text.strip() for text in texts):
            raise BadRow(
                "bad choices", f"{row.location}: 'choices' is {value!r}, expected two or more texts"
            )
        return cast(list[str], texts)
    if role == "label" and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return text_field(row, role)
