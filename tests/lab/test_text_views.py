"""Tokens, next, attention and layers: their numbers are the model's."""

import math
import re

import numpy as np
import pytest
from glass import random_gpt2

from chatapp.engine.backends.remote.protocol import RemoteTokenizer
from chatapp.engine.events import Alternative, Token
from chatapp.lab.inspectable import inspectable
from chatapp.lab.views.attention_views import Attention
from chatapp.lab.views.layer_views import Layers
from chatapp.lab.views.text_views import Tokens

TEXT = "User: he has\x1b[2J [b]it"


@pytest.fixture(scope="module")
def model():
    return random_gpt2(layers=2, heads=3)


@pytest.fixture(scope="module")
def opened(model):
    opened = inspectable(model)
    assert opened is not None
    return opened


@pytest.fixture(scope="module")
def trace(model, opened):
    return opened.inspect(model.tokenizer.encode(TEXT))


def test_each_token_has_what_the_tokens_before_it_predict(model, trace):
    tokens = Tokens.of(trace, 3)
    assert tokens.expected[0] is None
    assert tokens.actual(0) is None
    (scores,) = model.score([(trace.ids[:1], trace.ids[1:])])
    for position, score in enumerate(scores, start=1):
        actual = tokens.actual(position)
        assert actual.id == trace.ids[position]
        assert actual.probability == pytest.approx(math.exp(score), abs=1e-5)


@pytest.mark.parametrize("layer", [None, 0, 1])
@pytest.mark.parametrize("head", [None, 2])
def test_attention_is_averaged_over_what_is_not_chosen(trace, layer, head):
    weights = trace.attention(4)
    attention = Attention.of(trace, 4, layer, head)
    layers = range(2) if layer is None else [layer]
    heads = range(3) if head is None else [head]
    expected = np.mean([weights[a, b] for a in layers for b in heads], axis=0)
    assert attention.weights == pytest.approx(expected, abs=1e-6)
    assert [attention.weights[each] for each in attention.order] == sorted(
        attention.weights, reverse=True
    )
    assert attention.target == 1 + int(expected[1:4].argmax())
    assert np.allclose(attention.on(2), weights[:, :, 2])
    assert max(attention.shares[1:]) == pytest.approx(1.0)
    numbers = [int(number) for number in re.findall(r"(?:layer|head) (\d)", attention.chosen)]
    assert numbers == [place for place in (layer, head) if place is not None]


def test_the_first_token_attends_to_itself(trace):
    attention = Attention.of(trace, 0)
    assert (attention.weights, attention.target) == ([pytest.approx(1.0)], 0)


def test_layers_know_what_followed(trace):
    layers = Layers.of(trace, 3)
    assert layers.actual.id == trace.ids[4]
    assert len(layers.predictions) == 3
    best = [guess.candidates[0].id for guess in layers.predictions]
    settled = layers.settled
    assert set(best[settled:]) == {best[-1]}
    assert settled == 0 or best[settled - 1] != best[-1]
    last = Layers.of(trace, len(trace.ids) - 1)
    assert last.actual is None
    assert "followed" not in last.reading


def test_a_server_tells_of_the_tokens_of_its_reply_alone():
    tokenizer = RemoteTokenizer()
    prompt = tokenizer.encode("Where? ")
    paris, lyon, end = (tokenizer.number(text) for text in ("Paris", "Lyon", "!"))
    others = tuple(Alternative(id, "", math.log(p)) for id, p in ((lyon, 0.5), (paris, 0.25)))
    drawn = [Token(paris, "", "Paris", math.log(0.25), others), Token(end, "", "!", math.nan)]
    start = len(prompt)
    tokens = Tokens.of_served([*prompt, paris, end], start, drawn, tokenizer)
    assert "".join(tokens.texts) == "Where? Paris!"
    assert tokens.expected[:start] == (None,) * start
    actual, expected = tokens.actual(start), tokens.expected[start]
    assert expected is not None
    assert (actual.probability, actual.rank) == (pytest.approx(0.25), 2)
    assert (expected.entropy, expected.candidates[0].id) == (None, lyon)
    assert tokens.expected[start + 1 :] == (None,)
    assert not any(Tokens.of_served([*prompt, lyon, end], start, drawn, tokenizer).expected)


def test_the_head_that_copies():
    weights = np.zeros((2, 3, 5), np.float32)
    weights[1, 2, 3] = 0.9  # after the last "a" before the token
    weights[0, 0, 1] = 1.0  # after an earlier one
    attention = Attention(("a", "b", "a", "c", "a"), weights, 4)
    assert attention.copying_head == (1, 2)
    assert Attention(("a", "b", "c"), weights[:, :, :3], 2).copying_head is None
