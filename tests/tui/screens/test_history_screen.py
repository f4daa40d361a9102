"""The list of chats: searched, opened, and what its keys do with a chat."""

from tui_driver import fill

from chatapp.tui.screens.history import ChatList
from chatapp.tui.widgets.dialog import Field


async def listed(driver):
    """The titles in the list of chats."""
    await driver.settle()
    await driver.app.workers.wait_for_complete(
        worker for worker in driver.app.workers if worker.node is driver.app.screen
    )
    await driver.settle()
    chats = driver.app.screen.query_one(ChatList)
    return [str(option.prompt).split("\n")[0] for option in chats.options]


async def test_ctrl_o_filters_by_title_and_text(open_app, store):
    fill(store, ["Dogs", "They bark at walruses."])
    cats = fill(store, ["Cats", "They sleep."])
    async with open_app() as driver:
        await driver.press("ctrl+o")
        assert await listed(driver) == ["Cats", "Dogs"]
        await driver.press(*"walr")
        assert await listed(driver) == ["Dogs"]
        assert "They bark at walruses." in driver.screen_text
        await driver.press("ctrl+u", *"nothing here")
        assert await listed(driver) == []
        assert "No chat has these words." in driver.screen_text
        await driver.press("ctrl+u", *"cats")
        assert await listed(driver) == ["Cats"]
        await driver.press("enter")
        await driver.until(lambda: driver.texts == ["Cats", "They sleep."])
        assert driver.chat.conversation.chat.id == cats
        await driver.press("escape")
        await driver.say("More")
        assert len(store.path(cats)) == 4


async def test_ctrl_o_deletes_and_u_brings_back(open_app, store):
    for name in ("Dogs", "Cats", "Ants"):
        fill(store, [name, "They are."])
    async with open_app() as driver:
        await driver.press("ctrl+o")
        assert await listed(driver) == ["Ants", "Cats", "Dogs"]
        await driver.press("down", "u", "d")  # the first arrow leaves the chat that is open
        assert await listed(driver) == ["Ants", "Dogs"]
        assert "u brings it back" in driver.screen_text
        assert [chat.title for chat in store.chats()] == ["Ants", "Dogs"]
        await driver.press("delete")
        assert await listed(driver) == ["Ants"]
        await driver.press("u")
        assert await listed(driver) == ["Ants", "Dogs"]
        await driver.press("u")
        assert await listed(driver) == ["Ants", "Cats", "Dogs"]
        await driver.press("u")
        assert await listed(driver) == ["Ants", "Cats", "Dogs"]
        await driver.press("up")
        assert isinstance(driver.app.focused, Field)


async def test_deleting_the_chat_on_the_screen_starts_a_new_one(open_app, store):
    async with open_app() as driver:
        await driver.say("Hello")
        await driver.press("ctrl+o")
        assert await listed(driver) == ["Hello"]
        await driver.press("down", "d")
        assert await listed(driver) == []
        await driver.press("escape")
        await driver.until(lambda: driver.texts == [])
        await driver.say("Again")
        assert [chat.title for chat in store.chats()] == ["Again"]


async def test_ctrl_o_renames(open_app, store):
    fill(store, ["Dogs", "They bark."])
    chat_id = fill(store, ["Cats", "They sleep."])
    async with open_app(chat_id=chat_id) as driver:
        await driver.press("ctrl+o")
        assert await listed(driver) == ["Cats", "Dogs"]
        await driver.press("down", "up", "n", "end", *" and [b]", "enter")
        assert await listed(driver) == ["Cats and [b]", "Dogs"]
        assert isinstance(driver.app.focused, ChatList)
        await driver.press("down", "n", *"xyz", "escape")
        assert await listed(driver) == ["Cats and [b]", "Dogs"]
        await driver.press("n", "ctrl+u", "ctrl+k", "enter")  # a title is not made empty
        assert await listed(driver) == ["Cats and [b]", "Dogs"]
        await driver.back("escape", "escape")
        assert "Cats and [b]" in driver.screen_text
    assert [chat.title for chat in store.chats()] == ["Cats and [b]", "Dogs"]


async def test_ctrl_o_archives_and_finds_what_is_archived(open_app, store):
    fill(store, ["Dogs", "They bark."])
    fill(store, ["Cats", "They sleep."])
    async with open_app() as driver:
        await driver.press("ctrl+o")
        assert await listed(driver) == ["Cats", "Dogs"]
        await driver.press("down", "up", "a")
        assert await listed(driver) == ["Dogs"]
        await driver.press("ctrl+t")
        assert await listed(driver) == ["Cats"]
        assert "Archived chats" in driver.screen_text
        await driver.press("ctrl+t", "up", *"sleep")
        assert await listed(driver) == ["Cats"]
        assert "· archived" in driver.screen_text
        await driver.press("down", "a", "up", "ctrl+u")
        assert await listed(driver) == ["Cats", "Dogs"]


async def test_a_found_chat_opens_at_what_was_found(open_app, store):
    chat_id = fill(store, ["Start", *(f"item{number}x" for number in range(1, 200))])
    other = store.add_message(chat_id, 1, "assistant", "An albatross.")
    store.set_leaf(chat_id, 200)
    async with open_app() as driver:
        await driver.press("ctrl+o", *"item7x")
        await listed(driver)
        await driver.press("enter")
        await driver.until(lambda: driver.transcript.marked)
        assert driver.transcript.marked.message.text == "item7x"
        assert "item7x" in driver.screen_text
        assert len(driver.texts) < 200
        await driver.press("ctrl+o", *"albatross")
        await listed(driver)
        await driver.press("enter")
        await driver.until(lambda: driver.texts == ["Start", "An albatross."])
        assert driver.transcript.marked.message.id == other.id
        await driver.press(*"write a poem")
        assert driver.prompt.text == "write a poem"
        await driver.press(*["backspace"] * 12, "ctrl+up")
        assert driver.app.focused.message.id == other.id, "from the prompt to what was found"
