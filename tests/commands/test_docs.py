"""`chatapp docs search`, `ask --docs` and `run` with [documents], and wrong input in a sentence."""

import json

import pytest
from fakes import ScriptedModel

from chatapp.dialogue.documents import index


@pytest.fixture
def notes(tmp_path, monkeypatch):
    # The second file has little of the question.
    monkeypatch.setattr(index, "least_covered", lambda rarities: 0.0)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("# Clams\n\nA walrus eats clams.\n")
    (tmp_path / "notes" / "b.txt").write_text("Horses eat hay.\x1b[2J")
    return tmp_path / "notes"


def test_passages_as_json(run, notes):
    result = run("docs", "search", "what does a walrus eat", str(notes), "--limit", "1", "--json")
    (passage,) = json.loads(result.out)["passages"]
    assert passage.pop("score") > 0
    assert passage == {
        "file": str(notes / "a.md"),
        "place": "Clams, line 1",
        "text": "# Clams\n\nA walrus eats clams.",
    }


def test_passages_to_read(run, notes):
    result = run("docs", "search", "hay", str(notes), "--method", "both:tfidf")
    assert result.out.startswith(f"[1] {notes / 'b.txt'}, line 1 (")
    assert "Horses eat hay.␛[2J" in result.out
    assert "\x1b" not in result.out + result.err
    assert "1 of 2 passages of 2 files" in result.err


def test_wrong_input(run, notes):
    for arguments in (["gone.txt"], [str(notes), "--method", "bm2"], [str(notes / "*.pdf")]):
        result = run("docs", "search", "x", *arguments)
        assert result.status == 2
        assert result.out == ""
        assert result.err.count("\n") == 1


def test_an_answer_with_documents_names_its_sources(run, use_model, notes):
    model = use_model(ScriptedModel([" Clams."] * 2, context=200))
    arguments = ("ask", "What does a walrus eat?", "--docs", str(notes / "a.md"))
    result = run(*arguments, "--docs", str(notes / "*.txt"))
    assert result.out == "Clams.\n"
    assert f"[1] {notes / 'a.md'}, Clams, line 1" in result.err
    first = "[1] a.md, Clams, line 1\n# Clams\n\nA walrus eats clams.\n\n"
    assert f"{first}[2] b.txt, line 1\n" in model.prompts[0]
    document = json.loads(run(*arguments, "--json").out)
    assert [source["number"] for source in document["sources"]] == [1]


PROMPT = """
input_prefix = "Question: "
output_prefix = "Answer:"
stop = ["\\n"]
examples = [{input = "Who?", output = "Nobody."}]
[documents]
paths = ["notes"]
limit = 1
"""


@pytest.mark.parametrize("style", ["text", "turns"])
def test_a_prompt_file_with_documents(run, use_model, notes, tmp_path, style):
    model = use_model(ScriptedModel([" Clams."], context=200))
    (tmp_path / "task.toml").write_text(PROMPT + f'[chat]\nstyle = "{style}"\n')
    result = run("run", str(tmp_path / "task.toml"), "--input", "What does a walrus eat?")
    assert result == (0, "Clams.\n", "")
    passage = "[1] a.md, Clams, line 1\n# Clams\n\nA walrus eats clams.\n\n"
    assert (
        f"Question: Passages of documents:\n\n{passage}What does a walrus eat?"
        in (model.prompts[0])
    )


def test_an_evaluation_refuses_documents(run, use_model, notes, tmp_path):
    use_model(ScriptedModel([" Clams."]))
    (tmp_path / "task.toml").write_text(PROMPT)
    (tmp_path / "test.jsonl").write_text('{"input": "a", "output": "b"}\n')
    files = (str(tmp_path / "task.toml"), "--test", str(tmp_path / "test.jsonl"))
    result = run("eval", *files, "--report", str(tmp_path / "report"))
    assert result.status == 2
    assert "'documents' searches documents" in result.err
