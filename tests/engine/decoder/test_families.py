"""Every family gives transformers' logits, however it gets there, in all its shapes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from family_shapes import SHAPES, make_family
from random_models import logits_of
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from chatapp.engine.decoder import attention, decoder
from chatapp.engine.decoder.decoder import Decoder
from chatapp.engine.decoder.families import FAMILIES, read_architecture
from chatapp.engine.errors import ModelError, NoDecoder
from chatapp.engine.folder import DECODERS, ModelFiles
from chatapp.engine.local import LocalModel
from chatapp.engine.model import Sampling
from chatapp.engine.step import Step

IDS = torch.randint(0, 340, (300,), generator=torch.Generator().manual_seed(1)).tolist()

Pair = tuple[Decoder, Any]


@pytest.fixture(scope="module", params=SHAPES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder and transformers' model."""
    folder = tmp_path_factory.mktemp("family")
    return folder, make_family(request.param, folder)


@pytest.fixture(scope="module")
def pair(model: tuple[Path, Any]) -> Pair:
    return Decoder.load(ModelFiles.read(model[0])), model[1]


@pytest.fixture(scope="module")
def wanted(model: tuple[Path, Any]) -> torch.Tensor:
    return logits_of(model[1], IDS)


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    assert ours.shape == theirs.shape
    assert float(theirs.std()) > 0.1
    return float((ours - theirs).abs().max()) <= 1e-4


def test_the_families_are_those_of_the_folder() -> None:
    assert tuple(FAMILIES) == DECODERS
    assert {name.split(",")[0] for name in SHAPES} == set(FAMILIES) - {"gpt2"}


def test_whole(pair: Pair, wanted: torch.Tensor) -> None:
    assert close(pair[0].forward(IDS, all_positions=True), wanted)


def test_token_by_token(pair: Pair, wanted: torch.Tensor) -> None:
    ours, cache = pair[0], pair[0].new_cache()
    steps = torch.stack([ours.forward([id], cache) for id in IDS[:120]])
    assert close(steps, wanted[:120])


@pytest.mark.parametrize(("chunk", "together"), [(7, 128), (100, 30), (63, 5)])
def test_in_pieces(
    pair: Pair, wanted: torch.Tensor, monkeypatch: pytest.MonkeyPatch, chunk: int, together: int
) -> None:
    monkeypatch.setattr(decoder, "CHUNK", chunk)
    monkeypatch.setattr(attention, "ROWS_AT_ONCE", together)
    assert close(pair[0].forward(IDS, all_positions=True), wanted)


def test_after_a_prefix_change_in_the_middle(pair: Pair) -> None:
    ours, reference = pair
    cache = ours.new_cache()
    ours.forward(IDS[:80], cache)
    changed = [*IDS[:50], (IDS[50] + 1) % 340, *IDS[51:90]]
    reused = cache.rewind(changed)
    assert reused == 50
    after = ours.forward(changed[reused:], cache, all_positions=True)
    assert close(after, logits_of(reference, changed)[50:])


def test_padded_batch(pair: Pair) -> None:
    ours, reference = pair
    rows = [IDS[:5], IDS[7:60], IDS[3:12]]
    hidden = ours.hidden([[*ids, *[0] * (53 - len(ids))] for ids in rows])
    for states, ids in zip(hidden, rows, strict=True):
        assert close(ours.head(states[: len(ids)]), logits_of(reference, ids))


def test_a_step_is_a_pass_of_one_token(pair: Pair, wanted: torch.Tensor) -> None:
    ours, cache = pair[0], pair[0].new_cache(4)
    for layer in cache.layers:
        layer.fill_(torch.nan)  # whatever lay in this memory before, it is masked
    ours.forward(IDS[:20], cache)
    step = Step(cache)
    for place in range(20, 40):
        with torch.inference_mode():
            logits = step(IDS[place], place, ours._logits_after)
        cache.commit([IDS[place]])
        assert close(logits, wanted[place])
    assert close(ours.forward(IDS[40:], cache), wanted[-1])


@pytest.mark.parametrize(("kind", "bound"), [("int8", 0.02), ("bfloat16", 0.02)])
def test_rounded(
    model: tuple[Path, Any],
    wanted: torch.Tensor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    bound: float,
) -> None:
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))
    files = ModelFiles.read(model[0])
    found = Decoder.load(files, precision=kind).forward(IDS, all_positions=True).log_softmax(-1)
    exact = wanted.log_softmax(-1)
    assert float((exact.exp() * (exact - found)).sum(-1).mean()) < bound  # nats
    # From the files that were kept, where there are any.
    again = Decoder.load(files, precision=kind).forward(IDS, all_positions=True)
    assert torch.equal(again.log_softmax(-1), found)


def test_greedy_text(model: tuple[Path, Any], bpe: Tokenizer) -> None:
    folder, reference = model
    _add_tokenizer(folder, bpe)
    ours = LocalModel.load(ModelFiles.read(folder))
    for prompt in (IDS[:9], [*IDS[:30], *IDS[10:30]]):
        events = list(ours.generate(prompt, Sampling(temperature=0, max_tokens=30)))
        ids = list(prompt)
        while len(ids) < len(prompt) + 30 and (id := int(logits_of(reference, ids)[-1].argmax())):
            ids.append(id)
        assert [event.id for event in events[:-1]] == ids[len(prompt) :]


def test_scoring_by_a_tree_is_scoring_row_by_row(model: tuple[Path, Any], bpe: Tokenizer) -> None:
    folder, reference = model
    _add_tokenizer(folder, bpe)
    ours = LocalModel.load(ModelFiles.read(folder))
    ends = [IDS[40:43], IDS[40:47], [IDS[40], 5, 6], [7], IDS[60:90]]
    pairs = [(IDS[:40], end) for end in ends] + [(IDS[:12], IDS[70:75]), (IDS[:41], [9, 9])]
    for (context, end), found in zip(pairs, ours.score(pairs), strict=True):
        logprobs = logits_of(reference, [*context, *end])[len(context) - 1 : -1].log_softmax(-1)
        expected = logprobs.gather(1, torch.tensor(end)[:, None])[:, 0].tolist()
        assert found == pytest.approx(expected, abs=1e-4)


def test_states_of_each_layer(pair: Pair) -> None:
    ours, reference = pair
    with torch.no_grad():
        states = reference(torch.tensor([IDS[:50]]), output_hidden_states=True).hidden_states
    for layer, theirs in enumerate(states[:-1]):
        assert torch.allclose(ours.hidden([IDS[:50]], layer=layer), theirs, atol=1e-4)
    assert torch.allclose(ours.hidden([IDS[:50]]), states[-1], atol=1e-4)


def test_the_parameters_are_those_of_transformers(pair: Pair) -> None:
    ours, reference = pair
    parts = sum(torch.Size(part.shape).numel() for part in ours.architecture.parts())
    assert parts == sum(parameter.numel() for parameter in reference.parameters())


def _add_tokenizer(folder: Path, bpe: Tokenizer) -> None:
    end = "<|endoftext|>"
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=end)
    tokenizer.save_pretrained(folder)


LLAMA = "llama, shared keys, tied"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    make_family(LLAMA, tmp_path)
    return tmp_path


def change_config(folder: Path, **values: Any) -> None:
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
def test_what_is_beyond_this_decoder_is_told_apart(llama: Path, key: str, value: Any) -> None:
    change_config(llama, **{key: value})
    with pytest.raises(NoDecoder) as error:
        read_architecture(ModelFiles.read(llama))
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
def test_wrong_values_are_named(llama: Path, key: str, value: Any) -> None:
    change_config(llama, head_dim=None, rope_parameters=None, **{key: value})
    with pytest.raises(ModelError, match=key) as error:
        read_architecture(ModelFiles.read(llama))
    assert not isinstance(error.value, NoDecoder)
    assert "expected" in str(error.value)


def test_tensors_of_other_names_and_shapes(llama: Path) -> None:
    path = llama / "model.safetensors"
    tensors = load_file(path)
    expected = Decoder.load(ModelFiles.read(llama)).forward(IDS)
    # What old checkpoints hold besides, and the model without the class around it.
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    bare = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    for harmless in (tensors | frequencies, bare):
        save_file(harmless, path)
        assert torch.equal(Decoder.load(ModelFiles.read(llama)).forward(IDS), expected)
    name = "model.layers.1.self_attn.k_proj.weight"
    for wrong, words in (
        (tensors | {name: torch.ones(8, 32)}, [name, "[8, 32]", "[16, 32]"]),
        ({key: tensor for key, tensor in tensors.items() if key != name}, [name, "missing"]),
        (tensors | {"model.layers.2.extra": torch.ones(1)}, ["layers.2.extra", "llama"]),
    ):
        save_file(wrong, path)
        with pytest.raises(ModelError) as error:
            Decoder.load(ModelFiles.read(llama))
        for word in words:
            assert word in str(error.value)
