"""Chooses a tool for a model that does not open calls by itself, and fills in its arguments.

The tool, or none, is a label that is scored after demonstrations of questions and their tools, the
nearest to this question (see `tasks.answering`); numbers in them are marks, and those without a
tool have the marks of this question. Then the model writes
the arguments under the tool's schema, after demonstrations of that tool. If they are copied from
the question, they have the form of the nearest example instead, and a tool without a form for the
question cannot be chosen.

Numbers, dates, sums and known words of a question become marks: "How many W1 are N1 W2?". An
example's arguments with such marks are a form, `{"value": "N1", "unit": "W2", "into": "W1"}`, and
the parts of another question fill it in.
"""

import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from chatapp.common.foreign import parse_json
from chatapp.dialogue.tools.tool import (
    EXAMPLES_TABLE,
    NONE,
    CallExample,
    Tool,
    misfit_of,
    questions_without_tool,
)
from chatapp.engine.model import LanguageModel
from chatapp.prompting.messages import Requested
from chatapp.rows.examples import Example, Pool
from chatapp.tasks.answering import Answer, Answerer
from chatapp.tasks.files.promptfile import Output, PromptFile, selector_for
from chatapp.tasks.selection.methods import Bm25
from chatapp.tasks.selection.select import Select
from chatapp.tasks.settings import Scoring

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
    own = dict.fromkeys(form_of(tool, example) for example in tool.examples)
    filled = {form: _filled(tool, form, parts) for form in own}
    possible = {form: arguments for form, arguments in filled.items() if arguments is not None}
    most = max((len(marks_in(form)) for form in possible), default=0)
    return {form: possible[form] for form in possible if len(marks_in(form)) == most}


def marks_in(text: str) -> set[str]:
    """The marks in a question or a form."""
    return set(_MARK.findall(text))


def form_of(tool: Tool, example: CallExample) -> str:
    """The arguments of an example, with marks, as JSON."""
    left = list(marked(example.question, tool).parts.items())

    def mark(match: re.Match[str]) -> str:
        place = next((i for i, (_, text) in enumerate(left) if text == match[0]), None)
        return match[0] if place is None else left.pop(place)[0]

    texts = sorted({text for _, text in left}, key=len, reverse=True)
    pattern = "|".join(map(re.escape, texts))
    return re.sub(
        rf"(?<!\w)(?:{pattern})(?!\w)", mark, json.dumps(example.arguments, ensure_ascii=False)
    )


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


_MOST_TOKENS = 100
"""How many tokens the arguments of a call may have."""


@dataclass(frozen=True, slots=True)
class Chooser:
    """Chooses among tools. scoring: see `PromptFile`. shots: demonstrations."""

    model: LanguageModel
    tools: Mapping[str, Tool]
    scoring: Scoring = "direct"
    shots: int = 4

    def choose(self, question: str, cancel: threading.Event) -> Requested | None:
        """The call that answers a question; None if none does, or the model cannot make it."""
        name = self.name(question)
        arguments = None if name == NONE else self.arguments(self.tools[name], question)
        if cancel.is_set() or arguments is None or misfit_of(self.tools, name, arguments):
            return None
        return Requested(name, arguments)

    def name(self, question: str) -> str:
        """The name of a tool, or NONE."""
        tools = [tool for tool in self.tools.values() if not tool.copied or forms(tool, question)]
        if not tools:
            return NONE
        text = marked(question).text
        without = (marked(shown).text for shown in questions_without_tool())
        pool = {shown: NONE for shown in without if marks_in(shown) == marks_in(text)}
        for tool in tools:
            shown = [example.question for example in tool.examples] or [tool.description]
            pool |= {marked(text).text: tool.name for text in shown}
        return self._likeliest(text, pool)

    def arguments(self, tool: Tool, question: str) -> dict[str, Any] | None:
        """The arguments of a call; None if the model did not end them.

        Copied ones have the form of the nearest example, which was measured to be right more often
        than the likeliest form.
        """
        if not tool.copied:
            return self._written(tool, question)
        possible = forms(tool, question)
        pool = {
            marked(example.question, tool).text: form_of(tool, example) for example in tool.examples
        }
        pool = {text: form for text, form in pool.items() if form in possible}
        text = marked(question, tool).text
        shown = Pool(list(pool), list(pool.values()))
        return possible[pool.get(text) or shown.outputs[_nearest(shown, text, 1)[0]]]

    def _likeliest(self, text: str, pool: dict[str, str]) -> str:
        """The likeliest of NONE and the labels of the nearest demonstrations."""
        if text in pool:
            return pool[text]
        shown = Pool(list(pool), list(pool.values()))
        near = _nearest(shown, text, self.shots)
        labels = tuple(dict.fromkeys([*(shown.outputs[place] for place in near), NONE]))
        if len(labels) == 1:
            return labels[0]
        prompt = self._prompt("Tool:", shown, labels=labels, scoring=self.scoring)
        return self._answer(prompt, text).output

    def _written(self, tool: Tool, question: str) -> dict[str, Any] | None:
        """Arguments that the model writes."""
        shown = [json.dumps(example.arguments, ensure_ascii=False) for example in tool.examples]
        pool = Pool([example.question for example in tool.examples], shown)
        prompt = self._prompt(
            "Arguments:",
            pool,
            instruction=tool.description,
            output=Output("schema", json.dumps(tool.parameters, ensure_ascii=False)),
            generate={"temperature": 0.0, "max_tokens": _MOST_TOKENS},
        )
        answer = self._answer(prompt, question)
        assert answer.finished is not None
        arguments: dict[str, Any] | None = (
            parse_json(answer.output) if answer.finished.valid else None
        )
        return arguments

    def _prompt(self, announcement: str, pool: Pool, **keys: Any) -> PromptFile:
        return PromptFile(
            path=EXAMPLES_TABLE,
            input_prefix="Question: ",
            output_prefix=announcement,
            pool=pool,
            select=Select(method=Bm25.name, k=self.shots),
            **keys,
        )

    def _answer(self, prompt: PromptFile, question: str) -> Answer:
        answerer = Answerer(self.model, prompt, selector_for(prompt, self.model))
        (answer,) = answerer.answer([answerer.prepare(Example(question, ""))])
        return answer


def _nearest(pool: Pool, text: str, count: int) -> list[int]:
    return Bm25.build(pool, Select(), None).select(text, count)
