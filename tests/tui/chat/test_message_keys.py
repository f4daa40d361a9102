"""Every key of a message, pressed."""

from fakes import ScriptedModel

from chatapp.common.settings import Settings
from chatapp.engine.model import Sampling
from chatapp.tui.widgets.message_parts import TextBody


async def test_messages_are_reached_by_keyboard(open_app):
    async with open_app() as driver:
        await driver.say("Hello")
        await driver.press("ctrl+up")
        assert driver.app.focused is driver.transcript.views[1]
        await driver.press("up")
        assert driver.app.focused is driver.transcript.views[0]
        await driver.press("up")
        assert driver.app.focused is driver.transcript.views[0]
        await driver.press("down", "down")
        assert driver.app.focused is driver.prompt
        await driver.press("shift+tab")
        assert driver.app.focused is driver.transcript.views[1]
        await driver.press("escape")
        assert driver.app.focused is driver.prompt


async def test_r_regenerates_and_arrows_move_between_versions(open_app):
    async with open_app(ScriptedModel(["First.", "Second.", "Third."])) as driver:
        await driver.say("Hello")
        await driver.press("ctrl+up")
        for _ in range(2):
            await driver.press_and_rest("r")
        assert driver.texts == ["Hello", "Third."]
        assert driver.prompt.text == ""
        assert "‹ 3/3 ›" in driver.screen_text
        await driver.press("left")
        await driver.until(lambda: driver.texts == ["Hello", "Second."])
        assert "‹ 2/3 ›" in driver.screen_text
        await driver.press("left")
        await driver.until(lambda: driver.texts == ["Hello", "First."])
        await driver.press("left")
        assert driver.texts == ["Hello", "First."]
        await driver.press("right")
        await driver.until(lambda: driver.texts == ["Hello", "Second."])


async def test_arrows_in_an_empty_prompt_move_between_versions(open_app):
    async with open_app(ScriptedModel(["First.", "Second.", "Third."])) as driver:
        await driver.press("left")  # there is no message yet
        await driver.say("Hello")
        await driver.press("left")
        assert driver.texts == ["Hello", "First."]
        await driver.press("ctrl+up", "r")
        await driver.idle()
        await driver.press("escape", "left")
        await driver.until(lambda: driver.texts == ["Hello", "First."])
        await driver.press("right")
        await driver.until(lambda: driver.texts == ["Hello", "Second."])
        await driver.press(*"ab", "left", *"c")  # what is typed is still written
        assert driver.prompt.text == "acb"
        assert driver.texts == ["Hello", "Second."]


async def test_c_continues_a_stopped_reply(open_app):
    model = ScriptedModel(["one two three four", " five six"], delay=0.0)
    settings = Settings(sampling=Sampling(max_tokens=2))
    async with open_app(model, settings=settings) as driver:
        await driver.say("Count")
        assert driver.texts[-1] == "one two"
        assert driver.notes[-1] == "reached the reply limit · c continues"
        assert "reached the reply limit" in driver.screen_text
        await driver.press("ctrl+up", "c")
        await driver.until(lambda: driver.texts[-1] == "one two five six")
        await driver.idle()
        assert "one two five six" in driver.screen_text


async def test_e_edits_and_sends_again(open_app, store):
    async with open_app(ScriptedModel(["Blue.", "Fine.", "Green."])) as driver:
        await driver.say("Your colour?")
        await driver.say("How are you?")
        await driver.press("ctrl+up", "up", "up", "up", "e")
        assert driver.prompt.text == "Your colour?"
        assert "Editing your message" in driver.screen_text
        await driver.press("end", *" Really?", "enter")
        await driver.until(lambda: driver.texts[-1:] == ["Green."])
        await driver.idle()
        assert driver.texts == ["Your colour? Really?", "Green."]
        assert "‹ 2/2 ›" in driver.screen_text
        assert "Editing your message" not in driver.screen_text
        assert len(store.path(1)) == 2


async def test_e_on_a_reply_edits_its_question_and_escape_gives_up(open_app):
    async with open_app() as driver:
        await driver.say("Hello")
        await driver.press("ctrl+up", "e")
        assert driver.prompt.text == "Hello"
        await driver.press("escape")
        assert driver.prompt.text == ""
        assert driver.prompt.editing is None
        await driver.say("Next")
        assert driver.texts[0::2] == ["Hello", "Next"]


async def test_y_copies(open_app):
    async with open_app(ScriptedModel(["Copy \x1b[31m me."])) as driver:
        await driver.say("Hello")
        await driver.press("ctrl+up", "y")
        await driver.settle()
        assert driver.app.clipboard == "Copy \x1b[31m me."


async def test_the_mouse_selects_text_and_ctrl_c_copies_it(open_app):
    async with open_app(ScriptedModel(["The sea is wide."])) as driver:
        await driver.say("Hello")
        body = driver.transcript.views[1].query_one(TextBody)
        await driver.pilot.mouse_down(body, offset=(4, 0))
        await driver.pilot.hover(body, offset=(6, 0))
        await driver.pilot.mouse_up(body, offset=(6, 0))
        await driver.press("ctrl+c")
        assert driver.app.clipboard == "sea"


async def test_letters_that_are_no_command_of_a_message_go_to_the_prompt(open_app):
    async with open_app() as driver:
        await driver.say("Hello")
        await driver.press("ctrl+up", *"hello, world")
        assert driver.prompt.text == "hello, world"


async def test_a_command_that_a_message_has_not_says_why(open_app):
    async with open_app() as driver:
        await driver.say("Hello")
        await driver.press("ctrl+up", "up")
        for key in ("plus", "minus", "w", "c", "k"):
            driver.app.clear_notifications()
            await driver.press(key)
            assert driver.notices == ["This works on replies only; this message is yours."]
            assert driver.prompt.text == ""
