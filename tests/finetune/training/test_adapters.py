"""What is trained and what stays, and models that adapters are put on."""

import json

import pytest
import tiny_finetune as tiny
import torch
from rich.console import Console
from safetensors.torch import load_file

from chatapp.engine.exporting import write_gguf
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import find_model
from finetune.config.sections import Adapter, ConfigError, Train
from finetune.evaluation import evaluate
from finetune.objectives.objective import has_adapter
from finetune.run import train
from finetune.training.adapters import choose_trained, fuse_activations, trained_parameters
from finetune.training.draws import current_tensors

QUIET = Console(stderr=True, quiet=True)
IDS = torch.arange(12)[None] % tiny.VOCABULARY


def chosen(model, base, **settings):
    adapter = Adapter.model_validate({"rank": 2})
    files = ModelFiles(base, config={}, base=None, tokenizer=base, template=None)
    return choose_trained(model, Train.model_validate(settings), adapter, files, name=str(base))


def names(model):
    return {name for name, each in model.named_parameters() if each.requires_grad}


def test_full_embeddings_and_last_blocks(tmp_path):
    model = tiny.gpt2()
    everything = names(model)
    assert names(chosen(model, tmp_path, method="full")) == everything
    assert names(chosen(tiny.gpt2(), tmp_path, method="embeddings-and-head")) == {
        "transformer.wte.weight"
    }
    last = names(chosen(tiny.gpt2(), tmp_path, method="last-blocks", last_blocks=1))
    assert last == {
        name for name in everything if name.startswith(("transformer.h.1.", "transformer.ln_f"))
    }
    both = chosen(tiny.llama(), tmp_path, method="embeddings-and-head")
    assert names(both) == {"model.embed_tokens.weight", "lm_head.weight"}
    blocks = names(chosen(tiny.llama(), tmp_path, method="last-blocks", last_blocks=1))
    assert {name.split(".")[1] for name in blocks} == {"layers", "norm"}
    assert trained_parameters(both) == 2 * tiny.VOCABULARY * 16
    with pytest.raises(ConfigError, match="last_blocks is 3; the model has 2 blocks"):
        chosen(tiny.gpt2(), tmp_path, method="last-blocks", last_blocks=3)


@pytest.mark.parametrize("make", [tiny.gpt2, tiny.llama])
@pytest.mark.parametrize("method", ["lora", "dora", "rslora"])
def test_adapters_sit_on_every_linear_layer_and_start_as_nothing(tmp_path, make, method):
    model = make().eval()
    before = model(input_ids=IDS).logits
    linear = (
        sum(type(module).__name__ in ("Linear", "Conv1D") for module in model.modules()) - 1
    )  # the head
    wrapped = chosen(model, tmp_path, method=method).eval()
    torch.testing.assert_close(wrapped(input_ids=IDS).logits, before)
    assert sum(name.endswith("lora_A.default.weight") for name in names(wrapped)) == linear
    assert all("lora_" in name for name in names(wrapped))
    settings = wrapped.peft_config["default"]
    assert settings.fan_in_fan_out is (make is tiny.gpt2)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_gguf_file_is_trained_like_a_folder(method, tmp_path, monkeypatch):
    folder = tiny.base(tmp_path / "base")
    tiny.pairs(tmp_path / "rows.json")
    write_gguf(find_model(str(folder)), tmp_path / "base.gguf", "f32", {}, lambda *at: None)
    monkeypatch.chdir(tmp_path)
    settings = {"method": method, "epochs": 0.3}
    sections = {"data": {"template": "chat"}, "train": settings}
    run = train(tiny.config(tmp_path, model="base.gguf", **sections), QUIET)
    again = train(tiny.config(tmp_path, output=str(tmp_path / "again"), **sections), QUIET)
    if method == "lora":
        saved = json.loads((run / "adapter_config.json").read_text())
        assert saved["base_model_name_or_path"] == str(tmp_path / "base.gguf")
    one, other = load_model(str(run)), load_model(str(again))
    ids = other.tokenizer.encode("User: What comes after 7?\nAssistant:")
    assert one.tokenizer.encode("User: What comes after 7?\nAssistant:") == ids
    assert one.tokenizer.end_id == other.tokenizer.end_id
    assert one.score([(ids, ids)])[0] == pytest.approx(other.score([(ids, ids)])[0], abs=1e-3)
    for model in (str(run), "base.gguf"):
        (measured,) = evaluate(model, str(run), "rows.json", 0, 8, lambda *_: None).sets.values()
        assert 0 < measured.figures["loss"] < 20


def test_an_adapter_is_trained_on_as_a_whole_model_only(tmp_path):
    first = train(tiny.config(tmp_path, train={"method": "lora", "epochs": 0.3}), QUIET)
    with pytest.raises(ConfigError, match="is an adapter already: merge it first"):
        train(
            tiny.config(tmp_path, model=str(first), output=str(tmp_path / "second"),
                        train={"method": "lora"}),
            QUIET,
        )  # fmt: skip
    second = train(
        tiny.config(tmp_path, model=str(first), output=str(tmp_path / "third"),
                    train={"epochs": 0.3}),
        QUIET,
    )  # fmt: skip
    assert (second / "config.json").exists()
    assert (second / "tokenizer.json").exists()


def test_an_adapter_is_known_switched_off_and_merged_or_there_is_an_error(tmp_path):
    """A reference with the adapter on, or replies drawn without it, would look like any others."""
    plain = tiny.gpt2()
    assert not has_adapter(plain)
    before = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    expected = plain(input_ids=IDS).logits
    model = chosen(plain, tmp_path, method="lora")
    assert has_adapter(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.5, generator=torch.Generator().manual_seed(len(name)))
    assert not torch.allclose(model(input_ids=IDS).logits, expected, atol=1e-2)
    with model.disable_adapter():
        torch.testing.assert_close(model(input_ids=IDS).logits, expected)
    merged = current_tensors(model)
    assert merged.keys() == before.keys()
    changed = {name for name in before if not torch.equal(merged[name], before[name])}
    assert {name.split(".")[-2] for name in changed} == {"c_attn", "c_proj", "c_fc"}


def test_frozen_weights_stay_as_they_were(tmp_path):
    run = train(tiny.config(tmp_path, train={"method": "embeddings-and-head"}), QUIET)
    before = load_file(tmp_path / "base" / "model.safetensors")
    after = load_file(run / "model.safetensors")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"transformer.wte.weight"}


def test_the_fused_activation_is_the_same_function():
    model = tiny.gpt2().eval()
    before = model(input_ids=IDS).logits
    fuse_activations(model)
    assert isinstance(model.transformer.h[0].mlp.act, torch.nn.GELU)
    torch.testing.assert_close(model(input_ids=IDS).logits, before, rtol=1e-5, atol=1e-5)
