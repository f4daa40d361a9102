"""Seconds per call, with forced tokens read in one pass and one after the other.

Twenty questions that need one of five tools; the model writes one call of them under its grammar,
at temperature 1. Both ways take turns; the prompt was read before.
Run with `CHATAPP_MODELS=bundled,smollm2 pytest -m benchmark -s
tests/benchmarks/test_forced_tokens.py`.
"""

import os
import statistics
import time
from dataclasses import replace

import pytest
from scale import check_finite, sized
from tool_questions import TOOLS, questions

from chatapp.dialogue.tool_calls import call_constraint
from chatapp.dialogue.tools.registry import find_tools
from chatapp.engine.continuation import Continuation
from chatapp.engine.events import Finished, Token
from chatapp.engine.model import LanguageModel, Request, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.prompting.calls import HERMES

MODELS = os.environ.get("CHATAPP_MODELS", "bundled").split(",")
QUESTIONS = sized(20, 2)
MOST_TOKENS = sized(100, 20)


def timed_call(model: LanguageModel, request: Request) -> tuple[float, list[int], Finished]:
    """The seconds and the tokens of a call."""
    started = time.perf_counter()
    *tokens, end = model.generate(request)
    seconds = time.perf_counter() - started
    assert isinstance(end, Finished)
    return seconds, [token.id for token in tokens if isinstance(token, Token)], end


@pytest.mark.benchmark
@pytest.mark.parametrize("name", MODELS)
def test_a_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(name)
    tools = find_tools().chosen(TOOLS)
    schemas = {name: tool.parameters for name, tool in tools.items()}
    grammar = call_constraint(model, HERMES, schemas)
    assert grammar is not None
    whole = replace(grammar, after="", is_optional=False)
    together = Continuation.ahead
    seconds: dict[str, list[float]] = {"one by one": [], "one pass": []}
    tokens, forced, same = [], [], 0
    asked = [question for question in questions() if question.tool != "none"][:QUESTIONS]
    for number, question in enumerate(asked):
        ids = model.tokenizer.encode(f"Question: {question.text}\nCall:\n")
        sampling = Sampling(temperature=1.0, seed=number, max_tokens=MOST_TOKENS)
        request = Request(ids, sampling, constraint=whole)
        list(model.generate(replace(request, sampling=replace(sampling, max_tokens=1))))
        drawn = []
        for way in sorted(seconds, reverse=number % 2 == 1):
            ahead = together if way == "one pass" else property(lambda reply: ())
            monkeypatch.setattr(Continuation, "ahead", ahead)
            taken, call, end = timed_call(model, request)
            seconds[way].append(taken)
            drawn.append(call)
        same += drawn[0] == drawn[1]
        tokens.append(len(drawn[0]))
        forced.append(end.forced_tokens)
    means = f"{statistics.mean(tokens):.0f} tokens a call, {statistics.mean(forced):.0f} forced"
    print(f"\n{name}: {means}; {same} of {len(asked)} calls are the same both ways")
    for way, values in seconds.items():
        low, middle, high = statistics.quantiles(values, n=4)
        print(f"{way}: median {middle:.3f} s, quartiles {low:.3f} and {high:.3f}")
        check_finite(*values)
