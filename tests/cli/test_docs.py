"""`chatapp docs search`: passages as text and as JSON, and wrong input in a sentence."""

import json
from pathlib import Path

import pytest
from conftest import Run


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("# Clams\n\nA walrus eats clams.\n")
    (tmp_path / "notes" / "b.txt").write_text("Horses eat hay.\x1b[2J")
    return tmp_path / "notes"


def test_passages_as_json(run: Run, notes: Path) -> None:
    result = run("docs", "search", "what does a walrus eat", str(notes), "--limit", "1", "--json")
    (passage,) = json.loads(result.out)["passages"]
    assert passage.pop("score") > 0
    assert passage == {
        "file": str(notes / "a.md"),
        "place": "Clams, line 1",
        "text": "# Clams\n\nA walrus eats clams.",
    }


def test_passages_to_read(run: Run, notes: Path) -> None:
    result = run("docs", "search", "hay", str(notes), "--method", "both:tfidf")
    assert result.out.startswith(f"[1] {notes / 'b.txt'}, line 1 (")
    assert "Horses eat hay.␛[2J" in result.out
    assert "\x1b" not in result.out + result.err
    assert "1 of 2 passages of 2 files" in result.err


def test_wrong_input(run: Run, notes: Path) -> None:
    for arguments in (["gone.txt"], [str(notes), "--method", "bm2"], [str(notes / "*.pdf")]):
        result = run("docs", "search", "x", *arguments)
        assert result.status == 2
        assert result.out == ""
        assert result.err.count("\n") == 1
