"""Sequences of one model drawn in turn: each gives what it gives alone, and what they can share
is computed once."""

from dataclasses import replace

import pytest
from seq2seq_models import write_seq2seq

from chatapp.dialogue.events import interleaved
from chatapp.engine.backends.encoder_decoder import EncoderDecoderModel
from chatapp.engine.backends.transformers_model import TransformersModel
from chatapp.engine.batch import SharedBatch
from chatapp.engine.events import Finished, Token
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import ContextOverflow, Request, Sampling

PROMPT = [40, 71, 300, 12, 99]
GREEDY = Sampling(temperature=0, max_tokens=20, max_repeats=0)
REQUESTS = [
    Request([*PROMPT, 7], replace(GREEDY, temperature=1.0, top_p=1.0, seed=3)),
    Request(PROMPT, replace(GREEDY, max_tokens=9)),
    Request([5, 6] * 9, replace(GREEDY, temperature=1.0, top_p=1.0, seed=4)),
]


def begun(generate, requests):
    return [generate(request) for request in requests]


def text(events):
    *tokens, end = events
    assert isinstance(end, Finished)
    ids = [token.id for token in tokens if isinstance(token, Token)]
    return ids, "".join(event.text for event in events), end.reason


def alone(model, requests):
    return [text(list(events)) for events in begun(model.generate, requests)]


def in_turn(generate, requests):
    events = [[] for _ in requests]
    for number, event in interleaved(begun(generate, requests)):
        assert not isinstance(event, Exception)
        events[number].append(event)
    return events


@pytest.fixture
def rows(local, monkeypatch):
    """How many sequences each pass of several was for."""
    compute, rows = local.decoder.forward_rows, []

    def counted(ids, *arguments, **options):
        rows.append(len(ids))
        return compute(ids, *arguments, **options)

    monkeypatch.setattr(local.decoder, "forward_rows", counted)
    monkeypatch.setattr(local.decoder, "write", lambda *_: [])
    return rows


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_says_what_it_says_alone(local, rows, count):
    """Also those for which there is no room."""
    found = in_turn(local.together(count), REQUESTS)
    assert [text(events) for events in found] == alone(local, REQUESTS)
    assert max(rows) == count


def test_one_pass_serves_all(local, rows):
    first, second = in_turn(local.together(2), REQUESTS[:2])
    shorter, longer = sorted((len(first), len(second)))
    assert shorter < longer
    # A prompt's own pass gives its first token, and the last event of each is its end.
    assert rows == [2] * (shorter - 2) + [1] * (longer - shorter)


def test_events_come_in_turn(local):
    numbers = [number for number, _ in interleaved(begun(local.together(2), REQUESTS[:2]))]
    assert numbers[:16] == [0, 1] * 8


def test_closing_one_makes_room_and_leaves_the_others(local, rows):
    expected = alone(local, REQUESTS)
    first, second, third = begun(local.together(2), REQUESTS)
    events = [next(second)]
    for _ in range(3):
        next(first)
    events += [next(second) for _ in range(3)]
    assert rows == [2, 2, 2]
    first.close()
    events.append(next(second))
    assert rows.pop() == 1
    late = [next(third)]
    events.append(next(second))
    assert rows.pop() == 2
    assert text(events + list(second)) == expected[1]
    assert text(late + list(third)) == expected[2]


def test_one_not_begun_takes_no_room(local, rows):
    together = local.together(2)
    unbegun = together(Request(PROMPT, GREEDY))
    in_turn(together, REQUESTS[:2])
    assert max(rows) == 2
    assert text(list(unbegun)) == alone(local, [Request(PROMPT, GREEDY)])[0]


def test_what_cannot_be_is_refused_as_it_is_alone(local):
    together = local.together(2)
    with pytest.raises(ContextOverflow, match="the prompt has 64 tokens"):
        together(Request([1] * 64, GREEDY))
    with pytest.raises(ValueError, match="token id 340"):
        together(Request([340], GREEDY))


def test_a_pass_that_fails_is_told_to_each(local, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("out of memory")

    together = local.together(2)
    with monkeypatch.context() as broken:
        broken.setattr(local.decoder, "write", fail)
        found = in_turn(together, REQUESTS[:2])
    assert [text(events)[2] for events in found] == ["error", "error"]
    found = in_turn(together, REQUESTS[:2])
    assert [text(events) for events in found] == alone(local, REQUESTS[:2])


def test_where_memory_is_short_each_goes_by_itself(local, rows):
    batch = SharedBatch(local, 2)
    batch._batch._limit = 0
    found = in_turn(batch.generate, REQUESTS)
    assert [text(events) for events in found] == alone(local, REQUESTS)
    assert set(rows) == {1}


def read_by(model):
    """How many tokens each call of a model of transformers reads; it grows as they are made."""
    sizes = []

    def look(module, arguments, options):
        ids = options.get("input_ids", options.get("decoder_input_ids"))
        sizes.append(ids.numel())

    model.network.register_forward_pre_hook(look, with_kwargs=True)
    return sizes


def test_a_model_of_transformers_computes_nothing_anew(make_gpt2):
    model = TransformersModel.load(ModelFiles.read(make_gpt2()[0]))
    expected = alone(model, REQUESTS)
    sizes = read_by(model)
    found = in_turn(model.together(3), REQUESTS)
    assert [text(events) for events in found] == expected
    assert sum(sizes) == sum(len(ids) for ids, *_ in expected) - 3 + sum(
        len(request.ids) for request in REQUESTS
    )


def test_nor_does_one_of_an_encoder_and_a_decoder(tmp_path):
    write_seq2seq("t5", tmp_path)
    model = EncoderDecoderModel.load(ModelFiles.read(tmp_path))
    requests = [Request([20, 21], GREEDY), Request([30, 31, 32], GREEDY)]
    expected = alone(model, requests)
    sizes = read_by(model)
    found = in_turn(model.together(2), requests)
    assert [text(events) for events in found] == expected
    assert set(sizes) == {1}
