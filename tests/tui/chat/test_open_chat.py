"""The open chat: its title, tags, times, a search in it, a copy of it, and replies edited in
place."""

from itertools import pairwise

from fakes import ScriptedModel
from textual.widgets import Input
from tui_driver import fill

from chatapp.dialogue.export import as_text
from chatapp.dialogue.feedback import FeedbackFormat, feedback_rows
from chatapp.dialogue.importing import read_chats
from chatapp.tui.screens.texts import CopyScreen


async def test_tags_are_shown_found_and_exported(open_app, store, tmp_path):
    other = fill(store, ["Unrelated work", "Yes."])
    async with open_app() as driver:
        await driver.say("/tag sea")
        assert driver.problem == "a chat can have tags once it has a message"
        await driver.press("ctrl+u")
        await driver.say("Hello there, sea")
        await driver.say("/tag work, #[b]sea work")
        assert "#work #[b]sea" in driver.notices[-1]
        await driver.press("ctrl+o", *"#wor")
        await driver.worked()
        assert "#work #[b]sea" in driver.screen_text
        assert "Unrelated" not in driver.screen_text.split("Search")[0]
        await driver.press("enter")
        await driver.settle()
    chat_id = next(chat.id for chat in store.chats() if chat.id != other)
    assert store.chat(chat_id).tags == "#work #[b]sea"
    (tmp_path / "x.json").write_text(as_text([(store.chat(chat_id), store.path(chat_id))], ".json"))
    assert read_chats(tmp_path / "x.json").chats[0].tags == "#work #[b]sea"


async def test_a_search_goes_through_the_open_chat(open_app, store):
    texts = [f"{'Whale' if number % 10 == 0 else 'Crab'} number {number}" for number in range(60)]
    chat_id = fill(store, texts)
    store.set_markdown(chat_id, True)
    async with open_app(chat_id=chat_id) as driver:
        await driver.shows("6 of 6", "ctrl+f", *"whale")
        assert driver.transcript.marked.message.text == "Whale number 50"
        await driver.shows("4 of 6", "up", "up")
        assert driver.transcript.marked.message.text == "Whale number 30"
        assert len(driver.transcript.query("MessageView.-marked")) == 1
        await driver.shows("1 of 6", "down", "enter", "enter")
        await driver.shows("Whale number 0")
        await driver.shows("no match", *"[b]")
        driver.chat.widgets.find.query_one("Field", Input).value = "whale"
        await driver.shows("6 of 6")
        for key in ("up", "up", "up"):  # faster than a match is shown
            driver.app.simulate_key(key)
        await driver.shows("3 of 6")
        await driver.press("escape")
        assert driver.transcript.marked is not None
        await driver.say("next message")
        assert driver.transcript.marked is None, "Ctrl+Up goes to the last message again"
        await driver.press(*"next message")
        assert driver.prompt.text == "next message"
        assert "3 of 6" not in driver.screen_text


async def test_a_fork_leaves_the_chat_as_it_was(open_app, store):
    chat_id = fill(store, ["One?", "One.", "Two?", "Two."])
    async with open_app(ScriptedModel(["Three."]), chat_id=chat_id) as driver:
        await driver.say("/fork")
        await driver.say("Three?")
        assert driver.texts == ["One?", "One.", "Two?", "Two.", "Three?", "Three."]
        await driver.press("ctrl+up", "up", "up", "up", "up", "f")
        await driver.until(lambda: driver.texts == ["One?", "One."])
    assert [message.text for message in store.path(chat_id)] == ["One?", "One.", "Two?", "Two."]
    titles = {chat.title for chat in store.chats()}
    assert len(titles) == 3


async def test_a_reply_edited_in_place_is_marked_everywhere(open_app, store, tmp_path):
    model = ScriptedModel(["The sea is dry.", "Yes."])
    async with open_app(model) as driver:
        await driver.say("Hello there")
        await driver.press("ctrl+up", "E")
        assert "Editing the reply · Enter saves it, Esc cancels" in driver.screen_text
        await driver.order("The sea is [b]wet.")
        await driver.until(lambda: driver.texts[-1] == "The sea is [b]wet.")
        assert driver.notes[-1] == "edited"
        assert driver.transcript.marked is driver.transcript.views[-1], "the reply is to be seen"
        await driver.press("ctrl+up", "plus", "escape")
        await driver.say("Really?")
        assert "wet" in model.prompts[-1]
        assert "dry" not in model.prompts[-1]
    chat, path = store.chats()[0], store.path(1)
    assert path[1].original == "The sea is dry."
    assert "## Assistant (edited)" in as_text([(store.chat(chat.id), path)], ".md")
    page = as_text([(store.chat(chat.id), path)], ".html")
    assert "edited" in page
    (tmp_path / "x.json").write_text(as_text([(store.chat(chat.id), path)], ".json"))
    assert read_chats(tmp_path / "x.json").chats[0].messages[1].original == "The sea is dry."
    (row,) = feedback_rows(store, chat.id, FeedbackFormat.KTO)
    assert row["edited"] is True
    assert row["completion"][0]["content"] == "The sea is [b]wet."
    store.edit_reply(path[1].id, "The sea is dry.")
    assert not store.message(path[1].id).is_edited, "the model's own text again"


def test_a_page_holds_text_alone(store):
    hostile = "<script>x</script> [a](javascript:b) ![i](http://c/d.png) **bold** \x1b[2J"
    chat_id = fill(store, [hostile, hostile])
    store.set_markdown(chat_id, True)
    page = as_text([(store.chat(chat_id), store.path(chat_id))], ".html")
    assert "<script" not in page
    assert "href" not in page.replace('href="http://c/d.png"', "")
    assert "<img" not in page
    assert "\x1b" not in page
    assert page.count("<strong>bold</strong>") == 1, "the user's text is as it was written"


async def test_a_large_terminal_begins_at_the_top(open_app, store):
    chat_id = fill(store, ["Hello", "Hi."])
    async with open_app(chat_id=chat_id, size=(200, 60)) as driver:
        await driver.press_and_rest("f3")
        columns = [driver.chat.widgets.sidebar, driver.transcript, driver.chat.widgets.inspector]
        regions = [column.region for column in columns]
        assert [region.x for region in regions] == sorted(region.x for region in regions)
        assert all(not a.overlaps(b) for a, b in pairwise(regions))
        assert driver.transcript.views[0].region.y == driver.transcript.region.y
        await driver.pilot.resize_terminal(100, 30)
        await driver.until(lambda: driver.transcript.views[0].region.y > 10)


async def test_copying_with_the_keyboard(open_app, store):
    chat_id = fill(store, ["What is the sea?", "Salt [b]water\nand \x1b fish"])
    async with open_app(chat_id=chat_id) as driver:

        async def copy(*keys):
            await driver.opens(CopyScreen, "f12")
            await driver.back(*keys)
            return driver.app.clipboard

        assert await copy("enter") == "and ␛ fish"
        assert await copy("up", "V", "down", "y") == "Salt [b]water\nand ␛ fish"
        assert await copy(*["up"] * 9, "down", "home", "v", *["right"] * 4, "y") == "What"
        assert await copy("x", "escape") == "What"
        await driver.press("x")
        assert driver.prompt.text == "x"
        assert driver.texts[0] == "What is the sea?"
