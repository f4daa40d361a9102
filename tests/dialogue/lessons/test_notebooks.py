"""The notebook of each lesson runs from top to bottom, and shows what its check expects."""

import re
from html import unescape
from pathlib import Path

import pytest

from chatapp.dialogue.lessons.lesson import NAMES, find_lesson
from chatapp.dialogue.lessons.notebook import notebook_of

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_what_its_lesson_says(name, tmp_path, monkeypatch):
    root = str(Path(__file__).parents[3])
    monkeypatch.setenv("PYTHONPATH", root)
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    lesson = find_lesson(name)
    notebook = nbformat.from_dict(notebook_of(lesson))
    nbformat.validate(notebook)
    nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    cells = iter(notebook.cells)
    for step in lesson.steps:
        while f"## {step.title}\n" not in next(cells).source:
            pass
        if not step.input or not (step.reply or step.view):
            continue
        while "display(" not in (cell := next(cells)).source:
            pass
        shown = [output for output in cell.outputs if "text/html" in output.get("data", {})]
        assert len(shown) == step.reply + (step.view is not None)
        if step.reply:
            reply = text_of(shown[0])
            assert [text for text in step.expect.reply if text not in reply] == []
            assert [text for text in step.expect.lacks if text in reply] == []
        if step.view is not None:
            assert "<iframe" in shown[-1].data["text/html"]
            assert len(shown[-1].data["text/plain"]) < 2000
    if lesson.teach:
        shown = [text_of(output) for cell in notebook.cells for output in cell.get("outputs", [])]
        curve = next(text for text in shown if "steps 1 to 8" in text)
        assert "8/8" in curve  # it grew in place
        assert re.search("[\u2801-\u28ff]", curve)


def text_of(output):
    """The text of HTML, without its marks."""
    shown = re.sub("<[^>]+>", "", output.get("data", {}).get("text/html", ""))
    return unescape(shown)
