"""A model's own chat template: the Jinja program of its tokenizer, rendered to segments.

The program is foreign. It runs in a limited process, with bounds on its size and its steps, on
strings that remember their origin (see `traced_text`), so that its output can be split into text of
the template and text of each message.

Invariant: the text equals the output of transformers' `apply_chat_template` for the same messages,
character for character, and special tokens come only from the template itself.
"""

import hashlib
import json
import re
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache, cached_property
from itertools import pairwise, product
from types import MappingProxyType
from typing import Any, NamedTuple

from chatapp.common.limited_process import LimitedProcess, LimitPassedError
from chatapp.common.userfiles import UserError
from chatapp.prompting.calls import HERMES, as_text, explained, pattern_in
from chatapp.prompting.messages import CallPattern, Kind, Message, Segment
from chatapp.prompting.template import OWN, DialogueTemplate
from chatapp.prompting.thinking import Marks, marks_in
from chatapp.prompting.traced_text import (
    TEMPLATE,
    Traced,
    from_json,
    joined,
    origins_of,
    to_json,
    traced_value,
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
    content: Traced
    thoughts: Traced = Traced("")
    call: Mapping[str, Any] = MappingProxyType({})
    """Other fields of a call, or of a call's result."""


Turns = list[Turn]


@cache
def _sandbox() -> LimitedProcess:
    """The process that runs all templates, one at a time; the first one starts it."""
    return LimitedProcess("chatapp.prompting.template_sandbox", "answer", memory=_MOST_MEMORY)


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
    as JSON schemas of functions. Raises ChatTemplateError when the source is no template.
    """

    source: str
    origin: str
    special: tuple[str, ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    thinking: bool | None = None
    today: date | None = None
    tools: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        """Raises ChatTemplateError when the source is too long or no template."""
        if len(self.source) > _LONGEST_SOURCE:
            raise ChatTemplateError(
                f"{self.origin}: the chat template has {len(self.source):,} characters; "
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

        messages: as for `DialogueTemplate.render`; a chat that ends with a user's message gets the
        announcement of the reply. With `open_reply`, a last assistant message stays open to be
        continued. Raises ChatTemplateError when the template fails or refuses these messages.
        """
        if not self.has_calls:
            messages = self._with_calls_as_text(messages)
        answered = bool(messages) and messages[-1].role == "assistant"
        text = self._text(messages, announce=not answered)
        if answered and open_reply:
            text = text[: _end_of(text, len(messages) - 1)]
        if not any(message.role == "system" for message in messages):
            text = self._with_default(text)
        kinds: list[Kind] = [
            "instruction" if message.role == "system" else message.role for message in messages
        ]
        kinds += ["thinking"] * len(messages)
        return list(self._segments(text, [*kinds, "instruction"]))

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
        return pattern_in(self.source, self.special) is not None

    @property
    def calls(self) -> CallPattern:
        """How the model calls tools: by the pattern of its template, or as instructed in words."""
        return pattern_in(self.source, self.special) or HERMES

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
        after = text.plain()[_end_of(text, 1) : _start_of(text, 2)]
        token = self._special_pattern.search(after) if self.special else None
        end = token[0] if token else after.strip(" ")
        return (end,) if end else ()

    def _text(self, messages: Sequence[Message], *, announce: bool = False) -> Traced:
        """Write the chat in the first form that the template accepts.

        Without a place for a system message, its text goes before the first user message (as in
        Gemma's documentation); two consecutive messages of one role become one.
        """
        turns = [
            Turn(
                "user" if message.role == "tool" and message.call is None else message.role,
                Traced(message.text, index),
                Traced(message.thoughts, len(messages) + index),
                _call(message, index),
            )
            for index, message in enumerate(messages)
        ]
        forms = [turns, _without_system(turns), _alternating(turns)]
        forms.append(_alternating(forms[1]))
        refusal: ChatTemplateError | None = None
        until = time.monotonic() + _MOST_SECONDS
        # A template made for tools only may need a list of them, even an empty one.
        lists: tuple[Any, ...] = (None, ())
        if self.tools and self.has_calls:
            lists = (traced_value(self.tools, 2 * len(messages)),)
        for tools, form in product(lists, forms):
            try:
                text = self._run(form, announce, tools, until)
            except _EndlessError:
                raise
            except ChatTemplateError as error:
                refusal = refusal or error
                continue
            if form is turns and self._leaves_out_system(messages, text):
                continue
            return text
        raise refusal or ChatTemplateError(
            f"{self.origin}: the chat template has no place for a system message alone"
        )

    def _leaves_out_system(self, messages: Sequence[Message], text: Traced) -> bool:
        """Whether the template silently ignored the system message."""
        first = messages[0]
        has_system = first.role == "system" and bool(first.text.strip())
        return has_system and "system" not in self.source and 0 not in origins_of(text)

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
            call_text, answer = as_text(message.call)
            if message.role == "tool":
                rewritten[place] = Message("tool", answer)
            else:
                rewritten[place] = Message("assistant", f"{message.text}\n{call_text}".lstrip())
        return rewritten

    def _run(self, turns: Turns, announce: bool, tools: Any, until: float) -> Traced:
        """Run the template until the time `until`. Raises ChatTemplateError."""
        chat = []
        for turn in turns:
            thoughts = {"reasoning_content": turn.thoughts} if turn.thoughts else {}
            chat.append({"role": turn.role, "content": turn.content, **thoughts, **turn.call})
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
        answer = self._ask({"values": to_json(values), "today": today}, until)
        if "refusal" in answer:
            kind = _EndlessError if answer["is_endless"] else ChatTemplateError
            raise kind(f"{self.origin}: the chat template refuses this chat: {answer['refusal']}")
        if "failure" in answer:
            raise ChatTemplateError(f"{self.origin}: the chat template fails: {answer['failure']}")
        text: Traced = from_json(answer["text"])
        return text

    def _ask(self, request: dict[str, Any], until: float) -> dict[str, Any]:
        """Send the source to the limited process. Raises ChatTemplateError."""
        seconds = max(0.0, until - time.monotonic())
        try:
            return dict(_sandbox().ask({"source": self.source, **request}, seconds))
        except LimitPassedError as passed:
            raise _EndlessError(f"{self.origin}: {_LIMITS[passed.limit]}") from None

    @cached_property
    def _variables(self) -> frozenset[str]:
        """The names that the program reads. Raises ChatTemplateError when it is invalid."""
        answer = self._ask({}, time.monotonic() + _MOST_SECONDS)
        if "line" in answer:
            raise ChatTemplateError(
                f"{self.origin}: the chat template, line {answer['line']}: {answer['problem']}"
            )
        if "problem" in answer:
            raise ChatTemplateError(
                f"{self.origin}: the chat template cannot be compiled: {answer['problem']}"
            )
        return frozenset(answer["variables"])

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
        head = bare.plain()[: _start_of(bare, 0)]
        before = rendered.plain()[: _start_of(rendered, 0)]
        after = rendered.plain()[_end_of(rendered, 0) : _start_of(rendered, 1)]
        fits = head.startswith(before) and head.endswith(after)
        if not fits or len(head) <= len(before) + len(after):
            return 0, 0, ""
        return len(before), len(head) - len(after), head

    def _with_default(self, text: Traced) -> Traced:
        start, end, head = self._default_place
        if not head or not text.startswith(head):
            return text
        origins = array("i", origins_of(text))
        origins[start:end] = array("i", [_DEFAULT]) * (end - start)
        return Traced(text.plain(), origins)

    def _segments(self, text: Traced, kinds: Sequence[Kind]) -> Iterator[Segment]:
        origins = origins_of(text)
        if not text:
            return
        borders = [0, *(i for i in range(1, len(text)) if origins[i] != origins[i - 1]), len(text)]
        for start, end in pairwise(borders):
            piece, origin = text.plain()[start:end], origins[start]
            if origin >= 0:
                yield Segment(kinds[origin], piece)
            else:
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


def _start_of(text: Traced, message: int) -> int:
    """Where a message begins in a text; the end of the text if it is absent."""
    origins = origins_of(text)
    return origins.index(message) if message in origins else len(text)


def _end_of(text: Traced, message: int) -> int:
    """Where a message ends in a text; the end of the text if it is absent."""
    origins = origins_of(text)
    return len(text) - origins[::-1].index(message) if message in origins else len(text)


def _without_system(turns: Turns) -> Turns:
    """Move the system message into the first user message."""
    if len(turns) < 2 or turns[0].role != "system":
        return turns
    system, first, *others = turns
    return [first._replace(content=joined((system.content, "\n\n", first.content))), *others]


def _alternating(turns: Turns) -> Turns:
    """Merge consecutive messages of one role."""
    merged: Turns = []
    for turn in turns:
        if merged and merged[-1].role == turn.role:
            before = merged.pop()
            turn = turn._replace(content=joined((before.content, "\n\n", turn.content)))
        merged.append(turn)
    return merged


def _call(message: Message, index: int) -> dict[str, Any]:
    """The fields of a call, or of its result, by the names that templates use.

    An id is nine letters and digits, as Mistral's templates require.
    """
    if message.call is None:
        return {}
    if message.role == "tool":
        name = Traced(message.call.name, index)
        return {"name": name, "tool_call_id": f"call{index - 1:05}"}
    function = {"name": message.call.name, "arguments": dict(message.call.arguments)}
    call = {"type": "function", "id": f"call{index:05}", "function": traced_value(function, index)}
    return {"tool_calls": [call]}


Template = DialogueTemplate | ChatTemplate
"""How a chat is written: by a pattern of this program, or by a model's own program."""
