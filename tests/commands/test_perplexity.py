"""`chatapp perplexity`: figures named by their units, and what is refused."""

import json
import math

import pytest
from fakes import ScriptedModel


@pytest.fixture
def model(use_model):
    return use_model(ScriptedModel([], context=16))


def test_each_figure_is_named(run, model, tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(b"\xef\xbb\xbffour words\r\nand one\n")
    made = json.loads(run("perplexity", str(file), "--json").out)
    tokens = len(model.tokenizer.encode("four words\r\nand one\n"))
    assert (made["tokens"], made["words"], made["bytes"], made["stride"]) == (tokens, 4, 20, 8)
    assert made["negative_log_likelihood"] == tokens
    assert made["per_token"] == pytest.approx(math.e)
    assert made["per_word"] == pytest.approx(math.exp(tokens / 4))
    assert made["per_byte"] == pytest.approx(math.exp(tokens / 20))
    shown = run("perplexity", str(file), "--stride", "3")
    assert shown.status == 0
    assert "perplexity per token: 2.718\n" in shown.out
    assert "stride 3\n" in shown.out
    assert shown.err == ""


@pytest.mark.parametrize(
    ("nats", "shown"), [(2.0, "7.389"), (4.0, "54.60"), (6.0, "403.4"), (13.58, "790,167")]
)
def test_figures_have_the_digits_that_mean_something(
    run, model, tmp_path, monkeypatch, nats, shown
):
    monkeypatch.setattr(
        model, "score", lambda pairs: [[-nats] * len(continuation) for _, continuation in pairs]
    )
    file = tmp_path / "text.txt"
    file.write_text("four words and one")
    assert f"perplexity per token: {shown}\n" in run("perplexity", str(file)).out


@pytest.mark.parametrize(
    ("content", "options", "error"),
    [
        (b" \n", [], "there are no words to predict"),
        (b"a\xff", [], "line 1: is not valid UTF-8"),
        (b"words", ["--stride", "16"], "the stride is 16; expected 1 to 15"),
        (None, [], "cannot be read: No such file"),
    ],
)
def test_what_the_user_can_put_right(run, model, tmp_path, content, options, error):
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content)
    result = run("perplexity", str(file), *options)
    assert result.status == 2
    assert error in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""
