"""Guesses from the context change nothing but the number of passes."""

import pytest
import torch

from chatapp.engine.backends import local as local_module
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.cache.key_values import Lookup, following
from chatapp.engine.events import Token
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import Request, Sampling

COPY = [40, 71, 300, 12, 99, 5, 61, 200, 33, 7, 40, 71, 300]


@pytest.mark.parametrize(
    ("ids", "most", "guessed"),
    [
        ([1, 2, 3, 4, 1, 2, 3], 7, [4, 1, 2, 3, 4, 1, 2]),
        ([1, 2, 3, 4, 1, 2, 3], 2, [4, 1]),
        ([9, 2, 3, 4, 1, 2, 3], 4, [4, 1, 2, 3]),  # two tokens do
        ([2, 3, 4, 9, 2, 3, 5, 1, 2, 3], 4, [5, 1, 2, 3]),  # the last place counts
        ([1, 2, 3, 6, 2, 3, 5, 1, 2, 3], 7, [6, 2, 3, 5, 1, 2, 3]),  # but the longer one more
        ([5, 5, 5, 5], 3, [5, 5, 5]),
        ([1, 2, 3, 4, 5], 8, []),
        ([1, 2, 3, 4, 1, 2, 3], 0, []),
        ([1, 2], 8, []),
        ([1], 8, []),
        ([], 8, []),
        # The bytes of 1, 256, 65536 overlap when they are not read four by four.
        ([1, 0, 256, 0, 65536, 0, 1, 256], 8, []),
        ([256, 65536, 7, 16777216, 0, 256, 65536], 5, [7, 16777216, 0, 256, 65536]),
    ],
)
def test_what_followed(ids, most, guessed):
    assert following(ids, most) == guessed


def events_of(model, ids, sampling):
    return list(model.generate(Request(ids, sampling)))


def plain(folder, monkeypatch):
    """A model that never guesses."""
    model = LocalModel.load(ModelFiles.read(folder))
    monkeypatch.setattr(model._lookup, "guess", lambda ids, room: [])
    return model


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0, max_tokens=45),
        Sampling(temperature=0, max_tokens=45, no_repeat_ngram=3),
        Sampling(temperature=0.7, max_tokens=45, seed=3),
        Sampling(temperature=1.5, top_p=1.0, max_tokens=45, seed=4),
        Sampling(temperature=0.3, top_k=5, repetition_penalty=1.2, max_tokens=45, seed=5),
    ],
)
@pytest.mark.parametrize("prompt", [COPY, [8, 9] * 5, [40, 71, 300, 12, 99]])
def test_the_text_is_that_without_guesses(gpt2, monkeypatch, sampling, prompt):
    monkeypatch.setattr(local_module, "guess_cost", lambda _: -1.0)  # whether it pays or not
    guessing, without = LocalModel.load(ModelFiles.read(gpt2[0])), plain(gpt2[0], monkeypatch)
    found, wanted = (events_of(model, prompt, sampling) for model in (guessing, without))
    assert [e.text for e in found] == [e.text for e in wanted]
    for mine, other in zip(found[:-1], wanted[:-1], strict=True):
        assert mine.id == other.id
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_a_reply_that_repeats_takes_fewer_passes(local, monkeypatch):
    always_seven = torch.zeros(340)
    always_seven[7] = 1.0
    monkeypatch.setattr(local.decoder, "head", lambda states: always_seven.expand(len(states), -1))
    passes = []
    hidden = local.decoder.hidden

    def counted(ids, *rest, **more):
        passes.append(len(ids[0]))
        return hidden(ids, *rest, **more)

    monkeypatch.setattr(local.decoder, "hidden", counted)
    monkeypatch.setattr(local, "write", lambda reply: False)
    events = events_of(local, [3, 4, 5], Sampling(temperature=0, max_tokens=40, max_repeats=0))
    assert [e.id for e in events if isinstance(e, Token)] == [7] * 40
    # Three tokens until there is something to look up, then four, and nine a pass.
    assert passes == [3, 1, 1, 4, 9, 9, 9, 9]


def test_the_end_of_the_window_leaves_no_room_for_guesses(local):
    finished = events_of(local, [8, 9] * 31, Sampling(temperature=0))[-1]
    assert finished.reason in ("context", "stop")


def test_guessing_stops_where_it_does_not_pay_and_is_tried_again():
    guesses = Lookup(0.1)
    ids = [1, 2, 3, 4, 1, 2, 3]
    tried = []
    for _ in range(200):
        guessed = guesses.guess(ids, 100)
        tried.append(bool(guessed))
        if guessed:
            guesses.keep([*ids, *guessed], torch.zeros(len(guessed) + 1, 5))
            assert guesses.recall(ids) is not None  # and no guess is the right one
    assert tried[0]
    assert 0.02 < sum(tried[50:]) / 150 < 0.3
    for _ in range(30):
        guessed = guesses.guess(ids, 100)
        if guessed:
            ahead = [*ids, *guessed]
            guesses.keep(ahead, torch.zeros(len(guessed) + 1, 5))
            assert guesses.recall(ahead) is not None
    assert all(guesses.guess(ids, 100) for _ in range(5))


def test_logits_are_recalled_for_the_tokens_they_follow_alone():
    guesses = Lookup()
    logits = torch.arange(6.0).reshape(3, 2)
    guesses.keep([1, 2, 3, 4], logits)
    assert guesses.recall([1]) is None
    for row, ids in enumerate([[1, 2], [1, 2, 3], [1, 2, 3, 4]]):
        found = guesses.recall(ids)
        assert found is not None
        assert torch.equal(found, logits[row])
    assert guesses.recall([1, 2, 3, 4, 5]) is None
    assert guesses.recall([1, 9]) is None
    assert guesses.recall([9, 2, 3]) is None
