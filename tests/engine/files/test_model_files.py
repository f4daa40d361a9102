"""What a model is: its base, tokenizer and template, and a digest of all its answers rest on."""

import json
import shutil
from pathlib import Path

import peft
import pytest
from transformers import GPT2LMHeadModel

from chatapp.common.paths import TEMPLATE_FILE
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import model_identity


@pytest.fixture
def folder(gpt2, tmp_path):
    return Path(shutil.copytree(gpt2[0], tmp_path / "model"))


@pytest.fixture
def adapter(folder, tmp_path):
    """An adapter whose base is `folder`."""
    model = GPT2LMHeadModel.from_pretrained(folder)
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], fan_in_fan_out=True
    )
    peft.get_peft_model(model, settings).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_a_whole_model(folder):
    files = ModelFiles.read(folder)
    assert (files.family, files.has_decoder, files.is_adapter) == ("gpt2", True, False)
    assert files.whole is files
    assert (files.tokenizer.path, files.template) == (folder, None)
    (folder / TEMPLATE_FILE).write_text("{}")
    assert ModelFiles.read(folder).template == folder / TEMPLATE_FILE


def test_an_adapter_takes_from_its_base_what_it_lacks(folder, adapter):
    (folder / TEMPLATE_FILE).write_text("{}")
    files = ModelFiles.read(adapter)
    assert (files.family, files.has_decoder, files.is_adapter) == ("gpt2", False, True)
    assert files.whole == ModelFiles.read(folder)
    assert files.config_file == adapter / "adapter_config.json"
    assert (files.tokenizer.path, files.template) == (folder, folder / TEMPLATE_FILE)
    (adapter / "tokenizer_config.json").write_text("{}")
    assert ModelFiles.read(adapter).template is None  # the base's is for the base's tokenizer
    (adapter / TEMPLATE_FILE).write_text("{}")
    files = ModelFiles.read(adapter)
    assert (files.tokenizer.path, files.template) == (adapter, adapter / TEMPLATE_FILE)


def test_a_base_that_is_an_adapter_is_refused(adapter):
    config = json.loads((adapter / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(adapter)
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"adapter_config\.json: .* expected a whole model"):
        ModelFiles.read(adapter)


CHANGES = {
    "config": lambda folder: (folder / "config.json").write_text('{"model_type": "gpt2"}'),
    "weights": lambda folder: (folder / "model.safetensors").write_bytes(b"other"),
    "tokenizer": lambda folder: (folder / "tokenizer.json").write_text("{}"),
    "template": lambda folder: (folder / TEMPLATE_FILE).write_text("{}"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_the_digest_is_of_all_that_answers_depend_on(folder, tmp_path, change):
    before = ModelFiles.read(folder).digest()
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert ModelFiles.read(tmp_path / "elsewhere").digest() == before
    (folder / "log.jsonl").write_text("{}\n")  # of a run, which answers do not depend on
    (folder / "checkpoint-1").mkdir()
    (folder / "checkpoint-1" / "config.json").write_text("{}")
    assert ModelFiles.read(folder).digest() == before
    change(folder)
    assert ModelFiles.read(folder).digest() != before


def test_an_adapter_is_another_model_when_its_base_was_trained_on(folder, adapter, make_gpt2):
    before = model_identity(load_model(str(adapter)))
    assert model_identity(load_model(str(adapter))) == before
    other, _ = make_gpt2(seed=5)
    shutil.copy(other / "model.safetensors", folder / "model.safetensors")
    assert model_identity(load_model(str(adapter))) != before


def test_what_a_model_is_computed_in_is_part_of_its_identity(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    names = ("float32", "bfloat16", "int8")
    identities = {model_identity(load_model(str(folder), precision=name)) for name in names}
    assert len(identities) == 3
