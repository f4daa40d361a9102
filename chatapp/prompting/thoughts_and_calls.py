"""What a model's text holds beside its reply: a thought before it and calls of tools within, which
are known by the marks of models and split from it.

Invariant: however a reply is cut into pieces, the thought, the reply up to the end of its first
call, and that call come out alike. Text that turns out to be no call comes out unchanged, and a
character that may still belong to a mark or a call is held back.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chatapp.common.foreign import parse_json, without_surrogates
from chatapp.prompting.messages import Call, CallPattern, InlineCalls, JSONCalls, Requested, Segment


@dataclass(frozen=True, slots=True)
class Marks:
    """The texts before and after a thought."""

    begin: str
    end: str


_KNOWN = (
    Marks("<think>", "</think>"),
    Marks("<thinking>", "</thinking>"),
    Marks("<seed:think>", "</seed:think>"),
    Marks("[THINK]", "[/THINK]"),
    Marks("<|START_THINKING|>", "<|END_THINKING|>"),
)


def marks_in(template: str, special: Collection[str]) -> Marks | None:
    """The marks that a chat template writes or looks for, or that are special tokens."""
    return next(
        (
            marks
            for marks in _KNOWN
            if marks.end in template or (marks.begin in special and marks.end in special)
        ),
        None,
    )


def ends_in_thought(segments: Sequence[Segment], marks: Marks) -> bool:
    """Whether a prompt ends within a thought that it or its template has begun."""
    tail = ""
    for segment in reversed(segments):
        if segment.kind not in ("marker", "special", "thinking"):
            break
        tail = segment.text + tail
    return tail.rfind(marks.begin) > tail.rfind(marks.end)


class ThoughtFilter:
    """Splits text into thoughts and reply.

    is_open: whether the prompt has already begun the thought.
    """

    def __init__(self, marks: Marks, *, is_open: bool = False) -> None:
        self._marks = marks
        self._held = ""
        self._phase: Literal["begin", "thinking", "saying"] = "thinking" if is_open else "begin"

    def push(self, text: str) -> tuple[str | None, str]:
        """The text that certainly belongs to the thought, and to the reply, once `text` is added.

        The thought is None where no part of `text` belongs to one.
        """
        self._held += text
        if self._phase == "begin":
            start = self._held.lstrip()
            if start.startswith(self._marks.begin):
                self._phase, self._held = "thinking", start[len(self._marks.begin) :]
            elif self._marks.begin.startswith(start):
                return None, ""
            else:
                self._phase = "saying"
        thought: str | None = None
        if self._phase == "thinking":
            thought, mark, rest = self._held.partition(self._marks.end)
            if not mark:
                self._held = possible_start(thought, self._marks.end)
                return thought.removesuffix(self._held), ""
            self._phase, self._held = "saying", rest
        reply, self._held = self._held, ""
        return thought, reply

    def flush(self) -> tuple[str | None, str]:
        """The text held back so far, at the end of the reply."""
        held, self._held = self._held, ""
        return (held, "") if self._phase == "thinking" else (None, held)


def possible_start(text: str, mark: str) -> str:
    """The longest end of a text that may be the beginning of a mark."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((mark[:size] for size in sizes if text.endswith(mark[:size])), "")


_LONGEST = 100_000
"""Characters of a call; anything longer is text."""

DEEPEST = 100
"""Nested lists and objects in the arguments of a call. Deeper ones are not calls, because Python
stores and prints them by recursion.
"""

HERMES = JSONCalls("<tool_call>")
MISTRAL = JSONCalls("[TOOL_CALLS]")
LLAMA = JSONCalls("<|python_tag|>", bare=True)
CALCULATOR = InlineCalls("calculator", "expression", "<<", "=", ">>")
"""The calls of grade-school-math, on which the bundled model was trained."""


def pattern_in(template: str, special: Collection[str]) -> CallPattern | None:
    """The pattern of a chat template that accepts tools; None where that is unknown."""
    if "tools" not in template:
        return None
    if MISTRAL.begin in template:
        return MISTRAL
    if HERMES.begin in template:
        return HERMES
    if LLAMA.begin in template or LLAMA.begin in special:
        return LLAMA
    return None


def explained(tools: Sequence[Mapping[str, Any]]) -> str:
    """Instructions on tools for a model whose template does not support them; see `as_text`."""
    definitions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        "You can use these tools:\n"
        f"{definitions}\n\n"
        "To use one, write a JSON object with its name and its arguments, such as\n"
        '<tool_call>{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}</tool_call>\n'
        "You are then given its result between <tool_response> and </tool_response>, and answer "
        "with the help of that."
    )


def as_text(call: Call) -> tuple[str, str]:
    """A call and its result as texts, where no template writes them."""
    document = {"name": call.name, "arguments": call.arguments}
    call_text = f"<tool_call>{json.dumps(document, ensure_ascii=False)}</tool_call>"
    return call_text, f"<tool_response>\n{call.result}\n</tool_response>"


def depth(value: object) -> int:
    """The depth of nested lists and objects in a JSON value; 0 for a scalar."""
    levels, inside = 0, [value]
    while holders := [value for value in inside if isinstance(value, dict | list)]:
        levels += 1
        inside = [
            part
            for holder in holders
            for part in (holder.values() if isinstance(holder, dict) else holder)
        ]
    return levels


def with_calls(segments: Sequence[Segment], reply: str, calls: Sequence[Call]) -> list[Segment]:
    """Insert calls into the segments of a reply.

    segments: one segment, rendered by a template of this program.
    """
    if not calls:
        return list(segments)
    own = list(segments)
    place = next((i for i, segment in enumerate(own) if segment.kind == "assistant"), None)
    text = "" if place is None else own.pop(place).text
    place = place or 0
    lead = len(text) - len(reply.strip())
    parts: list[Segment] = []
    start = 0
    for call in calls:
        parts.append(Segment("assistant", text[start : lead + call.at]))
        start = lead + call.at + call.inside
        if call.inside:
            parts.append(Segment("tool", text[lead + call.at : start]))
        else:
            call_text, result_text = as_text(call)
            parts += [Segment("assistant", f"\n{call_text}\n"), Segment("tool", f"{result_text}\n")]
    parts.append(Segment("assistant", text[start:]))
    return [*own[:place], *(part for part in parts if part.text), *own[place:]]


class CallFilter:
    """Takes the text of a reply, returns it without calls, and its first call.

    tools: the names of the available ones. Only a call between marks may have another name.
    """

    def __init__(self, pattern: CallPattern, tools: Collection[str]) -> None:
        self._filter = (
            _InlineFilter(pattern, tools)
            if isinstance(pattern, InlineCalls)
            else _JSONFilter(pattern, tools)
        )

    def push(self, text: str) -> tuple[str, Requested | None]:
        """The text that is certainly visible once `text` is added, and the call at its end.

        Push nothing after a call.
        """
        return self._filter.push(text)

    def flush(self) -> str:
        """The text held back so far, at the end of the reply."""
        return self._filter.flush()


class _InlineFilter:
    """Everything is visible at once; the text ends where the result belongs."""

    _LONGEST_ARGUMENT = 200

    def __init__(self, pattern: InlineCalls, tools: Collection[str]) -> None:
        begin, end, close = map(re.escape, (pattern.begin, pattern.end, pattern.close))
        within = rf"(?:(?!{begin}|{end}|{close})[^\n])"
        self._call = re.compile(rf"{begin}(?=\S)({within}{{1,{self._LONGEST_ARGUMENT}}}){end}")
        self._pattern = pattern
        self._is_on = pattern.tool in tools
        self._before = ""

    def push(self, text: str) -> tuple[str, Requested | None]:
        if not self._is_on:
            return text, None
        around = self._before + text
        for match in self._call.finditer(around):
            if match.end() > len(self._before):
                arguments = {self._pattern.argument: match[1].strip()}
                return around[len(self._before) : match.end()], Requested(
                    self._pattern.tool, arguments
                )
        longest = self._LONGEST_ARGUMENT + len(self._pattern.begin) + len(self._pattern.end)
        self._before = around[-longest:]
        return text, None

    def flush(self) -> str:
        return ""


class _JSONFilter:
    """Text before a call is visible; from its mark on it is held back until the call is
    complete."""

    _BARE = re.compile(r'\{\s*"(name|type|function|parameters)"')
    _MAYBE_BARE = re.compile(r'\{\s*("[a-z]{0,10})?')
    _NAMED = re.compile(r"\s*([A-Za-z0-9_.-]{1,64})\[ARGS\]\s*")
    _MAYBE_NAMED = re.compile(r"\s*[A-Za-z0-9_.-]{0,64}(\[(A(R(G(S)?)?)?)?)?")

    def __init__(self, pattern: JSONCalls, tools: Collection[str]) -> None:
        self._pattern = pattern
        self._tools = tools
        self._phase: Literal["begin", "text", "marked", "bare"] = (
            "begin" if pattern.bare else "text"
        )
        self._held = ""
        self._end = _JSONEnd()

    def push(self, text: str) -> tuple[str, Requested | None]:
        self._held += text
        if self._phase == "begin":
            self._begin()
        visible = ""
        while True:
            if self._phase == "begin":
                return visible, None
            if self._phase == "text":
                before, mark, self._held = self._held.partition(self._pattern.begin)
                if not mark:
                    self._held = possible_start(before, self._pattern.begin)
                    return visible + before.removesuffix(self._held), None
                visible += before
                self._phase, self._end = "marked", _JSONEnd()
            is_over, call = self._body()
            if call is not None:
                return visible, call
            if not is_over:
                return visible, None
            visible += self._release()

    def flush(self) -> str:
        """An unfinished call is text."""
        mark = self._pattern.begin if self._phase == "marked" else ""
        held, self._held = self._held, ""
        return mark + held

    def _begin(self) -> None:
        start = self._held.lstrip()
        if self._BARE.match(start):
            self._phase, self._end = "bare", _JSONEnd()
        elif start and not self._MAYBE_BARE.fullmatch(start):
            self._phase = "text"

    def _release(self) -> str:
        """Return text that is not a call, up to where the next call may begin."""
        mark = self._pattern.begin if self._phase == "marked" else ""
        self._phase = "text"
        if mark:
            return mark
        text, self._held = self._held, ""
        return text

    def _body(self) -> tuple[bool, Requested | None]:
        """Whether a call has ended, valid or not, and the call."""
        body, name = self._held, ""
        if self._phase == "marked" and (match := self._NAMED.match(body)):
            name, body = match[1], body[match.end() :]
        opening = body.lstrip()[:1]
        if opening not in ("", "{", "["):
            undecided = self._phase == "marked" and self._MAYBE_NAMED.fullmatch(body)
            return not undecided, None
        end = self._end.find(body) if opening else -1
        if end < 0:
            return len(body) > _LONGEST, None
        call = _requested(body[:end], name)
        if call is not None and self._phase == "bare" and call.name not in self._tools:
            call = None
        return True, call


class _JSONEnd:
    """Finds the end of a JSON object or list in a growing text."""

    def __init__(self) -> None:
        self._seen = self._depth = 0
        self._in_string = self._is_escaped = False

    def find(self, text: str) -> int:
        """The position after its end; -1 while there is none."""
        for place in range(self._seen, len(text)):
            character = text[place]
            if self._in_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif character == "\\":
                    self._is_escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return place + 1
        self._seen = len(text)
        return -1


def _requested(text: str, name: str) -> Requested | None:
    """Parse a call from JSON text, the first one of a list; None for anything else.

    name: of the tool, where the text contains only the arguments.
    """
    try:
        value = parse_json(text, parse_constant=_refused)
        # An escape may be half of a character, which no tokenizer accepts.
        value = parse_json(without_surrogates(json.dumps(value, ensure_ascii=False)))
    except ValueError:
        return None
    if name:
        value = {"name": name, "arguments": value}
    if isinstance(value, list):
        value = value[0] if value else None
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # some models write the object as a JSON string
        try:
            arguments = parse_json(arguments or "{}")
        except ValueError:
            return None
    called = value.get("name")
    if not isinstance(called, str) or not isinstance(arguments, dict):
        return None
    return Requested(called, arguments) if depth(arguments) <= DEEPEST else None


def _refused(constant: str) -> None:
    """Reject NaN and infinities, which are not valid JSON."""
    raise ValueError(constant)
