"""`chatapp models export`, and chatting with the file that it writes."""

import json

import peft
import pytest
import torch
from full_disk import full_after
from random_models import save_random
from tiny import write_tiny_gpt2
from transformers import AutoModelForCausalLM

from chatapp.common.userfiles import DISK_FULL, reason
from chatapp.engine.models.loading import read_tokenizer
from chatapp.engine.models.resolving import has_bundled
from chatapp.prompting.template import CHAT, PLAIN, save_template


@pytest.fixture
def model(tmp_path):
    folder = write_tiny_gpt2(tmp_path / "tiny", context=64)
    save_template(CHAT, folder)
    return folder


def test_an_exported_run_is_the_same_model(run, capsys, model, tmp_path):
    out = tmp_path / "tiny.gguf"
    capsys.readouterr()  # of what wrote the model
    status, printed, err = run("models", "export", str(model), str(out), "--type", "f32")
    assert (status, printed) == (0, "")
    assert err == f"chatapp: wrote {out}, {out.stat().st_size / 1e6:,.1f} MB\n"
    question = ("ask", "hi", "--temperature", "0", "--max-tokens", "9", "--json")
    answers = [json.loads(run(*question, "--model", str(each)).out) for each in (model, out)]
    assert answers[0]["reply"] == answers[1]["reply"] != ""
    assert answers[1]["template"] == "chat"
    info = json.loads(run("models", "info", str(out), "--json").out)
    expected = json.loads(run("models", "info", str(model), "--json").out)
    for key in ("parameters", "layers", "heads", "vocabulary", "context", "template", "dtype"):
        assert info[key] == expected[key], key
    assert info["bytes"] == out.stat().st_size


def test_a_file_becomes_a_folder_and_another_type(run, model, tmp_path):
    file, folder, small = tmp_path / "tiny.gguf", tmp_path / "new" / "tiny", tmp_path / "q.gguf"
    for source, out, kind in ((model, file, "f32"), (file, folder, "f32"), (file, small, "f16")):
        assert run("models", "export", str(source), str(out), "--type", kind).status == 0
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]
    ids = read_tokenizer(str(model)).encode("hello world")
    assert read_tokenizer(str(folder)).encode("hello world") == ids
    expected, again = (
        AutoModelForCausalLM.from_pretrained(each)(torch.tensor([ids])).logits
        for each in (model, folder)
    )
    assert torch.equal(expected, again)
    question = ("ask", "hi", "--temperature", "0", "--max-tokens", "9", "--json")
    answers = [json.loads(run(*question, "--model", str(x)).out) for x in (model, folder, small)]
    assert {answer["reply"] for answer in answers} == {answers[0]["reply"]} != {""}
    assert answers[1]["template"] == "chat"


def test_a_file_is_replaced_only_when_asked_for(run, model, tmp_path):
    out = tmp_path / "tiny.gguf"
    out.write_text("mine")
    status, _, err = run("models", "export", str(model), str(out))
    assert (status, err) == (2, f"chatapp: {out}: this file already exists; --force replaces it\n")
    assert out.read_text() == "mine"
    assert run("models", "export", str(model), str(out), "--force").status == 0
    assert out.read_bytes().startswith(b"GGUF")


def test_what_cannot_be_exported_is_told(run, model, tmp_path):
    out = tmp_path / "tiny.gguf"
    assert run("models", "export", str(model), str(out)).status == 0
    for arguments, words in (
        ((str(out), str(out), "--force"), f"{out}: is the model itself; name another file"),
        ((str(out), "b", "--type", "q8_0"), "--type is q8_0, which only a GGUF file can have"),
        ((str(tmp_path / "none.gguf"), "b.gguf"), "none.gguf: there is no such file"),
        ((str(out), str(model), "--force"), f"{model}: exists already; name a new folder"),
        ((str(model), str(out / "b.gguf")), "b.gguf: cannot be written: "),
    ):
        status, printed, err = run("models", "export", *arguments)
        assert (status, printed) == (2, "")
        assert words in err
        assert err.count("\n") == 1


def test_an_export_beyond_the_room_is_one_sentence(run, model, tmp_path):
    """Safetensors and numpy have errors of their own for it."""
    out = tmp_path / "other"
    with full_after(20_000):
        status, _, err = run("models", "export", str(model), str(out))
        assert run("models", "export", str(model), str(tmp_path / "other.gguf")).status == 2
    assert (status, err) == (2, f"chatapp: {out}: cannot be written: File too large\n")
    assert not (tmp_path / "other.gguf").exists()
    assert reason(OSError("786432 requested and 31408 written")) == DISK_FULL


SIZES = {
    "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "head_dim": 24,
    "query_pre_attn_scalar": 24,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "qwen3 adapter"])
def test_an_export_is_proved_and_a_damaged_one_found(run, tmp_path, bpe, family):
    model = tmp_path / "model"
    save_random(model, family.removesuffix(" adapter"), bpe, **SIZES)
    if family.endswith("adapter"):
        base, model = model, tmp_path / "adapter"
        config = peft.LoraConfig(target_modules="all-linear", init_lora_weights=False)
        peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(
            model
        )
    save_template(CHAT, model)
    for kind, name in (("f16", "a.gguf"), ("q8_0", "b.gguf"), ("q4_0", "c.gguf"), ("f32", "d")):
        out = tmp_path / name
        status, printed, err = run(
            "models", "export", str(model), str(out), "--check", "--type", kind
        )
        assert (status, "3 prompts have the same tokens; " in err) == (0, True), err
        assert ("3 of 3 greedy replies" in err) or kind.startswith("q")
        assert printed.startswith(f'FROM ./{name}\nTEMPLATE """' if out.is_file() else "")
    check = ("models", "export", str(model), str(tmp_path / "a.gguf"), "--check")
    assert "wrote" not in run(*check).err
    whole = (tmp_path / "a.gguf").read_bytes()
    (tmp_path / "a.gguf").write_bytes(whole[:-9000] + bytes(9000))
    status, printed, err = run(*check)
    assert (status, printed, "a.gguf: is damaged, or another model: f16 " in err) == (1, "", True)
    save_template(PLAIN, model)
    (tmp_path / "a.gguf").write_bytes(whole)
    status, printed, err = run(*check)
    assert (status, printed, "a.gguf: prompt 1 of 3 has other tokens than" in err) == (1, "", True)


@pytest.mark.skipif(not has_bundled(), reason="this copy carries no bundled model")
def test_the_bundled_model_can_be_exported(run, tmp_path):
    out = tmp_path / "bundled.gguf"
    assert run("models", "export", "bundled", str(out)).status == 0
    question = ("ask", "Hello, who are you?", "--temperature", "0", "--json")
    own, again = (json.loads(run(*question, "--model", name).out) for name in ("bundled", str(out)))
    for key in ("reply", "template", "prompt_tokens", "reply_tokens"):
        assert again[key] == own[key]
