"""`chatapp inspect`'s close-ups: tables that fit, JSON, and what they refuse."""

import json
from pathlib import Path

import pytest
from program import Run

ALL = ("--neighbours", "x", "--state", "1", "--weight", "1.0", "--norms", "--neurons", "0.mlp",
    "--positions", "it has [b]he[/b]")  # fmt: skip


@pytest.mark.parametrize("width", [60, 100, 200])
def test_all_of_them(
    run: Run, folder: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    options = ("inspect", "he has [b]it[/b]", *ALL, "--model", folder)
    result = run(*options)
    assert result.status == 0, result.err
    assert max(map(len, result.out.split("\n"))) <= width
    for words in ("Neighbours", "Weight", "Norms", "Neurons", "Positions"):
        assert words in result.out
    assert "Next token" not in result.out
    document = json.loads(run(*options, "--json").out)
    assert {"neighbours", "state", "weight", "norms", "neurons", "positions"} < set(document)
    assert sum(key["weight"] for key in document["weight"]["keys"]) == pytest.approx(1, abs=1e-4)
    assert document["neighbours"]["of"] != document["state"]["of"]
    neurons = document["neurons"]
    assert neurons["total"] == pytest.approx(neurons["share"], abs=1e-3)
    file = tmp_path / "close.html"
    assert run(*options, "--output", str(file)).status == 0


def test_bad_input_is_one_sentence(run: Run, folder: str) -> None:
    for options, words in (
        (("--weight", "9.0"), "there is no layer 9"),
        (("--weight", "1.mlp"), "expected a head"),
        (("--neurons", "1.1"), "expected an MLP"),
        (("--neurons", "x"), "names no part of a model"),
        (("--state", "7"), "embed and the layers 0 to 1"),
        (("--neighbours", "xyz"), "--neighbours"),
        (("--positions", "x"), "with equally many, both get the same positions"),
    ):
        result = run("inspect", "he has", *options, "--model", folder)
        assert result.status == 2, options
        assert words in result.err
        assert result.err.count("\n") == 1
