"""What a constraint did to a reply: as it was generated, and as it is read again."""

import math

import pytest

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.events import Finished, Token
from chatapp.engine.model import Request, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import BUNDLED
from chatapp.lab.inspectable import inspectable, limits_of
from chatapp.lab.views.text_views import NextToken, Tokens

CONSTRAINT = Constraint.of_pattern(r" (red|green) apples, [0-9]{2}\.")


@pytest.fixture(scope="module")
def model():
    loaded = load_model(BUNDLED)
    assert isinstance(loaded, LocalModel)
    return loaded


def test_a_reply_read_again_shows_what_the_constraint_did(model):
    prompt = model.tokenizer.encode("User: What do you like?\nAssistant:")
    request = Request(prompt, Sampling(temperature=0, max_tokens=30), constraint=CONSTRAINT)
    events = list(model.generate(request))
    drawn = [event for event in events if isinstance(event, Token)]
    assert isinstance(events[-1], Finished)
    assert events[-1].valid
    opened = inspectable(model)
    trace = opened.inspect([*prompt, *(token.id for token in drawn)])
    limits = limits_of(model, trace, len(prompt), CONSTRAINT)
    assert limits[: len(prompt)] == (None,) * len(prompt)
    for token, limit in zip(drawn, limits[len(prompt) :], strict=True):
        assert limit.forced == token.forced
        assert math.isclose(limit.forbidden, token.forbidden, abs_tol=0.05)  # int8, float32
    assert any(token.forced for token in drawn)
    assert any(not token.forced and token.forbidden > 0.5 for token in drawn)
    tokens = Tokens.of(trace, 3, limits)
    assert "a constraint forced" in tokens.reading
    last = tokens.to_json()[-1]
    assert {"forced", "forbidden"} <= last.keys()
    assert not {"forced", "forbidden"} & tokens.to_json()[0].keys()


def test_steps_follow_the_constraint_and_show_what_it_removes(model):
    prompt = model.tokenizer.encode("User: What do you like?\nAssistant:")
    sampling = Sampling(temperature=1.0, seed=3, max_tokens=30)
    events = model.generate(Request(prompt, sampling, constraint=CONSTRAINT))
    expected = [event for event in events if isinstance(event, Token)]
    opened = inspectable(model)
    stepper = opened.stepper(prompt, sampling, constraint=CONSTRAINT)
    for token in expected:
        cut = stepper.look()
        limit = cut.limit
        assert limit is not None
        assert cut.drawn[0] > 0
        if limit.forced:
            assert cut.before.candidates[0].id == token.id
        assert limit.forced == token.forced
        assert math.isclose(limit.forbidden, token.forbidden, abs_tol=1e-4)
        assert limit.words in NextToken.of(stepper).reading
        with pytest.raises(ValueError, match="does not allow"):
            stepper.choose(model.tokenizer.encode(" music", begins=False)[0])
        assert stepper.draw() == token.id
    assert stepper.is_over
    assert stepper.back()
    assert not stepper.is_over
    stepper.choose(expected[-1].id)
    assert stepper.is_over


def test_a_reply_without_the_constraint_shows_none(model):
    ids = model.tokenizer.encode("User: What do you like?\nAssistant:")
    reply = model.tokenizer.encode(" I like music.", begins=False)
    opened = inspectable(model)
    assert limits_of(model, opened.inspect([*ids, *reply]), len(ids), CONSTRAINT) == ()
