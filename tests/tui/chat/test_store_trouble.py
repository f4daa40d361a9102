"""What becomes of a chat when the store cannot keep it: deleted elsewhere, a full disk, no disk."""

import sqlite3
import threading

import pytest
from fakes import ScriptedModel
from tui_driver import fill

TOLD = "This chat was deleted in another window. What is on the screen is now saved as a new chat."


class Disk:
    """A disk under a store that can be full."""

    def __init__(self, store, monkeypatch):
        self.is_full = False
        database = store._database
        execute = database.rows

        def rows(statement, *values):
            with database._errors():
                if self.is_full and statement.startswith(("UPDATE", "INSERT", "BEGIN IMMEDIATE")):
                    raise sqlite3.OperationalError("database or disk is full")
            return execute(statement, *values)

        monkeypatch.setattr(database, "rows", rows)


@pytest.mark.parametrize("for_good", [False, True])
async def test_a_chat_deleted_in_another_window_goes_on_as_a_new_one(open_app, store, for_good):
    chat_id = fill(store, ["Hello", "Good day."])
    async with open_app(ScriptedModel(["Yes."]), chat_id=chat_id) as driver:
        (store.delete_chat if for_good else store.bin_chat)(chat_id)
        await driver.say("Are you there?")
        assert driver.problem == TOLD
        assert driver.texts == ["Hello", "Good day."]
        assert driver.prompt.text == "Are you there?"
        [chat] = store.chats()
        assert chat.id != chat_id
        await driver.press_and_rest("enter")
        assert driver.problem == ""
        texts = [message.text for message in store.path(chat.id)]
        assert texts == driver.texts == ["Hello", "Good day.", "Are you there?", "Yes."]
        if not for_good:
            store.restore_chat(chat_id)
            assert len(store.path(chat_id)) == 2  # nothing went into the bin


@pytest.mark.parametrize("for_good", [False, True])
async def test_a_chat_deleted_in_mid_reply_keeps_the_reply(open_app, store, for_good):
    model = ScriptedModel(["All of it."])
    model.gate = threading.Event()
    async with open_app(model) as driver:
        await driver.order("Go")
        await driver.until(lambda: driver.texts)
        (store.delete_chat if for_good else store.bin_chat)(1)
        model.gate.set()
        await driver.until(lambda: driver.problem)
        await driver.idle()
        assert driver.problem == TOLD
        [chat] = store.chats()
        assert [message.text for message in store.path(chat.id)] == ["Go", "All of it."]
        assert driver.texts == ["Go", "All of it."]


async def test_an_edit_in_a_deleted_chat_keeps_its_text(open_app, store):
    chat_id = fill(store, ["Hello", "Good day."])
    async with open_app(chat_id=chat_id) as driver:
        await driver.press("ctrl+up", "e")
        store.bin_chat(chat_id)
        await driver.say("Hello there")
        assert driver.problem == TOLD
        assert driver.prompt.text == "Hello there"
        assert driver.prompt.editing is None


async def test_a_reply_stays_while_the_disk_is_full_and_is_stored_later(
    open_app, store, monkeypatch
):
    model = ScriptedModel(["one two three four."])
    model.gate = threading.Event()
    disk = Disk(store, monkeypatch)
    monkeypatch.setattr("chatapp.dialogue.session._STORE_EVERY_SECONDS", 0.0)
    monkeypatch.setattr("chatapp.tui.chat.controls._TRY_EVERY_SECONDS", 0.05)
    async with open_app(model) as driver:
        await driver.order("Go")
        await driver.until(lambda: driver.texts)
        disk.is_full = True
        model.gate.set()
        await driver.until(lambda: driver.problem)
        assert "the reply is not saved" in driver.problem
        assert "disk is full" in driver.problem
        assert driver.texts == ["Go", "one two three four."]
        assert "one two three four." in driver.screen_text
        assert store.path(1)[-1].text == ""
        disk.is_full = False
        await driver.until(lambda: not driver.problem)
        assert (store.path(1)[-1].text, store.path(1)[-1].status) == (
            "one two three four.",
            "complete",
        )
        assert store.generations(1)[-1].reason == "stop"
        assert driver.notices == ["There is disk space again: the reply is saved."]


async def test_leaving_with_a_reply_that_has_no_room_asks_once(open_app, store, monkeypatch):
    model = ScriptedModel(["one two."])
    model.gate = threading.Event()
    disk = Disk(store, monkeypatch)
    async with open_app(model) as driver:
        await driver.order("Go")
        await driver.until(lambda: driver.texts)
        disk.is_full = True
        model.gate.set()
        await driver.until(lambda: driver.problem)
        await driver.press("ctrl+q")
        await driver.until(lambda: "Quit again" in driver.problem)
        await driver.press("ctrl+q")
        await driver.until_left()
