"""`chatapp tokens`: what it prints, and what it refuses in a sentence."""

import json

import gguf
import pytest
from typer.testing import CliRunner

from chatapp.cli import app
from chatapp.common.userfiles import UserError


def printed(*arguments):
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_tokens_of_a_text(tmp_path):
    document = json.loads(printed("tokens", "Hello <|endoftext|>", "--json"))
    assert "".join(document["pieces"]) == "Hello <|endoftext|>"
    assert len(document["ids"]) == len(document["pieces"]) > 2
    file = tmp_path / "a.txt"
    file.write_text("Hello <|endoftext|>")
    assert json.loads(printed("tokens", "--file", str(file), "--json")) == document
    assert "Hello" in printed("tokens", "Hello").replace("│", "")


def test_a_vocabulary_without_weights(tmp_path):
    path = tmp_path / "words.gguf"
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a", "b", "ab", "<end>"])
    writer.add_token_types([1, 1, 1, 3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    document = json.loads(printed("tokens", "abba", "--model", str(path), "--json"))
    assert document == {"model": str(path), "ids": [2, 1, 0], "pieces": ["ab", "b", "a"]}


def test_a_text_or_a_file(tmp_path):
    for arguments in (["tokens"], ["tokens", "a", "--file", "b"]):
        with pytest.raises(UserError, match="give either a text or --file"):
            CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_cuts_and_bytes_are_seen_without_colours():
    lines = printed("tokens", "naïve").splitlines()
    assert lines[0][0] == lines[0][-1] == "│"
    assert lines[0].count("│") > 2
    assert lines[0].replace("│", "") == "na<C3><AF>ve"
    assert lines[1] == "ï = C3 AF"


def test_the_steps_of_a_text():
    document = json.loads(printed("tokens", "Hello there", "--steps", "--json"))
    ends = [word["steps"][-1]["tokens"] for word in document["words"]]
    assert [token for end in ends for token in end] == document["pieces"]
    shown = printed("tokens", "Hello there", "--steps").splitlines()
    assert shown[0] == "│H│e│l│l│o│"
    assert shown[-1] == f"{len(document['ids'])} tokens, the same as the tokenizer's own"


def test_a_vocabulary_is_learned_from_a_file(tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("hug 10\npug 5\npun 12\nbun 4\nhugs 5\n")
    learn = ("tokens", "--learn", str(file), "--merges", "3")
    document = json.loads(printed(*learn, "--json"))
    assert [(step["token"], step["count"]) for step in document["steps"]] == [
        ("ug", 20),
        ("un", 16),
        ("hug", 15),
    ]
    assert document["alphabet"] == list("bghnpsu")
    assert "20  u + g = ug" in printed(*learn)
    assert "##g + ##s = ##gs" in printed(*learn, "--method", "wordpiece")
    file.write_text(" \n")
    for arguments, words in (
        (learn, "there are no words"),
        ((*learn, "--steps"), "takes a file and no other text"),
        (("tokens", "--learn", str(tmp_path / "none")), "none"),
    ):
        with pytest.raises(UserError, match=words):
            CliRunner().invoke(app, list(arguments), catch_exceptions=False)
