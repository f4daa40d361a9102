"""Many sequences at once: each gives what it gives alone, whatever the others do."""

import threading
from dataclasses import replace
from itertools import pairwise
from typing import cast

import pytest
import torch
from family_shapes import SHAPES, make_family

from chatapp.engine import batch
from chatapp.engine.backends.local import LocalModel, load_decoder
from chatapp.engine.batch import Batch
from chatapp.engine.events import Finished, Token
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import PieceTokenizer, Request, Sampling, whole_replies
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import BUNDLED

PROMPT = [40, 71, 300, 12, 99]
GREEDY = Sampling(temperature=0, max_tokens=20, max_repeats=0)
DRAWN = Sampling(temperature=1.0, top_p=1.0, max_tokens=20)


def alone(model, request):
    return list(model.generate(request))


def together(model, requests):
    """The events of each request."""
    events = {}
    for number, event in model.generate_many(requests):
        events.setdefault(number, []).append(event)
    return [events[number] for number in range(len(events))]


def outcome(events):
    """What does not depend on time: ids, text and reason."""
    *tokens, finished = events
    assert isinstance(finished, Finished)
    ids = [token.id for token in tokens if isinstance(token, Token)]
    assert len(ids) == len(tokens) == finished.reply_tokens
    return ids, "".join(event.text for event in events), finished.reason


def unlike(count, *, context, vocabulary=340):
    """Requests that differ in all that a request has."""
    generator = torch.Generator().manual_seed(count)
    sizes = torch.randint(1, context // 2, (count,), generator=generator).tolist()
    requests = []
    for number, size in enumerate(sizes):
        ids = torch.randint(1, vocabulary, (size,), generator=generator).tolist()
        sampling = (
            replace(GREEDY, max_tokens=1 + 7 * number % 23)
            if number % 3 == 0
            else replace(DRAWN, seed=number, top_k=5 * (number % 2), max_tokens=3 + number % 17)
        )
        stop = ["e"] if number % 5 == 0 else ()
        requests.append(Request(ids, sampling, stop, forced=ids[: number % 3]))
    return requests


def assert_as_alone(model, requests):
    found = [outcome(events) for events in together(model, requests)]
    assert found == [outcome(alone(model, request)) for request in requests]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_family_says_what_it_says_alone(shape, tmp_path, local):
    make_family(shape, tmp_path)
    decoder = load_decoder(ModelFiles.read(tmp_path))
    tokenizer = cast(PieceTokenizer, local.tokenizer)
    assert_as_alone(LocalModel(decoder, tokenizer, name=shape), unlike(20, context=64))


@pytest.mark.parametrize("count", [2, 3, 9, 30])
def test_any_number_says_what_each_says_alone(local, count):
    assert_as_alone(local, unlike(count, context=local.context))


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_real_weights_say_what_they_say_alone(precision):
    model = load_model(BUNDLED, precision=precision)
    texts = ["Hello", "What is the capital of France?", "Write a poem about the sea.", "2 + 2 ="]
    prompts = [model.tokenizer.encode(f"User: {text}\nAssistant:") for text in texts]
    requests = [
        Request(ids, Sampling(temperature=temperature, seed=seed, max_tokens=40))
        for ids in prompts
        for seed, temperature in enumerate((0.0, 0.7, 1.0))
    ]
    assert_as_alone(model, requests)


def test_none_and_one(local):
    assert together(local, []) == []
    assert_as_alone(local, [Request(PROMPT, GREEDY)])


def test_alternatives_and_log_probabilities(local):
    requests = [Request(PROMPT[: 1 + n], GREEDY, top=n) for n in range(4)]
    for request, events in zip(requests, together(local, requests), strict=True):
        for found, wanted in pairwise([events[0], alone(local, request)[0]]):
            assert found.logprob == pytest.approx(wanted.logprob, abs=1e-5)
            assert [a.id for a in found.alternatives] == [a.id for a in wanted.alternatives]
            assert len(found.alternatives) == request.top


def test_the_end_of_the_window(local):
    sampling = Sampling(temperature=1.0, seed=0, max_tokens=50)
    requests = [Request([*PROMPT] * 12, sampling), Request(PROMPT, sampling)]
    full, _ = together(local, requests)
    assert outcome(full)[2] == "context"
    assert_as_alone(local, requests)


def test_a_request_is_taken_when_there_is_room(local):
    taken, ended = [], []

    def requests():
        for number in range(20):
            taken.append(len(ended))
            yield Request(PROMPT, replace(DRAWN, seed=number, max_tokens=1 + number % 6))

    for number, event in local.generate_many(requests()):
        if isinstance(event, Finished):
            ended.append(number)
    assert sorted(ended) == list(range(20))
    # Each is asked for no earlier than its forerunner has joined: one is waiting at most.
    most = batch.MOST_AT_ONCE
    assert all(number - most <= before for number, before in enumerate(taken))
    assert taken[-1] > 0


def test_what_prompts_share_is_computed_once(local):
    shared = [5 * n + 1 for n in range(40)]
    requests = [Request([*shared, number, 7], GREEDY) for number in range(1, 6)]
    first, *others = (events[-1] for events in together(local, requests))
    assert first.reused_tokens == 0
    assert [getattr(end, "reused_tokens", None) for end in others] == [len(shared)] * 4


def test_a_prompt_with_several_replies_is_computed_once(local, monkeypatch):
    others = [7, 8, 9]
    prompts = [PROMPT, PROMPT, others, PROMPT, PROMPT]
    requests = [
        Request(ids, replace(DRAWN, seed=seed, max_tokens=4)) for seed, ids in enumerate(prompts)
    ]
    wanted = [outcome(alone(local, request)) for request in requests]
    local.forget()
    computed = []
    forward = local.decoder.forward

    def counted(ids, *given, **named):
        computed.append(len(ids))
        return forward(ids, *given, **named)

    monkeypatch.setattr(local.decoder, "forward", counted)
    assert [outcome(events) for events in together(local, requests)] == wanted
    assert computed == [len(PROMPT), len(others), len(PROMPT)]


def test_one_cancelled_leaves_the_others(local):
    cancels = [threading.Event() for _ in range(4)]
    requests = [
        Request(PROMPT[n:], replace(DRAWN, seed=n), cancel=cancel)
        for n, cancel in enumerate(cancels)
    ]
    wanted = [outcome(alone(local, request)) for request in requests]
    events = [[] for _ in requests]
    for number, event in local.generate_many(requests):
        events[number].append(event)
        if len(events[2]) == 3:
            cancels[2].set()
    assert outcome(events[2])[0] == wanted[2][0][:3]
    assert outcome(events[2])[2] == "cancelled"
    for number in (0, 1, 3):
        assert outcome(events[number]) == wanted[number]


def test_all_are_cancelled_within_a_token(local):
    cancel = threading.Event()
    requests = [Request(PROMPT, replace(DRAWN, seed=n), cancel=cancel) for n in range(20)]
    events = []
    for numbered in local.generate_many(requests):
        events.append(numbered)
        cancel.set()
    assert len(events) == 21
    ends = [event for _, event in events if isinstance(event, Finished)]
    assert {end.reason for end in ends} == {"cancelled"}


@pytest.mark.parametrize("ids", [[], [340], [1] * 64])
def test_a_request_that_cannot_be_met_leaves_the_others(local, ids):
    requests = [Request(PROMPT, GREEDY), Request(ids, GREEDY), Request([9], GREEDY)]
    first, bad, last = together(local, requests)
    (end,) = bad
    assert isinstance(end, Finished)
    with pytest.raises(ValueError, match="token") as refused:
        local.generate(Request(ids, GREEDY))
    assert (end.reason, end.message) == ("error", str(refused.value))
    assert outcome(first) == outcome(alone(local, requests[0]))
    assert outcome(last) == outcome(alone(local, requests[2]))


def test_a_sequence_whose_numbers_go_wrong_leaves_the_others(make_gpt2):
    model = LocalModel.load(ModelFiles.read(make_gpt2()[0]))
    requests = [
        Request(PROMPT, replace(DRAWN, seed=n, max_tokens=4 + 3 * n, top_p=1.0)) for n in range(12)
    ]
    wanted = [alone(model, request) for request in requests]
    spoilt = outcome(wanted[5])[0][1]  # what comes after it is no number
    model.decoder.token_embedding = model.decoder.token_embedding.clone()
    model.decoder.token_embedding[spoilt] = torch.nan
    failed = 0
    for expected, events in zip(wanted, together(model, requests), strict=True):
        before = outcome(expected)[0]
        if spoilt in before[:-1]:
            failed += 1
            assert outcome(events)[2] == "error"
            assert "not finite" in getattr(events[-1], "message", "")
            before = before[: before.index(spoilt) + 1]
        assert outcome(events)[0] == before
    assert 0 < failed < len(requests)


def test_a_pass_that_fails_ends_those_it_was_for(local, monkeypatch):
    compute, calls = local.decoder.forward_rows, 0

    def fail_once(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("out of memory")
        return compute(*arguments, **options)

    monkeypatch.setattr(local.decoder, "forward_rows", fail_once)
    monkeypatch.setattr(local.decoder, "write", lambda *_: [])
    requests = [Request(PROMPT, replace(DRAWN, seed=n)) for n in range(batch.MOST_AT_ONCE + 2)]
    reasons = [outcome(events)[2] for events in together(local, requests)]
    assert reasons.count("error") == batch.MOST_AT_ONCE
    assert reasons[-1] != "error"
    assert_as_alone(local, requests)


@pytest.mark.parametrize(("limit", "read"), [(0, 256), (40_000, 3), (100_000, 256)])
def test_fewer_at_once_where_the_cache_would_not_fit(local, limit, read, monkeypatch):
    monkeypatch.setattr(batch, "MOST_READ", read)
    requests = unlike(12, context=local.context)
    many, found = Batch(local, limit=limit), {}
    waiting = list(enumerate(requests))
    most = 0
    while waiting or not many.is_empty:
        while waiting and many.has_room(waiting[0][1]):
            for number, event in many.join(*waiting.pop(0)):
                found.setdefault(number, []).append(event)
        most = max(most, len(many._members))
        for number, event in many.step():
            found.setdefault(number, []).append(event)
    assert most == 1 if limit == 0 else 1 < most < batch.MOST_AT_ONCE
    for number, request in enumerate(requests):
        assert outcome(found[number]) == outcome(alone(local, request))


def test_a_long_prompt_holds_up_no_reply(local, monkeypatch):
    monkeypatch.setattr(batch, "MOST_READ", 34)
    long = Request([*PROMPT] * 12, replace(GREEDY, max_tokens=3))
    requests = [Request(PROMPT, GREEDY), long, Request([9, 8], GREEDY)]
    order = [number for number, _ in local.generate_many(requests)]
    assert order.count(0) == 21
    assert order[:5] == [0, 2, 1, 0, 2]  # the second part of 1 is read with the first step
    local.forget()
    assert_as_alone(local, requests)


@pytest.mark.parametrize("is_first", [True, False])
def test_prompts_that_keep_coming_undo_no_part_of_a_long_one(local, monkeypatch, is_first):
    monkeypatch.setattr(batch, "MOST_READ", 8)
    many, long = Batch(local, 8), [*range(1, 61)]
    monkeypatch.setattr(local._pool, "_limit", 20 * many._position)
    short, medium = (
        Request([*range(100, 100 + n)], replace(GREEDY, max_tokens=1)) for n in (5, 20)
    )
    if not is_first:
        many.join(0, short)
    many.join(1, Request(long, GREEDY))
    begun = []
    for number in range(2, 14):
        joined = medium if number == 2 else replace(short, ids=[number, *short.ids])
        assert many.has_room(joined)
        begun += [number for number, _ in many.join(number, joined) + many.step()]
    assert begun.index(2) < begun.index(1) < len(begun) - 1
    monkeypatch.setattr(batch, "_PART_SECONDS", -1.0)  # each part takes too long
    monkeypatch.setattr(batch, "_LEAST_READ", 4)
    many.join(14, Request(long[::-1], GREEDY))
    many.step()
    assert local.known(long[::-1]) == 12


def test_a_longer_request_need_not_wait_until_all_others_have_ended(local):
    position = local.decoder.new_cache().bytes_per_position
    many = Batch(local, most=8, limit=8 * 20 * position)
    requests = [Request([7, 8, n], replace(GREEDY, max_tokens=9)) for n in range(3)]
    longer = Request([*PROMPT], replace(GREEDY, max_tokens=30))
    for number, request in enumerate(requests):
        many.join(number, request)
    assert many.has_room(longer)
    assert not many.has_room(Request(PROMPT, replace(GREEDY, max_tokens=50)))
    found = {3: [event for _, event in many.join(3, longer)]}
    while not many.is_empty:
        for number, event in many.step():
            found.setdefault(number, []).append(event)
    assert outcome(found[3]) == outcome(alone(local, longer))


def test_a_forgotten_batch_blocks_nothing(local):
    requests = [Request(PROMPT, replace(DRAWN, seed=n)) for n in range(5)]
    stream = local.generate_many(requests)
    next(stream)
    assert_as_alone(local, requests)


def test_generations_beside_a_batch_disturb_nothing(local):
    requests = unlike(10, context=local.context)
    wanted = [outcome(alone(local, request)) for request in requests]
    other = Request([3, 1, 4], replace(DRAWN, seed=9, max_tokens=40))
    beside = local.generate(other)
    events = [[] for _ in requests]
    found = []
    for number, event in local.generate_many(requests):
        events[number].append(event)
        found += [each for each in [next(beside, None)] if each is not None]
    assert [outcome(each) for each in events] == wanted
    found += beside
    assert outcome(found) == outcome(alone(local, other))


def test_replies_come_in_the_order_of_their_requests(local):
    requests = unlike(11, context=local.context)
    wanted = [outcome(alone(local, request)) for request in requests]
    replies = list(whole_replies(local.generate_many(requests)))
    assert [(text, end.reason) for text, end in replies] == [each[1:] for each in wanted]
