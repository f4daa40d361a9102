"""`chatapp complete`: a text goes on as it stands."""

import json

import pytest
from fakes import ScriptedModel
from program import UseModel


def test_complete_goes_on_with_the_text(run, use_model: UseModel) -> None:
    model = use_model(ScriptedModel([" scientists found …\n"]))
    assert run("complete", "In a shocking finding,").out == " scientists found …\n"
    run("complete", stdin=b"From a pipe\n")
    run("complete", "Both: ", stdin=b"two\n\n")
    assert model.prompts == ["In a shocking finding,", "From a pipe", "Both: two\n"]
    document = json.loads(run("complete", "In", "--json").out)
    assert list(document) == list(json.loads(run("ask", "Hi", "--json").out))
    assert document["template"] is None


@pytest.mark.parametrize("text", ["", " \n "])
def test_complete_refuses_an_empty_text(run, use_model: UseModel, text: str) -> None:
    use_model(ScriptedModel([" Ok."]))
    status, out, err = run("complete", text)
    assert (status, out) == (2, "")
    assert err.startswith("chatapp: there is no text to continue")
