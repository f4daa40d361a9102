"""Directions are those of transformers' hidden states, and steer as hooks on its blocks do."""

import json
import math

import gguf
import numpy as np
import pytest
import torch
from family_shapes import START
from hooked import blocks_of

from chatapp.common.userfiles import UserError
from chatapp.engine.errors import ModelError
from chatapp.engine.model import Request, Sampling
from chatapp.lab.steering import (
    Direction,
    direction_names,
    load_direction,
    make_direction,
    path_of,
    read_pairs,
    save_direction,
    steering,
    sweep,
)

PAIRS = [("The quick fox", "Hello, who"), ("a small model", "my friend"), ("jumps", "it costs 5")]
GREEDY = Sampling(temperature=0, max_tokens=5)


def drawn_by(model, ids, sampling):
    """What draws the replies of a changed model."""
    return lambda changes: model.generate(Request(ids, sampling, interventions=changes))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))


def test_a_direction_is_the_mean_difference(pair):
    model, reference = pair
    direction = make_direction(model, "a", PAIRS, 0)
    ends = []
    norms = []
    for positive, negative in PAIRS:
        for text, sign in ((positive, 1), (negative, -1)):
            tokens = [START, *model.tokenizer.encode(text)]
            with torch.no_grad():
                states = reference(torch.tensor([tokens]), output_hidden_states=True)
            state = states.hidden_states[1][0]
            ends.append(sign * state[-1])
            norms += state[1:].norm(dim=1).tolist()
    difference = torch.stack(ends).sum(0) / len(PAIRS)
    expected = difference / difference.norm() * float(np.mean(norms))
    assert direction.vectors[0] == pytest.approx(expected.numpy(), abs=1e-3)
    assert list(make_direction(model, "a", PAIRS).vectors) == [
        model.decoder.architecture.layers // 2
    ]


def test_replies_are_those_of_hooks(pair):
    model, reference = pair
    ids = model.tokenizer.encode("The lazy dog")
    direction = make_direction(model, "a", PAIRS, 1)
    added = torch.from_numpy(0.8 * direction.vectors[1])
    first = len(ids) + 1  # the reply's first token, after the one that stands before each text

    def change(_, __, output):
        states = (output[0] if isinstance(output, tuple) else output).clone()
        states[..., first:, :] += added
        return (states, *output[1:]) if isinstance(output, tuple) else states

    tokens = [START, *ids]
    steered = []
    plain = []
    for _ in range(GREEDY.max_tokens):
        with torch.no_grad():
            plain.append(reference(torch.tensor([tokens])).logits[0, -1].log_softmax(-1))
            hook = blocks_of(reference)[1].register_forward_hook(change)
            steered.append(reference(torch.tensor([tokens])).logits[0, -1].log_softmax(-1))
            hook.remove()
        tokens.append(int(steered[-1].argmax()))
        if tokens[-1] in model.end_ids:
            break
    found = sweep(model, direction, ids, [0.8], drawn_by(model, ids, GREEDY)).replies[0]
    drawn = tokens[1 + len(ids) :]
    text = model.tokenizer.decode(drawn)
    assert text in (found.text, found.text + "\ufffd")  # of an unfinished character nothing stays
    both = list(zip(plain, steered, strict=True))
    kl = np.mean([float((p.exp() * (p - s)).sum()) for p, s in both])
    nats = np.mean([-float(p[id]) for p, id in zip(plain, drawn, strict=True)])
    assert found.kl == pytest.approx(kl, abs=1e-3)
    assert found.perplexity == pytest.approx(math.exp(nats), rel=1e-3)


def test_strength_0_is_the_model_itself(local):
    direction = make_direction(local, "a", PAIRS)
    changes = direction.with_strength(0.0, local.decoder.architecture)
    assert not changes
    ids = local.tokenizer.encode("The lazy dog")
    assert torch.equal(local.logits(ids, changes), local.logits(ids))
    request = Request(ids, Sampling(seed=1, max_tokens=8))
    plain = "".join(event.text for event in local.generate(request))
    found = sweep(local, direction, ids, [0.0], drawn_by(local, ids, request.sampling)).replies[0]
    assert (found.text, found.kl) == (plain, 0.0)


def test_a_direction_is_kept_as_a_control_vector(local):
    direction = make_direction(local, "calm", PAIRS, 1)
    path = path_of("calm")
    save_direction(direction, path, "gpt2")
    assert direction_names() == ["calm"]
    reader = gguf.GGUFReader(path)
    assert reader.fields["general.architecture"].contents() == "controlvector"
    assert reader.fields["controlvector.model_hint"].contents() == "gpt2"
    assert [tensor.name for tensor in reader.tensors] == ["direction.1"]
    for name in ("calm", str(path)):
        read = load_direction(name)
        assert read.name == "calm"
        assert np.array_equal(read.vectors[1], direction.vectors[1])
    shape = local.decoder.architecture
    changes = steering("calm=0.5", shape)
    assert changes == steering("calm  0.5", shape) == direction.with_strength(0.5, shape)
    assert changes.words == "with calm 0.5"


def test_control_vectors_of_other_programs(local, tmp_path):
    width = local.decoder.architecture.width
    path = tmp_path / "other.gguf"
    vectors = {layer: np.full(width, layer, dtype=np.float32) for layer in (0, 1)}
    save_direction(Direction("other", vectors), path, "")
    changes = steering(f"{path}=-2", local.decoder.architecture)
    assert [change.point for change in changes.changes] == ["blocks.1"], "0 adds nothing"
    assert changes.changes[0].vector == (-2.0,) * width


def test_bad_input_is_one_sentence(local, tmp_path):
    shape = local.decoder.architecture
    for text, words in (
        ("calm", "expected a direction and a strength"),
        ("calm=much", "expected a direction and a strength"),
        ("=1", "expected a direction and a strength"),
        ("nosuch=1", "nosuch: there is no such direction"),
        ("../a=1", "is not a name of a direction"),
    ):
        with pytest.raises(UserError, match=words):
            steering(text, shape)
    wide = Direction("wide", {0: np.ones(shape.width + 1, dtype=np.float32)})
    high = Direction("high", {shape.layers: np.ones(shape.width, dtype=np.float32)})
    for direction in (wide, high):
        with pytest.raises(UserError, match="was made for another model"):
            direction.with_strength(1.0, shape)
    with pytest.raises(UserError, match="expected a number"):
        high.with_strength(math.nan, shape)
    with pytest.raises(UserError, match="layers 0 to 1"):
        make_direction(local, "a", PAIRS, 2)
    with pytest.raises(UserError, match="end in the same states"):
        make_direction(local, "a", [("the same", "the same")])
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="broken"):
        load_direction(str(broken))
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.ones((2, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match="is not a control vector"):
        load_direction(str(tmp_path / "model.gguf"))


@pytest.mark.parametrize("number", ["01", "9" * 5_000, "١"])
def test_a_layer_of_a_direction_is_a_plain_number(tmp_path, number):
    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "controlvector")
    writer.add_tensor("direction.1", np.ones(32, dtype=np.float32))
    writer.add_tensor(f"direction.{number}", np.ones(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match="is not a direction"):
        load_direction(str(path))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["x"], "line 1: is not JSON"),
        ([json.dumps({"positive": "a", "negative": "b"}), "[]"], "line 2: expected an object"),
        ([json.dumps({"positive": "a", "negative": ""})], "line 1: expected an object"),
        ([json.dumps({"positive": "a", "negative": 1})], "line 1: expected an object"),
        ([""], "there are no pairs"),
    ],
)
def test_bad_pairs(tmp_path, lines, words):
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(UserError, match=words):
        read_pairs(path)
