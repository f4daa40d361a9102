"""Chooses a tool for a model that does not open calls by itself, and fills in its arguments.

The tool, or none, is a label that is scored after demonstrations of questions and their tools, the
nearest to this question (see `fewshot.answering`); numbers in them are marks, and those without a
tool have the marks of this question. Then the model writes
the arguments under the tool's schema, after demonstrations of that tool. If they are copied from
the question, they have the form of the nearest example instead (see `copying`), and a tool without
a form for the question cannot be chosen.
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chatapp.common.foreign import parse_json
from chatapp.dialogue.tools.copying import form_of, forms, marked, marks_in
from chatapp.dialogue.tools.tool import (
    EXAMPLES_TABLE,
    NONE,
    Tool,
    misfit_of,
    questions_without_tool,
)
from chatapp.engine.model import LanguageModel
from chatapp.prompting.messages import Requested
from chatapp.rows.examples import Example, Pool
from chatapp.tasks.answering import Answer, Answerer
from chatapp.tasks.files.promptfile import Output, PromptFile
from chatapp.tasks.options import selector_for
from chatapp.tasks.selection.methods import Bm25
from chatapp.tasks.selection.select import Select
from chatapp.tasks.settings import Scoring

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
            marked(example.question, tool).text: form_of(tool, example.question, example.arguments)
            for example in tool.examples
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
