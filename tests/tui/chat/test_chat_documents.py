"""/docs, the sources below a reply, reading them, and F3."""

import time

import pytest
from fakes import ScriptedModel
from textual.widgets import Static

from chatapp.dialogue.documents import index
from chatapp.dialogue.documents.search import Documents
from chatapp.tasks.files.documents import DocumentSet
from chatapp.tui.chat import actions
from chatapp.tui.screens.texts import SourceScreen


@pytest.fixture
def notes(tmp_path, monkeypatch):
    # The second file has little of the question.
    monkeypatch.setattr(index, "least_covered", lambda rarities: 0.0)
    folder = tmp_path / "my notes"
    folder.mkdir()
    (folder / "walrus.md").write_text("# [b]Walrus[/b]\n\nA walrus eats clams.\x1b[2J")
    (folder / "horse.txt").write_text("A horse eats hay.")
    return folder


def model():
    return ScriptedModel([" Clams."] * 3, context=200)


def told(driver, words):
    return any(words in note for note in driver.notices)


def words_of(driver, id):
    """What a part of the inspector says; nothing before it stands there."""
    return "".join(str(static.content) for static in driver.chat.query(f"#{id}").results(Static))


async def ask_with(driver, notes):
    await driver.order(f"/docs '{notes}'")
    await driver.until(lambda: told(driver, "2 passages of 2 files"))
    await driver.say("What does a walrus eat?")


async def test_a_reply_names_its_sources_and_enter_opens_them(open_app, notes):
    async with open_app(model()) as driver:
        await ask_with(driver, notes)
        assert "given [1] walrus.md, [b]Walrus[/b], line 1" in driver.screen_text
        assert "[2] horse.txt, line 1" in driver.screen_text
        await driver.press("ctrl+up", "enter")
        assert isinstance(driver.app.screen, SourceScreen)
        await driver.shows("A walrus eats clams.␛[2J")
        await driver.shows("A horse eats hay.", "down")
        await driver.press("escape")
        assert not isinstance(driver.app.screen, SourceScreen)
        await driver.press("s")
        assert isinstance(driver.app.screen, SourceScreen)


async def test_documents_are_named_searched_otherwise_and_taken_off(open_app, notes):
    async with open_app(model()) as driver:
        await driver.order("/docs")
        await driver.until(lambda: told(driver, "Documents of this chat: none"))
        await driver.order(f"/docs method=both:tfidf '{notes}/*.md'")
        await driver.until(lambda: told(driver, "1 passage of 1 file"))
        asked = driver.chat.conversation.chat.documents
        assert asked == DocumentSet((f"{notes}/*.md",), "both:tfidf")
        await driver.order("/docs none")
        await driver.say("What does a walrus eat?")
        assert "walrus.md" not in driver.screen_text
        await driver.press("ctrl+up", "s")
        await driver.until(lambda: told(driver, "No passage of a document"))


async def test_reading_documents_shows_how_far_it_is_and_esc_stops_it(open_app, notes, monkeypatch):
    def endless(documents, progress):
        while True:
            progress(30, 100)
            time.sleep(0.001)

    async with open_app(model()) as driver:
        with monkeypatch.context() as patch:
            patch.setattr(actions, "_SHOW_AFTER", 0.01)
            patch.setattr(Documents, "renew", endless)
            await driver.order(f"/docs '{notes}'")
            await driver.until(lambda: "Reading the documents: 30% …" in driver.problem)
            await driver.press("escape")
            await driver.until(lambda: "stopped while reading documents" in driver.problem)
        await driver.order(f"/docs '{notes}'")
        await driver.until(lambda: told(driver, "2 passages of 2 files"))
        assert driver.problem == ""
