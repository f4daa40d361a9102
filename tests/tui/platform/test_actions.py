"""The keys of the settings file: in force, shown as they are, and refused in one sentence."""

from pathlib import Path

import pytest
from fakes import ScriptedModel

import chatapp
from chatapp.common.paths import settings_path
from chatapp.common.settings import KeyChoice, SettingsError, load_settings
from chatapp.tui.app import ChatApp
from chatapp.tui.chat.help import HelpScreen
from chatapp.tui.chat.screen import ChatScreen
from chatapp.tui.platform.actions import places, read_keymap, written
from chatapp.tui.screens.models import ModelScreen


def settings(text):
    path = settings_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return load_settings()


@pytest.mark.parametrize("place", places(), ids=lambda place: place.__name__)
def test_every_action_is_complete(place):
    assert place.ACTIONS
    keys = [(key, entry.label) for entry in place.ACTIONS for key in entry.keys({})]
    assert len(keys) == len({*keys}), "one key, two actions"  # Esc stops or leaves a comparison
    for entry in place.ACTIONS:
        assert entry.words[0].isupper()
        assert entry.key or entry.command, entry.name
        assert entry.name.isidentifier()
        assert not (entry.empty or entry.rare or entry.waits or entry.end) or entry.command
        if "." not in entry.method:
            assert callable(getattr(place, f"action_{entry.method}"))


def test_every_command_has_a_name_of_its_own():
    names = [entry.command for entry in ChatScreen.ACTIONS if entry.command]
    assert len(names) == len({*names}) > 25


def test_every_key_can_be_another_one():
    free = [f"ctrl+alt+f{number}" for number in range(1, 13)]
    for place in places():
        for entry in place.ACTIONS:
            if entry.key:
                chosen = KeyChoice(entry.name, ", ".join(free), "x")
                assert read_keymap([chosen]) == {entry.name: ",".join(map(_sorted, free))}


def _sorted(key):
    *modifiers, name = key.split("+")
    return "+".join([*sorted(modifiers), name])


async def test_a_key_of_a_dialog_is_in_force(open_app):
    chosen = settings('[keys]\nclose = "f10"\nmodels = "f9"')
    async with open_app(settings=chosen) as driver:
        for last in ("f10", "f9"):
            await driver.opens(ModelScreen, "f9")
            await driver.back("escape", last)


async def test_the_keys_of_the_settings_are_in_force(open_app):
    chosen = settings(
        '[keys]\nhelp = "f9"\nsend = "alt+enter"\nregenerate = "g, G"\nnew_line="enter"'
    )
    async with open_app(ScriptedModel(["One.", "Two.", "Three."]), settings=chosen) as driver:
        assert "Alt+Enter sends, Enter starts a new line" in driver.screen_text
        await driver.press("f1")
        assert driver.app.screen is driver.chat
        await driver.press(*"a", "enter", *"b", "alt+enter")
        await driver.idle()
        assert driver.texts == ["a\nb", "One."]
        await driver.press("ctrl+up", "r")
        assert driver.prompt.text == "r", "no command any more"
        await driver.press("backspace", "ctrl+up", "g")
        await driver.idle()
        assert driver.texts == ["a\nb", "Two."]
        await driver.press_and_rest("G")
        assert driver.texts == ["a\nb", "Three."]
        await driver.opens(HelpScreen, "f9")


async def test_f1_and_the_last_row_show_the_keys_as_they_are(open_app):
    chosen = settings('[keys]\nhelp = "f9"\nbranches = "ctrl+t,f10"\n')
    async with open_app(settings=chosen, size=(100, 300)) as driver:
        assert "F9 Help" in driver.screen_text
        assert "F9        help: all keys" in driver.screen_text
        assert "Enter sends, Ctrl+J starts" in driver.screen_text
        await driver.opens(HelpScreen, "f9")
        rows = [" ".join(row.strip("│ ").split()) for row in driver.screen_text.splitlines()]
        assert "F9 Search all keys and commands" in rows
        assert "Ctrl+T F10 All branches of this chat" in rows
        assert "Enter Send" in rows


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('halp = "f9"', "line 2: there is no action 'halp'; did you mean 'help'?"),
        ('zzzz = "f9"', "line 2: there is no action 'zzzz'; there are apply_to_all, archive_chat,"),
        ('help = "f99"', "line 2: help is 'f99'; there is no key 'f99'; expected one such as"),
        ('help = "ctrl+"', "there is no key 'ctrl+'"),
        ('help = ""', "there is no key ''"),
        ('help = "f9,"', "there is no key ''"),
        ('help = "h"', "help cannot have the key 'h', which types a character"),
        ('send = "space"', "send cannot have the key 'space', which types a character"),
        ('help = "f2"', "help cannot have the key 'f2', which 'parameters' has"),
        ('\ncopy = "r"', "line 3: copy cannot have the key 'r', which 'regenerate' has"),
        ('help = "f9"\nchats = "f9"', "line 2: help cannot have the key 'f9', which 'chats' has"),
        ("help = 3", "line 2: help is 3; expected a key in quotes"),
    ],
)
def test_what_cannot_be_is_one_sentence(lines, words):
    with pytest.raises(SettingsError) as error:
        ChatApp(settings(f"[keys]\n{lines}\n"))
    assert words in str(error.value)
    assert str(error.value).startswith(str(settings_path()))
    assert "\n" not in str(error.value)


def test_two_actions_may_exchange_their_keys():
    choices = [KeyChoice("help", "f2", "x"), KeyChoice("parameters", "f1", "x")]
    assert read_keymap(choices) == {"help": "f2", "parameters": "f1"}


def test_keys_are_called_as_the_terminal_calls_them():
    choices = [KeyChoice("help", " shift+ctrl+up , alt+? ", "x"), KeyChoice("copy", "?", "x")]
    assert read_keymap(choices) == {
        "help": "ctrl+shift+up,alt+question_mark",
        "copy": "question_mark",
    }


def test_keys_are_shown_as_keyboards_have_them():
    keys = ("ctrl+o", "f1", "y", "Y", "plus", "enter", "escape", "alt+up", "ctrl+shift+pageup")
    shown = ("Ctrl+O", "F1", "y", "Y", "+", "Enter", "Esc", "Alt+↑", "Ctrl+Shift+PgUp")
    assert tuple(map(written, keys)) == shown


def test_a_key_of_the_prompt_may_be_one_on_a_message():
    assert read_keymap([KeyChoice("copy", "ctrl+g", "x")]) == {"copy": "ctrl+g"}
    assert not read_keymap([])


def test_the_keys_of_the_guide_are_right():
    text = (Path(chatapp.__file__).parent / "docs" / "settings.md").read_text(encoding="utf-8")
    table = text.split("[keys]", 1)[1].split("```", 1)[0]
    chosen = settings(f"[keys]{table}")
    assert {choice.action for choice in chosen.keys} == {"compare", "send", "new_line"}
    assert read_keymap(chosen.keys)["compare"] == "ctrl+t"
