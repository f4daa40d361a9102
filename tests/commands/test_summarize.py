"""`chatapp summarize`: a document longer than the window, and the places of each sentence."""

import json

import pytest
from fakes import ScriptedModel

PARAGRAPHS = [f"Paragraph{n} has the word{n} and {'more ' * 20}text." for n in range(12)]


def last_text(prompt):
    """The first two words of the text to summarize, as a sentence."""
    asked = prompt.rsplit("Text:", 1)[1].removesuffix("Summary:").split()
    return f" {' '.join(asked[:2]).rstrip('.')}."


@pytest.fixture
def document(tmp_path, use_model):
    use_model(ScriptedModel(last_text, context=200))
    path = tmp_path / "long.txt"
    path.write_text("\n\n".join(PARAGRAPHS))
    return str(path)


def test_every_passage_is_summarised_and_each_sentence_has_its_places(run, document):
    made = json.loads(run("summarize", document, "--json").out)
    first, *_, last = made["levels"]
    assert len(first) > 3
    assert len(last) == 1
    assert [place for each in first for place in each["passages"]] == last[0]["passages"]
    assert made["summary"] == last[0]["text"] == "Paragraph0 has."
    assert made["sentences"][0]["text"] == "Paragraph0 has."
    assert made["sentences"][0]["passages"][0] == "line 1"
    shown = run("summarize", document)
    assert (shown.status, shown.err) == (0, "")
    assert shown.out.startswith("Paragraph0 has.  [line 1")
    assert f"{len(first)} passages; summaries on each level: {len(first)}, " in shown.out
    outline = [line for line in shown.out.splitlines() if line.startswith("[")]
    assert outline == [f"[{each['passages'][0]}]  {each['text']}" for each in first]


def test_a_document_is_read_in_another_process(run, document, monkeypatch):
    monkeypatch.setattr("chatapp.dialogue.documents.passages.read_blocks", pytest.fail)
    assert run("summarize", document).out.startswith("Paragraph0 has.  [line 1")


def test_a_model_that_is_too_small_for_it_says_so(run, tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("The council met on Monday and voted to repair the old pool.")
    shown = run("summarize", str(path), "--model", "bundled")
    assert shown.status == 0
    assert shown.err.startswith("chatapp: bundled has 3.7 million parameters, too few for a")
    assert shown.out.splitlines()[0].endswith("  [no passage]")  # "Thirty drivers, the old pool …"


def test_what_is_no_document_or_no_summary_is_refused(run, tmp_path):
    path = tmp_path / "empty.txt"
    path.write_text("")
    shown = run("summarize", str(path))
    assert (shown.status, shown.out, shown.err.count("\n")) == (2, "", 1)
    shown = run("summarize", str(path), "--prompt", "spam")
    assert "does not turn a text into another" in shown.err
