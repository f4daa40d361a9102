"""A model's own chat template: the Jinja program of its tokenizer, rendered to segments.

The program is foreign. It runs in a limited process, with bounds on its size, time and memory, and
its output is split into text of the template and text of each message (see `template_program`).
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache, cached_property
from itertools import accumulate, pairwise, product
from types import MappingProxyType
from typing import Any, NamedTuple

from chatapp.common.limited_process import LimitedProcess, LimitPassedError
from chatapp.common.userfiles import UserError
from chatapp.prompting.messages import (
    END_OF_TEXT,
    OWN,
    TEMPLATE,
    CallPattern,
    Kind,
    Message,
    Segment,
    Text,
    schema_by,
    text_by,
    to_json,
)
from chatapp.prompting.thoughts_and_calls import (
    HERMES,
    Marks,
    as_text,
    explained,
    marks_in,
    pattern_in,
)

# The longest known template has 17,000 characters and takes about ten steps per message.
_LONGEST_SOURCE = 500_000

_MOST_SECONDS = 3.0
"""For a chat in all its forms."""

_MOST_MEMORY = 500 * 10**6
_LIMITS = {
    "time": f"the chat template takes more than {_MOST_SECONDS:.0f} seconds",
    "memory": f"the chat template takes more than {_MOST_MEMORY // 10**6} MB of memory",
    "end": "the chat template crashes the process that runs it",
}

# The names that templates give the switch for thinking, the most common first.
_SWITCHES = ("enable_thinking", "thinking")

# The origin of instructions that a template adds to a chat without any.
_DEFAULT = -2


class Turn(NamedTuple):
    """A message in the form that a template gets."""

    role: str
    content: Text
    thoughts: Text = Text(())
    call: Mapping[str, Any] = MappingProxyType({})
    """Other fields of a call, or of a call's result."""


Turns = list[Turn]


class Written(NamedTuple):
    """The output of a template. runs: the origin of each character, as (origin, length). trained:
    the spans within `{% generation %}`; None if the template has no such tag.
    """

    text: str
    runs: tuple[tuple[int, int], ...]
    trained: tuple[tuple[int, int], ...] | None = None

    def start_of(self, message: int) -> int:
        """Where a message begins; the end of the text if it is absent."""
        start = 0
        for origin, length in self.runs:
            if origin == message:
                return start
            start += length
        return len(self.text)

    def end_of(self, message: int) -> int:
        """Where a message ends; the end of the text if it is absent."""
        end = len(self.text)
        for origin, length in reversed(self.runs):
            if origin == message:
                return end
            end -= length
        return len(self.text)

    def holds(self, span: tuple[int, int], messages: Sequence[int], count: int) -> bool:
        """Whether a span holds text or thoughts of one of these messages, of `count`."""
        ends = accumulate(length for _, length in self.runs)
        return any(
            origin >= 0 and end > span[0] and end - length < span[1] and origin % count in messages
            for (origin, length), end in zip(self.runs, ends, strict=True)
        )

    def has_some(self, content: Text) -> bool:
        """Whether it has a piece of a content, or there is nothing to have."""
        wanted = {origin for origin, text in content.pieces if text.strip()}
        return not wanted or any(origin in wanted for origin, _ in self.runs)

    def until(self, end: int) -> "Written":
        """The text up to a character."""
        runs, start = [], 0
        for origin, length in self.runs:
            if start < end:
                runs.append((origin, min(length, end - start)))
            start += length
        return Written(self.text[:end], tuple(runs), self.trained)


@cache
def _sandbox() -> LimitedProcess:
    """The process that runs all templates, one at a time; the first one starts it."""
    return LimitedProcess("chatapp.prompting.template_program", "answer", memory=_MOST_MEMORY)


class ChatTemplateError(UserError, ValueError):
    """A chat template that is invalid, or that refuses a chat."""


class _EndlessError(ChatTemplateError):
    """A chat template that exceeds the limits for any form of a chat."""


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template with the special tokens of its tokenizer.

    source: the Jinja program. origin: its file, for error messages. special: the texts of the
    tokenizer's special tokens. variables: what the program may read apart from the messages:
    `bos_token`, `eos_token` and the other named tokens of the tokenizer, and its own switches.
    thinking: the value of its switch for thinking; None leaves that to the template. today: the
    date that it may write; None for the day of rendering. tools: the ones that the model may call,
    as JSON schemas of functions. tool_source: the program with tools, where there is one of its
    own. Raises ChatTemplateError when a source is not a template.
    """

    source: str
    origin: str
    special: tuple[str, ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    thinking: bool | None = None
    today: date | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_source: str = ""

    def __post_init__(self) -> None:
        """Raises ChatTemplateError when the source is too long or no template."""
        longest = max(len(self.source), len(self.tool_source))
        if longest > _LONGEST_SOURCE:
            raise ChatTemplateError(
                f"{self.origin}: the chat template has {longest:,} characters; "
                f"expected at most {_LONGEST_SOURCE:,}"
            )
        self._variables  # noqa: B018  # a template that cannot be read is refused here

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits over everything that determines the text.

        Templates with equal fingerprints render alike, if their switches for thinking are set
        alike.
        """
        content = [self.source, sorted(self.variables.items())]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """The data stored next to a model's weights; the program itself is stored by the
        tokenizer."""
        return {"name": self.name, "fingerprint": self.fingerprint}

    def render(self, messages: Sequence[Message], *, open_reply: bool = False) -> list[Segment]:
        """Render a chat as segments.

        messages: a chat that ends with a user's message gets the announcement of the reply. With
        `open_reply`, a last assistant message stays open to be continued. Raises ChatTemplateError
        when the template fails or refuses these messages.
        """
        if not self.has_calls:
            messages = self._with_calls_as_text(messages)
        answered = bool(messages) and messages[-1].role == "assistant"
        text = self._text(messages, announce=not answered)
        if answered and open_reply:
            text = text.until(text.end_of(len(messages) - 1))
        return self._segments_of(text, messages)

    def render_trained(self, messages: Sequence[Message]) -> list[tuple[Segment, bool]] | None:
        """Render a chat whose template says by `{% generation %}` which text is trained: each
        segment, and whether it is. None if the template has no such tag.

        Segments are cut where such a text begins and ends. Raises ChatTemplateError as `render`.
        """
        if not self.has_calls:
            messages = self._with_calls_as_text(messages)
        written = self._text(messages)
        if written.trained is None:
            return None
        given = [i for i, message in enumerate(messages) if not message.learnt]
        spans = [span for span in written.trained if not written.holds(span, given, len(messages))]
        edges = sorted({edge for span in spans for edge in span})
        parts: list[tuple[Segment, bool]] = []
        start = 0
        for segment in self._segments_of(written, messages):
            end = start + len(segment.text)
            cuts = [start, *(edge for edge in edges if start < edge < end), end]
            for first, last in pairwise(cuts):
                is_trained = any(begin <= first < stop for begin, stop in spans)
                text = written.text[first:last]
                parts.append((replace(segment, text=text), is_trained))
            start = end
        return parts

    def _segments_of(self, written: Written, messages: Sequence[Message]) -> list[Segment]:
        if not any(message.role == "system" for message in messages):
            written = self._with_default(written)
        kinds: list[Kind] = [
            "instruction" if message.role == "system" else message.role for message in messages
        ]
        kinds += ["thinking"] * len(messages)
        return list(self._segments(written, [*kinds, "instruction"]))

    @property
    def name(self) -> str:
        """Its name among templates: a model has only one of its own."""
        return OWN

    @property
    def switch(self) -> str:
        """The template's name for its thinking switch; "" if it has none."""
        return next((name for name in _SWITCHES if name in self._variables), "")

    @cached_property
    def marks(self) -> Marks | None:
        """The marks around a thought of the model; None if the template has no such marks."""
        return marks_in(self.source, self.special)

    @property
    def has_calls(self) -> bool:
        """Whether the template says how the model calls tools."""
        return pattern_in(self.tool_source or self.source, self.special) is not None

    @property
    def calls(self) -> CallPattern:
        """How the model calls tools: by the pattern of its template, or as instructed in words."""
        return pattern_in(self.tool_source or self.source, self.special) or HERMES

    @cached_property
    def instruction(self) -> str:
        """The template's instruction for a chat without a system message; may be empty."""
        start, end, head = self._default_place
        return head[start:end]

    @cached_property
    def stop(self) -> tuple[str, ...]:
        """The strings that end a reply: the next special token, or the text up to the next message
        where there is none.
        """
        text = self._text([Message("user", "a"), Message("assistant", "b"), Message("user", "c")])
        after = text.text[text.end_of(1) : text.start_of(2)]
        token = self._special_pattern.search(after) if self.special else None
        end = token[0] if token else after.strip(" ")
        return (end,) if end else ()

    @property
    def end(self) -> Segment:
        """What follows a finished reply."""
        if not self.stop:
            return END_OF_TEXT
        return Segment("special" if self.stop[0] in self.special else "marker", self.stop[0])

    def reply(self, text: str) -> list[Segment]:
        """A reply that a prompt ends in and the model continues; nothing for an empty one."""
        return [Segment("assistant", text)] if text else []

    def _text(self, messages: Sequence[Message], *, announce: bool = False) -> Written:
        """Write the chat in the first form that the template accepts.

        Without a place for a system message, its text goes before the first user message (as in
        Gemma's documentation); two consecutive messages of one role become one. Some templates of
        models that see pictures know only lists of parts, and leave out a content that is a text.
        """
        turns = _turns(messages)
        refusal: ChatTemplateError | None = None
        incomplete: Written | None = None
        until = time.monotonic() + _MOST_SECONDS
        forms = product((False, True), self._lists_of_tools(messages), _FORMS)
        for in_parts, tools, rewrite in forms:
            form = rewrite(turns)
            try:
                text = self._run(form, announce, tools, until, in_parts=in_parts)
            except _EndlessError:
                if incomplete is None:
                    raise
                break
            except ChatTemplateError as error:
                refusal = refusal or error
                continue
            if form is turns and self._leaves_out_system(messages, text):
                continue
            if form and not text.has_some(form[-1].content):
                incomplete = incomplete or text
                continue
            return text
        if incomplete is not None:
            return incomplete
        raise refusal or ChatTemplateError(
            f"{self.origin}: the chat template has no place for a system message alone"
        )

    def _lists_of_tools(self, messages: Sequence[Message]) -> tuple[Any, ...]:
        """A template made for tools only may need a list of them, even an empty one."""
        if self.tools and self.has_calls:
            return (schema_by(2 * len(messages), self.tools, self.special),)
        return (None, ())

    def writes(self, messages: Sequence[Message]) -> bool:
        """Whether the template writes every message as a turn of its own: none is refused, left
        out or joined with another.
        """
        turns, until = _turns(messages), time.monotonic() + _MOST_SECONDS
        for in_parts, tools in product((False, True), self._lists_of_tools(messages)):
            with suppress(ChatTemplateError):
                written = self._run(turns, False, tools, until, in_parts=in_parts)
                origins = {origin for origin, _ in written.runs}
                if all(i in origins for i, message in enumerate(messages) if message.text):
                    return True
        return False

    def _leaves_out_system(self, messages: Sequence[Message], text: Written) -> bool:
        """Whether the template silently ignored the system message."""
        has_system = any(m.role == "system" and m.text.strip() for m in messages[:1])
        return has_system and "system" not in self.source and text.start_of(0) == len(text.text)

    def _with_calls_as_text(self, messages: Sequence[Message]) -> list[Message]:
        """Messages for a template that does not support tools."""
        rewritten = list(messages)
        if self.tools:
            system = (
                rewritten.pop(0).text
                if rewritten and rewritten[0].role == "system"
                else self.instruction
            )
            words = "\n\n".join(filter(None, (system, explained(self.tools))))
            rewritten.insert(0, Message("system", words))
        for place, message in enumerate(rewritten):
            if message.call is None:
                continue
            if message.role == "tool":
                rewritten[place] = Message("tool", as_text(message.call)[1])
            else:
                calls = (as_text(call)[0] for call in (message.call, *message.further))
                text = "\n".join([message.text, *calls]).lstrip()
                rewritten[place] = replace(message, text=text, call=None, further=())
        return rewritten

    def _run(
        self, turns: Turns, announce: bool, tools: Any, until: float, *, in_parts: bool
    ) -> Written:
        """Run the template until the time `until`. in_parts: whether a content is a list of parts.
        Raises ChatTemplateError.
        """
        chat = []
        for turn in turns:
            content = [{"type": "text", "text": turn.content}] if in_parts else turn.content
            thoughts = {"reasoning_content": turn.thoughts} if str(turn.thoughts) else {}
            chat.append({"role": turn.role, "content": content, **thoughts, **turn.call})
        switch = {} if self.thinking is None else {self.switch: self.thinking}
        values = {
            **self.variables,
            **switch,
            "messages": chat,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": announce,
        }
        today = self.today.isoformat() if self.today else None
        request = {"values": to_json(values), "today": today, "special": self.special}
        if tools and self.tool_source:
            request["source"] = self.tool_source
        answer = self._ask(request, until)
        if "endless" in answer:
            raise _EndlessError(f"{self.origin}: the chat template {answer['endless']}")
        if "refusal" in answer:
            raise ChatTemplateError(
                f"{self.origin}: the chat template refuses this chat: {answer['refusal']}"
            )
        if "failure" in answer:
            raise ChatTemplateError(f"{self.origin}: the chat template fails: {answer['failure']}")
        runs, trained = answer["runs"], answer["trained"]
        spans = None if trained is None else tuple((start, end) for start, end in trained)
        return Written(answer["text"], tuple((origin, length) for origin, length in runs), spans)

    def _ask(self, request: dict[str, Any], until: float) -> dict[str, Any]:
        """Send the source to the limited process. Raises ChatTemplateError."""
        seconds = max(0.0, until - time.monotonic())
        try:
            return dict(_sandbox().ask({"source": self.source, **request}, seconds))
        except LimitPassedError as passed:
            raise _EndlessError(f"{self.origin}: {_LIMITS[passed.limit]}") from None

    @cached_property
    def _variables(self) -> frozenset[str]:
        """The names that the programs read. Raises ChatTemplateError when one is invalid."""
        names = frozenset[str]()
        for source in filter(None, (self.source, self.tool_source)):
            answer = self._ask({"source": source}, time.monotonic() + _MOST_SECONDS)
            if "line" in answer:
                raise ChatTemplateError(
                    f"{self.origin}: the chat template, line {answer['line']}: {answer['problem']}"
                )
            if "problem" in answer:
                raise ChatTemplateError(
                    f"{self.origin}: the chat template cannot be compiled: {answer['problem']}"
                )
            names |= frozenset(answer["variables"])
        return names

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        """Matches any special token, the longest of those with a common beginning."""
        longest_first = sorted(self.special, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)))

    @cached_property
    def _default_place(self) -> tuple[int, int, str]:
        """The position of the default instructions in the text before the first message."""
        try:
            bare = self._text([Message("user", "u")])
            rendered = self._text([Message("system", "s"), Message("user", "u")])
        except ChatTemplateError:
            return 0, 0, ""
        head = bare.text[: bare.start_of(0)]
        before = rendered.text[: rendered.start_of(0)]
        after = rendered.text[rendered.end_of(0) : rendered.start_of(1)]
        fits = head.startswith(before) and head.endswith(after)
        if not fits or len(head) <= len(before) + len(after):
            return 0, 0, ""
        return len(before), len(head) - len(after), head

    def _with_default(self, written: Written) -> Written:
        """Mark the default instructions, which stand in the template's own text."""
        start, end, head = self._default_place
        if not head or not written.text.startswith(head):
            return written
        (_, first), *others = written.runs
        runs = ((TEMPLATE, start), (_DEFAULT, end - start), (TEMPLATE, first - end), *others)
        return written._replace(runs=runs)

    def _segments(self, written: Written, kinds: Sequence[Kind]) -> Iterator[Segment]:
        start = 0
        for origin, length in written.runs:
            piece = written.text[start : start + length]
            start += length
            if origin >= 0:  # a private character of the template itself is nobody's number
                yield Segment(kinds[origin] if origin < len(kinds) else "user", piece)
            elif piece:
                yield from self._own(piece, "marker" if origin == TEMPLATE else "instruction")

    def _own(self, piece: str, kind: Kind) -> Iterator[Segment]:
        """Split text of the template at its special tokens."""
        start = 0
        for token in self._special_pattern.finditer(piece) if self.special else ():
            if token.start() > start:
                yield Segment(kind, piece[start : token.start()])
            yield Segment("special", token[0])
            start = token.end()
        if start < len(piece):
            yield Segment(kind, piece[start:])


def _turns(messages: Sequence[Message]) -> Turns:
    """Messages in the form that a template gets, with their places as origins."""
    return [
        Turn(
            "user" if message.role == "tool" and message.call is None else message.role,
            text_by(index, message.text),
            text_by(len(messages) + index, message.thoughts),
            _call(message, index),
        )
        for index, message in enumerate(messages)
    ]


def _without_system(turns: Turns) -> Turns:
    """Move the system message into the first user message."""
    if len(turns) < 2 or turns[0].role != "system":
        return turns
    system, first, *others = turns
    return [first._replace(content=_paragraphs(system.content, first.content)), *others]


def _alternating(turns: Turns) -> Turns:
    """Merge consecutive messages of one role."""
    merged: Turns = []
    for turn in turns:
        if merged and merged[-1].role == turn.role:
            before = merged.pop()
            turn = turn._replace(content=_paragraphs(before.content, turn.content))
        merged.append(turn)
    return merged


_FORMS: tuple[Callable[[Turns], Turns], ...] = (
    lambda turns: turns,
    _without_system,
    _alternating,
    lambda turns: _alternating(_without_system(turns)),
)


def _paragraphs(first: Text, second: Text) -> Text:
    return Text((*first.pieces, (TEMPLATE, "\n\n"), *second.pieces))


def _call(message: Message, index: int) -> dict[str, Any]:
    """The fields of a call, or of its result, by the names that templates use.

    An id is nine letters and digits, as Mistral's templates require.
    """
    if message.call is None:
        return {}
    if message.role == "tool":
        name = text_by(index, message.call.name)
        return {"name": name, "tool_call_id": f"call{index - 1:05}"}
    calls = []
    for number, call in enumerate((message.call, *message.further), index):
        function = {"name": text_by(index, call.name), "arguments": text_by(index, call.arguments)}
        calls.append({"type": "function", "id": f"call{number:05}", "function": function})
    return {"tool_calls": calls}
