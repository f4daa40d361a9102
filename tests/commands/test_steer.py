"""`chatapp steer` makes, lists and tries directions, and `ask --steer` adds them to an answer."""

import json

import pytest

from chatapp.lab.steering import directions_dir

PAIRS = [("a b", "c d"), ("good day", "bad day")]


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    rows = [{"positive": one, "negative": other} for one, other in PAIRS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_direction_from_making_to_an_answer(run, folder, pairs):
    made = run("steer", "make", "calm", pairs, "--model", folder, "--layer", "1")
    assert made.status == 0, made.err
    assert "calm is made from 2 pairs, for layer 1" in made.err
    listed = json.loads(run("steer", "list", "--json").out)
    assert listed == {"directions": [{"name": "calm", "layers": [1]}]}
    assert run("steer", "list").out == "calm  layers 1\n"
    again = run("steer", "make", "calm", pairs, "--model", folder)
    assert again.status == 2
    assert "--force replaces it" in again.err
    assert run("steer", "make", "calm", pairs, "--model", folder, "--force").status == 0

    sweep = ("steer", "sweep", "calm", "Hi", "--model", folder, "--max-tokens", "6")
    replies = json.loads(run(*sweep, "--strengths", "0,3", "--json").out)["replies"]
    assert [reply["strength"] for reply in replies] == [0, 3]
    assert replies[0]["kl"] == 0
    assert replies[1]["kl"] > 0
    shown = run(*sweep, "--strengths", "0,3").out
    assert "strength 3  KL" in shown

    ask = ("ask", "Hi", "--model", folder, "--temperature", "0", "--max-tokens", "6", "--json")
    plain, zero = json.loads(run(*ask).out), json.loads(run(*ask, "--steer", "calm=0").out)
    assert zero["reply"] == plain["reply"]
    assert "changes" not in zero
    steered = json.loads(run(*ask, "--steer", "calm=3").out)
    assert steered["changes"] == "with calm 3"


def test_bad_input_is_one_sentence(run, folder, pairs):
    directions_dir().mkdir(parents=True)
    for arguments, words in (
        (("ask", "Hi", "--steer", "calm"), "expected a direction and a strength"),
        (("ask", "Hi", "--steer", "calm=1"), "calm: there is no such direction"),
        (("steer", "make", "a b", pairs), "is not a name of a direction"),
        (("steer", "make", "x" * 300, pairs), "is not a valid path: it is too long"),
        (("ask", "Hi", "--steer", f"{'x' * 300}=1"), "is not a valid path: it is too long"),
        (("steer", "make", "calm", pairs, "--layer", "7"), "layers 0 to 1"),
        (("steer", "sweep", "nosuch", "Hi"), "nosuch: there is no such direction"),
        (("steer", "sweep", "nosuch", "Hi", "--strengths", "a"), "expected numbers"),
    ):
        result = run(*arguments, "--model", folder)
        assert result.status == 2, arguments
        assert words in result.err
        assert result.err.count("\n") == 1
