"""`chatapp inspect`'s close-ups: what they refuse."""

from program import Run

TEXT = "he has [b]it[/b]"


def test_bad_input_is_one_sentence(run: Run, folder: str) -> None:
    for words, sentence in (
        (("weight", "9.0", "he has"), "there is no layer 9"),
        (("weight", "1.mlp", "he has"), "expected a head"),
        (("neurons", "1.1", "he has"), "expected an MLP"),
        (("neurons", "x", "he has"), "names no part of a model"),
        (("state", "7", "he has"), "embed and the layers 0 to 1"),
        (("neighbours", "xyz"), "TOKEN is 'xyz', which is 3 tokens"),
        (("positions", "he has"), "give --with and a text"),
        (("positions", "he has", "--with", "x"), "with equally many, both get the same positions"),
        (("cross_attention", "he has"), "has no encoder beside its decoder"),
    ):
        result = run("inspect", *words, "--model", folder)
        assert result.status == 2, words
        assert sentence in result.err
        assert result.err.count("\n") == 1
