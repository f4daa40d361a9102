"""A model's files are read once while it is loaded, described and prepared for a chat."""

import sys
from collections import Counter
from pathlib import Path

import pytest
from random_models import save_random

from chatapp.dialogue.writers.choosing import choose_template
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.exporting import write_gguf
from chatapp.engine.files.gguf import reader
from chatapp.engine.models.description import describe, read_sizes
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import find_model, model_identity

GPT2 = {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 64}


_seen = None


def _listen(event, arguments):
    if event == "open" and _seen is not None:
        _seen.append(str(arguments[0]))


@pytest.fixture(scope="module")
def opened():
    """Which files of what names are opened in Python while something runs, and how often."""
    sys.addaudithook(_listen)  # stays until the end; it listens only while it is used

    def watch(work):
        global _seen
        _seen = []
        try:
            work()
            return Counter(Path(path).name for path in _seen)
        finally:
            _seen = None

    return watch


@pytest.fixture
def folder(tmp_path, bpe, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    save_random(tmp_path / "model", "gpt2", bpe, **GPT2)
    (tmp_path / "model" / "generation_config.json").write_text('{"temperature": 0.5}')
    return tmp_path / "model"


def chat_with(name):
    """What happens to a model's files before the first reply."""
    model = load_model(name, precision="int4")
    assert isinstance(model, LocalModel)
    assert model.files is not None
    choose_template(model, "")
    describe(model.files)
    read_sizes(model.files)


def test_of_a_folder_each_file_is_read_once(folder, opened):
    files = opened(lambda: chat_with(str(folder)))
    assert files["config.json"] == 1
    assert files["tokenizer_config.json"] == 1
    assert files["generation_config.json"] == 1


def test_the_header_of_a_gguf_file_is_parsed_once(folder, opened, monkeypatch):
    path = folder.parent / "model.gguf"
    write_gguf(find_model(str(folder)), path, "f16", {}, lambda *_: None)
    parsed = []
    parse = reader._Reader.__init__

    def count(self, path):
        parsed.append(path)
        parse(self, path)

    monkeypatch.setattr(reader._Reader, "__init__", count)
    files = opened(lambda: chat_with(str(path)))
    assert parsed == [path]
    assert files["model.gguf"] == 1


def test_an_adapter_s_base_is_looked_up_once(folder, tmp_path, monkeypatch):
    import peft
    import transformers

    base = transformers.AutoModelForCausalLM.from_pretrained(folder)
    settings = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"])
    adapted = peft.get_peft_model(base, settings)
    adapted.peft_config["default"].base_model_name_or_path = "org/base"
    adapted.save_pretrained(tmp_path / "adapter")
    asked = []

    def downloaded(name):
        asked.append(name)
        return folder

    monkeypatch.setattr("chatapp.engine.models.resolving.cached_folder", lambda name: None)
    monkeypatch.setattr("chatapp.engine.models.resolving.downloaded_folder", downloaded)
    model = load_model(str(tmp_path / "adapter"))
    assert model.files is not None
    choose_template(model, "")
    model_identity(model)
    assert model.files.template is None
    assert asked == ["org/base"]
