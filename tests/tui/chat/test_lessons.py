"""A lesson beside the live chat: steps, guesses, the inspector, and the way back."""

import json
import re

from chatapp.common.paths import guesses_path
from chatapp.engine.models.loading import load_model
from chatapp.tui.chat.lecture import LessonScreen
from chatapp.tui.inspector.panel import Inspector
from chatapp.tui.inspector.token_choice import HeatMap, TokenText
from chatapp.tui.widgets.lesson_panel import LessonPanel

LESSON = """title = "Mine"
settings = {temperature = 0, max_tokens = 3}
[[step]]
title = "Words"
text = "Only [b]words[/b]."
[[step]]
title = "Copying"
text = "It copies."
prompt = "Anna saw a zanfo. Anna saw a z"
predict = "What comes?"
view = "attention"
token = " z"
head = "4.1"
[[step]]
title = "Off"
text = "Without a head."
prompt = "Anna saw a zanfo. Anna saw a z"
off = "4.0 4.1"
cache = false
[[step]]
title = "Read"
text = "Tokens alone."
prompt = "unhappiness"
reply = false
view = "tokens"
token = "app"
"""

MOST_ON_AN = re.compile(r"layer 4, head 1: ([89]\d|100)\.\d% on │an│")


def bundled():
    return load_model("bundled")


class Lecture:
    """A lesson that is given over a chat."""

    def __init__(self, driver):
        self.driver = driver

    @property
    def screen(self):
        screen = self.driver.app.screen
        assert isinstance(screen, LessonScreen)
        return screen

    @property
    def replies(self):
        return [view.message.text for view in self.screen.widgets.transcript.views]

    async def rest(self):
        """Wait until the step is done and nothing is computed any more."""
        conversation, workers = self.screen.conversation, self.driver.app.workers
        for _ in range(3):
            await self.driver.until(
                lambda: (
                    all(worker.is_finished for worker in workers if worker.group == "lesson")
                    and not conversation.has_running_threads
                )
            )

    async def press(self, *keys):
        for key in keys:
            await self.driver.press(key)
            await self.rest()


async def opened(driver, folder):
    path = folder / "mine.toml"
    path.write_text(LESSON, encoding="utf-8")
    await driver.order(f"/lesson {path}")
    await driver.until(lambda: isinstance(driver.app.screen, LessonScreen))
    lecture = Lecture(driver)
    await driver.until(lambda: lecture.screen.conversation.session is not None)
    await lecture.rest()
    return lecture


async def test_a_teacher_steps_through_it(open_app, tmp_path):
    async with open_app(load=bundled, size=(160, 45)) as driver:
        await driver.ready()
        lecture = await opened(driver, tmp_path)
        assert "Only [b]words[/b]." in driver.screen_text
        assert lecture.screen.query_one(LessonPanel).has_focus

        await lecture.press("right")
        assert "What comes?" in driver.screen_text
        assert "It copies." not in driver.screen_text, "the text would give it away"
        assert lecture.replies == []
        assert not lecture.screen.query(Inspector)
        await driver.press(*"anfo?", "backspace", "enter")
        await driver.until(lambda: lecture.replies)
        await lecture.rest()
        assert lecture.replies[1].startswith("anfo")
        assert "Your guess: anfo" in driver.screen_text
        assert "It copies." in driver.screen_text
        heat = lecture.screen.query_one("#attention HeatMap", HeatMap)
        text = lecture.screen.query_one("#attention-text", TokenText)
        assert heat.cell == (4, 1)
        assert text.texts[text.cursor] == " z"
        prompt = text.texts[:13]
        assert "".join(prompt) == "Anna saw a zanfo. Anna saw a z"
        assert text.cursor == len(prompt) - 1, "the last one of the prompt"
        assert MOST_ON_AN.search(driver.screen_text)
        assert lecture.screen.query_one(LessonPanel).has_focus
        (row,) = map(json.loads, guesses_path().read_text("utf-8").splitlines())
        assert (row["step"], row["guess"]) == ("Copying", "anfo")

        await lecture.press("right")
        assert not lecture.replies[1].startswith("anfo")
        assert "without 4.0 4.1" in driver.screen_text
        assert lecture.screen.conversation.session.generate is not None

        await lecture.press("right")
        assert lecture.replies == []
        assert "unhappiness" in driver.screen_text
        assert "id" in driver.screen_text
        assert not lecture.screen.conversation.chat.interventions

        await lecture.press("left", "left")
        assert lecture.replies[1].startswith("anfo"), "a step that was guessed at waits no more"
        assert lecture.screen.conversation.session.generate is None


async def test_the_screen_stays_live_and_the_chat_untouched(open_app, tmp_path):
    async with open_app(load=bundled, size=(160, 45)) as driver:
        await driver.ready()
        await driver.say("Hello!")
        before = driver.texts
        lecture = await opened(driver, tmp_path)
        model = driver.chat.conversation.model
        assert lecture.screen.conversation.model is model, "one model in memory"
        await driver.press("f6", "f6")
        assert lecture.screen.query_one(LessonPanel).has_focus, "and back"
        await driver.press("f6", *"Hi.", "enter")
        await driver.until(lambda: len(lecture.replies) == 2)
        await lecture.rest()
        await driver.press("escape")
        assert lecture.screen.query_one(LessonPanel).has_focus
        await driver.back("escape", "escape")
        assert driver.texts == before
        assert len(driver.app.store.chats()) == 1


async def test_the_steps_fit_small_screens(open_app, tmp_path):
    for size in ((60, 20), (100, 30)):
        async with open_app(load=bundled, size=size) as driver:
            await driver.ready()
            lecture = await opened(driver, tmp_path)
            await lecture.press("right", "enter")
            panel = lecture.screen.query_one(LessonPanel)
            inspector = lecture.screen.query_one(Inspector)
            assert not panel.region.overlaps(inspector.region)
            await driver.settle()
            assert MOST_ON_AN.search(driver.screen_text), "the weight of the chosen head"
            await lecture.press("right")
            assert "Off" in driver.screen_text, "its keys go on"


async def test_a_lesson_that_does_not_exist_is_one_sentence(open_app):
    async with open_app() as driver:
        await driver.say("/lesson tokns")
        assert "there is no lesson 'tokns'; did you mean 'tokens'?" in driver.problem
