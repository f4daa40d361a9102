"""What is shown of every family is what transformers computes, and each point can be changed."""

import pytest
import torch
from family_shapes import GPT2_SHAPES, SHAPES, make_family

from chatapp.engine.backends.local import load_decoder
from chatapp.engine.files.model_files import ModelFiles
from chatapp.lab.traces import DecoderTrace

IDS = torch.randint(0, 340, (60,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.fixture(scope="module", params=[*GPT2_SHAPES, *SHAPES])
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("family")
    reference = make_family(request.param, folder)
    reference.set_attn_implementation("eager")
    return load_decoder(ModelFiles.read(folder)), reference


def points(decoder):
    """The shape of each point for one row."""
    shape, size = decoder.architecture, len(IDS)
    states, head = (1, size, shape.width), (1, size, shape.head_size)
    of_keys = (1, shape.key_value_heads, size, shape.head_size)
    first = ("positions",) if shape.has_learned_positions else ()
    shapes = dict.fromkeys((*first, "embed"), states)
    for layer in range(shape.layers):
        name = f"blocks.{layer}"
        shapes[f"{name}.attention.query"] = (1, shape.heads, size, shape.head_size)
        shapes |= {f"{name}.attention.key": of_keys, f"{name}.attention.value": of_keys}
        shapes |= {f"{name}.attention.head.{index}": head for index in range(shape.heads)}
        neurons = {f"{name}.mlp.neurons": (1, size, shape.inner)}
        shapes |= {f"{name}.attention": states} | neurons | {f"{name}.mlp": states, name: states}
    return shapes | {"final": states}


def test_attention_weights_and_what_layers_predict(pair):
    ours, reference = pair
    trace = DecoderTrace(ours, IDS, str)
    with torch.no_grad():
        output = reference(torch.tensor([IDS]), output_attentions=True, output_hidden_states=True)
        (name,) = {"norm", "final_layer_norm", "ln_f"} & set(dir(reference.base_model))
        norm = getattr(reference.base_model, name)
        *early, last = output.hidden_states
        states = [*(norm(state[0]) for state in early), last[0]]
        lens = torch.stack([reference.get_output_embeddings()(state) for state in states])
    cap = ours.architecture.logit_cap
    lens = lens if cap is None else torch.tanh(lens / cap) * cap
    theirs = torch.stack(output.attentions)[:, 0]
    assert torch.allclose(torch.from_numpy(trace.attentions()), theirs, atol=1e-4)
    assert torch.allclose(trace.logits(0, len(IDS)), output.logits[0], atol=1e-4)
    for position in (0, 20, len(IDS) - 1):
        assert torch.allclose(trace.layer_logits(position), lens[:, position], atol=1e-4)
        row = torch.from_numpy(trace.attention(position))
        assert torch.allclose(row, theirs[:, :, position, : position + 1], atol=1e-4)
    assert torch.allclose(trace.layer_logits(5)[-1], trace.logits(5, 6)[0], atol=1e-4)
    assert len(trace.lens(5)) == trace.layers + 1


def test_each_point_is_seen_once_in_order_and_nothing_changes(pair):
    ours, _ = pair
    seen = []

    def look(point, value):
        seen.append((point, tuple(value.shape)))
        return value

    states = ours.hidden([IDS], observe=look)
    assert seen == list(points(ours).items())
    assert torch.equal(states, ours.hidden([IDS]))


def test_what_is_added_to_the_states_is_what_they_become(pair):
    ours, _ = pair
    seen = {}
    ours.hidden([IDS], observe=lambda point, value: seen.setdefault(point, value))
    before = seen["embed"]
    for layer in range(ours.architecture.layers):
        name = f"blocks.{layer}"
        added = seen[f"{name}.attention"] + seen[f"{name}.mlp"]
        assert torch.allclose(before + added, seen[name], atol=1e-5)
        before = seen[name]


def test_what_is_put_at_a_point_goes_on(pair):
    ours, _ = pair
    before = ours.hidden([IDS])
    for point in points(ours):

        def patch(name, value, at=point):
            return 20 * value.flip(-1) if name == at else value

        after = ours.hidden([IDS], observe=patch)
        # A window of one leaves queries and keys without a say.
        if 1 in ours.windows and point.endswith((".query", ".key")):
            assert torch.equal(after, before)
        else:
            assert not torch.allclose(after, before, atol=1e-3), point
    assert torch.equal(ours.hidden([IDS]), before)


def test_what_is_seen_is_what_transformers_computes(make_gpt2):
    folder, reference = make_gpt2(n_layer=3)
    ours = load_decoder(ModelFiles.read(folder))
    rows = [IDS[:20], IDS[20:40]]
    seen = {}
    ours.hidden(rows, observe=lambda point, value: seen.setdefault(point, value))
    theirs = {}
    for layer, block in enumerate(reference.transformer.h):
        for name, module in (("attention", block.attn), ("mlp", block.mlp)):

            def keep(_, __, output, key=f"blocks.{layer}.{name}"):
                theirs[key] = output[0] if isinstance(output, tuple) else output

            module.register_forward_hook(keep)
    with torch.no_grad():
        output = reference(torch.tensor(rows), output_hidden_states=True)
    *early, last = output.hidden_states
    theirs |= {"embed": early[0], "final": last}
    theirs |= {f"blocks.{layer}": state for layer, state in enumerate(early[1:])}
    for point, value in theirs.items():
        assert torch.allclose(seen[point], value, atol=1e-4), point


def test_with_a_cache_the_new_tokens_are_seen(pair):
    ours, _ = pair
    cache = ours.new_cache()
    ours.forward(IDS[:50], cache)
    seen = {}
    states = ours.hidden(
        [IDS[50:]], cache, observe=lambda point, value: seen.setdefault(point, value)
    )
    assert {value.shape[-2] for value in seen.values()} == {10}
    assert torch.allclose(states, ours.hidden([IDS])[:, 50:], atol=1e-4)
