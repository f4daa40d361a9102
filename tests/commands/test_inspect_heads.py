"""`chatapp inspect heads` and `texts`: tables, JSON, files, and what they refuse."""

import json
from pathlib import Path

import pytest
from program import Run
from tiny import changed

TEXTS = "The cat sat. The cat sat.\n\nHello you, hello you.\n"


@pytest.fixture
def texts(tmp_path: Path) -> str:
    path = tmp_path / "texts.txt"
    path.write_text(TEXTS)
    return str(path)


def test_every_head_by_every_measure(run: Run, folder: str, texts: str) -> None:
    options = ("inspect", "heads", "--model", folder, "--texts", texts)
    result = run(*options, "--json")
    assert result.status == 0, result.err
    document = json.loads(result.out)
    assert set(document) == {"model", "heads"}
    heads = document["heads"]
    assert sorted(row["name"] for row in heads) == ["0.0", "0.1", "1.0", "1.1"]
    assert {"previous", "duplicate", "induction", "copying", "entropy"} < set(heads[0])
    by_entropy = json.loads(run(*options, "--sort", "entropy", "--json").out)["heads"]
    values = [row["entropy"] for row in by_entropy]
    assert values == sorted(values, reverse=True)
    shown = run(*options).out
    assert f"Head {heads[0]['name']} has the largest induction score" in shown
    assert "Layers and heads" in shown


def test_the_changes_are_the_differences_of_both_scores(
    run: Run, folder: str, texts: str, tmp_path: Path
) -> None:
    other = changed(folder, tmp_path)
    common = ("inspect", "heads", "--texts", texts, "--sort", "previous_text")
    own, its = (
        {row["name"]: row for row in json.loads(run(*common, "--model", m, "--json").out)["heads"]}
        for m in (folder, other)
    )
    result = run(*common, "--model", folder, "--against", other, "--json")
    rows = json.loads(result.out)["heads"]
    for row in rows:
        for measure, change in row["change"].items():
            before, after = its[row["name"]][measure], own[row["name"]][measure]
            assert change == pytest.approx(after - before, abs=1e-4)
    sizes = [abs(row["change"]["previous_text"]) for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 0
    shown = run(*common, "--model", folder, "--against", other).out
    assert f"{rows[0]['change']['previous_text']:+.2f}" in shown


def test_bad_input_is_one_sentence(run: Run, folder: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    for options, words in (
        (("heads", "--sort", "x"), "'x' is no measure of a head"),
        (("texts", "1"), "1: expected a head"),
        (("texts", "9.0"), "there is no layer 9"),
        (("heads", "--texts", str(empty)), "there is no text in this file"),
        (("heads", "a text", "--texts", str(empty)), "either a text or --texts"),
        (("heads", "a"), "at least two tokens"),
    ):
        result = run("inspect", *options, "--model", folder)
        assert result.status == 2, options
        assert words in result.err
        assert result.err.count("\n") == 1
