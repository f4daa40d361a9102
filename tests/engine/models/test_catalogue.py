"""What is known of the models there are, whatever state they are in, without a network."""

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from chatapp.engine.models.catalogue import on_this_machine, to_get
from chatapp.engine.models.description import OWN


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """No model of this machine, and a hub that must not be asked."""
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    download = huggingface_hub.snapshot_download

    def local(name, **options):
        assert options["local_files_only"]
        return download(name, **options)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", local)


def cached(hub, name, model, **config):
    """Have a model in the hub's cache; returns its folder."""
    repository = hub / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / ("0" * 40)
    shutil.copytree(model, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    settings = json.loads((snapshot / "config.json").read_text())
    (snapshot / "config.json").write_text(json.dumps(settings | config))
    return snapshot


def listed():
    return {model.name: model for model in on_this_machine("float32", "cpu")}


def test_causal_models_of_every_family_in_the_hubs_cache(gpt2, tmp_path):
    hub = tmp_path / "hub"
    llama = cached(
        hub, "org/llama", gpt2[0], model_type="llama", architectures=["LlamaForCausalLM"]
    )
    (llama / "chat_template.jinja").write_text("{{ messages }}")
    cached(hub, "org/bert", gpt2[0], model_type="bert", architectures=["BertForMaskedLM"])
    pickled = cached(hub, "org/pickled", gpt2[0])
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    models = listed()
    assert list(models) == ["bundled", "org/llama"]
    model = models["org/llama"]
    assert model.origin == "hub"
    assert model.info.template == OWN
    assert model.bytes == model.info.bytes
    assert " · own template · " in model.about


def test_an_adapter_whose_base_is_not_here(tmp_path):
    adapter = tmp_path / "runs" / "lora"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    about = listed()["runs/lora"].about
    assert "the base model cannot be found: org/base: is not on this machine" in about


def test_what_is_broken_does_not_break_the_list(gpt2, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(gpt2[0], runs / "whole")
    for name in ("config", "weights", "template"):
        shutil.copytree(gpt2[0], runs / name)
    (runs / "config" / "config.json").write_text("{")
    (runs / "weights" / "model.safetensors").write_bytes(b"cut")
    (runs / "template" / "chatapp_template.json").write_text("[]")
    (runs / "nowhere").symlink_to("nowhere")
    models = listed()
    assert list(models) == ["bundled", "runs/config", "runs/template", "runs/weights", "runs/whole"]
    assert models["runs/whole"].memory is not None
    for name in ("config", "weights", "template"):
        model = models[f"runs/{name}"]
        assert model.memory is None
        assert str(Path("runs", name)) in model.remark
        assert model.bytes


def test_what_can_be_brought(gpt2, tmp_path):
    names = [model.name for model in to_get()]
    assert names[0] == "smollm2"
    assert "gpt2" in names
    cached(tmp_path / "hub", "openai-community/gpt2", gpt2[0])
    assert [model.name for model in to_get()] == [name for name in names if name != "gpt2"]
