"""Vocabularies of GGUF files: the ids of llama.cpp, and sentences for what is not known."""

import os
from pathlib import Path

import pytest
from gguf_files import write_file

from chatapp.engine.errors import ModelError
from chatapp.engine.files.gguf.pre_tokenizers import PRE_TOKENIZERS, pre_tokenizer
from chatapp.engine.files.gguf.reader import GGUFFile
from chatapp.engine.files.gguf.vocabulary import TokenType, gguf_tokenizer
from chatapp.engine.models.loading import read_tokenizer

LETTERS = [*"abcdehlorstuw", "Ġ", "1", "2", "!"]
BYTE_LEVEL = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": [*LETTERS, "12", "lo", "Ġlo", "<|end|>", "<tool>"],
    "tokenizer.ggml.token_type": [1] * (len(LETTERS) + 3) + [3, 4],
    "tokenizer.ggml.merges": ["1 2", "l o", "Ġ lo", "no such", "Ġ such"],
}
PIECES = {"<unk>": 0.0, "<s>": 0.0, "▁": -9.0, "a": -8.0, "b": -8.0, "ab": -1.0, "▁a": -2.0}
SENTENCEPIECE = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": [*PIECES, "<0xF0>", "<0x9F>", "<0xA6>", "<0x99>"],
    "tokenizer.ggml.scores": [*PIECES.values(), 0.0, 0.0, 0.0, 0.0],
    "tokenizer.ggml.token_type": [TokenType.UNKNOWN, TokenType.CONTROL, *[1] * 5, *[6] * 4],
    "tokenizer.ggml.unknown_token_id": 0,
}


def tokens(tokenizer, text):
    return list(tokenizer.encode(text, add_special_tokens=False).tokens)


def test_byte_level_with_its_way_of_cutting():
    tokenizer = gguf_tokenizer(BYTE_LEVEL, "a.gguf")
    assert tokens(tokenizer, "hello lo 12!") == [*("h", "e", "l", "lo", "Ġlo", "Ġ", "12", "!")]
    digits = gguf_tokenizer(BYTE_LEVEL | {"tokenizer.ggml.pre": "smollm"}, "a.gguf")
    assert tokens(digits, "12") == ["1", "2"]
    assert tokenizer.decode([13, 0], skip_special_tokens=False) == " a"


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        (
            "deepseek-llm",
            "It's 12\nλόγος ա日",
            ["It", "'", "s", " ", "12", "\n", "λόγος", " ա", "日"],
        ),
        ("spark2_5", "a1234!\n", ["a", *"123", "4", "!", "\n"]),
        ("jais-2", "a" + " " * 7 + "b", ["a", " " * 4, " " * 2, " b"]),
        ("qwen35", "हिन्दी 12", ["हिन्दी", " ", "1", "2"]),
        ("ufakzeka", "Ali'nin", ["Ali", "'nin"]),
        ("seed-coder", "a;\n\n", ["a", ";", "\n\n"]),
        ("tiny_aya", "12345 camelCase", ["12", "345", " camelCase"]),
        ("laguna", "a\n b", ["a", "\n", " b"]),
        ("chameleon", "IMGIMGABZ x1", ["IMGIMGABZ", " x", "1"]),
        ("youtu", "camelCase한국 12", ["camelCase", "한국", " ", "1", "2"]),
        ("exaone-moe", "the big cat 1", ["the big cat", " ", "1"]),
        ("hunyuan-dense", "a1234", ["a", "123", "4"]),
        ("minicpm5", "don't 1234", ["don", "'t", " ", "123", "4"]),
        ("superbpe", "12345 a b", ["12", "345", " a b"]),
        ("kimi-k2", "camelCase日本 x's 1234", ["camelCase", "日本", " x's", " ", "123", "4"]),
        ("afmoe", "a12345 日本\n", ["a", "12", "345", " ", "日本", "\n"]),
        ("gemma4", "a b\n\nc", ["a b", "\n\n", "c"]),
        ("whitespace", "a-b  c", ["a-b", "  ", "c"]),
    ],
)
def test_how_a_method_cuts(name, text, pieces):
    places = [place for _, place in pre_tokenizer(name).pre_tokenize_str(text)]
    assert [text[start:end] for start, end in places] == pieces


def test_every_method_cuts_and_loses_nothing():
    text = "It's 12 λόγος, ա日 हिन्दी camelCase\n\n  x1!\t~ "
    for name in PRE_TOKENIZERS:
        places = [place for _, place in pre_tokenizer(name).pre_tokenize_str(text)]
        assert "".join(text[start:end] for start, end in places) == text, name


def test_characters_with_marked_spaces():
    vocabulary = ["a", "b", "▁", "▁a", "\n", "<0xC3>", "<0xA9>"]
    keys = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": vocabulary,
        "tokenizer.ggml.merges": ["▁ a"],
    }
    tokenizer = gguf_tokenizer(keys, "a.gguf")
    assert tokens(tokenizer, "b a\né") == ["b", "▁a", "\n", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("b a\né").ids) == "b a\né"
    plain = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "whitespace"}
    assert tokens(gguf_tokenizer(keys | plain, "a.gguf"), "a b") == ["a", "b"]


def test_control_tokens_are_special_and_those_of_the_user_are_not():
    tokenizer = gguf_tokenizer(BYTE_LEVEL, "a.gguf")
    assert tokens(tokenizer, "a<|end|><tool>") == ["a", "<|end|>", "<tool>"]
    kinds = {
        token.content: token.special for token in tokenizer.get_added_tokens_decoder().values()
    }
    assert kinds == {"<|end|>": True, "<tool>": False}


def test_sentencepiece_merges_the_best_score_first():
    tokenizer = gguf_tokenizer(SENTENCEPIECE, "a.gguf")
    assert tokens(tokenizer, "ab") == ["▁", "ab"]  # ab is better than ▁a
    assert tokens(tokenizer, "aa") == ["▁a", "a"]
    assert tokenizer.decode(tokenizer.encode("ab 🦙").ids) == "ab 🦙"
    bare = gguf_tokenizer(SENTENCEPIECE | {"tokenizer.ggml.add_space_prefix": False}, "a.gguf")
    assert tokens(bare, "🦙") == ["<0xF0>", "<0x9F>", "<0xA6>", "<0x99>"]
    assert bare.decode(bare.encode("ab 🦙").ids) == "ab 🦙"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer.ggml.model": "bert"}, "model is the string 'bert'; expected 'gpt2'"),
        ({"tokenizer.ggml.pre": "smolm"}, "'smolm', an unknown way .* did you mean 'smollm'"),
        ({"tokenizer.ggml.model": "b" * 10**6}, "model is the string 'b{60}'…; expected 'gpt2'"),
        ({"tokenizer.ggml.pre": ["gpt-2"]}, "tokenizer.ggml.pre is a list, an unknown way"),
        ({"tokenizer.ggml.tokens": []}, "there is no vocabulary"),
        ({"tokenizer.ggml.model": "llama"}, "scores does not have one score per token"),
    ],
)
def test_what_is_not_known_is_refused_by_name(change, words):
    with pytest.raises(ModelError, match=f"a.gguf: .*{words}"):
        gguf_tokenizer(BYTE_LEVEL | change, "a.gguf")


def published():
    data = os.environ.get("SHARED_DATA", "")
    return sorted(Path(data, "vocabularies").glob("*.gguf")) if data else []


@pytest.mark.parametrize("path", published() or [None], ids=lambda path: path.stem if path else "-")
def test_vocabularies_of_real_models(path):
    if path is None:
        pytest.skip("the shared data is not there; name its folder in SHARED_DATA")
    metadata = GGUFFile(path).metadata
    tokenizer = gguf_tokenizer(metadata, path.name)
    tokenizer.encode_special_tokens = True
    read = path.with_name(f"{path.name}.inp").read_bytes().decode()
    texts = read.split("\n__ggml_vocab_test__\n")
    lines = path.with_name(f"{path.name}.out").read_text(encoding="utf-8").split("\n")
    expected = [[int(id) for id in line.split()] for line in lines]
    for text, ids in zip(texts, expected, strict=True):
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids, text


def test_a_text_that_goes_on_gets_no_space_before_it(tmp_path):
    pieces = {**PIECES, "c": -8.0, "<0x0A>": 0.0}
    types = [TokenType.UNKNOWN, TokenType.CONTROL, *[TokenType.NORMAL] * 6, TokenType.BYTE]
    keys = {
        "tokenizer.ggml.tokens": list(pieces),
        "tokenizer.ggml.scores": list(pieces.values()),
        "tokenizer.ggml.token_type": [int(type) for type in types],
    }

    def more(writer):
        writer.add_tokenizer_model("llama")
        for key, values in keys.items():
            writer.add_array(key, values)
        writer.add_eos_token_id(1)

    path = write_file(tmp_path / "a.gguf", {"general.architecture": "llama"}, {}, more=more)
    tokenizer = read_tokenizer(str(path))
    whole = tokenizer.encode("ab ab")
    assert tokenizer.encode("ab") + tokenizer.encode(" ab", begins=False) == whole
    assert tokenizer.encode("ab", begins=False) == [list(pieces).index("ab")]
    stream = tokenizer.stream()
    text = "".join(stream.push(id) for id in tokenizer.encode(" ab", begins=False))
    assert text + stream.flush() == " ab"
    assert tokenizer.decode(whole) == "ab ab"
