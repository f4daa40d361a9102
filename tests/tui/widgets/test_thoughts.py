"""What was thought before a reply: folded, opened with Enter, and switched off."""

from fakes import ScriptedModel
from thinking_model import thinking_model

REPLY = "<think>\nThey [b]greet[/b] me.\n</think>\n\nHello!"


async def test_thoughts_are_folded_and_open_with_enter(open_app, tmp_path):
    async with open_app(thinking_model(tmp_path / "model", [REPLY])) as driver:
        await driver.say("Hi")
        assert driver.texts == ["Hi", "Hello!"]
        assert "▸ thought for 7 tokens" in driver.screen_text
        assert "greet" not in driver.screen_text
        await driver.press("ctrl+up", "enter")
        assert "▾ thought for 7 tokens" in driver.screen_text
        assert "They [b]greet[/b] me." in driver.screen_text
        await driver.press("enter")
        assert "greet" not in driver.screen_text


async def test_a_chat_that_is_opened_again_has_its_thoughts(open_app, store, tmp_path):
    model = thinking_model(tmp_path / "model", [REPLY])
    async with open_app(model) as driver:
        await driver.say("Hi")
        chat_id = driver.chat.conversation.chat.id
    async with open_app(model, chat_id=chat_id) as driver:
        await driver.shows("thought for 7 tokens")


async def test_thinking_is_switched_off_and_on(open_app, tmp_path):
    model = thinking_model(tmp_path / "model", ["Hello!"])
    async with open_app(model) as driver:
        for argument in ("off", "on", "of"):
            await driver.order(f"/think {argument}")
            if argument != "of":
                await driver.say("Hi")
        assert driver.problem == "Usage: /think on|off"
        closed = [prompt.endswith("</think>\n\n") for prompt in model.prompts]
        assert closed == [True, False]


async def test_a_model_without_a_switch_says_so(open_app):
    async with open_app(ScriptedModel([" Yes."])) as driver:
        await driver.order("/think off")
        assert driver.problem == "the model scripted has no switch for thinking in its template"
