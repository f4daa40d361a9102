"""Arguments that are taken from a question, by the examples of a tool.

Numbers, dates, sums and known words of a question become marks: "How many W1 are N1 W2?". An
example's arguments with such marks are a form, `{"value": "N1", "unit": "W2", "into": "W1"}`, and
the parts of another question fill it in.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from chatapp.common.foreign import parse_json
from chatapp.dialogue.tools.tool import Tool, misfit_of

_NUMBER = r"\d+(?:[.,]\d+)*"
_SUM = rf"\(*{_NUMBER}%?\)*(?:\s*[-+*/×÷]\s*\(*{_NUMBER}%?\)*)+"
_SPAN = re.compile(rf"(?P<D>\d{{4}}-\d\d-\d\d)|(?P<S>{_SUM})|(?P<N>{_NUMBER})")
_WORD = re.compile(r"[^\s\d,;:!?\"()][^\s,;:!?\"()]*(?<!\.)")
_MARK = re.compile(r"\b[DSNWQ]\d+\b")

_NAME = re.compile(r"(?!I\b)[A-Z]\w*(?: [A-Z]\w*)*")
_SENTENCE_ENDS = ("", ".", "?", "!", ":")

_LONGEST_RUN = 3
"""Words that are looked up together: Buenos Aires."""

_LONGEST = 2_000
"""Characters of a question that are looked at."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A question with marks. parts: the text of each mark, in the order of the question; "Q1" is
    the whole question.
    """

    text: str
    parts: dict[str, str]


def marked(question: str, tool: Tool | None = None) -> Marked:
    """Replace the numbers of a question by marks, and the words that the tool may need."""
    question = question[:_LONGEST]
    spans = [
        (match.start(), match.end(), str(match.lastgroup)) for match in _SPAN.finditer(question)
    ]
    spans += ((start, end, "W") for start, end in _words(tool, question)) if tool else ()
    text, parts, counts, last = "", {}, dict.fromkeys("DSNW", 0), 0
    for start, end, kind in sorted(spans):
        if start >= last:
            counts[kind] += 1
            mark = f"{kind}{counts[kind]}"
            parts[mark] = question[start:end]
            text += question[last:start] + mark
            last = end
    return Marked(text + question[last:], {**parts, "Q1": question})


def forms(tool: Tool, question: str) -> dict[str, dict[str, Any]]:
    """The forms of a tool's examples that the question fills in, with the arguments: those that use
    most of its parts.
    """
    parts = marked(question, tool).parts
    own = dict.fromkeys(
        form_of(tool, example.question, example.arguments) for example in tool.examples
    )
    filled = {form: _filled(tool, form, parts) for form in own}
    possible = {form: arguments for form, arguments in filled.items() if arguments is not None}
    most = max((len(marks_in(form)) for form in possible), default=0)
    return {form: possible[form] for form in possible if len(marks_in(form)) == most}


def marks_in(text: str) -> set[str]:
    """The marks in a question or a form."""
    return set(_MARK.findall(text))


def form_of(tool: Tool, question: str, arguments: dict[str, Any]) -> str:
    """The arguments of an example, with marks, as JSON."""
    left = list(marked(question, tool).parts.items())

    def mark(match: re.Match[str]) -> str:
        place = next((i for i, (_, text) in enumerate(left) if text == match[0]), None)
        return match[0] if place is None else left.pop(place)[0]

    texts = sorted({text for _, text in left}, key=len, reverse=True)
    pattern = "|".join(map(re.escape, texts))
    return re.sub(rf"(?<!\w)(?:{pattern})(?!\w)", mark, json.dumps(arguments, ensure_ascii=False))


def _filled(tool: Tool, form: str, parts: dict[str, str]) -> dict[str, Any] | None:
    """The arguments; None if a part is missing, or one does not fit."""
    try:
        text = _MARK.sub(lambda match: json.dumps(parts[match[0]], ensure_ascii=False)[1:-1], form)
        arguments: dict[str, Any] = parse_json(text)
    except (KeyError, ValueError):
        return None
    if misfit_of({tool.name: tool}, tool.name, arguments):
        return None
    is_known = all(
        known(str(arguments.get(name, "")))
        for name, known in tool.accepts.items()
        if name in arguments
    )
    return arguments if is_known else None


def _words(tool: Tool, question: str) -> Iterator[tuple[int, int]]:
    """The places of the words that the tool may need, the longest runs first."""
    words = list(_WORD.finditer(question))
    start = 0
    while start < len(words):
        for size in range(min(_LONGEST_RUN, len(words) - start), 0, -1):
            begin, end = words[start].start(), words[start + size - 1].end()
            if _is_needed(tool, question[begin:end], question[:begin].rstrip()):
                yield begin, end
                start += size - 1
                break
        start += 1


def _is_needed(tool: Tool, text: str, before: str) -> bool:
    """Whether a text may be an argument: a value that the tool knows, or else a name."""
    is_name = _NAME.fullmatch(text) is not None and before[-1:] not in _SENTENCE_ENDS
    for name, part in tool.parameters.get("properties", {}).items():
        if name in tool.accepts:
            is_needed = tool.accepts[name](text)
        else:
            is_needed = text in part["enum"] if "enum" in part else is_name
        if is_needed:
            return True
    return False
