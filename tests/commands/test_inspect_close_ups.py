"""`chatapp inspect`'s close-ups: sums that have to be equal, and what they refuse."""

import json

import pytest
from program import Run

TEXT = "he has [b]it[/b]"


def test_sums_are_equal(run: Run, folder: str) -> None:
    def document(*words: str) -> dict[str, dict[str, float]]:
        result = run("inspect", *words, "--model", folder, "--json")
        assert result.status == 0, result.err
        found: dict[str, dict[str, float]] = json.loads(result.out)
        return found

    weight: dict = document("weight", "1.0", TEXT)["weight"]
    assert sum(key["weight"] for key in weight["keys"]) == pytest.approx(1, abs=1e-4)
    neighbours = document("neighbours", "x")
    assert "text" not in neighbours
    assert neighbours["neighbours"]["of"] != document("state", "1", TEXT)["state"]["of"]
    neurons = document("neurons", "0.mlp", TEXT)["neurons"]
    assert neurons["total"] == pytest.approx(neurons["share"], abs=1e-3)


def test_bad_input_is_one_sentence(run: Run, folder: str) -> None:
    for words, sentence in (
        (("weight", "9.0", "he has"), "there is no layer 9"),
        (("weight", "1.mlp", "he has"), "expected a head"),
        (("neurons", "1.1", "he has"), "expected an MLP"),
        (("neurons", "x", "he has"), "names no part of a model"),
        (("state", "7", "he has"), "embed and the layers 0 to 1"),
        (("neighbours", "xyz"), "TOKEN is 'xyz', which is 3 tokens"),
        (("positions", "he has"), "give --with and a text"),
        (("positions", "he has", "--with", "x"), "with equally many, both get the same positions"),
        (("cross_attention", "he has"), "has no encoder beside its decoder"),
    ):
        result = run("inspect", *words, "--model", folder)
        assert result.status == 2, words
        assert sentence in result.err
        assert result.err.count("\n") == 1
