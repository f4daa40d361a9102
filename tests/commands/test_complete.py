"""`chatapp complete`: a text goes on as it stands."""

import json

import pytest
from fakes import ScriptedModel
from tiny import write_tiny_gpt2


def test_complete_goes_on_with_the_text(run, use_model):
    model = use_model(ScriptedModel([" scientists found …\n"]))
    assert run("complete", "In a shocking finding,").out == " scientists found …\n"
    run("complete", stdin=b"From a pipe\n")
    run("complete", "Both: ", stdin=b"two\n\n")
    assert model.prompts == ["In a shocking finding,", "From a pipe", "Both: two\n"]
    document = json.loads(run("complete", "In", "--json").out)
    assert list(document) == list(json.loads(run("ask", "Hi", "--json").out))
    assert document["template"] is None


def test_an_answer_without_parts_says_so(run, tmp_path_factory):
    folder = str(write_tiny_gpt2(tmp_path_factory.mktemp("model"), context=256))
    options = ("--model", folder, "--temperature", "0", "--max-tokens", "8")
    for command in ("complete", "ask"):
        whole = run(command, "User: he has", *options)
        changed = run(command, "User: he has", *options, "--ablate", "0,1.mlp")
        assert whole.status == changed.status == 0, changed.err
        assert whole.out != changed.out
        assert changed.err == "chatapp: the answer is of the model without 0 1.mlp\n"
        document = json.loads(run(command, "Hi", *options, "--ablate", "1.0", "--json").out)
        assert document["changes"] == "without 1.0"
    refused = run("ask", "Hi", *options, "--ablate", "7.1")
    assert refused.status == 2
    assert refused.err == "chatapp: 7.1: there is no layer 7; the model has 2, numbered 0 to 1\n"


def test_a_model_without_such_parts_says_so(run, use_model):
    use_model(ScriptedModel(["Ok."]))
    refused = run("complete", "Hi", "--ablate", "0.1")
    assert refused.status == 2
    assert "only models that chatapp computes itself have parts" in refused.err


@pytest.mark.parametrize("text", ["", " \n "])
def test_complete_refuses_an_empty_text(run, use_model, text):
    use_model(ScriptedModel([" Ok."]))
    status, out, err = run("complete", text)
    assert (status, out) == (2, "")
    assert err.startswith("chatapp: there is no text to continue")
