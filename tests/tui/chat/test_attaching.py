"""Files in a message: found with @, pasted as paths, and read."""

import os
import threading
from pathlib import Path

import pytest
from fakes import ScriptedModel
from textual.events import Paste
from textual.widgets import Static

from chatapp.common.userfiles import UserError
from chatapp.dialogue.documents import attachments
from chatapp.dialogue.documents.attachments import (
    files_in,
    find_fuzzily,
    pasted_path,
    read_attachment,
)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    folder = tmp_path / "work"
    (folder / "notes").mkdir(parents=True)
    (folder / "notes" / "sea.md").write_text("The sea [b]is[/b] wide.\n")
    (folder / "my file.txt").write_text("with a space")
    (folder / "hidden.log").write_text("ignored")
    (folder / ".gitignore").write_text("*.log\n")
    monkeypatch.chdir(folder)
    return folder


def test_letters_find_the_nearest_names():
    names = ["docs/seal.md", "notes/sea.md", "s/e/a.txt", "other.txt"]
    assert find_fuzzily("sea", names) == ["docs/seal.md", "notes/sea.md", "s/e/a.txt"]
    assert find_fuzzily("NSM", names) == ["notes/sea.md"]
    assert find_fuzzily("", names) == ["other.txt", "s/e/a.txt", *names[:2]]
    assert find_fuzzily("a" * 200, ["a" * 199] * 20_000) == []


async def test_a_picked_file_is_in_the_message(open_app):
    model = ScriptedModel(["I see.", "Yes."])
    async with open_app(model) as driver:
        await driver.shows("@notes/sea.md", *"See @nse")
        assert "hidden" not in driver.screen_text
        await driver.press("enter")
        assert driver.prompt.text == "See @notes/sea.md "
        tokens = len(model.tokenizer.encode("The sea [b]is[/b] wide."))
        await driver.until(lambda: f"notes/sea.md · {tokens} tokens" in driver.screen_text)
        await driver.press(*"please", "enter")
        await driver.until(lambda: driver.texts[1:] == ["I see."])
        assert driver.texts[0] == "See @notes/sea.md please\n\nsea.md:\nThe sea [b]is[/b] wide."
        assert "tokens" not in driver.screen_text.split("ready")[0].rsplit("│", 3)[-1]
        await driver.press(*"Ask @alice", "enter")
        await driver.until(lambda: driver.texts[-1] == "Yes.")
        assert driver.texts[-2] == "Ask @alice"


async def test_a_pasted_path_is_a_file(open_app, here):
    async with open_app() as driver:
        await driver.press(*"Read ")
        driver.prompt.post_message(Paste(f"'{here}/my file.txt'"))
        await driver.until(lambda: driver.prompt.text == f'Read @"{here}/my file.txt" ')
        driver.prompt.post_message(Paste("/no/such/file"))
        await driver.until(lambda: driver.prompt.text.endswith("/no/such/file"))
        attached = driver.chat.query_one("#attached", Static)
        await driver.until(lambda: "my file.txt · " in str(attached.content))
        await driver.press("enter")
        await driver.until(lambda: driver.texts)
        assert driver.texts[0].endswith("my file.txt:\nwith a space")


async def test_a_file_is_attached_only_after_it_was_shown(open_app, monkeypatch):
    is_read = threading.Event()

    def read(path):
        assert is_read.wait(60)
        return read_attachment(path)

    monkeypatch.setattr(attachments, "read_attachment", read)
    async with open_app() as driver:
        driver.prompt.post_message(Paste("See @notes/sea.md"))
        await driver.until(lambda: driver.prompt.text != "")
        await driver.press("enter")
        await driver.until(lambda: driver.problem == "Enter again attaches notes/sea.md")
        assert driver.texts == []
        is_read.set()
        attached = driver.chat.query_one("#attached", Static)
        await driver.until(lambda: "sea.md · " in str(attached.content))
        await driver.press("enter")
        await driver.until(lambda: driver.texts)
        assert driver.texts[0].endswith("sea.md:\nThe sea [b]is[/b] wide.")


async def test_a_long_pasted_text_attaches_nothing_unseen(open_app, monkeypatch):
    monkeypatch.setattr("chatapp.tui.chat.screen._LONGEST", 20)
    async with open_app() as driver:
        await driver.order("as long as too long @notes/sea.md")
        await driver.until(lambda: driver.texts)
        assert driver.texts[0] == "as long as too long @notes/sea.md"


async def test_a_file_that_cannot_be_read_keeps_the_message(open_app, here):
    (here / "bytes.bin").write_bytes(b"\xff\xfe\x00")
    async with open_app() as driver:
        driver.prompt.text = "See @bytes.bin now"
        attached = driver.chat.query_one("#attached", Static)
        await driver.until(lambda: "is not a text" in str(attached.content))
        await driver.press("enter")
        await driver.until(lambda: driver.problem == "bytes.bin: is not a text in UTF-8")
        assert driver.prompt.text == "See @bytes.bin now"
        assert driver.texts == []


def test_only_regular_files_of_bounded_size_are_read(here, monkeypatch):
    if hasattr(os, "mkfifo"):
        os.mkfifo(here / "pipe")
        assert files_in("@pipe") == []
        assert pasted_path(f"{here}/pipe") == ""
    assert files_in('a@notes/sea.md @nothing @notes "@x" @"my file.txt"') == [Path("my file.txt")]
    edited = '@"my file.txt" again\n\nmy file.txt:\ntext'
    assert files_in(edited) == [], "a message that is edited holds its files"
    assert pasted_path(f"file://{here}/my%20file.txt") == f'@"{here}/my file.txt"'
    assert pasted_path("notes/sea.md") == ""
    monkeypatch.setattr(attachments, "MOST_BYTES", 5)
    with pytest.raises(UserError, match="larger than"):
        read_attachment(here / "my file.txt")
