"""`chatapp inspect --lens-from` and `--layers --against`: what they keep, print and refuse."""

import json
from pathlib import Path

import pytest
from program import Run
from tiny import changed, write_tiny_gpt2

TEXT = "User: he has"
LINES = "a text of more than sixteen tokens\n\nand another one, which is as long\n"


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_gpt2(tmp_path_factory.mktemp("model"), context=256))


@pytest.fixture(scope="session")
def other(folder: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return changed(folder, tmp_path_factory.mktemp("other"))


def test_a_computed_lens_is_shown_with_the_layers(
    run: Run, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("inspect", TEXT, "--model", folder, "--layers")
    assert "Jacobian lens" not in run(*options).out
    texts = tmp_path / "texts.txt"
    texts.write_text(LINES)
    made = run("inspect", "--lens-from", str(texts), "--model", folder, "--json")
    assert made.status == 0, made.err
    lens = json.loads(made.out)["lens"]
    assert Path(lens["path"]).stat().st_size == lens["size"]
    assert lens["positions"] > 0
    for width in (60, 100, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        shown = run(*options).out
        assert "logit lens" in shown
        assert "Jacobian lens" in shown
        assert max(map(len, shown.split("\n"))) <= width
    rows = json.loads(run(*options, "--json", "--token", "-1").out)["layers"]
    assert [row["layer"] for row in rows] == ["embed", "0", "1"]
    assert rows[2]["jacobian"] == {key: rows[2][key] for key in ("entropy", "alternatives")}
    assert rows[0]["jacobian"]["alternatives"] != rows[0]["alternatives"]
    assert "saved in" in run("inspect", "--lens-from", str(texts), "--model", folder).out


def test_layers_against_another_model(run: Run, folder: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    options = ("inspect", TEXT, "--model", folder, "--layers", "--against", folder)
    found = json.loads(run(*options, "--json").out)["divergence"]
    assert found["logit"] == pytest.approx([0, 0, 0], abs=1e-6)
    assert run(*options, "--output", str(page)).status == 0
    assert "Divergence" in run(*options).out


def test_both_lenses_show_what_another_model_predicts_otherwise(
    run: Run, folder: str, other: str, tmp_path: Path
) -> None:
    options = ("inspect", TEXT, "--model", folder, "--layers", "--against", other)
    without = json.loads(run(*options, "--json").out)["divergence"]
    assert without["jacobian"] == []
    assert [value > 0 for value in without["logit"]] == [False, True, True]
    texts = tmp_path / "texts.txt"
    texts.write_text(LINES)
    for model in (folder, other):
        assert run("inspect", "--lens-from", str(texts), "--model", model).status == 0
    found = json.loads(run(*options, "--json").out)["divergence"]
    assert found["logit"] == without["logit"]
    assert found["jacobian"][-1] == pytest.approx(found["logit"][-1], abs=1e-5), "the last J is 1"
    assert found["jacobian"][0] > 1e-6, "what comes after equal embeddings differs"
    shown = run(*options).out
    assert "Jacobian lens" in shown
    for value in (*found["logit"], *found["jacobian"]):
        assert f"{value:.4f}" in shown


def test_bad_lens_input_is_one_sentence(run: Run, folder: str, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("short")
    for options, words in (
        (("--lens-from", str(tmp_path / "none.txt")), "none.txt"),
        (("--lens-from", str(short)), "no text has more than 16 tokens"),
        ((TEXT, "--layers", "--against", "bundled"), "layers are compared where"),
    ):
        result = run("inspect", *options, "--model", folder)
        assert result.status == 2, options
        assert words in result.err
        assert result.err.count("\n") == 1
