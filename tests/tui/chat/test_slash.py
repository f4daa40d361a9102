"""Slash commands: completed with Tab, carried out, refused in words, and never sent."""

import threading

import pytest
from fakes import ScriptedModel
from textual.widgets import Static

from chatapp.engine.model import Sampling
from chatapp.engine.models import loading, resolving
from chatapp.engine.models.catalogue import ListedModel
from chatapp.tui.chat.help import HelpScreen
from chatapp.tui.chat.screen import ChatScreen
from chatapp.tui.platform.actions import is_command
from chatapp.tui.screens.history import HistoryScreen
from chatapp.tui.screens.texts import PageScreen
from chatapp.tui.widgets.prompt import CommandCompletions

COMMANDS = [entry for entry in ChatScreen.ACTIONS if entry.command]


def notices(driver):
    return [notification.message for notification in driver.app._notifications]


@pytest.mark.parametrize("text", ["/usr/bin", "/ new", " /new", "/", "new", "//", "/a1"])
def test_what_is_a_message(text):
    assert not is_command(text)


async def test_completions_are_what_the_text_could_become(open_app):
    async with open_app() as driver:
        complete = driver.chat.commands.complete
        assert complete("/") == [
            f"/{each.command}" + " " * bool(each.argument) for each in COMMANDS if not each.rare
        ]
        assert {*complete("/t")} == {
            "/times",
            "/tag ",
            "/title ",
            "/template ",
            "/tools ",
            "/think ",
            "/theme ",
        }
        assert complete("/set t") == ["/set temperature ", "/set top_k ", "/set top_p "]
        assert complete("/theme nor") == ["/theme nord"]
        assert complete("/theme nord") == []
        for text in ("/nothing", "/nothing x", "hello", "", "/t\nx"):
            assert complete(text) == []


async def test_tab_goes_through_what_a_command_could_become(open_app):
    async with open_app() as driver:
        await driver.press(*"/te")
        assert driver.chat.query_one(CommandCompletions).display
        assert "switch to another dialogue template" in driver.screen_text
        await driver.press("tab")
        assert driver.prompt.text == "/template "
        assert "/template plain" in driver.screen_text
        await driver.press("tab", "tab")
        assert driver.prompt.text == "/template alpaca"
        await driver.press(*" x")
        assert driver.chat.query_one(CommandCompletions).display
        await driver.press("ctrl+u")
        assert not driver.chat.query_one(CommandCompletions).display
        await driver.press("tab")  # with nothing to complete it moves the focus
        assert driver.app.focused is not driver.prompt


async def test_export_alone_copies_the_chat(open_app):
    async with open_app(ScriptedModel(["Yes."])) as driver:
        await driver.say("Is it?")
        await driver.order("/export")
        await driver.until(lambda: driver.app.clipboard)
        assert "Is it?" in driver.app.clipboard
        assert "Yes." in driver.app.clipboard
        assert "copied to the clipboard, as Markdown" in notices(driver)[-1]


async def test_arrow_keys_go_through_all_commands(open_app):
    async with open_app() as driver:
        names = [entry.command for entry in COMMANDS if not entry.rare]
        assert len(COMMANDS) - len(names) == 6
        await driver.press("/")
        assert f"{len(names)} · ↑ ↓ choose" in driver.screen_text
        for number, name in enumerate(names, 1):
            await driver.press("down")
            assert driver.prompt.text.strip() == f"/{name}"
            assert f"› /{name}" in driver.screen_text
            assert f"{number} of {len(names)} · ↑ ↓ choose" in driver.screen_text
        await driver.press("up")
        assert driver.prompt.text.strip() == f"/{names[-2]}"
        await driver.press("ctrl+u", "/", "up")
        assert driver.prompt.text.strip() == f"/{names[-1]}"
        assert f"/{names[0]} " not in driver.screen_text  # they scroll


async def test_arrow_keys_go_on_through_earlier_messages(open_app):
    async with open_app(ScriptedModel(["Yes."])) as driver:
        await driver.say("First")
        await driver.press("up", "down")
        await driver.order("/theme nord")
        await driver.press("up")
        assert driver.prompt.text == "/theme nord"
        await driver.press("up")
        assert driver.prompt.text == "First"


async def test_exit_typed_alone_leaves(open_app, store):
    async with open_app(ScriptedModel(["Yes."])) as driver:
        await driver.say(" exit")
        assert driver.texts == [" exit", "Yes."]
        await driver.order("exit")
        await driver.until_left()


async def test_ctrl_d_leaves_from_an_empty_prompt(open_app):
    async with open_app() as driver:
        await driver.press(*"ab", "home", "ctrl+d")
        assert driver.prompt.text == "b"
        await driver.press("ctrl+d", "ctrl+d")
        await driver.until_left()


async def test_models_are_found_when_they_are_asked_for(open_app, monkeypatch):
    monkeypatch.setattr(resolving, "local_models", lambda: ["bundled", "runs/[b]mine[/b]"])
    async with open_app() as driver:
        await driver.shows("/model runs/[b]mine[/b]", *"/model ")
        await driver.press("tab")
        more = ["bundled", "later", "runs/[b]mine[/b]"]
        driver.chat.controls.models.set_known([ListedModel(name, "") for name in more])
        await driver.press("tab", "tab")
        assert driver.prompt.text == "/model runs/[b]mine[/b]"


async def test_an_unknown_command_is_not_sent(open_app, store):
    async with open_app(ScriptedModel(["Yes."])) as driver:
        await driver.order("/sistem x")
        assert "there is no command /sistem; did you mean /system?" in driver.problem
        assert driver.prompt.text == "/sistem x"
        assert store.chats() == []
        await driver.order(" /sistem x")
        await driver.idle()
        assert driver.texts == [" /sistem x", "Yes."]
        assert driver.problem == ""


REFUSED = [
    ("/new x", "Usage: /new, without an argument"),
    ("/title", "Usage: /title TITLE"),
    ("/title x", "once it has a message"),
    ("/set temprature 1", "there is no parameter 'temprature'; did you mean 'temperature'?"),
    ("/set temp 1", "there is no parameter 'temp'; did you mean 'temperature'?"),
    ("/set temperature hot", "temperature is 'hot'; expected a number"),
    ("/set top_k", "top_k is ''; expected a whole number"),
    ("/template odd", "there is no template 'odd'"),
    ("/theme odd", "there is no theme 'odd'"),
    ("/export chat.md", "there is nothing to export yet"),
    ("/steer calm", "only models that chatapp computes itself have parts to change"),
    ("/ablate 0.1", "only models that chatapp computes itself have parts to change"),
]


async def test_what_cannot_be_done_is_said_and_the_command_comes_back(open_app):
    async with open_app() as driver:
        for text, words in REFUSED:
            await driver.order(text)
            assert words in driver.problem
            assert driver.prompt.text == text
            assert driver.chat.conversation.choices.sampling == Sampling()


async def test_screens_open(open_app):
    async with open_app(size=(100, 300)) as driver:
        await driver.order("/help")
        await driver.until(lambda: isinstance(driver.app.screen, HelpScreen))
        for command in COMMANDS:
            assert f"/{command.command} {command.argument}".strip() in driver.screen_text
            assert command.command_words.split(";")[0] in driver.screen_text
        await driver.press("escape")
        await driver.order("/chats")
        await driver.until(lambda: isinstance(driver.app.screen, HistoryScreen))
        await driver.press("escape")
        await driver.order("/theme nord")
        assert driver.app.theme == "nord"
        await driver.order("/quit")
        await driver.until_left()


async def test_set_takes_effect_on_the_next_turn(open_app):
    model = ScriptedModel(["Yes."])
    async with open_app(model) as driver:
        await driver.order("/set temperature 0.25")
        await driver.order("/set seed=5")
        await driver.say("Go")
        assert (model.samplings[-1].temperature, model.samplings[-1].seed) == (0.25, 5)
        await driver.order("/set seed")
        assert driver.chat.conversation.choices.sampling.seed is None
        assert "seed is random each time from the next message on." in notices(driver)


async def test_set_alone_tells_every_value_and_whose_it_is(open_app, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20}')
    async with open_app(ScriptedModel(["Yes."], folder=tmp_path)) as driver:
        await driver.order("/set top_k 5")
        await driver.order("/set")
        assert isinstance(driver.app.screen, PageScreen)
        page = driver.app.screen.query_one("VerticalScroll > Static", Static)
        told = str(page.content).split("\n")
        assert told[:3] == ["temperature 0.6 (model)", "top_k 5 (this chat)", "top_p 0.9 (default)"]
        assert "seed random each time (default)" in told


async def test_system_instructs_the_chat(open_app, store):
    model = ScriptedModel(["Yes."])
    async with open_app(model) as driver:
        await driver.order("/system Be [b]brief[/b].")
        await driver.say("Hello")
        assert "Be [b]brief[/b]." in model.prompts[-1]
        assert store.chat(1).system == "Be [b]brief[/b]."
        await driver.order("/system")
        assert driver.prompt.text == "/system Be [b]brief[/b]."
        await driver.order("/system Be kind.")
        await driver.say("More")
        assert "Be kind." in model.prompts[-1]
        assert store.chat(1).system == "Be kind."
        assert "brief" not in model.prompts[-1]
        await driver.order("/system default")
        assert store.chat(1).system is None
        await driver.order("/system Only here.")
        await driver.order("/new")
        await driver.say("Hello")
        assert "Only here." not in model.prompts[-1]


async def test_another_model_goes_on_with_the_chat(open_app, store, monkeypatch):
    opened = threading.Event()
    other = ScriptedModel(["Two."], name="other")

    def load_model(name, **options):
        assert name == "runs/other"
        opened.wait(120)
        return other

    monkeypatch.setattr(loading, "load_model", load_model)
    async with open_app(ScriptedModel(["One."])) as driver:
        await driver.order("/system Be brief.")
        await driver.say("First")
        await driver.order("/model runs/other")
        assert driver.status.state == "loading"
        await driver.order("Second")
        await driver.shows("waiting for the model")
        opened.set()
        await driver.until(lambda: driver.texts == ["First", "One.", "Second", "Two."])
        await driver.idle()
        assert driver.status.model == "other"
        assert "One." in other.prompts[-1]
        assert "Be brief." in other.prompts[-1]
        assert [turn.model for turn in store.generations(1)] == ["scripted", "other"]


async def test_a_model_that_cannot_be_loaded_leaves_the_one_there_was(open_app, monkeypatch):
    def load_model(name, **options):
        raise ValueError(f"{name}: no such model")

    monkeypatch.setattr(loading, "load_model", load_model)
    async with open_app(ScriptedModel(["One.", "Two."])) as driver:
        await driver.say("First")
        await driver.order("/model [b]x[/b]")
        await driver.until(lambda: driver.problem)
        assert driver.problem == "The model could not be loaded: [b]x[/b]: no such model"
        assert (driver.status.state, driver.status.model) == ("ready", "scripted")
        await driver.say("Second")
        assert driver.texts == ["First", "One.", "Second", "Two."]


async def test_another_template_goes_on_with_the_chat(open_app):
    model = ScriptedModel(["One."])
    async with open_app(model) as driver:
        await driver.say("First")
        assert driver.status.template == "plain"
        await driver.order("/template alpaca")
        await driver.until(lambda: driver.status.template == "alpaca")
        await driver.say("Second")
        assert "### Instruction" in model.prompts[-1]
        assert "First" in model.prompts[-1]


async def test_what_would_disturb_a_reply_waits(open_app):
    model = ScriptedModel(["One."])
    model.gate = threading.Event()
    async with open_app(model) as driver:
        await driver.order("First")
        await driver.until(lambda: driver.texts)
        for text in ("/model x", "/system x", "/template plain", "/prompt spam"):
            await driver.order(text)
            assert driver.problem == "a reply is being written; Esc stops it"
            assert driver.prompt.text == text
        for key in ("f5", "f8"):
            driver.app.clear_notifications()
            await driver.press(key)
            assert "A reply is being written. Esc stops it." in notices(driver)
            assert driver.app.screen is driver.chat
        model.gate.set()
        await driver.idle()


@pytest.mark.parametrize(
    ("text", "waits"),
    [("/export chat.md", "_write"), ("/export", "_as_text"), ("/prompt spam", "choice_of")],
)
async def test_a_disk_that_does_not_answer_does_not_hold_the_chat(
    open_app, monkeypatch, text, waits
):
    answers = threading.Event()

    def wait(*_):
        answers.wait(60)
        raise OSError("the disk is gone")

    async with open_app(ScriptedModel(["Yes."])) as driver:
        await driver.say("Hello")
        monkeypatch.setattr(f"chatapp.tui.chat.actions.{waits}", wait)
        await driver.order(text)
        await driver.press(*"echo")
        assert driver.prompt.text == "echo"
        assert driver.chat.conversation.works == [text]
        await driver.press("ctrl+u")
        answers.set()
        await driver.until(lambda: "the disk is gone" in driver.problem)
        assert driver.prompt.text == text


async def test_capitals_make_no_message_of_a_command(open_app):
    async with open_app() as driver:
        await driver.opens(HelpScreen, *"/HELP", "enter")
        assert driver.texts == []
