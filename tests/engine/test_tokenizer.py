"""Exact bytes, no special token from text, no broken character, and parity with GPT-2's BPE."""

import copy
import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_models import END
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import TokenizerFiles
from chatapp.engine.tokenizers import (
    PLAIN_CLASSES,
    BPETokenizer,
    NotByteLevel,
    load_plain_tokenizer,
    load_tokenizer,
    open_tokenizer,
)


@pytest.fixture(scope="module")
def tokenizer(bpe):
    return BPETokenizer(Tokenizer.from_str(bpe.to_str()), 0)


def streamed(tokenizer, ids):
    stream = tokenizer.stream()
    return [*(stream.push(id) for id in ids), stream.flush()]


@given(text=st.text())
def test_round_trip(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert "".join(streamed(tokenizer, ids)) == text
    assert tokenizer.end_id not in ids


@given(text=st.text(max_size=20))
def test_no_character_is_cut_in_two(tokenizer, text):
    parts = streamed(tokenizer, tokenizer.encode(text))
    assert sum(part.count("\ufffd") for part in parts) == text.count("\ufffd")


@given(ids=st.lists(st.integers(0, 339), max_size=40))
def test_streaming_any_ids_gives_what_decoding_gives(tokenizer, ids):
    """Except for a character or half a surrogate that is unfinished at the end, and left out."""
    text = "".join(streamed(tokenizer, ids))
    assert tokenizer.decode(ids) in (text, f"{text}\ufffd", f"{text}\ufffd\ufffd")


@given(text=st.text(alphabet=st.characters(exclude_categories=[]) | st.just("\ud800")))
def test_lone_surrogates_become_replacement_characters(tokenizer, text):
    decoded = tokenizer.decode(tokenizer.encode(text))
    # Two surrogates that belong together are one character.
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    assert [a if not "\ud800" <= a <= "\udfff" else "\ufffd" for a in joined] == list(decoded)


def test_names_of_special_tokens_are_plain_text(tokenizer):
    ids = tokenizer.encode(f"a{END}b")
    assert 0 not in ids
    assert tokenizer.decode(ids) == f"a{END}b"
    assert tokenizer.decode([0]) == ""
    assert tokenizer.piece(0) == END


def test_an_end_token_that_the_file_calls_ordinary_is_special_all_the_same(bpe, tmp_path):
    data = json.loads(bpe.to_str())
    data["added_tokens"] = []
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    tokenizer = load_tokenizer(TokenizerFiles.read(tmp_path))
    assert tokenizer.end_id == 0
    assert 0 not in tokenizer.encode(END)
    assert tokenizer.decode([0]) == ""


def test_added_words_keep_their_text(bpe):
    copy = Tokenizer.from_str(bpe.to_str())
    copy.add_tokens(["naïve words"])
    tokenizer = BPETokenizer(copy, 0)
    assert tokenizer.size == 341
    assert tokenizer.encode("naïve words") == [340]
    assert tokenizer.decode([340]) == "naïve words"


def test_pieces(tokenizer):
    pieces = [tokenizer.piece(id) for id in tokenizer.encode(" the 😀")]
    assert pieces[0] == " the"
    numbers = " ".join(piece.strip("<>") for piece in pieces[2:])
    assert bytes.fromhex(numbers) == "😀".encode()
    assert tokenizer.piece(10_000) == ""


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("tokenizer_config.json", {"eos_token": "Ġthe"}, "Ġthe"),
        ("tokenizer_config.json", {"eos_token": {"content": "Ġthe"}}, "Ġthe"),
        ("special_tokens_map.json", {"eos_token": "Ġthe"}, "Ġthe"),
        ("config.json", {"eos_token_id": 5}, 5),
        ("config.json", {"eos_token_id": 99_999}, END),
        ("tokenizer_config.json", {"eos_token": "absent"}, END),
    ],
)
def test_where_the_end_of_text_token_is_named(bpe, tmp_path, file, content, expected):
    bpe.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / file).write_text(json.dumps(content))
    id = bpe.token_to_id(expected) if isinstance(expected, str) else expected
    assert load_tokenizer(TokenizerFiles.read(tmp_path)).end_id == id


@pytest.mark.parametrize("names", [("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")])
def test_vocabulary_and_merges(bpe, tokenizer, tmp_path, names):
    for path, name in zip(bpe.model.save(str(tmp_path)), names, strict=True):
        shutil.move(path, tmp_path / name)
    loaded = load_tokenizer(TokenizerFiles.read(tmp_path))
    text = "The quick brown fox, naïve 😀"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.end_id == 0


def test_missing_and_broken_files(bpe, tmp_path):
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_tokenizer(TokenizerFiles.read(tmp_path))
    (tmp_path / "vocab.json").write_text("{")
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(ModelError, match=r"vocab\.json"):
        load_tokenizer(TokenizerFiles.read(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_tokenizer(TokenizerFiles.read(tmp_path))
    other = Tokenizer(models.WordPiece({"[UNK]": 0, END: 1}, unk_token="[UNK]"))
    other.decoder = decoders.WordPiece()
    other.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(NotByteLevel, match="byte-level"):
        load_tokenizer(TokenizerFiles.read(tmp_path))


@pytest.mark.parametrize("special", [[], ["<s>"]])
def test_a_tokenizer_without_an_end_separates_texts_by_another_token(tmp_path, special):
    tokenizer = Tokenizer(models.BPE({"b": 0, "Ċ": 1}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    files = TokenizerFiles.read(tmp_path)
    for loaded in (load_tokenizer(files), open_tokenizer(files)[0]):
        assert (loaded.names_end, loaded.end_id) == (False, 1 + len(special))
        assert loaded.decode([0, 1, 0]) == "b\nb"  # a line break is still text


@pytest.fixture(scope="module")
def published():
    data = os.environ.get("SHARED_DATA")
    folder = Path(data or "", "gpt2_bpe")
    if data is None or not (folder / "encoder.json").is_file():
        pytest.skip("SHARED_DATA names no folder with gpt2_bpe/encoder.json")
    return folder


def test_parity_with_the_published_vocabulary(published):
    tokenizer = load_tokenizer(TokenizerFiles.read(published))
    assert tokenizer.size == 50257
    assert tokenizer.end_id == 50256
    # Known tokens of GPT-2.
    assert tokenizer.encode("Hello world") == [15496, 995]
    assert tokenizer.encode("\n\n") == [628]
    vocabulary = json.loads((published / "encoder.json").read_text(encoding="utf-8"))
    for token in ("Ġthe", "ĠâĢĶ", "Ä"):
        assert tokenizer.encode(tokenizer.decode([vocabulary[token]])) in (
            [vocabulary[token]],
        ) or ("\ufffd" in tokenizer.decode([vocabulary[token]]))


def test_parity_with_transformers(published, tmp_path):
    from transformers import GPT2Tokenizer

    shutil.copyfile(published / "encoder.json", tmp_path / "vocab.json")
    shutil.copyfile(published / "vocab.bpe", tmp_path / "merges.txt")
    theirs = GPT2Tokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(TokenizerFiles.read(published))
    for text in (
        "I'm sure it's what they've said: we'll see, he'd go.",
        "  leading, trailing  and   inner spaces \t\n\n\n x",
        "naïve café Ωμέγα 中文字符 👩‍👩‍👧 e\u0301 \u200b\xa0",
        "1234567890 3.14159 $5,000 100%",
        "def f(x):\n    return x**2  # code\n",
    ):
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize("id", [-1, 340, 2**32, 2**63, 2**64])
def test_ids_beyond_the_vocabulary_are_no_text(gpt2, id):
    tokenizer = load_tokenizer(TokenizerFiles.read(gpt2[0]))
    ids = tokenizer.encode("Hello")
    assert tokenizer.decode([*ids, id]) == "Hello"
    assert tokenizer.piece(id) == ""
    assert tokenizer.stream().push(id) == ""


@pytest.mark.parametrize("id", [-1, 2**32, 2**63])
def test_an_end_beyond_the_vocabulary_is_passed_over(gpt2, tmp_path, id):
    shutil.copy(gpt2[0] / "tokenizer.json", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": id}))
    assert load_tokenizer(TokenizerFiles.read(tmp_path)).end_id == 0


@pytest.mark.parametrize("kind", PLAIN_CLASSES)
@pytest.mark.parametrize(
    "after",
    [
        None,
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 340)]),
        processors.TemplateProcessing(single="$A <s>", special_tokens=[("<s>", 340)]),
    ],
)
@pytest.mark.parametrize("asked", [{}, {"add_bos_token": True}, {"add_bos_token": False}])
def test_tokens_before_a_text_are_those_of_transformers(bpe, tmp_path, kind, after, asked):
    tokenizer = Tokenizer.from_str(bpe.to_str())
    tokenizer.add_special_tokens(["<s>"])
    if after is not None:
        tokenizer.post_processor = after
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": kind, "bos_token": "<s>", "eos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | asked))
    ours, start = load_plain_tokenizer(TokenizerFiles.read(tmp_path))
    theirs, expected = open_tokenizer(TokenizerFiles.read(tmp_path))
    assert start == expected
    text = "Hello, 12345 you’ve\n\n  <s> naïve"
    assert ours.encode(text) == theirs.encode(text)
    assert (ours.size, ours.end_id, ours.special) == (theirs.size, theirs.end_id, theirs.special)


def test_a_tokenizer_that_only_transformers_knows(bpe, tmp_path):
    bpe.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    with pytest.raises(NotByteLevel, match="transformers"):
        load_plain_tokenizer(TokenizerFiles.read(tmp_path))


def test_a_panic_while_tokens_become_text_is_a_model_error(tokenizer):
    class PanicException(BaseException):
        """As Rust libraries raise it: no Exception."""

    class Broken:
        def id_to_token(self, id):
            raise PanicException("it panicked")

    broken = copy.copy(tokenizer)
    broken.backend = Broken()
    (id, *_) = tokenizer.encode("walrus")
    for work in (
        lambda: broken.decode([id]),
        lambda: broken.piece(id),
        lambda: broken.stream().push(id),
    ):
        with pytest.raises(ModelError, match=r"^the tokenizer cannot make text of this token: it "):
            work()
