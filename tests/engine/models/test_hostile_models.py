"""Model folders made to do harm: each is loaded or refused in a sentence, within bounds."""

import json
import multiprocessing
import os
import shutil
import sys
from pathlib import Path

import pytest
from hostile_models import answer, hostile_models
from random_models import save_random
from safetensors.torch import load_file, save_file

from chatapp.engine.errors import ModelError, one_sentence
from chatapp.engine.exporting import write_gguf
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.models.description import describe
from chatapp.engine.models.loading import load_model


@pytest.fixture
def folder(gpt2, tmp_path):
    """A tiny GPT-2 to be changed."""
    return Path(shutil.copytree(gpt2[0], tmp_path / "model"))


@pytest.fixture
def opt(tmp_path, bpe):
    """A tiny model that transformers computes."""
    sizes = {"hidden_size": 16, "ffn_dim": 16, "word_embed_proj_dim": 16, "num_hidden_layers": 2}
    folder = tmp_path / "opt"
    save_random(folder, "opt", bpe, num_attention_heads=2, max_position_embeddings=64, **sizes)
    return folder


@pytest.fixture
def adapter(folder, tmp_path):
    import peft
    from transformers import AutoModelForCausalLM

    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"])
    base = AutoModelForCausalLM.from_pretrained(folder)
    peft.get_peft_model(base, config).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def change(file, **values):
    file.write_text(json.dumps(json.loads(file.read_bytes()) | values))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_regular_file_is_not_opened(name, kind, folder):
    (folder / name).unlink()
    os.mkfifo(folder / name) if kind == "pipe" else (folder / name).symlink_to("/dev/zero")
    with pytest.raises(ModelError, match=f"{name}: is not a regular file"):
        load_model(str(folder))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_gguf_file_that_is_a_pipe_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "a.gguf")
    with pytest.raises(ModelError, match=r"a.gguf: is not a regular file"):
        load_model(str(tmp_path / "a.gguf"))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_files_of_gigabytes_are_refused(name, folder):
    (folder / name).touch()
    os.truncate(folder / name, 2**33)
    with pytest.raises(ModelError, match=f"{name}: has 8,589,934,592 bytes; expected at most"):
        load_model(str(folder))


@pytest.mark.parametrize("key", ["n_layer", "n_embd", "n_positions", "vocab_size", "n_head"])
def test_sizes_are_compared_before_they_are_allocated(key, folder):
    change(folder / "config.json", **{key: 10**9})
    with pytest.raises(ModelError, match=r"n_layer is|has the shape|n_head|takes about"):
        load_model(str(folder))


@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "hidden_size", "max_position_embeddings", "vocab_size", "ffn_dim"]
)
def test_sizes_are_compared_before_transformers_allocates_them(key, opt):
    change(opt / "config.json", **{key: 10**9})
    with pytest.raises(ModelError, match=r"expected at most|do not belong|takes about"):
        load_model(str(opt))


def test_an_empty_vocabulary_is_a_sentence(folder, opt):
    for place in (folder, opt):
        empty = {"type": "BPE", "vocab": {}, "merges": []}
        change(place / "tokenizer.json", model=empty, added_tokens=[])
        with pytest.raises(ModelError, match="tokenizer"):
            load_model(str(place))


def test_a_panic_of_rust_is_a_sentence_and_an_interrupt_is_none():
    class PanicException(BaseException):
        """As pyo3's, which is no Exception."""

    panicked = pytest.raises(ModelError, match=r"^a.json: not a tokenizer: it panicked$")
    with panicked, one_sentence("a.json: not a tokenizer"):
        raise PanicException("it panicked")
    with pytest.raises(KeyboardInterrupt), one_sentence("a.json"):
        raise KeyboardInterrupt


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(value, folder, opt):
    for place in (folder, opt):
        weights = load_file(place / "model.safetensors")
        name = next(name for name in weights if "ln_f" in name or "final_layer_norm" in name)
        weights[name][0] = value
        save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ModelError, match=r"tensor '.*' holds NaN or infinity"):
            load_model(str(place))


def test_an_adapter_whose_tensors_do_not_fit_is_refused(adapter):
    file = adapter / "adapter_model.safetensors"
    weights = load_file(file)
    odd = {name.replace("c_attn", "c_nothing"): tensor for name, tensor in weights.items()}
    save_file(odd, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"not fit its base model: tensor '.*c_nothing"):
        load_model(str(adapter))
    first, *others = sorted(weights)
    save_file({name: weights[name] for name in others}, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"does not fit its base model: tensor '{first}' is miss"):
        load_model(str(adapter))
    weights[first] = weights[first] * float("nan")
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="holds NaN or infinity"):
        load_model(str(adapter))
    weights[first] = weights[first][:1].clone()  # another rank than adapter_config.json says
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r": size mismatch for .*lora_A.* shape"):
        load_model(str(adapter))


@pytest.fixture
def seeds(folder, opt, adapter, tmp_path):
    write_gguf(ModelFiles.read(folder), tmp_path / "a.gguf", "f16", {}, lambda done, of: None)
    return [folder, opt, adapter, tmp_path / "a.gguf", tmp_path / "a.gguf"]


FINE = {"loaded True", "a sentence"}


def test_hostile_models_are_loaded_or_refused(seeds, tmp_path):
    (tmp_path / "hostile").mkdir()
    models = hostile_models(seeds, tmp_path / "hostile", seed=7)
    assert {outcome for _ in range(12) for outcome in answer(str(next(models)))} == FINE


def test_a_model_card_of_gigabytes_is_read_in_part(folder):
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    os.truncate(folder / "README.md", 2**36)
    assert describe(ModelFiles.read(folder)).licence == "mit"


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_thousand_hostile_models_are_loaded_or_refused(seeds, tmp_path):
    """Each in a process: none takes a minute, 12 GiB, or the process with it."""
    (tmp_path / "hostile").mkdir()
    models = hostile_models(seeds, tmp_path / "hostile", seed=2026)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hostile_models", "peft", "chatapp.engine.models.loading"])
    others = []
    for _ in range(1_000):
        path = next(models)
        process = context.Process(target=answer_in_limits, args=(path,))
        process.start()
        process.join(300.0)
        if process.exitcode == 0:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        else:
            process.kill()
            others.append((path.name, process.exitcode))
    assert others == []


def answer_in_limits(path):
    """End with status 0 where the answer is fine; with SIGXCPU after a minute of the processor."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (12 * 2**30, 12 * 2**30))
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    sys.exit(not set(answer(str(path))) <= FINE)
