"""A long chat: only some messages are mounted, and scrolling never jumps."""

import pytest
from fakes import ScriptedModel
from tui_driver import fill

from chatapp.tui.widgets import transcript

AT_FIRST, STEP, AT_MOST = 13, 8, 30
LENGTH = 60
BEYOND = AT_FIRST + STEP + 2


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Half as many messages as usual, in the time of half as many."""
    monkeypatch.setattr(transcript, "AT_FIRST", AT_FIRST)
    monkeypatch.setattr(transcript, "STEP", STEP)
    monkeypatch.setattr(transcript, "AT_MOST", AT_MOST)


@pytest.fixture
def long_chat(store):
    return fill(store, [f"<{number}> " + "some words " * (number % 30) for number in range(LENGTH)])


def mounted(driver):
    """The numbers of the mounted messages."""
    return [int(text[1 : text.index(">")]) for text in driver.texts]


async def test_only_the_last_messages_are_mounted(open_app, long_chat):
    async with open_app(chat_id=long_chat) as driver:
        assert mounted(driver) == list(range(LENGTH - AT_FIRST, LENGTH))
        assert driver.transcript.scroll_y == driver.transcript.max_scroll_y
        assert f"<{LENGTH - 1}>" in driver.screen_text


async def test_scrolling_up_and_down_reaches_every_message_once(open_app, long_chat):
    async with open_app(chat_id=long_chat) as driver:
        for rounds, key, end in ((600, "pageup", 0), (600, "pagedown", LENGTH - 1)):
            for _ in range(rounds):
                await driver.press(key)
                numbers = mounted(driver)
                assert numbers == list(range(numbers[0], numbers[-1] + 1))
                assert len(numbers) <= AT_MOST + STEP
                if end in numbers and f"<{end}>" in driver.screen_text:
                    break
            assert end in mounted(driver)
        assert driver.transcript.scroll_y == driver.transcript.max_scroll_y


async def test_nothing_moves_when_earlier_messages_are_mounted(open_app, long_chat):
    async with open_app(chat_id=long_chat) as driver:
        transcript = driver.transcript
        before = mounted(driver)[0]
        transcript.scroll_to(y=0, animate=False)
        await driver.until(lambda: mounted(driver)[0] < before)
        assert f"<{before}>" in "\n".join(driver.screen_text.split("\n")[1:6])
        assert mounted(driver)[0] == before - STEP
        assert transcript.scroll_y > 0


async def test_a_new_turn_goes_back_to_the_end(open_app, long_chat):
    model = ScriptedModel([f"<{LENGTH + 1}> The newest."], context=100_000)
    async with open_app(model, chat_id=long_chat) as driver:
        while LENGTH - 1 in mounted(driver):
            await driver.press("pageup")
        await driver.say(f"<{LENGTH}> Hello")
        assert mounted(driver)[-2:] == [LENGTH, LENGTH + 1]
        assert "The newest." in driver.screen_text
        assert driver.transcript.scroll_y == driver.transcript.max_scroll_y


async def test_many_turns_keep_the_number_of_widgets_flat(open_app):
    turns = AT_MOST // 2 + 5
    async with open_app(ScriptedModel(lambda prompt: "Yes."), size=(60, 20)) as driver:
        for number in range(turns):
            await driver.say(f"{number}")
            assert len(driver.transcript.views) <= AT_MOST
        assert len(driver.transcript.path) == 2 * turns
        assert driver.texts[-1] == "Yes."


async def test_focus_walks_beyond_what_is_mounted(open_app, long_chat):
    async with open_app(chat_id=long_chat) as driver:
        await driver.press("ctrl+up")
        for _ in range(BEYOND):
            await driver.press("up")
        focused = driver.app.focused
        assert focused in driver.transcript.views
        assert focused.message.text.startswith(f"<{LENGTH - 1 - BEYOND}>")
        assert f"<{LENGTH - 1 - BEYOND}>" in driver.screen_text


async def test_focus_is_not_left_on_what_is_far_away(open_app, long_chat):
    async with open_app(chat_id=long_chat) as driver:
        await driver.press("ctrl+up")
        while LENGTH - 1 in mounted(driver):
            driver.transcript.scroll_to(y=0, animate=False)
            await driver.settle()
        assert driver.app.focused is driver.prompt
        first = mounted(driver)[0]
        await driver.settle()
        assert mounted(driver)[0] == first


async def test_a_tall_terminal_is_filled(open_app, store):
    chat_id = fill(store, [f"<{number}>" for number in range(LENGTH)])
    async with open_app(chat_id=chat_id, size=(100, 80)) as driver:
        await driver.until(lambda: len(driver.texts) > AT_FIRST)
        assert driver.transcript.max_scroll_y > 0
        assert driver.transcript.scroll_y == driver.transcript.max_scroll_y


async def test_resizing_keeps_hold_of_the_end(open_app, long_chat):
    async with open_app(chat_id=long_chat) as driver:
        for size in ((60, 20), (200, 60), (30, 10), (100, 30)):
            await driver.pilot.resize_terminal(*size)
            await driver.settle()
            assert driver.transcript.scroll_y == driver.transcript.max_scroll_y
