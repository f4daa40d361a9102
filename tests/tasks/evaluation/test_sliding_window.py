"""Perplexity: every token once, with the context that the stride leaves, as transformers has it."""

import math

import pytest
from fakes import ScriptedModel

from chatapp.tasks.evaluation.language_modelling import perplexity

TEXT = "the river ran down to the old mill, and nobody asked it why it did so. " * 8


@pytest.mark.parametrize("stride", [1, 50, 96, 191])
def test_it_agrees_with_a_plain_computation(gpt2, log_probs, stride):
    text = TEXT[: 230 if stride == 1 else None]
    ids = [gpt2.tokenizer.end_id, *gpt2.tokenizer.encode(text)]
    assert len(ids) > gpt2.context
    total = 0.0
    for place in range(1, len(ids)):
        # Where the first window that holds this token begins.
        first = max(0, math.ceil((place + 1 - gpt2.context) / stride)) * stride
        assert place - first >= min(place, gpt2.context - stride)
        total -= log_probs(ids[first:place], ids[place : place + 1])[0]
    found = perplexity(gpt2, text, stride)
    assert found.tokens == len(ids) - 1
    assert found.per_token == pytest.approx(math.exp(total / found.tokens), rel=1e-3)
    assert found.per_word == pytest.approx(math.exp(total / len(text.split())), rel=1e-3)
    assert found.per_byte == pytest.approx(math.exp(total / len(text)), rel=1e-3)


def test_a_text_shorter_than_the_window(gpt2, log_probs):
    ids = gpt2.tokenizer.encode("hello you")
    expected = -sum(log_probs([gpt2.tokenizer.end_id], ids))
    assert perplexity(gpt2, "hello you").negative_log_likelihood == pytest.approx(expected)


def test_units():
    """The scripted model gives each token -1."""
    text = "näive \ud800 words\n\n three"
    found = perplexity(ScriptedModel([]), text)
    tokens = len(ScriptedModel([]).tokenizer.encode(text))
    assert (found.tokens, found.words) == (tokens, 4)
    assert found.bytes == len("näive ??? words\n\n three".encode())
    assert found.per_token == pytest.approx(math.e)
    assert found.per_word == pytest.approx(math.exp(tokens / 4))
    assert found.stride == 512


def test_progress_ends_at_the_last_token(gpt2):
    seen = []
    found = perplexity(gpt2, TEXT, 100, lambda done, of: seen.append((done, of)))
    assert seen[-1] == (found.tokens, found.tokens)
    assert len(seen) > 3


@pytest.mark.parametrize("stride", [0, -1, 192, 1000])
def test_strides_that_leave_no_context(gpt2, stride):
    with pytest.raises(ValueError, match="expected 1 to 191"):
        perplexity(gpt2, TEXT, stride)


@pytest.mark.parametrize("text", ["", " \n\t "])
def test_nothing_to_predict(gpt2, text):
    with pytest.raises(ValueError, match="no words"):
        perplexity(gpt2, text)


def test_a_perplexity_beyond_floats_is_infinite():
    class Hopeless(ScriptedModel):
        def score(self, pairs):
            return [[-1e4] * len(continuation) for _, continuation in pairs]

    assert perplexity(Hopeless([]), "some words").per_token == math.inf
