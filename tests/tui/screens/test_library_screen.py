"""The picker of personas and prompt files: what it lists, shows and sets, and what it refuses."""

import threading

import pytest
from fakes import ScriptedModel
from glass import GlassModel
from library_driver import choose, picker, rows, type_in
from textual.widgets import OptionList, Static

from chatapp.dialogue.store.rows import Basis
from chatapp.engine.model import Sampling
from chatapp.tui.chat.parts import ChatWidgets
from chatapp.tui.screens.library import LibraryScreen
from chatapp.tui.widgets.dialog import Field


async def leave(driver):
    await driver.back("escape")


def preview(driver):
    parts = ("#preview-about", "#preview-text")
    widgets = [driver.app.screen.query_one(part, Static) for part in parts]
    return "\n".join(str(widget.content) for widget in widgets if widget.display)


@pytest.fixture
def said(monkeypatch):
    """What the user was told in passing."""
    words = []
    monkeypatch.setattr(ChatWidgets, "inform", lambda widgets, said: words.append(said))
    return words


# What it lists and shows


async def test_typing_filters_and_the_preview_follows(open_app, own):
    async with open_app() as driver:
        await picker(driver)
        assert rows(driver)[0] == "● none  no persona and no prompt file"
        assert "  monk  A silent monk" in rows(driver)
        assert any("spam  Spam or ham" in row for row in rows(driver))
        assert not any("unicorns" in row for row in rows(driver))
        await driver.press(*"silent")
        await driver.rest()
        assert rows(driver) == ["  monk  A silent monk"]
        assert "in template alpaca" in preview(driver)
        assert "The monk says little.\n\n### Instruction:" in preview(driver)
        await type_in(driver, "feel")
        assert rows(driver) == ["  feel  How things feel"]
        assert "after 2 of 4 examples chosen for it: knn." in preview(driver)
        assert "temperature 0.0, max_tokens 9" in preview(driver)
        assert "for the message: red rose" in preview(driver), "the first input of its own"
        assert "red fire → hot" in preview(driver)
        assert preview(driver).endswith("Thing: red rose\nFeels:")
        await type_in(driver, "no such thing")
        assert rows(driver) == []
        assert "Nothing matches" in preview(driver)
        await driver.press("enter")
        assert isinstance(driver.app.screen, LibraryScreen)
        await leave(driver)
        assert driver.chat.conversation.chat.basis == Basis()


async def test_a_disk_that_does_not_answer_does_not_hold_the_picker(open_app, own, monkeypatch):
    answers = threading.Event()
    monkeypatch.setattr(
        "chatapp.tui.screens.library.is_file", lambda path: answers.wait(60) and path == "/x/y"
    )
    async with open_app() as driver:
        await picker(driver)
        await driver.press(*"/x/y")
        assert driver.app.screen.query_one(Field).value == "/x/y"
        assert rows(driver) == []
        answers.set()
        await driver.until(lambda: [row.strip() for row in rows(driver)] == ["/x/y"])


async def test_keys_move_through_the_list_and_the_preview(open_app, own):
    async with open_app(size=(60, 20)) as driver:
        screen = await picker(driver)
        options = screen.query_one(OptionList)
        assert options.highlighted == 0
        await driver.press("down", "down")
        await driver.rest()
        assert options.highlighted == 2
        assert "poet" in preview(driver)
        await driver.press_and_rest("up")
        assert "pirate" in preview(driver)
        await type_in(driver, "feel")
        scroll = screen.query_one("#shelf > VerticalScroll")
        await driver.press("pagedown")
        assert scroll.scroll_y > 0
        await driver.press("pageup")
        assert scroll.scroll_y == 0


async def test_the_preview_is_for_the_text_on_the_way(open_app, own):
    async with open_app() as driver:
        driver.prompt.text = "blue ice"
        await picker(driver)
        await type_in(driver, "feel")
        assert "for the message: blue ice" in preview(driver)
        assert "Examples for this message, nearest first" in preview(driver)
        assert "white ice → icy" in preview(driver)
        assert "red rose" not in preview(driver)
        await leave(driver)
        assert driver.prompt.text == "blue ice"


# What is chosen


async def test_a_prompt_file_is_chosen_kept_and_taken_off(open_app, store, own, said):
    model = GlassModel([" nice"])
    async with open_app(model) as driver:
        await driver.say("Hello")
        await choose(driver, "feel")
        assert said == ["The next message uses prompt file feel."]
        assert driver.status.template == "feel"
        assert store.chat(1).prompt == "feel"
        await driver.say("red wine")
        expected = (
            "Say how it feels.\nThing: red fire\nFeels: hot\nThing: red rose\nFeels: warm\n"
            "Thing: red wine\nFeels:"
        )
        assert model.prompts[-1] == expected
        assert model.samplings[-1].max_tokens == 9
        await driver.press_and_rest("f3")
        await driver.shows("red fire → hot", "1")
        assert "Examples for this message, nearest first" in driver.screen_text
        assert "prompt file feel" in driver.screen_text
    async with open_app(model, chat_id=1) as driver:
        await driver.rest()
        assert driver.status.template == "feel"
        assert driver.chat.conversation.choices.sampling.max_tokens == 9
        await driver.say("blue wine")
        assert model.prompts[-1].endswith("Thing: blue wine\nFeels:")
        await picker(driver)
        place = driver.app.screen.query_one(OptionList).highlighted
        assert place is not None
        assert rows(driver)[place] == "● feel  How things feel"
        await leave(driver)
        await driver.order("/prompt none")
        await driver.until(lambda: "The next message uses no prompt file or persona." in said)
        assert store.chat(1).basis == Basis()
        assert driver.status.template == "plain"
        await driver.say("And now?")
        assert model.prompts[-1].endswith("User: And now?\nAssistant:")
        assert model.samplings[-1].max_tokens == Sampling().max_tokens


async def test_one_can_choose_before_the_model_is_there(open_app, store, own):
    there, model = threading.Event(), ScriptedModel(["Nice."])

    def load():
        there.wait(60)
        return model

    async with open_app(load=load) as driver:
        await driver.press("f5")
        await driver.until(lambda: isinstance(driver.app.screen, LibraryScreen) and rows(driver))
        await driver.until(lambda: "which is not loaded yet" in preview(driver))
        driver.app.screen.query_one(Field).value = "feel"
        await driver.until(lambda: len(rows(driver)) == 1)
        await driver.back("enter")
        assert driver.chat.conversation.chat.basis == Basis(prompt="feel")
        there.set()
        await driver.until(lambda: driver.status.template == "feel")
        await driver.say("red wine")
        assert model.prompts[-1].endswith("Thing: red wine\nFeels:")
        assert store.chat(1).prompt == "feel"


# By command


async def test_the_command_completes_and_chooses(open_app, own):
    async with open_app() as driver:
        await driver.press(*"/prompt fee")
        await driver.press("tab")
        assert driver.prompt.text == "/prompt feel"
        await driver.press("enter")
        await driver.until(lambda: driver.status.template == "feel")
        await driver.order("/prompt")
        await driver.until(lambda: isinstance(driver.app.screen, LibraryScreen))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("feell", "there is no prompt 'feell'; did you mean 'feel'?"),
        ("no/such.toml", "no/such.toml: cannot be read: No such file or directory"),
        ("~nobody-of-this-name/x.toml", "'~nobody-of-this-name/x.toml': "),
        ("\\0.toml", "cannot be read"),
        ("x.gif", "expected a prompt file ending in .toml, .txt, .jsonl or .csv"),
    ],
)
async def test_what_cannot_be_chosen_comes_back(open_app, own, name, words):
    async with open_app() as driver:
        await driver.order(f"/prompt {name}")
        await driver.until(lambda: driver.problem)
        assert words in driver.problem
        assert driver.prompt.text == f"/prompt {name}"
        assert driver.chat.conversation.chat.basis == Basis()
