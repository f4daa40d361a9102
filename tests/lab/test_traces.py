"""What is shown of a model is what transformers computes, and looking changes nothing."""

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from random_models import randomize

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.backends.transformers_model import TransformersModel
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Token
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import ContextOverflow, Request, Sampling
from chatapp.engine.sampling import Sampler
from chatapp.lab.inspectable import Inspectable, inspectable
from chatapp.lab.predictions import Cut

IDS = torch.randint(1, 340, (40,), generator=torch.Generator().manual_seed(1)).tolist()


def inspect(model, ids):
    opened = inspectable(model)
    return opened.inspect(ids)


def stepper_of(model, ids, sampling):
    opened = inspectable(model)
    return opened.stepper(ids, sampling)


def eager(reference, ids):
    """transformers' own eager attention, with everything it gives."""
    reference.set_attn_implementation("eager")
    with torch.no_grad():
        return reference(torch.tensor([ids]), output_attentions=True, output_hidden_states=True)


def near(ours, theirs):
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max()) <= 1e-4


@pytest.fixture(scope="module")
def pair(gpt2):
    return inspect(LocalModel.load(ModelFiles.read(gpt2[0])), IDS), gpt2[1]


def test_predictions_are_the_softmax_of_the_logits(pair):
    trace, reference = pair
    probabilities = eager(reference, IDS).logits[0].double().softmax(1)
    found = trace.predictions(top=7)
    assert len(found) == len(IDS)
    for position, prediction in enumerate(found):
        row = probabilities[position]
        order = row.argsort(descending=True).tolist()
        assert [each.id for each in prediction.candidates] == order[:7]
        assert [each.rank for each in prediction.candidates] == list(range(1, 8))
        for each in prediction.candidates:
            assert each.probability == pytest.approx(float(row[each.id]), abs=1e-5)
        assert prediction.entropy == pytest.approx(float(-(row * row.log2()).sum()), abs=1e-3)
        if position + 1 < len(IDS):
            assert prediction.actual.id == IDS[position + 1]
            assert prediction.actual.rank == order.index(IDS[position + 1]) + 1
            assert prediction.actual.text == trace.texts[position + 1]
    assert found[-1].actual is None


def test_many_positions_are_computed_in_parts(monkeypatch, gpt2):
    model = LocalModel.load(ModelFiles.read(gpt2[0]))
    whole = inspect(model, IDS)
    monkeypatch.setattr("chatapp.lab.traces.ROWS", 7)
    parts = inspect(model, IDS)
    assert near(parts.logits(0, len(IDS)), whole.logits(0, len(IDS)))
    assert [p.actual and p.actual.rank for p in parts.predictions()] == [
        p.actual and p.actual.rank for p in whole.predictions()
    ]


def test_looking_changes_nothing(local):
    sampling = Sampling(seed=3, max_tokens=8)
    ids = IDS[:20]

    def reply():
        return [
            event.id for event in local.generate(Request(ids, sampling)) if isinstance(event, Token)
        ]

    before = reply()
    cached = list(local._cache.ids)
    trace = inspect(local, IDS)
    trace.predictions()
    trace.attention(3)
    trace.lens(3)
    assert local._cache.ids == cached
    assert reply() == before


def test_bad_ids_are_refused(local):
    assert isinstance(inspectable(local), Inspectable)
    with pytest.raises(ValueError, match="at least one"):
        inspect(local, [])
    with pytest.raises(ValueError, match="340"):
        inspect(local, [340])
    with pytest.raises(ContextOverflow, match="65 tokens"):
        inspect(local, [1] * 65)
    assert len(inspect(local, [1] * 64).predictions(top=1)) == 64


CUTS = {
    "all tokens": Sampling(top_p=1.0, temperature=1.0),
    "temperature": Sampling(top_p=1.0, temperature=0.4),
    "top-k": Sampling(top_p=1.0, top_k=3),
    "top-p": Sampling(top_p=0.5),
    "min-p": Sampling(top_p=1.0, min_p=0.2),
    "everything": Sampling(
        temperature=1.5, top_k=50, top_p=0.9, min_p=0.01, repetition_penalty=1.3, no_repeat_ngram=2
    ),
    "greedy": Sampling(temperature=0),
}


@pytest.mark.parametrize("sampling", CUTS.values(), ids=CUTS.keys())
def test_the_cut_is_what_is_drawn_from(sampling):
    logits = torch.randn(12, generator=torch.Generator().manual_seed(2)) * 2
    ids = [3, 4, 3]
    distribution = Sampler(sampling).distribution(logits, ids)
    assert float(distribution.sum()) == pytest.approx(1.0, abs=1e-6)
    drawn = torch.zeros(12)
    for seed in range(400):
        sampler = Sampler(Sampling(**{**_fields(sampling), "seed": seed}))
        drawn[sampler.draw(logits, ids)] += 1
    # Four standard deviations, and nothing at all where nothing can be drawn.
    spread = (distribution * (1 - distribution) / 400).sqrt()
    assert bool(((drawn / 400 - distribution).abs() <= 4 * spread + 1e-6).all())


def _fields(sampling):
    return {name: getattr(sampling, name) for name in sampling.__dataclass_fields__}


def test_before_and_after_the_cut(local):
    stepper = stepper_of(local, IDS, Sampling(temperature=1.0, top_p=1.0, top_k=4))
    seen = stepper.look(top=6)
    probabilities = inspect(local, IDS).logits(39, 40)[0].softmax(0)
    kept = sum(each.probability for each in seen.before.candidates[:4])
    for each, drawn in zip(seen.before.candidates, seen.drawn, strict=True):
        assert each.probability == pytest.approx(float(probabilities[each.id]), abs=1e-5)
        expected = each.probability / kept if each.rank <= 4 else 0.0
        assert drawn == pytest.approx(expected, abs=1e-5)
    assert seen.kept == 4
    assert 0 < seen.entropy <= 2.0
    stepper.draw_by(Sampling(temperature=0))
    greedy = stepper.look()
    assert (greedy.kept, greedy.entropy, greedy.drawn[0]) == (1, 0.0, 1.0)


def test_stepping_draws_the_tokens_of_generate(local):
    sampling = Sampling(temperature=1.0, top_p=0.9, seed=11, max_tokens=10)
    prompt = IDS[:10]
    tokens = [e for e in local.generate(Request(prompt, sampling)) if isinstance(e, Token)]
    expected = [token.id for token in tokens]
    probabilities = [math.exp(token.logprob) for token in tokens]
    stepper = stepper_of(local, prompt, sampling)
    looks: list[Cut] = []
    for _ in expected:
        looks.append(stepper.look())
        stepper.draw()
    assert [each.id for each in stepper.taken] == expected
    assert [each.probability for each in stepper.taken] == pytest.approx(probabilities, abs=1e-5)
    for id, look in zip(expected, looks, strict=True):
        shown = dict(zip((c.id for c in look.before.candidates), look.drawn, strict=True))
        assert shown.get(id, 1.0) > 0


def test_steps_can_be_chosen_and_taken_back(local):
    stepper = stepper_of(local, (IDS + IDS)[:62], Sampling(temperature=0))

    def likeliest():
        return stepper.look().before.candidates[0].id

    assert not stepper.back()
    first = likeliest()
    stepper.choose(7)
    assert [each.id for each in stepper.taken] == [7]
    stepper.back()
    assert stepper.taken == []
    assert likeliest() == first
    assert stepper.draw() == first
    assert not stepper.is_over
    stepper.draw()
    assert stepper.is_over
    with pytest.raises(ValueError, match="full"):
        stepper.draw()
    stepper.back()
    stepper.choose(local.tokenizer.end_id)
    assert stepper.is_over


ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "vocab_size": 340}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, **ENDS}
OTHERS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any] | None]] = {
    "llama": (
        lambda: transformers.LlamaConfig(intermediate_size=64, num_key_value_heads=2, **SMALL),
        lambda model: model.model.norm,
    ),
    "opt": (
        lambda: transformers.OPTConfig(ffn_dim=64, word_embed_proj_dim=32, **SMALL),
        lambda model: model.model.decoder.final_layer_norm,
    ),
    "gpt": (
        lambda: transformers.OpenAIGPTConfig(
            n_embd=32, n_layer=2, n_head=4, n_positions=96, **ENDS
        ),
        None,
    ),
}


@pytest.mark.parametrize("start", [[], [1]], ids=["text alone", "after a first token"])
@pytest.mark.parametrize("kind", OTHERS)
def test_other_architectures(kind, start, local):
    make, norm = OTHERS[kind]
    reference = randomize(transformers.AutoModelForCausalLM.from_config(make()))
    model = TransformersModel(reference, local.tokenizer, name=kind, start=start)
    before = reference.config._attn_implementation
    trace = inspect(model, IDS)
    logits = trace.logits(0, len(IDS))
    rows = [trace.attention(position) for position in (0, 1, 30)]
    assert reference.config._attn_implementation == before
    output = eager(reference, [*start, *IDS])
    assert near(logits, output.logits[0, len(start) :])
    theirs = torch.stack(output.attentions)[:, 0, :, len(start) :, len(start) :]
    for position, row in zip((0, 1, 30), rows, strict=True):
        assert near(torch.from_numpy(row), theirs[:, :, position, : position + 1])
    if norm is None:
        with pytest.raises(ModelError, match="gpt: this kind of model does not expose"):
            trace.layer_logits(3)
        return
    *early, last = (state[0, len(start) + 3] for state in output.hidden_states)
    with torch.no_grad():
        expected = reference.lm_head(torch.stack([*map(norm(reference), early), last]))
    assert near(trace.layer_logits(3), expected)


def test_models_that_cannot_show_it_say_so(local):
    config = transformers.MambaConfig(
        hidden_size=32, state_size=4, num_hidden_layers=2, time_step_rank=2, **ENDS
    )
    reference = randomize(transformers.AutoModelForCausalLM.from_config(config))
    trace = inspect(TransformersModel(reference, local.tokenizer, name="mamba"), IDS)
    with pytest.raises(ModelError, match="mamba: this kind of model does not expose its attention"):
        trace.attention(3)
    assert len(trace.lens(3)) == 3
    xl = transformers.XLNetConfig(d_model=32, n_layer=2, n_head=4, d_inner=64, **ENDS)
    reference = randomize(transformers.AutoModelForCausalLM.from_config(xl))
    with pytest.raises(ModelError, match="xlnet: this model is not autoregressive"):
        inspect(TransformersModel(reference, local.tokenizer, name="xlnet"), IDS)


def test_a_folder_of_transformers_is_inspectable(gpt2):
    ours = inspect(LocalModel.load(ModelFiles.read(gpt2[0])), IDS)
    theirs = inspect(TransformersModel.load(ModelFiles.read(gpt2[0])), IDS)
    assert near(torch.from_numpy(ours.attention(9)), torch.from_numpy(theirs.attention(9)))
    assert near(ours.layer_logits(9), theirs.layer_logits(9))
    assert [p.candidates[0].text for p in ours.predictions()] == [
        p.candidates[0].text for p in theirs.predictions()
    ]


def test_attention_is_switched_only_while_nothing_else_is_computed(gpt2, monkeypatch):
    model = TransformersModel.load(ModelFiles.read(gpt2[0]))
    monkeypatch.setattr(model, "lock", lock := threading.Lock())
    trace = inspect(model, IDS)
    switch = model.network.set_attn_implementation
    held: list[bool] = []

    def switched(name):
        held.append(lock.locked())
        switch(name)

    monkeypatch.setattr(model.network, "set_attn_implementation", switched)
    trace.attention(5)
    assert held == [True, True]
    assert not lock.locked()


@pytest.mark.parametrize("id", [-1, 340, 2**31, 2**63])
def test_a_token_that_is_none_cannot_be_chosen(local, id):
    stepper = stepper_of(local, IDS, Sampling())
    with pytest.raises(ValueError, match=f"token id {id} is not in the vocabulary of 340"):
        stepper.choose(id)
    assert stepper.taken == []
