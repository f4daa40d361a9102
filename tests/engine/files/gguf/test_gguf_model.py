"""Models from GGUF files: the logits of the same model from a folder, and broken files told."""

import pytest
import torch
from gguf_files import (
    GPT2_KEYS,
    IDS,
    LLAMA_KEYS,
    TEMPLATE,
    gpt2_tensors,
    llama_tensors,
    stored_as,
    tiny_gpt2,
    tiny_llama,
    vocabulary,
    write_file,
)
from random_models import logits_of
from tokenizers import Tokenizer

from chatapp.common.paths import models_dir
from chatapp.dialogue.writers.choosing import choose_template
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.models.catalogue import on_this_machine
from chatapp.engine.models.description import describe
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import (
    find_local_model,
    find_model,
    model_identity,
    note_model,
)
from chatapp.prompting.messages import Message, text_of

KINDS = ("F32", "F16", "Q8_0", "Q4_1")


@pytest.fixture(scope="session")
def llama():
    return tiny_llama()


@pytest.fixture
def llama_file(tmp_path, llama, bpe):
    tensors = dict(llama_tensors(llama))
    return write_file(tmp_path / "tiny.gguf", LLAMA_KEYS, tensors, more=vocabulary(bpe))


@pytest.mark.parametrize("kind", KINDS)
def test_a_gpt2_has_the_logits_of_the_same_weights(kind, tmp_path, bpe):
    model = tiny_gpt2()
    tensors = dict(gpt2_tensors(model))
    path = write_file(tmp_path / "a.gguf", GPT2_KEYS, tensors, kind, more=vocabulary(bpe))
    with torch.no_grad():  # the tensors are views of the model's own
        for name, tensor in stored_as(tensors, kind).items():
            tensors[name].copy_(tensor)
    loaded = load_model(str(path))
    assert isinstance(loaded, LocalModel)
    assert torch.allclose(loaded.logits(IDS), logits_of(model, IDS)[-1], atol=1e-4)
    assert loaded.context == 64


@pytest.mark.parametrize("kind", KINDS)
def test_a_llama_has_the_logits_of_the_same_weights(kind, tmp_path, bpe):
    model = tiny_llama()
    tensors = dict(llama_tensors(model))
    path = write_file(tmp_path / "a.gguf", LLAMA_KEYS, tensors, kind, more=vocabulary(bpe))
    state = model.state_dict()
    # Rows are quantised one by one, so their order does not matter.
    kept = stored_as(state, kind)
    model.load_state_dict(kept)
    loaded = load_model(str(path))
    assert torch.allclose(loaded.logits(IDS), logits_of(model, IDS)[-1], atol=1e-4)


def test_its_tokenizer_and_template_are_the_files(llama_file, bpe):
    model = load_model(str(llama_file))
    text = "The quick brown fox<|endoftext|>"
    plain = Tokenizer.from_str(bpe.to_str())
    plain.encode_special_tokens = True
    assert model.tokenizer.encode(text) == plain.encode(text).ids
    assert model.tokenizer.end_id == 0
    template = choose_template(model, "")
    assert template.name == "own"
    segments = template.render([Message("user", "hi"), Message("assistant", "yes")])
    assert text_of(segments) == "user: hi<|endoftext|>assistant: yes<|endoftext|>"
    assert [segment.text for segment in segments if segment.kind == "special"] == [
        "<|endoftext|>"
    ] * 2


def test_a_model_without_a_chat_template_is_chatted_with_in_plain(tmp_path, bpe):
    tensors = dict(gpt2_tensors(tiny_gpt2()))
    path = write_file(tmp_path / "a.gguf", GPT2_KEYS, tensors, more=vocabulary(bpe, ""))
    assert choose_template(load_model(str(path)), "").name == "plain"


def test_of_several_templates_the_default_is_taken(tmp_path, bpe):
    def more(writer):
        vocabulary(bpe)(writer)
        writer.add_string("tokenizer.chat_template.tool_use", "other")

    path = write_file(tmp_path / "a.gguf", GPT2_KEYS, dict(gpt2_tensors(tiny_gpt2())), more=more)
    template = choose_template(load_model(str(path)), "")
    assert text_of(template.render([Message("user", "hi")])) == "user: hi<|endoftext|>"


def test_a_folder_that_holds_one_file_is_that_model(llama_file):
    files = find_model(str(llama_file.parent))
    assert files.path == files.tokenizer.path == files.config_file == llama_file
    assert files.config["model_type"] == files.family == "llama"
    assert (files.config["num_key_value_heads"], files.config["head_dim"]) == (2, 16)
    assert files.digest() == ModelFiles.read(llama_file).digest()
    model = load_model(str(llama_file.parent))
    assert model_identity(model) == f"{files.digest()}-float32"


def test_a_model_in_parts_is_read_from_any_of_them_and_listed_once(
    tmp_path, llama, bpe, monkeypatch
):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    folder = models_dir() / "big"
    folder.mkdir(parents=True)
    tensors, more = dict(llama_tensors(llama)), vocabulary(bpe)
    write_file(folder / "big.gguf", LLAMA_KEYS, tensors, more=more, of_part=8)
    parts = sorted(folder.iterdir())
    for name in (*parts, folder, "big"):
        model = load_model(str(name))
        assert torch.allclose(model.logits(IDS), logits_of(llama, IDS)[-1], atol=1e-4)
        assert find_model(str(name)).path == parts[0]
        note_model(name)
    for path in parts:
        path.rename(folder.parent / path.name)
        note_model(folder.parent / path.name)
    first, second, third = parts = sorted(folder.parent.glob("*.gguf"))
    (listed,) = (model for model in on_this_machine() if "big" in model.name)
    assert listed.bytes == sum(path.stat().st_size for path in parts)
    before = find_model(str(first)).digest()
    third.write_bytes(third.read_bytes() + b"\0")
    assert find_model(str(third)).digest() != before
    second.rename(folder.parent / "aside")
    with pytest.raises(ModelError, match=r"its part big-00002-of-00003\.gguf is missing"):
        find_model(str(third))
    second.write_bytes(third.read_bytes())
    with pytest.raises(ModelError, match=r"3 parts with the number 21 tensors, and there are 3"):
        find_model(str(third))
    with pytest.raises(ModelError, match=r"one of the number 3 parts"):
        find_model(str(first.rename(tmp_path / "alone.gguf")))


def test_several_files_in_a_folder_are_named(llama_file):
    (llama_file.parent / "other.gguf").write_bytes(llama_file.read_bytes())
    with pytest.raises(ModelError, match=r"there are 2 GGUF files, other.gguf, tiny.gguf; name"):
        find_model(str(llama_file.parent))


def test_a_config_beside_a_file_wins(llama_file, gpt2):
    (llama_file.parent / "config.json").write_bytes((gpt2[0] / "config.json").read_bytes())
    assert find_model(str(llama_file.parent)).family == "gpt2"


def test_int8_weights_are_kept_until_the_file_changes(tmp_path, bpe, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    tensors = dict(gpt2_tensors(tiny_gpt2()))
    path = write_file(tmp_path / "a.gguf", GPT2_KEYS, tensors, more=vocabulary(bpe))
    first = load_model(str(path), precision="int8")
    exact = load_model(str(path))
    assert (first.logits(IDS) - exact.logits(IDS)).abs().max() < 0.1
    kept = sorted((tmp_path / "home").rglob("*.safetensors"))
    assert len(kept) == 2
    times = [file.stat().st_mtime_ns for file in kept]
    load_model(str(path), precision="int8")
    assert [file.stat().st_mtime_ns for file in kept] == times
    tensors["output_norm.weight"] = tensors["output_norm.weight"] * 2
    write_file(path, GPT2_KEYS, tensors, more=vocabulary(bpe))
    changed = load_model(str(path), precision="int8")
    assert (changed.logits(IDS) - first.logits(IDS)).abs().max() > 0.2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"general.architecture": "lama"},
            "is the string 'lama', which is not known here; did you mean",
        ),
        ({"llama.block_count": None}, "the key llama.block_count is missing"),
        ({"llama.expert_count": 8}, "llama.expert_count is the number 8; expected none"),
        ({"llama.block_count": 1}, "tensor 'blk.1.attn_norm.weight' does not belong to a llama"),
        ({"llama.embedding_length": 32}, r"tensor 'model.*weight' has the shape \[340, 64\]"),
        ({"llama.attention.head_count": "four"}, "the string 'four'; expected a number"),
    ],
)
def test_metadata_that_do_not_fit_are_told(change, words, tmp_path, llama, bpe):
    keys = {key: value for key, value in (LLAMA_KEYS | change).items() if value is not None}
    if keys["general.architecture"] == "lama":
        keys |= {key.replace("llama", "lama"): value for key, value in keys.items()}
    tensors = dict(llama_tensors(llama))
    path = write_file(tmp_path / "bad.gguf", keys, tensors, more=vocabulary(bpe))
    with pytest.raises(ModelError, match=f"bad.gguf: .*{words}"):
        load_model(str(path))


@pytest.mark.parametrize("name", ["blk.1.ffn_up.weight", "output_norm.weight"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_missing_tensor_is_told(family, name, tmp_path, llama, bpe):
    is_llama = family == "llama"
    tensors = dict(llama_tensors(llama) if is_llama else gpt2_tensors(tiny_gpt2()))
    del tensors[name]
    keys = LLAMA_KEYS if is_llama else GPT2_KEYS
    path = write_file(tmp_path / "bad.gguf", keys, tensors, more=vocabulary(bpe))
    with pytest.raises(ModelError, match=r"bad.gguf: tensor '.*' is missing"):
        load_model(str(path))


def test_a_vocabulary_alone_is_no_model(tmp_path, bpe):
    path = write_file(tmp_path / "words.gguf", GPT2_KEYS, {}, more=vocabulary(bpe))
    with pytest.raises(ModelError, match=r"words.gguf: contains a vocabulary but no weights"):
        load_model(str(path))


@pytest.mark.parametrize("number", [31, 255])
def test_a_type_that_cannot_be_read_is_told(number, llama_file):
    data = bytearray(llama_file.read_bytes())
    name = b"blk.0.ffn_up.weight"
    # After the name: the number of dimensions, two sizes, then the type.
    at = data.index(name) + len(name) + 4 + 16
    data[at : at + 4] = number.to_bytes(4, "little")
    llama_file.write_bytes(bytes(data))
    with pytest.raises(ModelError, match=f"tiny.gguf: a tensor is stored as type {number}, "):
        load_model(str(llama_file))


@pytest.mark.parametrize("change", ["no heads", "no sizes"])
def test_a_model_without_sizes_is_a_sentence(change, tmp_path, llama, bpe):
    keys, tensors = dict(LLAMA_KEYS), dict(llama_tensors(llama))
    if change == "no heads":
        keys["llama.attention.head_count"] = 0
    else:
        tensors["token_embd.weight"] = torch.tensor(1.0)
    path = write_file(tmp_path / "bad.gguf", keys, tensors, more=vocabulary(bpe))
    with pytest.raises(ModelError, match=r"bad.gguf: its keys and tensors are not those of a"):
        describe(find_local_model(str(path)))


def test_a_template_is_not_taken_from_a_broken_key(tmp_path, bpe):
    def more(writer):
        vocabulary(bpe, TEMPLATE)(writer)
        writer.add_string("chatapp.template", "[]")

    path = write_file(tmp_path / "a.gguf", GPT2_KEYS, dict(gpt2_tensors(tiny_gpt2())), more=more)
    with pytest.raises(ValueError, match=r"a.gguf: chatapp.template: expected a JSON object"):
        choose_template(load_model(str(path)), "")
