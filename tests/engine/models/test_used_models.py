"""The models used before."""

import pytest

from chatapp.common.paths import used_models_path
from chatapp.engine.models.resolving import note_model, used_models


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_models_are_remembered_while_they_are_there(tmp_path):
    (tmp_path / "two.gguf").touch()
    (tmp_path / "one").mkdir()
    note_model("one")
    note_model("two.gguf")
    note_model(tmp_path / "one")  # once more, in another spelling
    note_model("bundled")
    note_model("org/tiny")
    note_model("a\0b")
    assert used_models() == [tmp_path / "two.gguf", tmp_path / "one"]
    (tmp_path / "two.gguf").unlink()
    assert used_models() == [tmp_path / "one"]


@pytest.mark.parametrize("text", ["oops", "3", "[3]", '{"a": 1}', "[[]]", "\x00"])
def test_a_broken_record_is_begun_anew(tmp_path, text):
    used_models_path().parent.mkdir(parents=True)
    used_models_path().write_text(text)
    assert used_models() == []
    note_model(tmp_path)
    assert used_models() == [tmp_path]


def test_a_record_that_cannot_be_written(tmp_path):
    (tmp_path / "home").touch()
    note_model(tmp_path)
    assert used_models() == []
