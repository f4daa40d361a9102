"""Rows of every common layout to chats: the layout is detected, and every field is checked."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from chatapp.common.userfiles import shown
from chatapp.prompting.messages import Message
from chatapp.rows.reading import BadRow, Row, either, names, renamed, tables
from finetune.config.sections import BadRows, TrainSource
from finetune.data.split import content_key
from finetune.data.turns import (
    Tools,
    all_turns,
    best_path,
    calls_in,
    chat_of,
    check_order,
    is_tree,
    speaker_of,
    tools_of,
    turns_in,
    turns_of,
)


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """A training example: a chat that ends in a reply, a plain text, or a few-shot prompt.

    key: sixteen hex digits of the content. parts: consecutive texts, alternately given and to be
    answered. One of messages, text and parts is not empty. tools: those that the chat may call.
    is_cut: its last turn, which nobody answers, was left out.
    """

    location: str
    key: str
    messages: tuple[Message, ...] = ()
    text: str = ""
    parts: tuple[str, ...] = ()
    tools: Tools = ()
    is_cut: bool = False

    @property
    def reply(self) -> str:
        """The last reply; "" for a plain text."""
        return self.messages[-1].text if self.messages else "".join(self.parts[-1:])


Read = TypeVar("Read", covariant=True)


@dataclass(frozen=True, slots=True)
class Layout(Generic[Read]):
    """A common set of fields and its reader. `read` raises BadRow.

    fields: all that it uses. needs: those that identify it. applies: what else has to hold.
    """

    name: str
    fields: tuple[str, ...]
    read: Callable[[Row], Read] = field(repr=False)
    needs: tuple[str, ...] = ()
    applies: Callable[[Row], bool] = field(default=lambda row: True, repr=False)

    def fits(self, row: Row) -> bool:
        """Whether a row has the fields that identify this layout."""
        return all(name in row.fields for name in self.needs) and self.applies(row)


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


def chat_example(
    location: str, messages: Sequence[Message], tools: Tools = (), place: str = ""
) -> TrainingExample:
    """An example of a chat; last turns that nobody answers are left out.

    place: of the chat within the row, for the sentence on a fault. Raises BadRow.
    """
    if not messages:
        raise BadRow("no turns", f"{place or location}: has no turn, expected a chat")
    replies = [number for number, message in enumerate(messages) if message.role == "assistant"]
    kept = messages[: replies[-1] + 1] if replies else messages
    check_order(kept, place or location)
    for number, message in enumerate(kept, 1):
        if not (message.text.strip() or message.call):
            raise BadRow("empty turn", f"{place or location}, turn {number} is empty")
    if not any(message.learnt for message in kept if message.role == "assistant"):
        raise BadRow("no label", f"{place or location}: every reply has 'weight' 0")
    key = content_key([*all_turns(kept), *([tools] if tools else [])])
    is_cut = len(kept) < len(messages)
    return TrainingExample(location, key, tuple(kept), tools=tools, is_cut=is_cut)


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
            turns = turns_behind(row, request, reply)
            place = f"{row.location}: {reply} behind its {request}"
            return chat_example(row.location, turns, tools_of(row), place)
        answer = Message("assistant", text_field(row, reply))
        return chat_example(row.location, [*request_of(row, request, input_field), answer])

    fields = (request, input_field, reply) if input_field else (request, reply)
    return Layout(name, (*fields, *BESIDE, "tools"), read, needs=(request, reply))


def turns_behind(row: Row, request: str, reply: str) -> list[Message]:
    """The turns of two fields; only those of the second are learnt, as in TRL. Raises BadRow."""
    given = [{**t, "weight": 0} if isinstance(t, dict) else t for t in row.fields[request]]
    turns = [*given, *row.fields[reply]]
    return turns_of(Row(row.location, {**row.fields, request: turns}), request)


# Optional fields of a request and its reply: instructions, and earlier turns.
BESIDE = ("system", "history")


def request_of(row: Row, request: str, input_field: str) -> list[Message]:
    """The chat that ends in the field `request` and its input `given`, after the optional fields.

    A request that is written as turns, "\\n\\nHuman: … \\n\\nAssistant:", is those. Raises BadRow.
    """
    user = text_field(row, request)
    if len(turns := turns_in(user)) > 1 and not turns[-1].text:
        return [*system_of(row), *turns[:-1]]
    if input_field and (extra := _optional_text(row, input_field).strip()):
        user = f"{user.strip()}\n\n{extra}"
    return [*system_of(row), *_history(row), Message("user", user)]


def system_of(row: Row) -> list[Message]:
    """The instructions of a row, as messages: one or none. Raises BadRow."""
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


CHAT_FIELDS = ("messages", "conversations", "conversation")
"""The fields of lists of turns."""


def _chat_layout(name: str, field: str, speaker: str) -> Layout[TrainingExample]:
    def read(row: Row) -> TrainingExample:
        messages, tools = chat_of(row, field, system_of(row))
        return chat_example(row.location, messages, tools, f"{row.location}: {field}")

    def fits(row: Row) -> bool:
        return speaker_of(row.fields[field]) == speaker

    return Layout(name, (field, "system", "tools"), read, (field,), fits)


def _read_calls(row: Row) -> TrainingExample:
    messages = [*request_of(row, "query", ""), calls_in(row, "answers")]
    return chat_example(row.location, messages, tools_of(row))


_LISTS = tuple(
    _chat_layout(name, field, speaker)
    for field in CHAT_FIELDS
    for name, speaker in (("OpenAI messages", "role"), ("ShareGPT", "from"))
)
_OTHER_CHATS = (
    Layout("xLAM", ("query", "answers", "tools", "system"), _read_calls, ("query", "answers")),
    Layout(
        "OASST tree",
        ("prompt",),
        lambda row: chat_example(row.location, best_path(row)),
        ("message_tree_id", "prompt"),
        is_tree,
    ),
    Layout(
        "Human: and Assistant:",
        ("text",),
        lambda row: chat_example(row.location, turns_in(text_field(row, "text"))),
        ("text",),
        lambda row: len(turns_in(row.fields["text"])) > 1,
    ),
)


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
    *_LISTS,
    *(_pair_layout(*pair) for pair in _PAIRS),
    *_OTHER_CHATS,
    *_SINGLE_FIELDS,
)
"""Every layout of rows that become chats and texts; the first that fits a row is its layout."""

FIELDS = tuple(dict.fromkeys(name for layout in LAYOUTS for name in layout.fields))
"""The fields of all layouts."""


def detect(row: Row) -> Layout[TrainingExample]:
    """The layout of a row, by the names of its fields. Raises BadRow."""
    layout = next((candidate for candidate in LAYOUTS if candidate.fits(row)), None)
    if layout in _SINGLE_FIELDS and "parent_id" in row.fields:
        raise BadRow(
            "a message alone",
            f"{row.location}: this is one message of OASST, without those before it; expected its "
            "file of whole trees, whose name ends in .trees.jsonl.gz",
        )
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
