"""`chatapp inspect why, ablate, losses, patch, circuit`: numbers, files, and what is refused."""

import json

import pytest

from chatapp.engine.models.loading import load_model

TEXT = "User: he has"
OTHER = "User: he was"


def document(run, folder, *words):
    result = run("inspect", *words, "--model", folder, "--json")
    assert result.status == 0, result.err
    found = json.loads(result.out)
    assert found.pop("text") == TEXT
    assert found.pop("model") == folder
    return found


def test_patching_two_prompts_and_with_noise(run, folder):
    model = load_model(folder)
    size = len(model.tokenizer.encode(TEXT))
    assert len(model.tokenizer.encode(OTHER)) == size
    patching = document(run, folder, "patch", TEXT, "--with", OTHER)["patch"]
    assert patching["direction"] == "restore"
    residual, heads = patching["grids"]
    assert (residual["kind"], heads["kind"]) == ("residual", "heads")
    assert [len(row) for row in residual["values"]] == [size] * 2
    assert [len(row) for row in heads["values"]] == [2, 2]
    differing = [
        one != other
        for one, other in zip(patching["clean_tokens"], patching["corrupt_tokens"], strict=True)
    ]
    first = differing.index(True)
    assert all(all(row[:first]) for row in residual["unchanged"])
    # All that differs before the first layer, put back at its last token, is all there is.
    options = ("--with", OTHER, "--destroy", "--estimate")
    reverse = document(run, folder, "patch", TEXT, *options)["patch"]
    assert (reverse["direction"], reverse["estimated"]) == ("destroy", True)
    noisy = document(run, folder, "patch", TEXT, "--noise", "1-2,4")["patch"]
    assert noisy["noise"] == [1, 2, 4]
    assert noisy["clean_tokens"] == noisy["corrupt_tokens"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["why", "--answer", "he was here"], "--answer is 'he was here', which is"),
        (["why", "--answer", ""], "--answer is '', which is 0 tokens, not one"),
        (["ablate", "2.0"], "2.0: there is no layer 2; the model has 2, numbered 0 to 1"),
        (["ablate", "0.x"], "'0.x' names no part of a model; write 3 for a layer"),
        (["ablate", " , "], "no part of the model is named"),
        (["ablate", "all", "--mean"], "all replaces by zeros; leave --mean out"),
        (["patch", "--with", "User"], "patching needs the same number"),
        (["patch", "--with", ""], "give --with and a text of as many tokens"),
        (["patch", "--with", OTHER, "--noise", "1"], "use either --with or --noise, not both"),
        (["patch", "--noise", "one"], "--noise is 'one'; expected numbers of tokens"),
        (["patch", "--noise", "9" * 5_000], "expected numbers of tokens"),
        (["patch", "--noise", "999"], "noise needs tokens of the text, numbered 0 to"),
        (["patch", "--destroy"], "give --with and a text"),
        (["circuit", "--patch", ""], "--patch is empty; expected another prompt"),
        (["circuit", "--answer", "e", "--against", "e"], "a circuit is searched from 0.5 on"),
        (["losses", "--token", "0"], "the loss of a text needs at least two tokens"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(run, folder, options, words):
    arguments = 1 + (options[0] == "ablate")
    words_of = [*options[:arguments], TEXT, *options[arguments:]]
    result = run("inspect", *words_of, "--model", folder)
    assert result.status == 2
    assert words in " ".join(result.err.split())
    assert result.err.count("\n") == 1
    assert not result.out
