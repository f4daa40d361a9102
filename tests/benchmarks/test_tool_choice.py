"""Calls of tools: how often the tool, its arguments and the answer are right, four ways.

A hundred questions that need one of five tools and fifty that need none. own: the model opens calls
itself. shown: the same, with examples of calls in its instructions. scored: the tool is chosen by
likelihood after the tools' descriptions alone, and the model writes the arguments. both: after
examples, with arguments that are taken from the question.
Run with `CHATAPP_MODELS=bundled,smollm2 CHATAPP_EVERY=1 pytest -m benchmark -s
tests/benchmarks/test_tool_choice.py`; with EVERY 3, it takes every third question.
"""

import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from scale import is_tiny
from tool_questions import TOOLS, ToolQuestion, questions

from chatapp.dialogue.events import Called, Options
from chatapp.dialogue.tool_calls import Toolbox
from chatapp.dialogue.tools.choosing import Chooser
from chatapp.dialogue.tools.registry import find_tools
from chatapp.dialogue.tools.tool import Tool, run
from chatapp.dialogue.turn import answer
from chatapp.dialogue.writers.choosing import choose_template, writer_for
from chatapp.engine.model import LanguageModel, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.prompting.messages import Call, CallPattern, InlineCalls

MODELS = os.environ.get("CHATAPP_MODELS", "bundled").split(",")
EVERY = 50 if is_tiny() else int(os.environ.get("CHATAPP_EVERY", "1"))
WAYS = ("own", "shown", "scored", "both")


def shown_calls(pattern: CallPattern, tools: dict[str, Tool]) -> str:
    """Ten examples of calls: two of each tool, or all of the one tool that is called within the
    text, because no other one can be called so.
    """
    lines = ["Examples:"]
    if isinstance(pattern, InlineCalls):
        for example in tools[pattern.tool].examples[:10]:
            result = run(tools[pattern.tool], example.arguments, threading.Event()).text
            written = example.arguments[pattern.argument]
            call = f"{pattern.begin}{written}{pattern.end}{result}{pattern.close}{result}"
            lines.append(f"User: {example.question}\nAssistant: {call}")
        return "\n".join(lines)
    for tool in tools.values():
        for example in tool.examples[:2]:
            call = json.dumps({"name": tool.name, "arguments": example.arguments})
            lines.append(f"{example.question}\n<tool_call>{call}</tool_call>")
    return "\n".join(lines)


def is_right(question: ToolQuestion, call: Call, tools: dict[str, Tool]) -> bool:
    """Whether a call of the right tool has right arguments."""
    if question.answer:
        return call.result.partition("\n")[0] == question.answer
    if question.arguments is None:
        return call.status == "done" and "no passage" not in call.result
    given = {name: value for name, value in call.arguments.items() if value not in ("", None)}
    return given == dict(question.arguments)


def expected(question: ToolQuestion, tools: dict[str, Tool]) -> str:
    """What the reply has to contain."""
    if question.answer or question.arguments is None:
        return question.answer
    result = run(tools[question.tool], question.arguments, threading.Event()).text
    return result.partition(" (")[0].partition(", ")[0]


@pytest.mark.benchmark
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_calls(name: str, way: str) -> None:
    model = load_model(name)
    tools = find_tools().chosen(TOOLS)
    bare = {key: replace(tool, examples=(), copied=False) for key, tool in tools.items()}
    choosers: dict[str, Callable[..., object]] = {
        "scored": Chooser(model, bare).choose,
        "both": Chooser(model, tools).choose,
    }
    toolbox = Toolbox(tools, lambda *given: False, choosers.get(way))  # type: ignore[arg-type]
    pattern = writer_for(model, choose_template(model, "")).calls
    system = shown_calls(pattern, tools) if way == "shown" else None
    totals = measured(model, toolbox, system, tools)
    print(f"\n{name} {way}: " + ", ".join(f"{key} {value}" for key, value in totals.items()))


def measured(
    model: LanguageModel, toolbox: Toolbox, system: str | None, tools: dict[str, Tool]
) -> Counter[str]:
    """The counts over the questions."""
    totals: Counter[str] = Counter()
    template = choose_template(model, "")
    sampling = Sampling(temperature=0.0, max_tokens=60, seed=0)
    for question in questions()[::EVERY]:
        reply, calls = "", list[Call]()
        options = Options(sampling, system=system, toolbox=toolbox)
        for event in answer(model, template, question.text, options):
            reply += event.text
            calls += [event.call] if isinstance(event, Called) else []
        if question.tool == "none":
            totals["without tool"] += 1
            totals["wrong calls"] += bool(calls)
            continue
        totals["with tool"] += 1
        right = [call for call in calls if call.name == question.tool]
        totals["right tool"] += bool(right)
        totals[f"right tool: {question.tool}"] += bool(right)
        good = any(is_right(question, call, tools) for call in right)
        totals["right arguments"] += good
        words = expected(question, tools)
        totals["right answer"] += words in reply if words else good
    return totals
