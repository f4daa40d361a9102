"""`chatapp inspect`: the same numbers in the terminal, in JSON and in files; text stays text."""

import json
import math
import re
from pathlib import Path

import pytest
from fakes import ScriptedModel
from program import Run

from chatapp.engine.models.loading import load_model
from chatapp.lab.views import FIRST

TEXT = "User: he has"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
FOREIGN = "[b]x[/b] \x1b[2J </pre><script>alert(1)</script> & \u202egnp \ta\nb"


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)


def probabilities(candidates):
    return [each["probability"] for each in candidates]


def test_the_help_names_what_is_shown_without_a_view(run):
    words = " ".join(run("inspect", "--help").out.split())
    assert f"Without a VIEW: {', '.join(view.name for view in FIRST)}." in words


def test_the_document_holds_the_models_numbers(run, folder):
    result = run("inspect", TEXT, "--model", folder, "--json", "--top", "4", "--top-k", "2")
    assert result.status == 0
    document = json.loads(result.out)
    model = load_model(folder)
    ids = model.tokenizer.encode(TEXT)
    tokens = document["tokens"]
    assert [token["id"] for token in tokens] == ids
    assert "".join(token["text"] for token in tokens) == TEXT
    assert tokens[0]["probability"] is None
    (scores,) = model.score([(ids[:1], ids[1:])])
    for token, score in zip(tokens[1:], scores, strict=True):
        assert token["probability"] == pytest.approx(math.exp(score), abs=1e-5)
        assert len(token["alternatives"]) == 4
        assert token["rank"] >= 1
        assert token["entropy"] > 0
    attention = document["attention"]
    assert (len(attention), len(attention[0])) == (2, 2)
    for layer in attention:
        for head in layer:
            for place, row in enumerate(head):
                assert len(row) == len(ids)
                assert sum(row) == pytest.approx(1.0, abs=1e-5)
                assert not any(row[place + 1 :])
    layers = document["layers"]
    assert (len(layers), len(layers[0])) == (3, len(ids))
    assert [row[0]["layer"] for row in layers] == ["embed", "0", "1"]
    after = document["next"]
    assert probabilities(layers[2][-1]["alternatives"]) == pytest.approx(
        probabilities(after["candidates"]), abs=1e-6
    )
    assert after["kept"] <= 2
    assert sum(each["drawn"] for each in after["candidates"]) == pytest.approx(1.0, abs=1e-5)
    assert all(each["drawn"] == 0 for each in after["candidates"][2:])


def test_one_token_gives_its_row(run, folder):
    whole = json.loads(run("inspect", TEXT, "--model", folder, "--json").out)
    options = ("--json", "--token", "-2")
    one = json.loads(run("inspect", TEXT, "--model", folder, *options).out)
    for name in ("attention", "layers"):
        alone = json.loads(run("inspect", name, TEXT, "--model", folder, *options).out)
        assert set(alone) == {"model", "text", name}
        assert alone[name] == one[name]
    place = len(whole["tokens"]) - 2
    for ours, theirs in zip(one["attention"], whole["attention"], strict=True):
        for our, their in zip(ours, theirs, strict=True):
            assert our == pytest.approx(their[place][: place + 1], abs=1e-6)
    for our, row in zip(one["layers"], whole["layers"], strict=True):
        assert probabilities(our["alternatives"]) == pytest.approx(
            probabilities(row[place]["alternatives"]), abs=1e-6
        )


def test_long_texts_ask_for_one_token(run, folder):
    text = "x" * 200
    refused = run("inspect", text, "--model", folder, "--json")
    assert refused.status == 2
    assert "200 tokens" in refused.err
    assert "--token" in refused.err
    assert run("inspect", text, "--model", folder, "--json", "--token", "150").status == 0
    assert run("inspect", "tokens", text, "--model", folder, "--json").status == 0
    too_long = run("inspect", "x" * 300, "--model", folder)
    assert too_long.status == 2
    assert "300 tokens" in too_long.err


def test_the_terminal_shows_all_of_it(run, folder):
    result = run("inspect", TEXT, "--model", folder)
    assert result.status == 0
    assert max(map(len, result.out.split("\n"))) <= 100
    for words in (
        "Tokens  9 tokens",
        "Next token  The likeliest",
        "Attention  Token 8 ",
        "Layers  After token 8 ",
    ):
        assert words in result.out
    document = json.loads(run("inspect", "tokens", TEXT, "--model", folder, "--json").out)
    shown = result.out[result.out.index("#") : result.out.index("Next token")].split("\n")
    for row, token in zip(shown[2:], document["tokens"][1:], strict=False):
        assert f"{token['rank']:,}" in row.split()
        assert f"{token['entropy']:.1f}" in row.split()


def test_a_view_can_be_chosen(run, folder):
    only = run("inspect", "layers", TEXT, "--model", folder).out
    assert "Layers" in only
    assert "Tokens" not in only
    one = run("inspect", "attention", TEXT, "--model", folder, "--layer", "1", "--head", "0").out
    assert "layer 1, head 0" in one
    named = run("inspect", "text", "layers", "--model", folder).out
    assert "Tokens  " in named, "a text may be the name of a view"


def test_colours_only_where_there_are_some(run, folder, monkeypatch):
    assert "\x1b" not in run("inspect", TEXT, "--model", folder).out
    coloured = run("inspect", TEXT, "--model", folder, terminal=True).out
    assert "48;2;" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    plain = run("inspect", TEXT, "--model", folder, terminal=True).out
    assert not re.search(r"\x1b\[[\d;]*[34]8;", plain)


def test_foreign_text_is_shown_and_never_obeyed(run, folder):
    result = run("inspect", FOREIGN, "--model", folder, "--top", "3")
    assert result.status == 0
    assert not OBEYED.search(result.out)
    assert "[b]x[/b]" in result.out
    assert json.loads(run("inspect", "tokens", FOREIGN, "--model", folder, "--json").out)


def test_an_existing_file_is_replaced_only_when_asked(run, folder, tmp_path):
    target = tmp_path / "page.html"
    target.write_text("mine")
    command = ("inspect", "x", "--model", folder, "--output", str(target))
    result = run(*command)
    assert (result.status, result.out) == (2, "")
    assert "this file already exists; --force replaces it" in result.err
    assert target.read_text() == "mine"
    assert run(*command, "--force").status == 0
    assert "<html" in target.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x", "--output", "page.pdf"], "page.pdf: unsupported file type"),
        (["x", "--output", "nowhere/page.html"], "cannot be written"),
        (["x", "--output", "a.svg", "--json"], "not both"),
        (["x", "--token", "1"], "--token is 1; the text has 1 tokens"),
        (["x", "--token", "-2"], "--token is -2"),
        (["x", "--layer", "2"], "--layer is 2; the model has 2"),
        (["x", "--head", "-1"], "--head is -1; the model has 2"),
        ([], "there is no text"),
        (["x", "--top-p", "7"], "top_p is 7.0"),
    ],
)
def test_wrong_input(
    run: Run, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    arguments: list[str], words: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    result = run("inspect", *arguments, "--model", folder)
    assert result.status == 2
    assert words in result.err
    assert result.out == ""
    assert list(tmp_path.glob("*.*")) == []


def test_standard_input_and_models_that_do_not_show_their_inside(run, folder, use_model):
    out = run("inspect", "tokens", "--model", folder, "--json", stdin=TEXT.encode()).out
    assert json.loads(out)["text"] == TEXT
    assert run("inspect", "--model", folder, stdin=TEXT.encode()).out.startswith("Tokens")
    use_model(ScriptedModel(["x"]))
    result = run("inspect", "x")
    assert result.status == 2
    assert "scripted: this kind of model cannot be inspected" in result.err
