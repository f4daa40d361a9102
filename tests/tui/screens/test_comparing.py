"""One message answered in two ways: asked, streamed, stopped, chosen, kept."""

import re
import threading

import pytest
from fakes import ScriptedModel
from textual.widgets import Static
from thinking_model import SPECIAL, thinking_model

from chatapp.dialogue.feedback import FeedbackFormat, feedback_rows
from chatapp.dialogue.store.rows import Basis, Comparison
from chatapp.dialogue.variants import Variant
from chatapp.engine.model import Sampling
from chatapp.engine.models import catalogue, loading
from chatapp.tui.screens.compare import HOW, CompareScreen, Side
from chatapp.tui.widgets.dialog import Field
from chatapp.tui.widgets.prompt import PromptInput

FOREIGN = "[b]x[/b] \x1b[2J"
BASE = Variant("bundled", "auto", "", Sampling())


def screen(driver):
    assert isinstance(driver.app.screen, CompareScreen)
    return driver.app.screen


def sides(driver):
    return list(screen(driver).query(Side))


def problem(driver):
    return str(screen(driver).query_one("#compare-problem", Static).content)


async def open_compare(driver, *keys):
    """Press keys that open the screen, and wait until it takes others."""
    await driver.press(*keys)
    await driver.until(
        lambda: isinstance(driver.app.screen, CompareScreen) and driver.app.screen.focused
    )


async def answered(driver):
    """Wait until both sides have a whole reply and the screen asks for the choice."""
    await driver.until(lambda: screen(driver).check_action("choose", ()))


async def left_behind(driver, *keys):
    await driver.back(*keys)
    await driver.idle()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hot", "'hot' is not of the form NAME=VALUE"),
        ("temprature=1", "did you mean 'temperature'?"),
        ("precision=half", "precision is 'half'; expected one of auto"),
        ("model=", "model is empty"),
        ("model='x", "a quotation mark is not closed"),
    ],
)
def test_a_variant_that_cannot_be_is_refused_in_words(text, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        BASE.changed(text)


async def test_two_settings_of_one_model(open_app, store):
    model = ScriptedModel(["Zero.", "One.", FOREIGN, "Then."])
    async with open_app(model) as driver:
        await driver.say("Hello")
        await open_compare(driver, *"Tea?", "f4")
        assert driver.prompt.text == ""
        await driver.press("tab", "tab", "tab", *"temperature=0 seed=5")
        assert "temperature 0.0" in driver.screen_text
        assert "max_tokens" not in driver.screen_text  # the same on both sides
        await driver.press("enter")
        await answered(driver)
        assert "One." in driver.screen_text
        assert "[b]x[/b] ␛[2J" in driver.screen_text
        assert model.prompts[1] == model.prompts[2]
        assert [each.temperature for each in model.samplings] == [0.7, 0.7, 0.0]
        assert model.samplings[2].seed == 5
        await left_behind(driver, "2")
        assert driver.texts == ["Hello", "Zero.", "Tea?", FOREIGN]
        assert "‹ 2/2 ›" in driver.screen_text
        await driver.say("Go on")
        assert driver.texts[-2:] == ["Go on", "Then."]
        assert "One." not in model.prompts[-1]
    assert store.comparisons(1) == [Comparison(4, 5, "right")]
    (row,) = feedback_rows(store, 1, FeedbackFormat.DPO)
    assert row["prompt"][-1] == {"role": "user", "content": "Tea?"}
    assert row["chosen"] == [{"role": "assistant", "content": FOREIGN}]
    assert row["rejected"] == [{"role": "assistant", "content": "One."}]
    turns = {turn.message_id: turn for turn in store.generations(1)}
    assert [turns[id].sampling["temperature"] for id in (4, 5)] == [0.7, 0.0]


@pytest.mark.parametrize(
    ("key", "choice", "leaf", "thumbs"),
    [
        ("1", "left", 2, [0, 0]),
        ("2", "right", 3, [0, 0]),
        ("e", "equal", 2, [0, 0]),
        ("b", "both bad", 2, [-1, -1]),
    ],
)
async def test_the_choice_is_kept_and_the_chat_goes_on_with_it(
    open_app, store, key, choice, leaf, thumbs
):
    async with open_app(ScriptedModel(["One.", "Two."])) as driver:
        await open_compare(driver, *"Tea?", "f4")
        await driver.press("enter")
        await answered(driver)
        await driver.press("left", "right")  # these are not in the footer, and decide nothing
        assert store.comparisons(1) == []
        await left_behind(driver, key)
        assert store.comparisons(1) == [Comparison(2, 3, choice)]
        assert store.chat(1).leaf_id == leaf
        assert [store.feedback(1)[id].thumb for id in (2, 3)] == thumbs
        assert driver.texts == ["Tea?", "One." if leaf == 2 else "Two."]
        assert any("k on the reply ranks" in each.message for each in driver.app._notifications)


async def test_leaving_decides_nothing(open_app, store):
    async with open_app(ScriptedModel(["One.", "Two."])) as driver:
        await open_compare(driver, *"Tea?", "f4")
        await driver.press("escape")
        await left_behind(driver)
        assert driver.prompt.text == "Tea?"
        assert store.chats() == []
        await open_compare(driver, "f4")
        await driver.press("enter")
        await answered(driver)
        await left_behind(driver, "escape")
        assert store.comparisons(1) == []
        assert driver.texts == ["Tea?", "Two."]
        assert driver.prompt.text == ""


class Pausing(ScriptedModel):
    """Pauses after so many tokens of all replies together, until the gate is opened."""

    def __init__(self, replies, after, **options):
        super().__init__(replies, **options)
        self.left = after
        self.closed = threading.Event()

    def _wait(self, cancel):
        self.left -= 1
        if self.left < 0:
            self.gate = self.closed
        return super()._wait(cancel)


def shown(driver):
    return [side.body.text.strip() for side in sides(driver)]


async def test_both_grow_at_once_and_one_goes_on_after_the_other(open_app, store):
    model = Pausing(["One two three four.", "Uno."], 4)
    async with open_app(model) as driver:
        await open_compare(driver, *"Tea?", "f4")
        await driver.press("enter")
        await driver.until(lambda: shown(driver) == ["One two three", "Uno."])
        await driver.until(lambda: store.message(3).status == "complete")
        await driver.press("2")  # nothing to choose from yet
        assert isinstance(driver.app.screen, CompareScreen)
        assert store.message(2).status == "partial"
        model.closed.set()
        await answered(driver)
        assert shown(driver) == ["One two three four.", "Uno."]


async def test_esc_stops_both_and_keeps_what_there_is(open_app, store):
    async with open_app(Pausing(["One two three.", "Uno dos tres."], 4)) as driver:
        await open_compare(driver, *"Tea?", "f4")
        await driver.press("enter")
        await driver.until(lambda: shown(driver) == ["One two", "Uno dos"])
        await driver.press("escape")
        await answered(driver)
        assert [store.message(id).status for id in (2, 3)] == ["stopped", "stopped"]
        assert driver.screen_text.count("stopped") == 2
        await left_behind(driver, "2")
        assert driver.texts == ["Tea?", "Uno dos"]


async def test_two_comparisons_are_ready_to_choose(open_app, monkeypatch):
    monkeypatch.setattr(catalogue, "is_here", lambda name: True)
    async with open_app(ScriptedModel(["Hi."], name="bundled"), size=(60, 20)) as driver:
        await driver.until(lambda: driver.chat.widgets.welcome.larger_is_here)
        await open_compare(driver, *"Tea?", "f4")
        assert [side.note for side in sides(driver)] == [HOW, HOW]
        ready = screen(driver).query_one("#ready")
        for keys, expected in (
            (("enter",), ["", "model=smollm2"]),
            (("down", "enter"), ["temperature=0", "temperature=1"]),
        ):
            await driver.press("down")  # from the prompt
            await driver.until(lambda: driver.app.focused is ready)
            await driver.press(*keys)
            assert [side.query_one(Field).value for side in sides(driver)] == expected
        await driver.press("tab", "down")
        assert isinstance(driver.app.focused, Field)
        await driver.press("shift+tab", "up", "up")
        assert isinstance(driver.app.focused, PromptInput)
        await driver.press("enter")
        await answered(driver)
        assert not screen(driver).query_one("#ready").display


async def test_another_model_on_the_right(open_app, store, monkeypatch):
    other = ScriptedModel(["Other."], name="runs/other")
    loaded = []

    def load_model(name, *, precision, device):
        loaded.append((name, precision))
        if name != other.name:
            raise ValueError(f"{name}: no such model")
        return other

    monkeypatch.setattr(loading, "load_model", load_model)
    model = ScriptedModel(["Own."])
    async with open_app(model) as driver:
        await open_compare(driver, *"/compare model=[b]x", "enter")
        await driver.press(*"Tea?", "enter")
        left, right = sides(driver)
        await driver.until(lambda: driver.app.focused is right.query_one(Field))
        assert problem(driver) == "[b]x: no such model"
        assert left.reply is not None
        right.query_one(Field).value = "model=runs/other"
        await driver.press("enter")
        await answered(driver)
        assert problem(driver) == ""
        await left_behind(driver, "2")
        assert driver.texts == ["Tea?", "Other."]
        assert driver.status.model == store.chat(1).model == "scripted"
        for _ in range(2):  # it is loaded once
            await open_compare(driver, *"/compare model=runs/other", "enter")
            await driver.press(*"More?", "enter")
            await answered(driver)
            await left_behind(driver, "1")
        assert loaded == [("[b]x", "auto"), ("runs/other", "auto")]
        first, *_ = feedback_rows(store, 1, FeedbackFormat.DPO)
        assert (first["model"], first["rejected_model"]) == ("runs/other", "scripted")
        assert driver.status.model == "scripted"


async def test_what_cannot_be_asked_is_said_and_nothing_is_lost(open_app, store):
    async with open_app(ScriptedModel(["One."], context=20)) as driver:
        text = "word " * 40
        driver.prompt.text = text
        await open_compare(driver, "f4")
        await driver.press("enter")
        await driver.until(lambda: screen(driver).query_one(PromptInput).text == text)
        assert problem(driver).count("window of 20 tokens") == 1
        assert store.chats() == []
        for side in sides(driver):
            side.query_one(Field).value = "template=odd"
        screen(driver).query_one(PromptInput).text = "Tea?"
        await driver.press("enter")
        await driver.until(lambda: "there is no template 'odd'" in problem(driver))
        await driver.until(lambda: screen(driver).query_one(PromptInput).text == "Tea?")
        sides(driver)[0].query_one(Field).value = "top_k=x"
        await driver.until(lambda: "top_k is 'x'" in sides(driver)[0].note)  # before it is sent
        await driver.press("enter")
        await driver.until(lambda: problem(driver).startswith("Left: top_k is 'x'"))
        assert screen(driver).query_one(PromptInput).text == "Tea?"
        await left_behind(driver, "escape")
        assert driver.prompt.text == "Tea?"


async def test_a_store_that_goes_away_is_told(open_app, store):
    async with open_app(ScriptedModel(["One."])) as driver:
        await open_compare(driver, *"Tea?", "f4")
        await driver.press("enter")
        await answered(driver)
        store.close()
        await driver.press("1")
        assert "cannot be used" in problem(driver)
        await driver.back("escape")


async def test_not_while_there_is_no_model(open_app):
    wait = threading.Event()

    def slowly():
        wait.wait(120)
        return ScriptedModel(["One."])

    async with open_app(load=slowly) as driver:
        await driver.press(*"Tea?", "f4")
        assert driver.app.screen is driver.chat
        assert driver.prompt.text == "Tea?"
        wait.set()
        await driver.ready()


async def test_both_are_put_into_the_prompt_file_of_the_chat(open_app, store, tmp_path):
    path = tmp_path / "feel.toml"
    path.write_text(
        'instruction = "How does it feel?"\ninput_prefix = "Thing: "\noutput_prefix = "Feels:"\n'
        'examples = [{input = "silk", output = "soft"}]\n[generate]\ntemperature = 0.2\n'
    )
    model = ScriptedModel(["smooth", "rough"])
    async with open_app(model) as driver:
        driver.chat.conversation.use_basis(Basis(prompt=str(path)))
        driver.chat.controls.models.show()
        await driver.until(lambda: driver.status.used)
        await driver.idle()
        await open_compare(driver, *"stone", "f4")
        await driver.press("tab", "tab", "tab", *"temperature=1", "enter")
        await answered(driver)
        await left_behind(driver, "1")
        assert store.chat(1).prompt == str(path)
        assert [each.temperature for each in model.samplings] == [0.2, 1.0]
        for prompt in model.prompts:
            assert prompt.endswith("Thing: silk\nFeels: soft\n\nThing: stone\nFeels:")


async def test_each_side_says_that_it_thinks(open_app, tmp_path):
    thoughts = "<think>\nThey greet me.\n</think>\n\n"
    folder = tmp_path / "model"
    thinking_model(folder, [])
    texts = [f"{thoughts}Hello!", f"{thoughts}Hi!"]
    model = Pausing(texts, 8, folder=folder, special=SPECIAL)
    async with open_app(model) as driver:
        await open_compare(driver, *"Tea?", "f4")
        await driver.press("enter")
        await driver.until(
            lambda: [side.note for side in sides(driver)] == ["thinking · 4 tokens · Esc stops"] * 2
        )
        assert "Esc Stop" in driver.screen_text
        model.closed.set()
        await answered(driver)
        assert "Esc Leave" in driver.screen_text
        assert shown(driver) == ["Hello!", "Hi!"]
