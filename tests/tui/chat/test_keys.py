"""Every key of the chat, pressed."""

import threading

import pytest
from fakes import ScriptedModel
from glass import GlassModel
from textual.events import Paste
from tui_driver import fill

from chatapp.common.settings import Settings
from chatapp.engine.model import Sampling
from chatapp.tui.chat import screen
from chatapp.tui.screens.parameters import HINTS, ParametersScreen
from chatapp.tui.widgets.dialog import Field
from chatapp.tui.widgets.welcome import QUESTION, Welcome

SUGGESTED = ("enter", "f5", "f3")
"""The keys of the three suggestions."""


async def test_enter_sends_but_not_nothing(open_app):
    async with open_app(ScriptedModel(["Nice to meet you."])) as driver:
        await driver.say("Hello")
        assert driver.prompt.text == ""
        assert driver.status.state == "ready"
        assert "Nice to meet you." in driver.screen_text
        for text in ("", "   ", "\n\n"):
            await driver.order(text)
            assert driver.chat.conversation.turn is None
            assert driver.prompt.text == text
            assert driver.texts == ["Hello", "Nice to meet you."]


async def test_a_new_line_does_not_send(open_app):
    async with open_app() as driver:
        await driver.press("a", "ctrl+j", "b", "shift+enter", "c", "alt+enter", "d")
        assert driver.prompt.text == "a\nb\nc\nd"
        assert driver.chat.conversation.turn is None


async def test_the_prompt_grows_to_eight_rows(open_app):
    async with open_app() as driver:
        frame = 2
        assert driver.prompt.region.height == 1 + frame
        await driver.press("a", "ctrl+j", "b", "ctrl+j", "c")
        assert driver.prompt.region.height == 3 + frame
        driver.prompt.text = "\n" * 50
        await driver.settle()
        assert driver.prompt.region.height == 8


async def test_escape_stops_and_keeps_what_there_is(open_app, store):
    model = ScriptedModel([" ".join(str(number) for number in range(500))], delay=0.005)
    async with open_app(model) as driver:
        await driver.shows(" 5 ", *"Count", "enter")
        await driver.press_and_rest("escape")
        assert driver.status.state == "stopped"
        assert driver.notes[-1].startswith("stopped")
        assert driver.texts[-1].startswith("0 1 2 3 4 5")
        assert len(driver.texts[-1]) < 1000
        stored = store.path(1)[-1]
        assert (stored.status, stored.text) == ("stopped", driver.texts[-1])
        assert stored.text.split()[-1] in driver.screen_text


async def test_escape_takes_a_waiting_message_back(open_app):
    opened = threading.Event()

    def load():
        opened.wait(120)
        return ScriptedModel(["No."])

    async with open_app(load=load) as driver:
        await driver.shows("waiting for the model", *"Hi", "enter")
        await driver.press("escape")
        assert driver.prompt.text == "Hi"
        assert "waiting for the model" not in driver.screen_text
        opened.set()
        await driver.ready()
        assert driver.texts == []


async def test_ctrl_n_starts_a_new_chat(open_app, store):
    async with open_app() as driver:
        await driver.say("First chat")
        await driver.press("ctrl+n")
        assert driver.texts == []
        assert driver.chat.query_one(Welcome).display
        await driver.say("Second chat")
        assert [chat.title for chat in store.chats()] == ["Second chat", "First chat"]


async def test_ctrl_n_leaves_a_running_reply_behind(open_app, store):
    model = ScriptedModel(["word " * 500, "The second reply."], delay=0.01)
    async with open_app(model) as driver:
        await driver.press(*"One", "enter")
        await driver.until(lambda: driver.texts)
        await driver.press("ctrl+n")
        model.delay = 0
        await driver.say("Two")
        assert driver.texts == ["Two", "The second reply."]
        assert [message.status for message in store.path(1)] == ["complete", "stopped"]


async def test_f2_takes_effect_on_the_next_turn(open_app):
    model = ScriptedModel(["Yes."])
    async with open_app(model, settings=Settings(sampling=Sampling(seed=7))) as driver:
        await driver.press("f2")
        screen = driver.app.screen
        assert isinstance(screen, ParametersScreen)
        assert {field.id for field in screen.query(Field)} == set(HINTS)
        assert set(HINTS) > set(Sampling.__dataclass_fields__)
        assert "plain" in driver.screen_text
        screen.query_one("#temperature", Field).value = "0.25"
        screen.query_one("#seed", Field).value = ""
        screen.query_one("#max_tokens", Field).value = "12"
        await driver.back("enter")
        assert driver.chat.conversation.choices.sampling == Sampling(
            temperature=0.25, seed=None, max_tokens=12
        )
        await driver.say("Go")
        assert model.samplings[-1].temperature == 0.25
        assert model.samplings[-1].max_tokens == 12


async def test_ctrl_q_quits_from_anywhere(open_app):
    for keys in ([], ["f1"], ["f2"], ["ctrl+o"]):
        async with open_app() as driver:
            await driver.press(*keys, "ctrl+q")
            await driver.until_left()
            assert driver.app.return_value == 0


async def test_ctrl_c_neither_quits_nor_loses_text(open_app):
    async with open_app() as driver:
        await driver.press(*"Hello", "ctrl+c")
        assert driver.prompt.text == ""
        assert not driver.app._exit
        assert not driver.notices
        await driver.press("ctrl+z")
        assert driver.prompt.text == "Hello"
        await driver.press("ctrl+a", "shift+end", "ctrl+c")
        assert driver.app.clipboard == "Hello"


async def test_f7_presents_also_while_a_message_is_written(open_app):
    async with open_app() as driver:
        await driver.press(*"Hello", "f7")
        assert "^Q" not in driver.screen_text
        await driver.press("f7", "!")
        assert "^Q" in driver.screen_text
        assert driver.prompt.text == "Hello!"


async def test_ctrl_c_stops_a_reply_and_a_second_one_says_how_to_leave(open_app, store):
    async with open_app(ScriptedModel(["word " * 500], delay=0.005)) as driver:
        await driver.shows("word word", *"Go", "enter")
        await driver.press("ctrl+c")
        assert not driver.notices
        await driver.idle()
        assert store.path(1)[-1].status == "stopped"
        await driver.press("ctrl+c")
        assert "quit" in driver.notices[-1]
        assert not driver.app._exit


async def test_esc_twice_empties_the_prompt_and_undo_restores_it(open_app, monkeypatch):
    now = 100.0
    monkeypatch.setattr(screen, "monotonic", lambda: now)
    async with open_app() as driver:
        await driver.press(*"Hello", "escape")
        now += 60
        await driver.press("escape")
        assert driver.prompt.text == "Hello"  # the first of two
        await driver.press("escape")
        assert driver.prompt.text == ""
        await driver.press("ctrl+z", *"!")
        assert driver.prompt.text == "Hello!"


async def test_a_failed_command_is_replaced_by_what_is_typed(open_app):
    async with open_app() as driver:
        await driver.order("/nonsense")
        assert driver.prompt.selected_text == "/nonsense"
        await driver.press(*"Hello")
        assert driver.prompt.text == "Hello"


async def test_a_new_chat_takes_over_a_message_and_no_command(open_app):
    async with open_app() as driver:
        await driver.press(*"/nonsense", "enter", "ctrl+n")
        assert driver.prompt.text == ""
        await driver.press(*"Hello", "ctrl+n")
        assert driver.prompt.text == "Hello"


async def test_up_and_down_recall_earlier_inputs(open_app, store):
    fill(store, ["older", "reply", "newer\nof two lines", "reply"])
    async with open_app() as driver:
        await driver.press(*"draft", "up")
        assert driver.prompt.text == "newer\nof two lines"
        await driver.press("up", "up")  # the first goes to its first line
        assert driver.prompt.text == "older"
        await driver.press("up")
        assert driver.prompt.text == "older"
        await driver.press("down", "down", "down")
        assert driver.prompt.text == "draft"
        await driver.say("the newest")
        await driver.press("up")
        assert driver.prompt.text == "the newest"


async def test_page_keys_let_go_of_the_end_and_take_hold_again(open_app):
    model = ScriptedModel(["line\n" * 60, "more\n" * 40])
    async with open_app(model) as driver:
        await driver.say("Go")
        transcript = driver.transcript
        assert transcript.scroll_y == transcript.max_scroll_y > 0
        await driver.press("pageup")
        above = transcript.scroll_y
        assert above < transcript.max_scroll_y
        gate = model.gate = threading.Event()
        model.delay = 0.002
        await driver.press(*"On", "enter")
        await driver.until(lambda: len(driver.texts) == 4)
        assert transcript.scroll_y == transcript.max_scroll_y  # a new turn takes hold
        await driver.press("pageup", "pageup")
        above = transcript.scroll_y
        gate.set()
        await driver.idle()
        assert transcript.scroll_y == above
        assert transcript.max_scroll_y > above
        for _ in range(20):
            await driver.press("pagedown")
        assert transcript.scroll_y == transcript.max_scroll_y


async def test_a_paste_goes_into_the_prompt_wherever_the_focus_is(open_app):
    async with open_app() as driver:
        await driver.say("Hello")
        await driver.press("ctrl+up")
        driver.app.post_message(Paste("two\nlines"))
        await driver.settle()
        assert driver.prompt.text == "two\nlines"
        assert driver.app.focused is driver.prompt
        driver.app.post_message(Paste(" more"))
        await driver.settle()
        assert driver.prompt.text == "two\nlines more"


async def test_a_paste_goes_nowhere_while_the_prompt_is_covered(open_app):
    async with open_app(size=(60, 20)) as driver:
        await driver.press_and_rest("f3")
        driver.app.post_message(Paste("two\nlines"))
        await driver.settle()
        assert driver.prompt.text == ""
        assert driver.app.focused is not driver.prompt
        await driver.press("escape")
        driver.app.post_message(Paste("again"))
        await driver.settle()
        assert driver.prompt.text == "again"


async def test_enter_on_nothing_asks_the_first_question(open_app):
    async with open_app() as driver:
        await driver.press("enter", "enter")
        await driver.idle()
        assert driver.texts == [QUESTION, "It is a scripted reply."]
        await driver.press("enter")  # there is a chat now
        await driver.idle()
        assert len(driver.texts) == 2


@pytest.mark.parametrize(
    ("place", "words"), [(0, "It is a scripted reply."), (1, "pirate"), (2, "Anna has a zanfo")]
)
async def test_each_suggestion_is_one_key_away(open_app, place, words):
    for keys in [("shift+tab", *["down"] * place, "enter"), (SUGGESTED[place],)]:
        async with open_app(GlassModel(["It is a scripted reply."])) as driver:
            await driver.press("ctrl+n", *keys)
            await driver.until(lambda driver=driver: words in driver.screen_text)
