"""Commands with a model on a server: what they print, and what they say it cannot do."""

import json

import pytest
from completions_server import CompletionsServer, break_off, piece, said, usage


@pytest.fixture
def server(home):
    """A server that goes by the name `mine` too."""
    with CompletionsServer().running() as server:
        server.models = [{"id": "tiny", "max_model_len": 256}]
        (home / "config").mkdir(parents=True)
        (home / "config/servers.toml").write_text(f'[mine]\nurl = "{server.url}"\n')
        yield server


def test_ask(run, server):
    server.stream = [*said(" It", " is.")[:-1], usage(31, 2, cached=30), "[DONE]"]
    status, out, err = run("ask", "Is it?", "--model", server.url, "--seed", "7")
    assert (status, out, err) == (0, "It is.\n", "")
    assert "User: Is it?\nAssistant:" in server.requests[0]["prompt"]
    assert server.requests[0]["seed"] == 7
    document = json.loads(run("ask", "Is it?", "--model", "mine", "--json").out)
    assert document["reply"] == "It is."
    assert (document["prompt_tokens"], document["reused_tokens"]) == (31, 30)
    assert document["model"] == "mine"


def test_complete(run, server):
    server.stream = said(" one\x1b[31m")
    status, out, _ = run("complete", "Once ", "--model", "mine#tiny")
    assert (status, out) == (0, " one␛[31m\n")
    assert server.requests[0]["prompt"] == "Once"


def test_a_server_that_breaks_off(run, server):
    server.stream = [piece(" It is"), break_off]
    status, out, err = run("ask", "Is it?", "--model", "mine")
    assert (status, out) == (1, "It is\n")
    assert "broke off the connection" in err


def test_what_needs_the_model_itself(run, server, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("It was the best of times.")
    for command in (
        ["perplexity", str(text)],
        ["inspect", "Hello"],
        ["bench"],
        ["run", "spam", "--input", "You have won."],
    ):
        status, out, err = run(*command, "--model", "mine")
        assert (status, out, err.count("\n")) == (2, "", 1)
        reasons = ("on this machine", "cannot be inspected", "scoring needs a server")
        assert any(reason in err for reason in reasons)


def test_run_generates(run, server):
    server.stream = said(" I like it.", "\n")
    server.models = [{"id": "tiny", "max_model_len": 2048}]
    status, out, err = run("run", "grammar", "--input", "I likes it.", "--model", "mine")
    assert (status, out, err) == (0, "I like it.\n", "")


def test_models(run, server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert f"mine     server · {server.url}\n" in run("models", "list").out
    listed = json.loads(run("models", "list", "--json").out)
    assert {"name": "mine", "origin": "server", "server": server.url} in listed
    assert server.keys == []
    expected = {"name": "mine#tiny", "server": server.url, "model": "tiny", "context": 256}
    expected["protocol"] = "completions"
    assert json.loads(run("models", "info", "mine", "--json").out) == expected
    assert "context   256 tokens\n" in run("models", "info", server.url).out
    assert run("models", "info", "mine#huge").status == 2
