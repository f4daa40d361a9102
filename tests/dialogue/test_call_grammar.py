"""An opened call: its tool exists, and its arguments fit."""

import threading

from chatapp.dialogue.tool_calls import call_constraint
from chatapp.dialogue.tools.registry import find_tools
from chatapp.dialogue.tools.tool import misfit_of
from chatapp.engine.model import Request, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import BUNDLED
from chatapp.prompting.thoughts_and_calls import CALCULATOR, HERMES, CallFilter


def test_what_follows_the_mark_of_a_call_is_a_call():
    model = load_model(BUNDLED)
    tools = find_tools().chosen(["clock", "calculator"])
    schemas = {name: tool.parameters for name, tool in tools.items()}
    constraint = call_constraint(model, HERMES, schemas)
    assert constraint is not None
    forced = model.tokenizer.encode("Let me see. <tool_call>", begins=False)
    complete = 0
    for seed in range(3):
        request = Request(
            model.tokenizer.encode("What time is it?\n"),
            Sampling(temperature=1.0, seed=seed, max_tokens=120),
            forced=forced,
            cancel=threading.Event(),
            constraint=constraint,
        )
        calls = CallFilter(HERMES, tools)
        found = None
        for event in model.generate(request):
            _, found = calls.push(event.text)
            if found is not None:
                break
        if found is None:  # cut off within a text
            continue
        assert misfit_of(tools, found.name, found.arguments) == ""
        complete += 1
    assert complete


def test_a_text_without_a_call_is_free():
    model = load_model(BUNDLED)
    constraint = call_constraint(model, HERMES, {"clock": {"type": "object"}})
    ids = model.tokenizer.encode("Once upon a time")
    sampling = Sampling(temperature=0, max_tokens=12)
    free, kept = (
        [event.text for event in model.generate(Request(ids, sampling, constraint=given))]
        for given in (None, constraint)
    )
    assert free == kept


def test_calls_within_the_text_have_no_grammar():
    assert call_constraint(load_model(BUNDLED), CALCULATOR, {"calculator": {}}) is None
