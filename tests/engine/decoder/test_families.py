"""Every family gives transformers' logits, however it gets there, in all its shapes."""

import json

import numpy as np
import pytest
import torch
import transformers
from family_shapes import GPT2_SHAPES, SHAPES, make_family
from random_models import logits_of
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, processors

from chatapp.engine.backends.local import LocalModel, load_decoder
from chatapp.engine.backends.transformers_model import TransformersModel
from chatapp.engine.decoder import decoder, parts
from chatapp.engine.decoder.families import DECODERS
from chatapp.engine.errors import ModelError, NoDecoder
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.kernels.linear import has_kernels
from chatapp.engine.kernels.native_layers import FEW_ROWS
from chatapp.engine.model import Request, Sampling
from chatapp.engine.models.description import describe, parameter_formula
from chatapp.engine.models.loading import load_model
from chatapp.lab.inspectable import inspectable

IDS = torch.randint(0, 340, (300,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.fixture(scope="module", params=[*SHAPES, *GPT2_SHAPES])
def model(request, tmp_path_factory):
    """A folder and transformers' model."""
    folder = tmp_path_factory.mktemp("family")
    return folder, make_family(request.param, folder)


@pytest.fixture(scope="module")
def pair(model):
    return load_decoder(ModelFiles.read(model[0])), model[1]


@pytest.fixture(scope="module")
def wanted(model):
    return logits_of(model[1], IDS)


def close(ours, theirs):
    assert ours.shape == theirs.shape
    assert float(theirs.std()) > 0.1
    return float((ours - theirs).abs().max()) <= 1e-4


def test_the_families_are_those_of_the_folder():
    elsewhere = {"transfo-xl"}  # transformers no longer has it; see its own tests
    shapes = {name.split(",")[0] for name in SHAPES | GPT2_SHAPES}
    assert shapes == set(DECODERS) - elsewhere


def test_whole(pair, wanted):
    assert close(pair[0].forward(IDS, all_positions=True), wanted)


def test_token_by_token(pair, wanted):
    ours, cache = pair[0], pair[0].new_cache()
    steps = torch.stack([ours.forward([id], cache) for id in IDS[:120]])
    assert close(steps, wanted[:120])


@pytest.mark.parametrize(("chunk", "together"), [(7, 128), (100, 30), (63, 5)])
def test_in_pieces(pair, wanted, monkeypatch, chunk, together):
    monkeypatch.setattr(decoder, "CHUNK", chunk)
    monkeypatch.setattr(parts, "ROWS_AT_ONCE", together)
    assert close(pair[0].forward(IDS, all_positions=True), wanted)


@pytest.mark.parametrize("size", [1, 5, FEW_ROWS])
def test_the_native_kernels_and_torch_agree(pair, monkeypatch, size):
    decoder, _ = pair
    if not has_kernels():
        pytest.skip("there is no C compiler here")
    found = []
    for is_native in (True, False):
        monkeypatch.setattr(decoder, "_most_native_rows", size if is_native else 0)
        cache = decoder.new_cache()
        decoder.forward(IDS[:40], cache)
        pieces = [IDS[n : n + size] for n in range(40, 80 - size, size)]
        found.append(torch.cat([decoder.forward(p, cache, all_positions=True) for p in pieces]))
    assert close(*found)
    assert not torch.equal(*found), "one way was taken twice"


def test_after_a_prefix_change_in_the_middle(pair):
    ours, reference = pair
    cache = ours.new_cache()
    ours.forward(IDS[:80], cache)
    changed = [*IDS[:50], (IDS[50] + 1) % 340, *IDS[51:90]]
    reused = cache.rewind(changed)
    assert reused == 50
    after = ours.forward(changed[reused:], cache, all_positions=True)
    assert close(after, logits_of(reference, changed)[50:])


def test_padded_batch(pair):
    ours, reference = pair
    rows = [IDS[:5], IDS[7:60], IDS[3:12]]
    hidden = ours.hidden([[*ids, *[0] * (53 - len(ids))] for ids in rows])
    for states, ids in zip(hidden, rows, strict=True):
        assert close(ours.head(states[: len(ids)]), logits_of(reference, ids))


@pytest.mark.parametrize(("kind", "bound"), [("int8", 0.02), ("int4", 0.05), ("bfloat16", 0.02)])
def test_rounded(model, wanted, tmp_path, monkeypatch, kind, bound):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))
    files = ModelFiles.read(model[0])
    found = load_decoder(files, precision=kind).forward(IDS, all_positions=True).log_softmax(-1)
    exact = wanted.log_softmax(-1)
    assert float((exact.exp() * (exact - found)).sum(-1).mean()) < bound  # nats
    # From the files that were kept, where there are any.
    again = load_decoder(files, precision=kind).forward(IDS, all_positions=True)
    assert torch.equal(again.log_softmax(-1), found)


def test_greedy_text(model, bpe):
    folder, reference = model
    _add_tokenizer(folder, bpe)
    ours = LocalModel.load(ModelFiles.read(folder))
    for prompt in (IDS[:9], [*IDS[:30], *IDS[10:30]]):
        events = list(ours.generate(Request(prompt, Sampling(temperature=0, max_tokens=30))))
        ids = list(prompt)
        while len(ids) < len(prompt) + 30 and (id := int(logits_of(reference, ids)[-1].argmax())):
            ids.append(id)
        assert [event.id for event in events[:-1]] == ids[len(prompt) :]


def test_scoring_by_a_tree_is_scoring_row_by_row(model, bpe):
    folder, reference = model
    _add_tokenizer(folder, bpe)
    ours = LocalModel.load(ModelFiles.read(folder))
    ends = [IDS[40:43], IDS[40:47], [IDS[40], 5, 6], [7], IDS[60:90]]
    pairs = [(IDS[:40], end) for end in ends] + [(IDS[:12], IDS[70:75]), (IDS[:41], [9, 9])]
    for (context, end), found in zip(pairs, ours.score(pairs), strict=True):
        logprobs = logits_of(reference, [*context, *end])[len(context) - 1 : -1].log_softmax(-1)
        expected = logprobs.gather(1, torch.tensor(end)[:, None])[:, 0].tolist()
        assert found == pytest.approx(expected, abs=1e-4)


def test_states_of_each_layer(pair):
    ours, reference = pair
    with torch.no_grad():
        states = reference(torch.tensor([IDS[:50]]), output_hidden_states=True).hidden_states
    for layer, theirs in enumerate(states[:-1]):
        assert torch.allclose(ours.hidden([IDS[:50]], layer=layer), theirs, atol=1e-4)
    assert torch.allclose(ours.hidden([IDS[:50]]), states[-1], atol=1e-4)


def test_the_parameters_are_those_of_transformers(pair):
    ours, reference = pair
    parts = sum(torch.Size(part.shape).numel() for part in ours.architecture.parts())
    assert parts == sum(parameter.numel() for parameter in reference.parameters())
    assert parameter_formula(ours.architecture)[1] == parts


@pytest.mark.parametrize(
    ("shape", "formula", "words"),
    [
        (
            "llama, shared keys, tied",
            "N = VH + L(2H² + 3HI + 2HK + 2H) + H",
            {
                "norm": "RMSNorm before attention and MLP",
                "positions": "rotary, base 10,000",
                "attention": "4 heads of D = 8, Q = 32, each 2 share keys and values, K = 16",
                "MLP": "gated silu, I = 48",
                "biases": "none",
                "output": "the token embedding",
            },
        ),
        (
            "gpt_neox, a quarter turned",
            "N = 2VH + L(4H² + 2HI + 9H + I) + 2H",
            {
                "norm": "LayerNorm before attention and MLP",
                "positions": "rotary, base 10,000, 4 of 16 components",
                "attention": "2 heads of D = 16, Q = 32",
                "MLP": "gelu, I = 64, beside attention",
                "biases": "queries, keys and values; attention's output; MLP",
                "output": "a matrix of its own",
            },
        ),
        (
            "gemma3_text, capped, one key, untied",
            "N = 2VH + L(2H² + 3HI + 2HK + 2D + 4H) + H",
            {
                "norm": "RMSNorm before attention and MLP, after each of them, on queries and keys",
                "positions": "rotary, base 10,000",
                "attention": "4 heads of D = 8, Q = 32, all share keys and values, K = 8, "
                "2 of 2 blocks see the last 40 tokens",
                "MLP": "gated gelu_pytorch_tanh, I = 48",
                "biases": "none",
                "output": "a matrix of its own, soft-capped at 3",
            },
        ),
    ],
)
def test_a_decoder_in_words(tmp_path, shape, formula, words):
    make_family(shape, tmp_path)
    info = describe(ModelFiles.read(tmp_path))
    assert (info.formula, info.parts) == (formula, words)
    assert info.parameters == info.parameters_by_formula


def _add_tokenizer(folder, bpe):
    end = "<|endoftext|>"
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=end)
    tokenizer.save_pretrained(folder)


LLAMA = "llama, shared keys, tied"


@pytest.fixture
def llama(tmp_path):
    make_family(LLAMA, tmp_path)
    return tmp_path


def change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "quick_gelu"),
        ("quantization_config", {"bits": 4}),
        ("partial_rotary_factor", 0.5),
        ("rope_scaling", {"rope_type": "longrope", "factor": 2.0}),
    ],
)
def test_what_is_beyond_this_decoder_is_told_apart(llama, key, value):
    change_config(llama, **{key: value})
    with pytest.raises(NoDecoder) as error:
        _ = ModelFiles.read(llama).architecture
    assert str(llama / "config.json") in str(error.value)
    assert ("rope_type" if key == "rope_scaling" else key) in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_key_value_heads", 3),
        ("hidden_size", 33),
        ("num_hidden_layers", 0),
        ("rms_norm_eps", "small"),
        ("tie_word_embeddings", "yes"),
        ("rope_scaling", [2]),
        ("rope_scaling", {"rope_type": "linear", "factor": -1}),
        ("rope_scaling", {"rope_type": "llama3", "factor": 2.0}),
        ("rope_scaling", {"rope_type": 3}),
        ("rope_theta", 0),
        ("vocab_size", True),
    ],
)
def test_wrong_values_are_named(llama, key, value):
    change_config(llama, head_dim=None, rope_parameters=None, **{key: value})
    with pytest.raises(ModelError, match=key) as error:
        _ = ModelFiles.read(llama).architecture
    assert not isinstance(error.value, NoDecoder)
    assert "expected" in str(error.value)


def test_tensors_of_other_names_and_shapes(llama):
    path = llama / "model.safetensors"
    tensors = load_file(path)
    expected = load_decoder(ModelFiles.read(llama)).forward(IDS)
    # What old checkpoints hold besides, and the model without the class around it.
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    bare = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    for harmless in (tensors | frequencies, bare):
        save_file(harmless, path)
        assert torch.equal(load_decoder(ModelFiles.read(llama)).forward(IDS), expected)
    name = "model.layers.1.self_attn.k_proj.weight"
    for wrong, words in (
        (tensors | {name: torch.ones(8, 32)}, [name, "[8, 32]", "[16, 32]"]),
        ({key: tensor for key, tensor in tensors.items() if key != name}, [name, "missing"]),
        (tensors | {"model.layers.2.extra": torch.ones(1)}, ["layers.2.extra", "llama"]),
    ):
        save_file(wrong, path)
        with pytest.raises(ModelError) as error:
            load_decoder(ModelFiles.read(llama))
        for word in words:
            assert word in str(error.value)


OLD_CONFIGS = {
    "llama": {"rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "llama, without scaling": {"rope_theta": 5000.0, "rope_scaling": None},
    "llama, 3.1": {
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "mistral": {"rope_theta": 10000.0, "sliding_window": None},
    "mistral, all left out": {},
    "qwen2": {
        "rope_theta": 1000000.0,
        "rope_scaling": {
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "type": "yarn",
            "mscale": 2.0,
            "mscale_all_dim": 1.0,
        },
        "use_sliding_window": True,
        "sliding_window": 40,
        "max_window_layers": 1,
    },
    "qwen3": {"rope_theta": 1000000, "head_dim": 16, "sliding_window": 40},
    "gpt_neox": {"rotary_pct": 0.5, "rotary_emb_base": 5000},
    "gpt_neox, all left out": {},
    "gemma3_text": {
        "rope_theta": 500000.0,
        "rope_local_base_freq": 5000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 2,
        "head_dim": 16,
    },
}


@pytest.mark.parametrize("case", OLD_CONFIGS)
def test_configs_of_older_versions(case, tmp_path):
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3}
    sizes |= {"num_key_value_heads": 4, "max_position_embeddings": 512, "vocab_size": 340}
    family = case.split(",")[0]
    old = {"model_type": family} | sizes | OLD_CONFIGS[case]
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    (tmp_path / "old" / "config.json").write_text(json.dumps(old))
    transformers.AutoConfig.from_pretrained(tmp_path / "old").save_pretrained(tmp_path / "new")
    read = [ModelFiles.read(tmp_path / name).architecture for name in ("old", "new")]
    assert read[0] == read[1]


def test_a_token_before_each_text(llama, bpe):
    bpe = Tokenizer.from_str(bpe.to_str())
    bpe.add_special_tokens(["<s>"])
    bpe.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 340)]
    )
    _add_tokenizer(llama, bpe)
    config = json.loads((llama / "config.json").read_text())
    model = transformers.AutoModelForCausalLM.from_pretrained(llama)
    model.resize_token_embeddings(341)
    model.generation_config.eos_token_id = [0, 9]
    model.save_pretrained(llama)
    assert config["vocab_size"] == 340
    files = ModelFiles.read(llama)
    ours, theirs = LocalModel.load(files), TransformersModel.load(files)
    assert list(ours.start) == list(theirs.start) == [340]
    assert ours.context == theirs.context == 319
    assert ours.end_ids == theirs.end_ids == {0, 9}
    pairs = [(IDS[:20], IDS[20:24]), (IDS[:20], IDS[30:32]), (IDS[:3], IDS[3:60])]
    for found, expected in zip(ours.score(pairs), theirs.score(pairs), strict=True):
        assert found == pytest.approx(expected, abs=1e-4)
    for layer in (0, 1, -1):
        assert ours.embed(IDS[:30], layer) == pytest.approx(theirs.embed(IDS[:30], layer), abs=1e-4)
    greedy = Sampling(temperature=0, max_tokens=30)
    for prompt in (IDS[:9], [*IDS[:9], 5, 6], IDS[:40] * 2):
        events = [list(each.generate(Request(prompt, greedy))) for each in (ours, theirs)]
        assert [event.id for event in events[0][:-1]] == [event.id for event in events[1][:-1]]
        assert events[0][-1].reused_tokens >= events[1][-1].reused_tokens
    traces = [inspectable(each).inspect(IDS[:20]) for each in (ours, theirs)]
    assert np.allclose(traces[0].attentions(), traces[1].attentions(), atol=1e-4)
    assert torch.allclose(traces[0].layer_logits(7), traces[1].layer_logits(7), atol=1e-4)


def test_a_decoder_that_is_not_enough_leaves_it_to_transformers(llama, bpe):
    _add_tokenizer(llama, bpe)
    assert isinstance(load_model(str(llama)), LocalModel)
    change_config(llama, hidden_act="quick_gelu")
    for precision in ("auto", "float32"):
        assert isinstance(load_model(str(llama), precision=precision), TransformersModel)
    with pytest.raises(NoDecoder, match="hidden_act is 'quick_gelu'"):
        load_model(str(llama), precision="int8")
