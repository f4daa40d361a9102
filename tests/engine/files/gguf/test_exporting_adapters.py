"""Adapters have PEFT's logits in a chat, merged into a GGUF file and a folder, and alone."""

import json

import peft
import pytest
import torch
from random_models import save_random
from transformers import AutoModelForCausalLM

from chatapp.engine.errors import ModelError
from chatapp.engine.exporting import write_adapter, write_folder, write_gguf
from chatapp.engine.files import model_files
from chatapp.engine.files.gguf.reader import GGUFFile
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import find_model

GPT2 = {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 64}
LLAMA = {
    "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


IDS = [5, 9, 33, 70, 200, 4]


def adapter(folder, bpe, family, *, is_tied=False, **changes):
    """A base model in `folder`, and a random adapter of it."""
    sizes = GPT2 if family == "gpt2" else LLAMA | {"tie_word_embeddings": is_tied}
    save_random(folder, family, bpe, **sizes)
    model = AutoModelForCausalLM.from_pretrained(folder)
    settings = {"r": 4, "lora_alpha": 6, "fan_in_fan_out": family == "gpt2"}
    settings |= {"target_modules": "all-linear", **changes}
    config = peft.LoraConfig(task_type="CAUSAL_LM", **settings)
    wrapped = peft.get_peft_model(model, config)
    torch.manual_seed(1)
    for name, weight in wrapped.named_parameters():
        if "lora_B" in name or "lora_embedding" in name or "modules_to_save" in name:
            torch.nn.init.normal_(weight, std=0.3)
    wrapped.peft_config["default"].base_model_name_or_path = str(folder)
    wrapped.save_pretrained(folder.parent / "adapter")
    return folder.parent / "adapter"


def check_logits(base, made):
    """Compare an adapter in a chat, merged as GGUF and merged as a folder with PEFT's own."""
    model = AutoModelForCausalLM.from_pretrained(base)
    with torch.inference_mode():
        logits = peft.PeftModel.from_pretrained(model, made).eval()(torch.tensor([IDS])).logits
    written(made, base.parent / "merged.gguf")
    write_folder(find_model(str(made)), base.parent / "merged", "f32")
    for name in (made, base.parent / "merged.gguf", base.parent / "merged"):
        found = load_model(str(name)).logits(IDS)
        torch.testing.assert_close(found, logits[0, -1, : len(found)], rtol=0, atol=1e-4)


def written(name, path):
    write_gguf(find_model(str(name)), path, "f32", {}, lambda *_: None)
    return GGUFFile(path)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gpt2", {}),
        ("llama", {}),
        ("llama", {"use_rslora": True}),
        ("llama", {"alpha_pattern": {"q_proj": 3}, "rank_pattern": {"q_proj": 2}}),
        ("llama", {"alpha_pattern": {r"layers\.0\..*q_proj": 3, "proj": 9, "up_proj": 2}}),
        ("llama", {"alpha_pattern": {"^model.layers.1.self_attn.k_proj": 5}, "use_rslora": True}),
        ("llama", {"rank_pattern": {r"model.layers.\d.mlp.(up|gate)_proj": 2}}),
    ],
)
def test_it_adds_to_each_matrix_what_merging_adds(tmp_path, bpe, family, changes):
    made = adapter(tmp_path / "base", bpe, family, **changes)
    write_adapter(find_model(str(made)), tmp_path / "alone.gguf", "f32", lambda *_: None)
    file = GGUFFile(tmp_path / "alone.gguf")
    assert (file.metadata["general.type"], file.metadata["adapter.type"]) == ("adapter", "lora")
    assert file.metadata["general.architecture"] == family
    check_logits(tmp_path / "base", made)
    base = written(tmp_path / "base", tmp_path / "base.gguf")
    merged = GGUFFile(tmp_path / "merged.gguf")
    changed = {name.rpartition(".")[0] for name in file.names}
    for name in base.names:
        expected = torch.tensor(merged.array(name) - base.array(name))
        if name not in changed:
            assert not expected.any()
            continue
        first, second = (torch.tensor(file.array(f"{name}.lora_{end}")) for end in "ab")
        scale = file.metadata["adapter.lora.alpha"] / len(first)  # llama.cpp's
        torch.testing.assert_close(scale * second @ first, expected, rtol=1e-4, atol=1e-5)
    assert len(changed) == (8 if family == "gpt2" else 14)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [({"use_dora": True}, "lora_magnitude"), ({"modules_to_save": ["lm_head"]}, "lm_head")],
)
def test_another_adapter_is_refused(tmp_path, bpe, changes, problem):
    made = adapter(tmp_path / "base", bpe, "llama", **changes)
    with pytest.raises(ModelError, match=f"{problem}.* does not belong to LoRA; export it merged"):
        write_adapter(find_model(str(made)), tmp_path / "alone.gguf", "f32", lambda *_: None)
    assert not (tmp_path / "alone.gguf").exists()


@pytest.mark.parametrize("key", ["alpha_pattern", "rank_pattern", "target_modules"])
@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"([a-z_.0-9]+)+!", "with the names of layers in 1 seconds"),
        ("(", "not a regular expression: missing"),
    ],
)
def test_a_pattern_that_cannot_be_matched_is_refused(
    tmp_path, bpe, monkeypatch, key, pattern, words
):
    made = adapter(tmp_path / "base", bpe, "llama")
    path = made / "adapter_config.json"
    given = pattern if key == "target_modules" else {pattern: 3}
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: given}))
    monkeypatch.setattr(model_files, "_MOST_SECONDS", 1.0)
    files, out = find_model(str(made)), tmp_path / "a.gguf"
    for door in (
        lambda: load_model(str(made)),
        lambda: write_folder(files, tmp_path / "merged", "f32"),
        lambda: write_gguf(files, out, "f32", {}, lambda *_: None),
        lambda: write_adapter(files, out, "f32", lambda *_: None),
    ):
        with pytest.raises(ModelError) as error:
            door()
        assert str(error.value).startswith(f"{path}: {key} ")
        assert words in str(error.value)
    assert not out.exists()


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"target_modules": ["q_proj", "lm_head"]},
    ],
    ids=["both saved", "head saved", "embedding", "head"],
)
def test_an_adapter_of_the_embedding_keeps_its_logits(tmp_path, bpe, is_tied, changes):
    made = adapter(tmp_path / "base", bpe, "llama", is_tied=is_tied, **changes)
    check_logits(tmp_path / "base", made)
    assert find_model(str(tmp_path / "merged")).config["tie_word_embeddings"] is False


def test_each_of_several_adapters_is_found_by_its_folder(tmp_path, bpe):
    first = adapter(tmp_path / "base", bpe, "llama")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    both = peft.PeftModel.from_pretrained(model, first)
    both.add_adapter("second", peft.LoraConfig(target_modules=["up_proj"], init_lora_weights=False))
    both.peft_config["second"].base_model_name_or_path = str(tmp_path / "base")
    both.save_pretrained(tmp_path / "both")
    check_logits(tmp_path / "base", tmp_path / "both" / "second")
