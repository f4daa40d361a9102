"""What can be done with one message: deleted, brought back, copied in parts."""

from tui_driver import fill

CODE = "So:\n```python\nprint(1)\n```\nor\n~~~\na\n```\n~~~\nand an open one\n```\nb\n"


async def test_a_message_is_deleted_and_brought_back(open_app, store):
    chat_id = fill(store, ["One", "Two", "Three", "Four"])
    async with open_app(chat_id=chat_id) as driver:
        await driver.press("ctrl+up", "up", "d")
        await driver.until(lambda: driver.texts == ["One", "Two"])
        assert driver.notices == [
            "Message deleted with the 1 that followed. u or /undo brings it back."
        ]
        await driver.press("d")
        await driver.until(lambda: driver.texts == ["One"])
        await driver.press("u")
        await driver.until(lambda: driver.texts == ["One", "Two"])
        assert not driver.notices, "what is undone is not announced any more"
        await driver.order("/undo")
        await driver.until(lambda: driver.texts == ["One", "Two", "Three", "Four"])
        await driver.order("/undo")
        assert driver.notices[-1] == "No message has been deleted."


async def test_with_the_first_message_the_chat_is_empty_until_it_is_back(open_app, store):
    chat_id = fill(store, ["One", "Two"])
    async with open_app(chat_id=chat_id) as driver:
        await driver.press("ctrl+up", "up", "delete")
        await driver.until(lambda: driver.chat.widgets.is_empty)
        await driver.say("Anew")
        assert driver.texts == ["Anew", "It is a scripted reply."]
        await driver.order("/undo")
        await driver.until(lambda: driver.texts == ["One", "Two"])
        assert "1/2" in driver.screen_text


async def test_code_blocks_are_copied_one_after_the_other(open_app, store):
    chat_id = fill(store, ["Show code", CODE, "No", "none"])
    async with open_app(chat_id=chat_id) as driver:
        await driver.press("ctrl+up", "Y")
        assert driver.notices == ["There is no code block in this message."]
        await driver.press("up", "up")
        copied = []
        for _ in range(4):
            await driver.press("Y")
            copied.append(driver.app.clipboard)
        assert copied == ["print(1)\n", "a\n```\n", "b\n", "print(1)\n"]
        assert driver.notices[1] == "Code block 1 of 3 copied to the clipboard."
