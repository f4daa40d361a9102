"""A part that is switched off is switched off in every family and wherever a text is computed."""

import math

import pytest
import torch
from family_shapes import SHAPES, make_family
from hooked import without
from random_models import logits_of

from chatapp.engine.backends.local import load_decoder
from chatapp.engine.backends.transformers_model import TransformersModel
from chatapp.engine.decoder.interventions import (
    UNCHANGED,
    Change,
    InterventionError,
    Interventions,
    parse_part,
    parse_parts,
    switched_off,
)
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Token
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import Request, Sampling
from chatapp.lab.inspectable import inspectable

IDS = torch.randint(0, 340, (40,), generator=torch.Generator().manual_seed(3)).tolist()

GREEDY = Sampling(temperature=0, max_tokens=12)


@pytest.fixture(scope="module", params=["gpt2", *SHAPES])
def pair(request, tmp_path_factory, make_gpt2):
    if request.param == "gpt2":
        folder, reference = make_gpt2()
    else:
        folder = tmp_path_factory.mktemp("family")
        reference = make_family(request.param, folder)
    return load_decoder(ModelFiles.read(folder)), reference


def off(decoder, names):
    return switched_off(parse_parts(names, decoder.architecture))


@pytest.mark.parametrize("names", ["0.1", "1.mlp", "0.mlp.17", "0.0 1.1 0.mlp 1.mlp.40"])
def test_a_part_is_off_as_hooks_of_transformers_switch_it_off(pair, names):
    ours, reference = pair
    with without(reference, *names.split()):
        theirs = logits_of(reference, IDS)
    changed = ours.forward(IDS, all_positions=True, changes=off(ours, names))
    assert torch.allclose(changed, theirs, atol=1e-4)
    assert not torch.allclose(changed, ours.forward(IDS, all_positions=True), atol=1e-3)


def test_token_by_token_a_part_is_as_absent_as_in_one_pass(pair):
    ours, _ = pair
    changes, cache = off(ours, "0.1 1.mlp"), ours.new_cache()
    whole = ours.forward(IDS, all_positions=True, changes=changes)
    steps = torch.stack([ours.forward([id], cache, changes=changes) for id in IDS])
    assert torch.allclose(steps, whole, atol=1e-4)


def test_a_layer_that_is_off_leaves_the_states_unchanged(pair):
    ours, _ = pair
    seen = {}
    ours.hidden([IDS], observe=lambda p, value: seen.setdefault(p, value), changes=off(ours, "0"))
    assert torch.equal(seen["embed"], seen["blocks.0"])


def test_nothing_changed_and_strength_0_are_the_very_same_numbers(pair):
    ours, _ = pair
    direction = (0.0,) * ours.architecture.width
    nothing = Interventions.of([Change("calm", "blocks.0", direction, is_added=True)])
    assert nothing == UNCHANGED
    before = ours.forward(IDS, all_positions=True)
    assert torch.equal(ours.forward(IDS, all_positions=True, changes=nothing), before)


def test_a_direction_is_added_from_its_start_on(pair):
    ours, _ = pair
    direction = tuple(0.3 * math.sin(n) for n in range(ours.architecture.width))
    changes = Interventions.of([Change("calm", "blocks.0", direction, is_added=True)])
    changed = {}
    ours.hidden(
        [IDS],
        observe=lambda point, value: changed.setdefault(point, value),
        changes=changes.added_after(25),
    )
    seen = {}
    ours.hidden([IDS], observe=lambda point, value: seen.setdefault(point, value))
    added = changed["blocks.0"] - seen["blocks.0"]
    assert torch.equal(added[:, :25], torch.zeros_like(added[:, :25]))
    assert torch.allclose(added[0, 25:], torch.tensor(direction).expand(15, -1), atol=1e-5)


def test_gradients_are_those_of_transformers(pair):
    ours, reference = pair
    kept = {}

    def keep(point, value):
        if point == "embed":
            value = kept[point] = value.detach().requires_grad_()
        return value

    states = ours.hidden_with_gradients([IDS], keep)
    assert torch.allclose(states, ours.hidden([IDS]), atol=1e-4)
    logits = ours.head(states)[0, -1]
    (gradient,) = torch.autograd.grad(logits[5] - logits[9], kept["embed"])

    embedded = reference.get_input_embeddings()(torch.tensor([IDS])).detach().requires_grad_()
    theirs = reference(inputs_embeds=embedded).logits[0, -1]
    (expected,) = torch.autograd.grad(theirs[5] - theirs[9], embedded)
    # transformers scales Gemma's embeddings inside of their layer.
    assert torch.allclose(gradient, expected, atol=1e-3 * float(expected.abs().max()))


# Names


def test_names_of_parts(pair):
    shape = pair[0].architecture
    for name in ("1", "0.1", "1.mlp", "0.mlp.47"):
        assert str(parse_part(name, shape)) == name
    assert [str(part) for part in parse_parts("0.1, 1.mlp  0.1", shape)] == ["0.1", "1.mlp"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("9", "there is no layer 9; the model has 2, numbered 0 to 1"),
        ("0.4", "there is no head 4; a layer of the model has 4, numbered 0 to 3"),
        ("0.mlp.128", "there is no neuron 128; an MLP of the model has 128"),
        ("1.attn", "'1.attn' names no part of a model; write 3 for a layer, 3.5 for a head"),
        ("-1", "names no part of a model"),
        ("9" * 5_000, "names no part of a model"),  # more digits than Python converts
        ("", "no part of the model is named"),
    ],
)
def test_a_name_of_no_part_is_one_sentence(gpt2, name, words):
    shape = load_decoder(ModelFiles.read(gpt2[0])).architecture
    with pytest.raises(InterventionError) as caught:
        parse_parts(name, shape)
    assert words in str(caught.value)


def test_words_for_the_status_line():
    direction = Change("calm 0.1", "blocks.0", (1.0,), is_added=True)
    changes = (Change("0", "blocks.0.mlp"), Change("0", "blocks.0.attention"), direction)
    assert Interventions.of(changes).words == "without 0, with calm 0.1"
    assert UNCHANGED.words == ""


# Generation


def drawn(model, changes):
    request = Request(IDS[:20], GREEDY, interventions=changes)
    return [(e.id, round(e.logprob, 3)) for e in model.generate(request) if isinstance(e, Token)]


def test_replies_without_a_part_and_with_it_do_not_mix(gpt2, local):
    changes = off(local.decoder, "0.1 1.mlp")
    before, without_it = drawn(local, UNCHANGED), drawn(local, changes)
    assert before != without_it
    # What was computed with the part is not used without it, nor the other way round.
    assert drawn(local, UNCHANGED) == before
    assert drawn(local, changes) == without_it
    sequence = list(IDS[:20])
    with without(gpt2[1], "0.1", "1.mlp"):
        for id, _ in without_it:
            assert int(logits_of(gpt2[1], sequence)[-1].argmax()) == id
            sequence.append(id)


def test_scores_and_batches_are_of_the_unchanged_model(local):
    pairs = [(IDS[:10], IDS[10:14]), (IDS[:10], IDS[20:23])]
    request = Request(IDS[:20], GREEDY)
    scores, batch = local.score(pairs), list(local.generate_many([request, request]))
    drawn(local, off(local.decoder, "0 1.mlp"))
    for ours, before in zip(local.score(pairs), scores, strict=True):
        assert ours == pytest.approx(before, abs=1e-5)
    drawn(local, off(local.decoder, "0 1.mlp"))
    again = list(local.generate_many([request, request]))
    assert [(n, e.text) for n, e in again] == [(n, e.text) for n, e in batch]


def test_many_and_together_draw_what_one_draws(local):
    changes = off(local.decoder, "0.1 1.mlp")
    alone = drawn(local, changes)
    changed = Request(IDS[:20], GREEDY, interventions=changes)
    others = Request(IDS[:15], GREEDY)
    many = list(local.generate_many([others, changed, others]))
    assert [event.id for n, event in many if n == 1 and isinstance(event, Token)] == [
        id for id, _ in alone
    ]
    generate = local.together(2)
    replies = [list(generate(request)) for request in (others, changed)]
    assert [e.id for e in replies[1] if isinstance(e, Token)] == [id for id, _ in alone]


def test_the_inspector_sees_the_changed_model(local):
    changes = off(local.decoder, "0.1 1.mlp")
    opened = inspectable(local)
    logits = opened.inspect(IDS, changes).logits(39, 40)[0]
    assert torch.allclose(logits, local.decoder.forward(IDS, changes=changes), atol=1e-4)
    stepper = opened.stepper(IDS, GREEDY, changes)
    best = stepper.look(1).before.candidates[0]
    assert best.id == int(logits.argmax())


def test_models_that_cannot_be_changed_say_so(gpt2, local):
    theirs = TransformersModel.load(ModelFiles.read(gpt2[0]), name="theirs")
    changes = off(local.decoder, "0.1")
    with pytest.raises(InterventionError, match="theirs: this kind of model cannot be changed"):
        theirs.generate(Request(IDS[:5], GREEDY, interventions=changes))
    opened = inspectable(theirs)
    assert opened is not None
    with pytest.raises(InterventionError, match="cannot be changed inside"):
        opened.inspect(IDS, changes)


def test_gradients_need_float32(gpt2):
    ours = load_decoder(ModelFiles.read(gpt2[0]), precision="int8")
    with pytest.raises(ModelError, match="gradients need float32 weights, and these are int8"):
        ours.hidden_with_gradients([IDS], lambda _, value: value)
