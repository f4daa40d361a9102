"""Presets are kept by name, and a broken file of them is told in words and never touched."""

import json

import pytest

from chatapp.common.settings import (
    PresetsError,
    no_preset,
    read_presets,
    remove_preset,
    save_preset,
)
from chatapp.engine.model import Sampling


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "presets.json"


def test_what_is_kept_comes_back(path):
    assert read_presets(path) == {}
    exact = Sampling(temperature=0.0, seed=5)
    save_preset(path, "exact", exact)
    save_preset(path, " [b]wild[/b]  \x1b[2J \ud800 ", Sampling(top_k=3))
    save_preset(path, "exact", Sampling(max_tokens=7))
    assert read_presets(path) == {
        "[b]wild[/b] \x1b[2J \ufffd": Sampling(top_k=3),
        "exact": Sampling(max_tokens=7),
    }
    remove_preset(path, "exact")
    assert list(read_presets(path)) == ["[b]wild[/b] \x1b[2J \ufffd"]
    assert [each.name for each in path.parent.iterdir()] == ["presets.json"]


def test_some_parameters_are_enough(path):
    path.parent.mkdir()
    path.write_text('\ufeff{"a": {"temperature": 1, "seed": null}}', encoding="utf-8")
    assert read_presets(path) == {"a": Sampling(temperature=1.0)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "expected a JSON object, found a list"),
        ('{"a": 1}', "preset 'a': expected an object of parameters"),
        ('{"a": {"tempreature": 1}}', "preset 'a': there is no parameter 'tempreature'; did you"),
        ('{"a": {"temperature": NaN}}', "temperature is nan; expected from 0 to 100"),
        ('{"a": {"top_k": null}}', "top_k is None; expected a whole number"),
        ('{"a": {"temperature": 1' + "0" * 400 + "}}", "temperature"),
    ],
)
def test_a_broken_file_is_one_sentence_and_stays(path, text, words):
    path.parent.mkdir()
    path.write_text(text)
    for change in (
        lambda: read_presets(path),
        lambda: save_preset(path, "b", Sampling()),
        lambda: remove_preset(path, "a"),
    ):
        with pytest.raises(PresetsError) as error:
            change()
        assert str(error.value).startswith(f"{path}: ")
        assert words in str(error.value)
        assert "\n" not in str(error.value)
    assert path.read_text() == text


def test_a_file_that_is_no_text_and_one_that_cannot_be_written(path):
    path.parent.mkdir()
    path.write_bytes(b'{"\xff": {}}')
    with pytest.raises(PresetsError, match="line 1: is not valid UTF-8"):
        read_presets(path)
    with pytest.raises(PresetsError, match="cannot be read: Is a directory"):
        read_presets(path.parent)
    file = path.parent / "file"
    file.touch()
    with pytest.raises(PresetsError, match=r"cannot be (read|written): (Not a dir|File ex)"):
        save_preset(file / "presets.json", "a", Sampling())


@pytest.mark.parametrize("name", ["", "  \n", "x" * 61])
def test_a_preset_needs_a_name(path, name):
    with pytest.raises(PresetsError, match="needs a name of 1 to 60 characters"):
        save_preset(path, name, Sampling())
    assert not path.exists()


def test_one_that_another_program_has_removed_meanwhile(path):
    save_preset(path, "a", Sampling())
    remove_preset(path, "b")
    assert read_presets(path) == {"a": Sampling()}


def test_what_there_is_not_is_said_with_what_there_is():
    assert no_preset("exakt", ["exact", "wild"]).endswith("did you mean 'exact'?")
    assert no_preset("zzz", ["exact", "wild"]).endswith("there are exact, wild")
    assert no_preset("zzz", []).endswith("there are none yet")


def test_the_file_is_plain_json(path):
    save_preset(path, "a", Sampling(seed=1))
    assert json.loads(path.read_text())["a"]["seed"] == 1
