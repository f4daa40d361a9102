"""What happens around a turn: waiting for the model, refusals, failures, what is left behind."""

import threading

import pytest
from fakes import ScriptedModel
from tui_driver import fill


async def test_the_first_message_waits_for_the_model(open_app, store):
    opened = threading.Event()

    def load():
        opened.wait(120)
        return ScriptedModel(["Good morning."])

    async with open_app(load=load) as driver:
        assert driver.status.state == "loading"
        await driver.shows("waiting for the model to be loaded", *"Hello", "enter")
        assert driver.prompt.text == ""
        assert store.chats() == []
        await driver.press(*"typed meanwhile")
        opened.set()
        await driver.until(lambda: driver.texts == ["Hello", "Good morning."])
        await driver.idle()
        assert driver.prompt.text == "typed meanwhile"
        assert "waiting for the model" not in driver.screen_text


async def test_a_failed_load_gives_the_text_back_and_can_be_tried_again(open_app):
    attempts = []

    def load():
        attempts.append(True)
        if len(attempts) == 1:
            raise RuntimeError("there is no folder [b]x[/b]")
        return ScriptedModel(["There I am."])

    async with open_app(load=load) as driver:
        await driver.until(lambda: driver.problem)
        expected = "The model could not be loaded: there is no folder [b]x[/b]"
        hint = "F8 chooses another one; the next message tries this one again."
        assert driver.problem == f"{expected}\n{hint}"
        assert expected in driver.screen_text
        assert hint in driver.screen_text
        assert driver.status.state == "no model"
        await driver.press(*"Hi", "enter")
        await driver.until(lambda: driver.texts == ["Hi", "There I am."])
        assert driver.problem == ""


async def test_a_load_that_fails_while_a_message_waits_gives_it_back(open_app):
    opened = threading.Event()

    def load():
        opened.wait(120)
        raise RuntimeError("no such model")

    async with open_app(load=load) as driver:
        await driver.shows("waiting for the model", *"Hello", "enter")
        opened.set()
        await driver.until(lambda: driver.problem)
        assert driver.prompt.text == "Hello"


async def test_messages_sent_during_a_reply_wait_for_its_end(open_app):
    model = ScriptedModel(["One.", "Two.", "Three."])
    model.gate = threading.Event()
    async with open_app(model) as driver:
        await driver.press(*"First", "enter")
        await driver.until(lambda: driver.texts)
        await driver.press(*"Second", "enter", *"[b]Third", "enter", *"Fourth", "enter")
        assert driver.prompt.text == ""
        for queued in ("queued  Second", "queued  [b]Third", "queued  Fourth"):
            assert queued in driver.screen_text
        await driver.press("up")  # edited
        assert driver.prompt.text == "Fourth"
        assert "queued  Fourth" not in driver.screen_text
        await driver.press("ctrl+u", "up")  # dropped; the one before is edited
        assert driver.prompt.text == "[b]Third"
        await driver.press("!", "enter", *"in the prompt")
        model.gate.set()
        replies = ["First", "One.", "Second", "Two.", "[b]Third!", "Three."]
        await driver.until(lambda: driver.texts == replies)
        await driver.idle()
        assert driver.prompt.text == "in the prompt"
        assert "queued" not in driver.screen_text


@pytest.mark.parametrize("key", ["escape", "ctrl+n"])
async def test_queued_messages_come_back_when_the_reply_is_abandoned(open_app, key):
    model = ScriptedModel(["One.", "Two."])
    model.gate = threading.Event()
    async with open_app(model) as driver:
        await driver.press(*"First", "enter")
        await driver.until(lambda: driver.texts)
        await driver.press(*"Second", "enter", *"Third", "enter", key)
        await driver.until(lambda: driver.prompt.text == "Second\nThird")
        model.gate.set()
        await driver.idle()
        assert "Second" not in driver.texts
        assert "queued" not in driver.screen_text


async def test_an_edit_that_is_too_long_stays_an_edit(open_app):
    async with open_app(ScriptedModel(["Yes.", "No."], context=64)) as driver:
        await driver.say("Hello")
        await driver.press("ctrl+up", "e")
        await driver.say("word " * 100)
        assert driver.prompt.editing.text == "Hello"
        assert driver.texts == ["Hello", "Yes."]


async def test_text_written_meanwhile_is_kept_when_a_message_comes_back(open_app):
    async with open_app(ScriptedModel(["Yes."], context=64)) as driver:
        driver.prompt.text = "word " * 100
        driver.app.simulate_key("enter")
        driver.app.simulate_key("x")
        await driver.until(lambda: driver.problem)
        assert driver.prompt.text == "word " * 100 + "\nx"


async def test_a_waiting_message_is_kept_when_another_chat_is_opened(open_app, store):
    opened = threading.Event()

    def load():
        opened.wait(120)
        return ScriptedModel(["Good morning."])

    chat_id = fill(store, ["Old", "chat"])
    async with open_app(load=load, chat_id=chat_id) as driver:
        await driver.press(*"Hello", "enter")
        await driver.press("ctrl+n")
        assert driver.prompt.text == "Hello"
        assert driver.texts == []
        opened.set()
        await driver.ready()
        await driver.press("enter")
        await driver.until(lambda: driver.texts == ["Hello", "Good morning."])
        assert len(store.chats()) == 2


async def test_a_message_refused_after_its_chat_was_left_comes_back(open_app):
    async with open_app(ScriptedModel(["Yes."], context=64)) as driver:
        driver.prompt.text = "word " * 100
        driver.app.simulate_key("enter")
        driver.app.simulate_key("ctrl+n")
        await driver.until(lambda: driver.problem or driver.prompt.text)
        assert driver.prompt.text.strip() == ("word " * 100).strip()


class BrokenModel(ScriptedModel):
    """Breaks a promise: it raises in the middle of a reply."""

    def generate(self, request):
        for count, event in enumerate(super().generate(request)):
            if count == 2:
                raise ZeroDivisionError("a bug")
            yield event


async def test_a_message_that_is_too_long_comes_back_with_the_ways_out(open_app, store):
    async with open_app(ScriptedModel(["Yes."], context=20)) as driver:
        text = driver.prompt.text = "word " * 40
        for key in ("ctrl+n", "ctrl+c"):
            await driver.press("enter")
            await driver.until(lambda: driver.prompt.text == text)
            assert "tokens long" in driver.problem
            assert "20" in driver.problem
            assert "a larger window" in driver.problem
            assert "Ctrl+C empties the prompt" in driver.problem
            await driver.press(key)
            assert (driver.prompt.text, driver.problem) == ("", ""), "it stays behind"
            await driver.press("ctrl+z")
            assert driver.prompt.text == text
        assert store.chats() == []
        await driver.press("enter")
        await driver.until(lambda: driver.problem)
        await driver.say("short")
        assert (driver.problem, driver.texts) == ("", ["short", "Yes."])


async def test_a_bug_in_a_model_does_not_bring_the_screen_down(open_app):
    async with open_app(BrokenModel(["one two three"])) as driver:
        await driver.say("Hello")
        assert driver.problem == "a bug"
        assert driver.texts[-1] == "one two"
        assert driver.status.state == "error"
        await driver.press("ctrl+n")
        assert driver.problem == ""


async def test_the_status_line_counts_tokens_and_what_is_left_out(open_app):
    model = ScriptedModel(["five words are enough here"] * 20, context=64)
    async with open_app(model) as driver:
        await driver.until(lambda: driver.status.limit == 64)
        for number in range(6):
            await driver.say(f"message number {number}")
        await driver.until(lambda: not driver.chat.conversation.has_running_threads)
        assert 0 < driver.status.used <= 64
        assert driver.status.dropped > 0
        assert f"{driver.status.used}/64 tokens" in driver.screen_text
        assert f"{driver.status.dropped} messages out of context" in driver.screen_text
        assert driver.status.template == "plain"
        assert "scripted" in driver.screen_text


async def test_a_store_that_goes_away_is_told_in_words(open_app, store):
    async with open_app() as driver:
        await driver.say("Hello")
        store.close()
        await driver.press("ctrl+up", "left", "e", "escape")
        await driver.say("More")
        assert "cannot be used" in driver.problem
        assert driver.prompt.text == "More"
        await driver.press("ctrl+o")
        await driver.until(lambda: "cannot be used" in driver.sentences)


class PanicException(BaseException):
    """As Rust libraries raise it: no Exception."""


async def test_a_panic_ends_the_reply_and_not_the_chat(open_app, store):
    class Panicking(ScriptedModel):
        panics = True

        def generate(self, request):
            if self.panics:
                self.panics = False
                raise PanicException("index out of bounds")
            yield from super().generate(request)

    async with open_app(Panicking(["Better."])) as driver:
        await driver.say("Hello")
        assert "index out of bounds" in driver.problem
        assert [message.status for message in store.path(1)] == ["complete", "error"]
        await driver.press("ctrl+up", "r")
        await driver.idle()
        assert driver.texts == ["Hello", "Better."]
