"""The inspector: what it shows is what the model computes, and its keys do what they say."""

import random
import threading
from dataclasses import replace

import pytest
from fakes import ScriptedModel
from foreign_texts import shown
from glass import GlassModel, random_gpt2
from inspector_driver import SETTINGS, inspector, notes, text_of, words
from tui_driver import fill

from chatapp.common.settings import Settings
from chatapp.engine.model import Sampling
from chatapp.tui.inspector.head_tabs import AttentionView
from chatapp.tui.inspector.panel import Inspector
from chatapp.tui.inspector.tabs import TokensView
from chatapp.tui.inspector.view import EXAMPLE
from chatapp.tui.widgets.message import MessageView

# Where it stands


async def test_f3_opens_it_over_a_narrow_chat_and_escape_closes_it(open_app):
    async with open_app(GlassModel(["It is a scripted reply."])) as driver:
        await driver.say("Hello")
        await driver.press_and_rest("f3")
        assert driver.chat.query_one(Inspector).outer_size.width == 100
        assert not driver.prompt.focusable
        assert "scripted" in driver.screen_text
        await driver.press_and_rest("escape")
        assert inspector(driver) is None
        assert driver.prompt.has_focus
        await driver.press_and_rest("f3", "f3")
        assert inspector(driver) is None


async def test_it_stands_beside_a_wide_chat(open_app):
    async with open_app(GlassModel(["It is.", "So it is."]), size=(120, 30)) as driver:
        await driver.say("Hello")
        await driver.press_and_rest("f3")
        assert driver.chat.query_one(Inspector).outer_size.width == 60
        for tab in "13456782":
            await driver.press_and_rest(tab)
            assert words(driver, "inspector-keys").count("\n") <= 1
            assert len(words(driver, "inspector-tabs").split()) == 9, "numbers, and one title"
        assert driver.prompt.focusable
        driver.prompt.focus()
        await driver.say("Again")
        await driver.rest()
        assert " So│ it│ is." in "│".join(text_of(driver, TokensView).texts), "it follows the chat"
        driver.prompt.focus()
        await driver.press_and_rest("f3")
        assert inspector(driver) is not None
        assert driver.chat.query_one(Inspector).has_focus_within
        await driver.pilot.resize_terminal(80, 24)
        await driver.rest()
        assert driver.chat.query_one(Inspector).outer_size.width == 80
        await driver.pilot.resize_terminal(160, 40)
        await driver.rest()
        assert driver.prompt.focusable
        await driver.press_and_rest("f3")
        assert inspector(driver) is None


async def test_it_looks_at_the_focused_message(open_app, store):
    chat_id = fill(store, ["one", "two", "three", "four"])
    async with open_app(GlassModel(["x"]), chat_id=chat_id) as driver:
        await driver.press("ctrl+up", "up", "up")
        assert isinstance(driver.chat.focused, MessageView)
        await driver.press_and_rest("f3", "1")
        prompt = words(driver, "prompt-text")
        assert "one" in prompt
        assert "two" in prompt
        assert "three" not in prompt
        await driver.press_and_rest("escape")
        await driver.press_and_rest("f3", "1")
        assert "four" in words(driver, "prompt-text")


async def test_without_messages_there_is_an_example(open_app):
    async with open_app(GlassModel(["Fine."])) as driver:
        await driver.press_and_rest("f3")
        assert words(driver, "inspector-about") == "An example sentence"
        await driver.press_and_rest("4")
        text = text_of(driver, AttentionView)
        assert "".join(text.texts) == EXAMPLE
        assert text.cursor == len(text.texts) - 1
        await driver.press_and_rest("escape")
        await driver.say("Hello")
        await driver.press_and_rest("f3", "x")
        assert words(driver, "inspector-about") == "An example sentence"
        await driver.press_and_rest("x")
        assert "of reply" in words(driver, "inspector-about")


async def test_the_example_is_opened_with_the_head_that_copies(open_app):
    settings = Settings(sampling=Sampling(seed=1, max_tokens=4))
    async with open_app(random_gpt2(), settings=settings) as driver:
        await driver.press_and_rest("f3", "4")
        assert driver.app.screen.query_one(AttentionView).cell is not None
        await driver.press_and_rest("escape")
        await driver.say("Hello")
        await driver.press_and_rest("f3", "4")
        assert driver.app.screen.query_one(AttentionView).cell is None


async def test_models_that_are_not_there_or_show_nothing(open_app):
    gate = threading.Event()

    def load():
        gate.wait(120)
        return ScriptedModel(["Fine."])

    async with open_app(load=load) as driver:
        await driver.press("f3")
        assert inspector(driver) is None
        assert "not loaded yet" in notes(driver)
        gate.set()
        await driver.ready()
        await driver.say("Hello")
        await driver.press_and_rest("f3")
        sentence = "scripted cannot be inspected"
        for key in "2345678":
            await driver.press_and_rest(key)
            assert sentence in driver.screen_text
        await driver.press_and_rest("1")
        assert "Hello" in words(driver, "prompt-text")


async def test_it_waits_for_the_reply_without_blocking(open_app):
    model = GlassModel(["It is a reply."])
    model.gate = threading.Event()
    async with open_app(model, size=(140, 30)) as driver:
        await driver.order("Hello")
        await driver.until(lambda: driver.chat.conversation.turn)
        await driver.press("f3")
        assert words(driver, "inspector-about") == "Looking …"
        driver.prompt.focus()
        await driver.press("a", "b")
        assert driver.prompt.text == "ab"
        model.gate.set()
        await driver.rest()
        assert " reply." in text_of(driver, TokensView).texts


async def test_a_message_that_no_longer_fits_is_a_sentence(open_app, store):
    chat_id = fill(store, ["word " * 300, "yes"])
    async with open_app(GlassModel(["x"], context=64), chat_id=chat_id) as driver:
        await driver.press_and_rest("f3")
        assert "300 tokens long" in words(driver, "inspector-about")
        await driver.press_and_rest(*"12345678", "x")
        assert words(driver, "inspector-about") == "An example sentence"


async def test_a_draft_is_looked_at_before_it_is_sent(open_app, store):
    model = GlassModel([" It is."])
    async with open_app(model) as driver:
        driver.prompt.text = "Is it [b]there[/b]?"
        await driver.press_and_rest("f3", "1")
        assert "tokens of prompt · not sent · template plain" in words(driver, "inspector-about")
        draft = words(driver, "prompt-text")
        assert draft.endswith("User: Is it [b]there[/b]?\nAssistant:")
        await driver.press_and_rest("escape")
        assert store.chats() == []
        await driver.press_and_rest("enter")
        assert model.prompts == [draft]
        driver.prompt.text = "And here?"
        await driver.press_and_rest("f3", "1")
        assert words(driver, "prompt-text") == f"{draft} It is.\nUser: And here?\nAssistant:"
        await driver.press_and_rest("2", "tab", "enter")
        assert "Only a token of a reply can be replaced." in notes(driver)
        await driver.press_and_rest("escape")
        for text in ("/system x", "  "):
            driver.prompt.text = text
            await driver.press_and_rest("f3", "1")
            assert words(driver, "prompt-text") == f"{draft} It is."
            await driver.press_and_rest("escape")


async def test_a_reply_to_another_prompt_says_so(open_app):
    async with open_app(GlassModel([" It is."])) as driver:
        await driver.say("one")
        await driver.press_and_rest("f3", "1")
        assert "from another prompt" not in driver.screen_text
        await driver.press_and_rest("escape")
        driver.prompt.text = "/system Be brief."
        await driver.press_and_rest("enter", "f3", "1")
        assert "The reply was generated from another prompt." in driver.screen_text
        assert words(driver, "prompt-text").startswith("Be brief.")


# Whatever comes


@pytest.mark.parametrize("size", [(20, 6), (120, 30)])
async def test_any_keys_in_any_order(open_app, size):
    keys = [
        *("1", "2", "3", "4", "5", "6", "m", "x", "a", "k", "space", "enter", "backspace"),
        *("plus", "minus"),
        *("left", "right", "up", "down", "home", "end", "pageup", "pagedown", "tab", "shift+tab"),
        *("f3", "f3", "ctrl+up", "escape", "p"),
    ]
    rng = random.Random(3)
    settings = Settings(sampling=Sampling(seed=1, max_tokens=5))
    async with open_app(GlassModel(["It is a reply."]), size=size, settings=settings) as driver:
        await driver.say("Hello there, you.")
        await driver.press_and_rest("f3")
        for _ in range(40):
            await driver.press(rng.choice(keys))
            if inspector(driver) is None:
                await driver.press("f3")
        await driver.press_and_rest("escape")
        await driver.rest()
        shown(driver)


async def test_a_reply_of_another_model_says_who_wrote_and_who_reads(open_app, gpt2, monkeypatch):
    async with open_app(gpt2, settings=SETTINGS) as driver:
        await driver.say("he has it")
        await driver.press_and_rest("f3")
        assert "written by" not in words(driver, "inspector-about")
        session = driver.chat.conversation.session
        store = session.chat.store
        own = store.generations
        monkeypatch.setattr(
            store, "generations", lambda id: [replace(one, model="monad") for one in own(id)]
        )
        await driver.press_and_rest("f3", "f3")
        about = words(driver, "inspector-about")
        assert f"written by monad, read here by {gpt2.name}" in about
