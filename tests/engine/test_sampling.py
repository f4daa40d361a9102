"""Every sampling option against transformers' processors and a slow walk over all tokens."""

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from transformers.generation import logits_process as reference

from chatapp.engine.kernels import native
from chatapp.engine.model import Sampling
from chatapp.engine.sampling import Sampler

VOCABULARY = 300


def random_logits(seed, size=VOCABULARY):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 3


def reference_probabilities(logits, ids, options):
    """What transformers would draw from, in its order of steps."""
    steps: list[Any] = []
    if options.repetition_penalty != 1.0:
        steps.append(reference.RepetitionPenaltyLogitsProcessor(options.repetition_penalty))
    if options.no_repeat_ngram:
        steps.append(reference.NoRepeatNGramLogitsProcessor(options.no_repeat_ngram))
    steps.append(reference.TemperatureLogitsWarper(options.temperature))
    if options.top_k:
        steps.append(reference.TopKLogitsWarper(options.top_k))
    if options.top_p < 1.0:
        steps.append(reference.TopPLogitsWarper(options.top_p))
    if options.min_p:
        steps.append(reference.MinPLogitsWarper(options.min_p))
    scores = logits[None].clone()
    for step in steps:
        scores = step(torch.tensor([ids]), scores)
    return scores[0].double().softmax(0)


def walk(probabilities, seed):
    """The token at which a walk in the order of ids passes the seed's uniform number."""
    generator = torch.Generator().manual_seed(seed)
    left = float(torch.rand((), dtype=torch.float64, generator=generator))
    for id, probability in enumerate(probabilities.tolist()):
        left -= probability
        if left < 0:
            return id
    raise AssertionError("probabilities do not sum to one")


OPTIONS = {
    "temperature": {"temperature": 1.7},
    "top_k": {"top_k": 5},
    "top_k of everything": {"top_k": VOCABULARY + 9},
    "top_p": {"top_p": 0.6},
    "tiny top_p": {"top_p": 1e-6},
    "min_p": {"min_p": 0.1},
    "top_k and top_p": {"top_k": 20, "top_p": 0.7},
    "all cuts": {"top_k": 30, "top_p": 0.95, "min_p": 0.05, "temperature": 1.3},
    "repetition_penalty": {"repetition_penalty": 1.8},
    "rewarded repetition": {"repetition_penalty": 0.5},
    "no_repeat_ngram 1": {"no_repeat_ngram": 1},
    "no_repeat_ngram 3": {"no_repeat_ngram": 3, "top_k": 3},
    "everything": {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.02,
        "repetition_penalty": 1.2,
        "no_repeat_ngram": 2,
    },
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("is_native", [True, False])
def test_draws_are_those_of_a_slow_reference(options, is_native, monkeypatch):
    if not is_native:
        monkeypatch.setattr(native, "kernels", lambda: native.Kernels(None, "", ""))
    for seed in range(60):
        sampling = Sampling(**{"temperature": 1.0, "top_p": 1.0, "seed": seed} | options)
        logits = random_logits(seed)
        # The last two tokens repeat earlier ones, so that n-grams can be forbidden.
        ids = [*logits.topk(6).indices.tolist(), 7, 8, *logits.topk(2).indices.tolist()]
        expected = walk(reference_probabilities(logits, ids, sampling), seed)
        assert Sampler(sampling).draw(logits, ids) == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_penalties_of_openai_count_the_reply_alone(temperature):
    """A logit falls by the frequency for each time, by the presence once; the bias is added."""
    reply, seed, bias = [], 3, {2: -100.0, 5: 1.5}
    named = Sampling(temperature=temperature, top_p=1.0, seed=seed)
    sampling = replace(named, frequency_penalty=0.9, presence_penalty=-0.4)
    sampler, plain = Sampler(sampling, 2, bias), Sampler(named)
    for step in range(40):
        logits = random_logits(step % 3, 12)
        expected = logits.clone()
        for id, times in Counter(reply).items():
            expected[id] -= 0.9 * times - 0.4
        for id, value in bias.items():
            expected[id] += value
        id = sampler.draw(logits, [7, 7, *reply])
        assert id == plain.draw(expected, [7, 7, *reply])
        reply.append(id)
    assert len(set(reply) - {2}) == len(set(reply)) > 6


def test_penalties_follow_a_growing_reply():
    sampling = Sampling(temperature=0, repetition_penalty=1.3, no_repeat_ngram=2)
    sampler, ids, again = Sampler(sampling), [3, 4], [3, 4]
    for step in range(40):
        logits = random_logits(step % 3, 12)
        processors = reference.LogitsProcessorList(
            [
                reference.RepetitionPenaltyLogitsProcessor(1.3),
                reference.NoRepeatNGramLogitsProcessor(2),
            ]
        )
        again.append(int(processors(torch.tensor([again]), logits[None].clone()).argmax()))
        ids.append(sampler.draw(logits, ids))
    assert ids == again


@pytest.mark.parametrize("options", [{"top_p": 0.7}, {"min_p": 0.2, "top_p": 1.0}])
def test_distribution(options):
    logits = random_logits(2, 12)
    sampling = Sampling(temperature=1.0, seed=5, **options)
    expected = reference_probabilities(logits, [0], sampling)
    sampler, draws = Sampler(sampling), 6000
    counts = Counter(sampler.draw(logits, [0]) for _ in range(draws))
    kept = {id for id, probability in enumerate(expected.tolist()) if probability > 0}
    assert counts.keys() == kept
    assert 1 < len(kept) < 12
    for id in kept:
        probability = float(expected[id])
        deviation = (draws * probability * (1 - probability)) ** 0.5
        assert abs(counts[id] - draws * probability) < 5 * deviation


def test_of_equally_likely_tokens_the_first_are_kept():
    sampler = Sampler(Sampling(temperature=1.0, top_p=0.5))
    assert sampler.distribution(torch.zeros(8), [0]).tolist() == [0.25] * 4 + [0.0] * 4
    likely = torch.tensor([0.0, 0.0, 2.0, 0.0, 0.0])
    kept = sampler.distribution(likely, [0]) > 0
    assert kept.tolist() == [False, False, True, False, False]
    wider = Sampler(Sampling(temperature=1.0, top_p=0.7)).distribution(likely, [0]) > 0
    assert wider.tolist() == [True, False, True, False, False]


@pytest.mark.parametrize("top_p", [0.5, 0.97, 0.9999])
def test_a_wide_nucleus(top_p):
    logits = random_logits(1, 12_000) / 30  # nearly uniform: thousands of tokens are kept
    for seed in range(10):
        sampling = Sampling(temperature=1.0, top_p=top_p, seed=seed)
        expected = walk(reference_probabilities(logits, [0], sampling), seed)
        # At this width rounding may move the border of the nucleus by one token.
        assert abs(Sampler(sampling).draw(logits, [0]) - expected) <= 5


def test_greedy_takes_the_largest_and_draws_nothing():
    logits = random_logits(0)
    assert Sampler(Sampling(temperature=0)).draw(logits, [1]) == int(logits.argmax())


@pytest.mark.parametrize(("temperature", "scale"), product([1e-300, 1e-6, 100.0], [1.0, 1e30]))
def test_extreme_temperatures(temperature, scale):
    logits = random_logits(0) * scale
    id = Sampler(Sampling(temperature=temperature, top_p=1.0, seed=1)).draw(logits, [1])
    assert temperature > 1 or id == int(logits.argmax())


@pytest.mark.parametrize("top_k", [2**31, 2**32 + 1])
def test_more_tokens_than_there_are_may_be_kept(top_k):
    logits = random_logits(5)
    drawn = [
        Sampler(Sampling(temperature=2.0, top_p=1.0, top_k=k, seed=seed)).draw(logits, [1])
        for k in (0, top_k)
        for seed in range(20)
    ]
    assert drawn[:20] == drawn[20:]


def test_logits_are_left_as_they_are():
    logits = random_logits(0)
    before = logits.clone()
    sampling = Sampling(repetition_penalty=2.0, no_repeat_ngram=1, min_p=0.3, frequency_penalty=1)
    Sampler(sampling, 0, {1: 1.0}).draw(logits, [1, 2])
    assert torch.equal(logits, before)


def test_with_every_token_forbidden_it_repeats():
    logits = random_logits(0, 4)
    sampling = Sampling(temperature=0, no_repeat_ngram=1)
    assert Sampler(sampling).draw(logits, [0, 1, 2, 3]) == int(logits.argmax())


def test_a_long_ngram_forbids_nothing_in_a_short_text():
    logits = random_logits(0)
    sampling = Sampling(temperature=0, no_repeat_ngram=9)
    assert Sampler(sampling).draw(logits, [int(logits.argmax())] * 3) == int(logits.argmax())


def test_the_numbers_of_several_draws_are_those_of_single_ones():
    for count in (1, 7, 16, 33):
        sampler, single = (Sampler(Sampling(temperature=1.0, seed=5)) for _ in range(2))
        expected = [float(single._coming(1)[0]) for _ in range(3) if not single.end_natively(1)]
        assert sampler._coming(count)[:3].tolist() == expected[:count]


def test_seeds():
    logits = torch.zeros(1000)

    def draws(seed):
        sampler = Sampler(Sampling(temperature=1.0, top_p=1.0, seed=seed))
        return [sampler.draw(logits, [0]) for _ in range(8)]

    assert draws(2**63 - 1) == draws(2**63 - 1)
    assert draws(0) != draws(1)
    assert draws(None) != draws(None)
    torch.manual_seed(0)
    first = draws(3)
    torch.rand(5)
    assert draws(3) == first
