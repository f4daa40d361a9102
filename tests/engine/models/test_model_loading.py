"""Names to models, what a folder says of itself, and one sentence for each thing gone wrong."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.models import resolving
from chatapp.engine.models.description import describe
from chatapp.engine.models.known_models import known_models
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import local_models, model_folder, note_model


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    """No model of this machine, and no way to a hub."""
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def folder(gpt2, tmp_path):
    """A copy of the tiny GPT-2 that a test may spoil."""
    return Path(shutil.copytree(gpt2[0], tmp_path / "model"))


def refusal(name):
    with pytest.raises(ModelError) as error:
        load_model(name)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_a_folder(folder, monkeypatch):
    model = load_model(str(folder))
    assert isinstance(model, LocalModel)
    assert (model.name, model.files) == (str(folder), ModelFiles.read(folder))
    assert load_model("model").files == ModelFiles.read(Path("model"))


@pytest.mark.parametrize("name", ["kept", "smollm2", "owner/cached"])
def test_a_folder_here_hides_no_known_model(folder, tmp_path, monkeypatch, name):
    """Not one that the user keeps, nor a short name, nor an id in the hub's cache."""
    monkeypatch.setattr(resolving, "models_dir", lambda: tmp_path / "models")
    shutil.copytree(folder, tmp_path / "models" / "kept")
    cached = Path(shutil.copytree(folder, tmp_path / "cached"))
    ids = ("owner/cached", known_models()["smollm2"].hub)
    monkeypatch.setattr(resolving, "cached_folder", lambda each: cached if each in ids else None)
    real = model_folder(name)
    shutil.copytree(folder, tmp_path / name)
    assert model_folder(name) == real
    assert model_folder(name).resolve() != (tmp_path / name).resolve()
    notes = []
    load_model(name, say=notes.append)
    assert notes == [f"{name} is a known model, which is used; ./{name} is the path in this folder"]
    for path in (f"./{name}", str(tmp_path / name)):
        assert model_folder(path).resolve() == (tmp_path / name).resolve()
        load_model(path, say=notes.append)
    assert len(notes) == 1


def test_a_run_with_the_name_of_a_known_model_is_listed_by_its_path(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "smollm2")
    note_model(tmp_path / "smollm2")
    assert "./smollm2" in local_models()
    assert "smollm2" not in local_models()


def test_the_bundled_model(folder, monkeypatch):
    monkeypatch.setattr(resolving, "BUNDLED_FOLDER", folder)
    assert load_model("bundled").name == "bundled"
    assert local_models() == ["bundled"]
    monkeypatch.setattr(resolving, "BUNDLED_FOLDER", folder / "empty")
    assert "bundled" in refusal("bundled")
    assert local_models() == []


def test_an_unknown_precision(folder):
    with pytest.raises(ModelError, match="float32"):
        load_model(str(folder), precision="int3")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("./gone", "./gone"),
        ("~/gone/really", "gone"),
        ("", "folder"),
        ("~nobody-here/model", "folder"),
        ("a\0b", "folder"),
        ("x" * 5000, "folder"),
        ("\ud800", "folder"),
        ("a b", "a b"),
        ("org/gone", "hub"),
        ("gone", "hub"),
        ("http://localhost:99999/v1", "server"),
        ("\x1b[31m", "folder"),
    ],
)
def test_names_that_lead_nowhere(name, words):
    message = refusal(name)
    assert words in message
    assert "\x1b" not in message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smollm2", "smollm2 is not on this machine; `chatapp models get smollm2` downloads it"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "`chatapp models get smollm2` downloads it"),
        ("gtp2", "and there is no such folder; did you mean 'gpt2'?"),
    ],
)
def test_a_model_that_is_not_here_yet(name, words, monkeypatch):
    def fail(hub):
        raise ModelError(f"{hub}: the hub cannot be reached")

    monkeypatch.setattr(resolving, "local_folder", lambda name: None)
    monkeypatch.setattr(resolving, "downloaded_folder", fail)
    with pytest.raises(ModelError, match=re.escape(words)):
        model_folder(name)


def spoil_config(folder):
    (folder / "config.json").write_text('{"model_type": "gpt2",\n  oops')
    return "line 2"


def spoil_list(folder):
    (folder / "config.json").write_text("[]")
    return "object"


def spoil_bytes(folder):
    (folder / "config.json").write_bytes(b"\xff\xfe\x00")
    return "config.json"


def remove_config(folder):
    (folder / "config.json").unlink()
    return "config.json"


def other_task(folder):
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["GPT2ForSequenceClassification"]
    (folder / "config.json").write_text(json.dumps(config))
    return "GPT2ForSequenceClassification"


def pickle_only(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    return "only safetensors"


def no_weights(folder):
    (folder / "model.safetensors").unlink()
    return "weights"


def cut_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    return "truncated"


def empty_weights(folder):
    (folder / "model.safetensors").write_bytes(b"")
    return "truncated"


def index_of_nothing(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    return "weight_map"


def index_leads_out(folder):
    weights = folder / "model.safetensors"
    weights.rename(folder.parent / "outside.safetensors")
    index = {"weight_map": {"wte.weight": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return "outside.safetensors"


def no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    return "tokenizer"


def end_out_of_range(folder):
    (folder / "tokenizer_config.json").write_text('{"eos_token": "beyond"}')
    data = json.loads((folder / "tokenizer.json").read_text())
    data["added_tokens"].append(data["added_tokens"][0] | {"id": 340, "content": "beyond"})
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return "341 tokens"


def larger_tokenizer(folder):
    data = json.loads((folder / "tokenizer.json").read_text())
    data["model"]["vocab"]["more"] = 345
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return "346 tokens"


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_config,
        spoil_list,
        spoil_bytes,
        remove_config,
        other_task,
        pickle_only,
        no_weights,
        cut_weights,
        empty_weights,
        index_of_nothing,
        index_leads_out,
        no_tokenizer,
        end_out_of_range,
        larger_tokenizer,
    ],
)
def test_spoiled_folders(folder, spoil):
    words = spoil(folder)
    message = refusal(str(folder))
    assert words in message
    assert str(folder) in message or str(folder.parent) in message


def test_special_tokens_beyond_the_model_do_no_harm(folder):
    data = json.loads((folder / "tokenizer.json").read_text())
    data["added_tokens"].append(data["added_tokens"][0] | {"id": 340, "content": "[PAD]"})
    (folder / "tokenizer.json").write_text(json.dumps(data))
    model = load_model(str(folder))
    assert model.tokenizer.size == 341
    assert max(model.tokenizer.encode("[PAD]")) < 340


def test_too_little_memory(folder, monkeypatch):
    def load(*_, **__):
        raise RuntimeError("can't allocate memory\nframe 0 …")

    monkeypatch.setattr("chatapp.engine.backends.local.load_decoder", load)
    assert refusal(str(folder)).endswith("can't allocate memory")


def test_a_file_is_no_folder(folder):
    assert "file" in refusal(str(folder / "config.json"))


def test_models_on_this_machine(folder, tmp_path):
    for place in ("runs/b", "runs/a", "home/data/models/mine"):
        shutil.copytree(folder, tmp_path / place)
    (tmp_path / "runs" / "notes").mkdir()
    snapshot = tmp_path / "hub" / "models--org--tiny" / "snapshots" / ("0" * 40)
    shutil.copytree(folder, snapshot)
    other = tmp_path / "hub" / "models--org--bert" / "snapshots" / ("0" * 40)
    other.mkdir(parents=True)
    (other / "config.json").write_text('{"model_type": "bert"}')
    for cached in (snapshot, other):
        refs = cached.parent.parent / "refs"
        refs.mkdir()
        (refs / "main").write_text("0" * 40)
    note_model("model")
    note_model("runs/b")
    names = [name for name in local_models() if name != "bundled"]
    assert names == ["mine", "runs/a", "runs/b", "model", "org/tiny"]
    for name in names:
        assert load_model(name).name == name


def test_a_hub_that_answers(folder, monkeypatch):
    calls = []

    def download(name, **options):
        calls.append(options)
        if options.get("local_files_only"):
            raise huggingface_hub.errors.LocalEntryNotFoundError("not here")
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert model_folder("org/tiny") == folder
    assert not any(pattern.endswith((".bin", ".py")) for pattern in calls[1]["allow_patterns"])


def test_description(make_gpt2):
    folder, reference = make_gpt2(n_layer=3, n_embd=48)
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\n\n# Tiny\n")
    (folder / "chatapp_template.json").write_text('{"name": "chat"}')
    info = describe(ModelFiles.read(folder))
    parameters = sum(parameter.numel() for parameter in reference.parameters())
    assert info.parameters == parameters
    # The formula leaves out the biases of the attention.
    assert info.parameters_by_formula == parameters - sum(
        parameter.numel()
        for name, parameter in reference.named_parameters()
        if ".attn." in name and name.endswith("bias")
    )
    assert (info.layers, info.heads, info.hidden_size) == (3, 4, 48)
    assert (info.vocabulary, info.context) == (340, 64)
    assert info.architecture == "GPT2LMHeadModel"
    assert (info.dtype, info.licence, info.template) == ("F32", "mit", "chat")
    assert info.bytes > 4 * parameters


def test_description_counts_shards_and_own_output_matrices(make_gpt2):
    folder, reference = make_gpt2(shard="30KB", tie_word_embeddings=False)
    info = describe(ModelFiles.read(folder))
    assert info.parameters == sum(parameter.numel() for parameter in reference.parameters())
    assert (info.licence, info.template) == ("", "")


def test_the_chat_path_imports_nothing_heavy(folder):
    code = f"""
import sys
from chatapp.engine.models.description import describe
from chatapp.engine.models.resolving import find_model, local_models
from chatapp.engine.models.loading import load_model
assert "torch" not in sys.modules
describe(find_model({str(folder)!r}))
assert "torch" not in sys.modules
from chatapp.engine.model import Sampling, Request
model = load_model({str(folder)!r})
list(model.generate(Request(model.tokenizer.encode("Hello"), Sampling(max_tokens=3))))
model.score([([1], [2])])
heavy = {{"transformers", "datasets", "peft", "pandas", "accelerate", "textual"}}
print(sorted(heavy & set(sys.modules)))
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=Path(resolving.__file__).parents[3],
    )
    assert result.stdout.strip() == "[]"
