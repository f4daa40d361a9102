"""The folders of models used before."""

from pathlib import Path

import pytest

from chatapp.engine.used_folders import note_folder, used_folders
from chatapp.paths import used_folders_path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_folders_are_remembered_while_they_are_there(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        note_folder(name)
    note_folder(tmp_path / "one")  # once more, in another spelling
    note_folder("bundled")
    note_folder("org/tiny")
    note_folder("a\0b")
    assert used_folders() == [tmp_path / "two", tmp_path / "one"]
    (tmp_path / "two").rmdir()
    assert used_folders() == [tmp_path / "one"]


@pytest.mark.parametrize("text", ["oops", "3", "[3]", '{"a": 1}', "[[]]", "\x00"])
def test_a_broken_record_is_begun_anew(tmp_path: Path, text: str) -> None:
    used_folders_path().parent.mkdir(parents=True)
    used_folders_path().write_text(text)
    assert used_folders() == []
    note_folder(tmp_path)
    assert used_folders() == [tmp_path]


def test_a_record_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    note_folder(tmp_path)
    assert used_folders() == []
