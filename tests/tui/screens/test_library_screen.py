"""The picker of personas and prompt files: what it lists, shows and sets, and what it refuses."""

import threading
from pathlib import Path

import pytest
from fakes import ScriptedModel
from foreign_texts import FOREIGN, shown
from glass import GlassModel
from library_driver import choose, picker, rows, type_in
from textual.widgets import OptionList, Static
from tui_driver import Driver, OpenApp

from chatapp.common.foreign import printable
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.rows import Basis
from chatapp.engine.model import Sampling
from chatapp.prompting.template import CHAT, save_template
from chatapp.tui.chat.help import HelpScreen
from chatapp.tui.chat.parts import ChatWidgets
from chatapp.tui.screens.library import LibraryScreen
from chatapp.tui.widgets.dialog import Field


async def leave(driver: Driver) -> None:
    await driver.press("escape")
    await driver.until(lambda: driver.app.screen is driver.chat)


def preview(driver: Driver) -> str:
    parts = ("#preview-about", "#preview-text")
    widgets = [driver.app.screen.query_one(part, Static) for part in parts]
    return "\n".join(str(widget.content) for widget in widgets if widget.display)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the user was told in passing."""
    words: list[str] = []
    monkeypatch.setattr(ChatWidgets, "inform", lambda widgets, said: words.append(said))
    return words


# What it lists and shows


async def test_typing_filters_and_the_preview_follows(open_app: OpenApp, own: Path) -> None:
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


async def test_a_disk_that_does_not_answer_does_not_hold_the_picker(
    open_app: OpenApp, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(
        "chatapp.tui.screens.library._is_file", lambda path: answers.wait(60) and path == "/x/y"
    )
    async with open_app() as driver:
        await picker(driver)
        await driver.press(*"/x/y")
        assert driver.app.screen.query_one(Field).value == "/x/y"
        assert rows(driver) == []
        answers.set()
        await driver.until(lambda: [row.strip() for row in rows(driver)] == ["/x/y"])


async def test_keys_move_through_the_list_and_the_preview(open_app: OpenApp, own: Path) -> None:
    async with open_app(size=(60, 20)) as driver:
        screen = await picker(driver)
        options = screen.query_one(OptionList)
        assert options.highlighted == 0
        await driver.press("down", "down")
        await driver.rest()
        assert options.highlighted == 2
        assert "poet" in preview(driver)
        await driver.press("up")
        await driver.rest()
        assert "pirate" in preview(driver)
        await type_in(driver, "feel")
        scroll = screen.query_one("#shelf > VerticalScroll")
        await driver.press("pagedown")
        assert scroll.scroll_y > 0
        await driver.press("pageup")
        assert scroll.scroll_y == 0


async def test_the_preview_is_for_the_text_on_the_way(open_app: OpenApp, own: Path) -> None:
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


async def test_what_does_not_fit_is_named(open_app: OpenApp, own: Path) -> None:
    async with open_app(ScriptedModel(["x"], context=28)) as driver:
        driver.prompt.text = "red"
        await picker(driver)
        await type_in(driver, "feel")
        assert "Left out for length: 1 example\n" in preview(driver)
        await leave(driver)
        driver.prompt.text = "red " * 40
        await picker(driver)
        await type_in(driver, "feel")
        assert "the message is 40 tokens long; at most" in preview(driver)


async def test_files_that_cannot_be_used_are_named(open_app: OpenApp, own: Path) -> None:
    (own / "broken.toml").write_text('\ninstruktion = "x"\n')
    (own / "hollow.toml").write_text('examples_file = "none.jsonl"\n')
    (own / "hot.toml").write_text("[generate]\ntemperature = -1.0\n")
    async with open_app() as driver:
        await picker(driver)
        assert "  broken  cannot be used" in rows(driver)
        for name, words in {
            "broken": "line 2: 'instruktion' is not a key of a prompt file; did you mean",
            "hollow": "line 1: 'examples_file' is 'none.jsonl', but there is no file",
            "hot": "line 2: 'generate.temperature' is -1.0; expected from 0 to 100",
        }.items():
            await type_in(driver, name)
            assert words in preview(driver), preview(driver)
            await driver.press("enter")
            assert words in preview(driver), preview(driver)
            assert isinstance(driver.app.screen, LibraryScreen)
        assert "\n" not in preview(driver)
        await leave(driver)
        assert driver.chat.conversation.chat.basis == Basis()


async def test_foreign_text_is_only_text(open_app: OpenApp, own: Path) -> None:
    for number, text in enumerate(FOREIGN.values()):
        text = text.encode("utf-8", "replace").decode().replace("\0", "")[:3_000]
        quoted = "".join(f"\\U{ord(character):08x}" for character in text)
        (own / f"odd[b]{number}\x1b[2J.toml").write_text(
            f'description = "{quoted}"\ninstruction = "{quoted}"\n'
            f'examples = [{{input = "{quoted}", output = "{quoted}"}}]\n'
        )
    async with open_app(ScriptedModel(["x"], context=100_000)) as driver:
        driver.prompt.text = FOREIGN["title"] + FOREIGN["link"]
        await picker(driver)
        shown(driver)
        for number in range(len(FOREIGN)):
            await type_in(driver, f"odd[b]{number}{printable(chr(27))}")
            assert printable(f"odd[b]{number}\x1b[2J") in rows(driver)[0]
            shown(driver)
            await driver.press("pagedown")
            shown(driver)
        await driver.press("enter")
        await driver.until(lambda: driver.app.screen is driver.chat)
        await driver.rest()
        shown(driver)
        await driver.press("f3")
        await driver.rest()
        await driver.press("1")
        await driver.rest()
        shown(driver)


# What is chosen


async def test_a_prompt_file_is_chosen_kept_and_taken_off(
    open_app: OpenApp, store: Store, own: Path, said: list[str]
) -> None:
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
        await driver.press("f3")
        await driver.rest()
        await driver.press("1")
        await driver.until(lambda: "red fire → hot" in driver.screen_text)
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
        driver.prompt.text = "/prompt none"
        await driver.press("enter")
        await driver.until(lambda: "The next message uses no prompt file or persona." in said)
        assert store.chat(1).basis == Basis()
        assert driver.status.template == "plain"
        await driver.say("And now?")
        assert model.prompts[-1].endswith("User: And now?\nAssistant:")
        assert model.samplings[-1].max_tokens == Sampling().max_tokens


async def test_a_persona_sets_instructions_and_template(
    open_app: OpenApp, store: Store, own: Path, said: list[str]
) -> None:
    model = ScriptedModel(["No."])
    async with open_app(model) as driver:
        await choose(driver, "monk")
        assert said == ["The next message uses persona monk."]
        assert driver.status.template == "alpaca"
        await driver.say("Hello")
        assert model.prompts[-1].startswith("The monk says little.\n\n### Instruction:\nHello")
        assert store.chat(1).basis == Basis("The monk says little.", "", "alpaca")
    (own / "personas" / "monk.toml").unlink()
    async with open_app(model, chat_id=1) as driver:
        assert driver.status.template == "alpaca"
        await driver.say("Again")
        assert model.prompts[-1].startswith("The monk says little.\n\n### Instruction:\nHello")
        driver.prompt.text = "/template plain"
        await driver.press("enter")
        await driver.until(lambda: driver.status.template == "plain")
        assert store.chat(1).basis == Basis("The monk says little.", "", "")


async def test_a_model_keeps_the_template_it_was_trained_in(
    open_app: OpenApp, own: Path, tmp_path: Path
) -> None:
    save_template(CHAT, tmp_path)
    model = ScriptedModel(["No."], folder=tmp_path)
    async with open_app(model) as driver:
        await choose(driver, "monk")
        await driver.say("Hello")
        assert model.prompts == ["The monk says little.\nUser: Hello\nAssistant:"]


async def test_a_wrong_template_on_purpose(
    open_app: OpenApp, said: list[str], tmp_path: Path
) -> None:
    save_template(CHAT, tmp_path)
    model = ScriptedModel(["No."], folder=tmp_path)
    async with open_app(model) as driver:
        driver.prompt.text = "/template plain!"
        await driver.press("enter")
        await driver.until(lambda: driver.status.template == "plain")
        assert "trained with the template 'chat'; in 'plain' it sees" in said[-1]
        await driver.say("Hello")
        assert model.prompts[-1].endswith("User: Hello\nAssistant:")


async def test_one_can_choose_before_the_model_is_there(
    open_app: OpenApp, store: Store, own: Path
) -> None:
    there, model = threading.Event(), ScriptedModel(["Nice."])

    def load() -> ScriptedModel:
        there.wait(60)
        return model

    async with open_app(load=load) as driver:
        await driver.press("f5")
        await driver.until(lambda: isinstance(driver.app.screen, LibraryScreen) and rows(driver))
        await driver.until(lambda: "which is not loaded yet" in preview(driver))
        driver.app.screen.query_one(Field).value = "feel"
        await driver.until(lambda: len(rows(driver)) == 1)
        await driver.press("enter")
        await driver.until(lambda: driver.app.screen is driver.chat)
        assert driver.chat.conversation.chat.basis == Basis(prompt="feel")
        there.set()
        await driver.until(lambda: driver.status.template == "feel")
        await driver.say("red wine")
        assert model.prompts[-1].endswith("Thing: red wine\nFeels:")
        assert store.chat(1).prompt == "feel"


async def test_nothing_is_chosen_while_a_reply_is_written(open_app: OpenApp, own: Path) -> None:
    model = ScriptedModel(["One two three."])
    model.gate = threading.Event()
    async with open_app(model) as driver:
        driver.prompt.text = "Hello"
        await driver.press("enter")
        await driver.until(lambda: driver.transcript.live is not None)
        driver.prompt.text = "/prompt feel"
        await driver.press("enter", "f5")
        await driver.until(lambda: "a reply is being written" in driver.problem)
        assert driver.app.screen is driver.chat
        model.gate.set()
        await driver.idle()
        assert driver.chat.conversation.chat.basis == Basis()


async def test_other_chats_are_not_touched(open_app: OpenApp, store: Store, own: Path) -> None:
    model = ScriptedModel(["Yes."])
    async with open_app(model) as driver:
        await choose(driver, "feel")
        await driver.say("red wine")
        driver.chat.conversation.set_sampling(Sampling(max_tokens=50))
        await driver.press("ctrl+n")
        await driver.rest()
        assert driver.status.template == "plain"
        assert driver.chat.conversation.choices.sampling == Sampling()
        await driver.say("Hello")
        assert model.prompts[-1].endswith("User: Hello\nAssistant:")
        assert [store.chat(id).prompt for id in (1, 2)] == ["feel", ""]


async def test_a_file_by_its_path(open_app: OpenApp, store: Store, own: Path) -> None:
    path = own / "feel.toml"
    elsewhere = path.rename(own.parent.parent / "mine.toml")
    model = ScriptedModel(["Yes."])
    async with open_app(model) as driver:
        await picker(driver)
        await type_in(driver, str(elsewhere))
        assert "Thing: red rose" in preview(driver)
        await driver.press("enter")
        await driver.until(lambda: driver.app.screen is driver.chat)
        await driver.say("red wine")
        assert store.chat(1).prompt == str(elsewhere)
        elsewhere.unlink()
        await driver.press("ctrl+n")
        await driver.rest()
        await driver.chat.controls.open(1)
        await driver.rest()
        await driver.until(lambda: "The chat's prompt file cannot be used" in driver.problem)
        assert "mine.toml: cannot be read" in driver.problem
        await driver.say("red again")
        await driver.until(lambda: driver.prompt.text == "red again")
        assert len(store.path(1)) == 2
        await picker(driver)
        assert f"● {elsewhere}" in rows(driver)[1]


# By command


async def test_the_command_completes_and_chooses(open_app: OpenApp, own: Path) -> None:
    async with open_app() as driver:
        await driver.press(*"/prompt fee")
        await driver.press("tab")
        assert driver.prompt.text == "/prompt feel"
        await driver.press("enter")
        await driver.until(lambda: driver.status.template == "feel")
        driver.prompt.text = "/prompt"
        await driver.press("enter")
        await driver.until(lambda: isinstance(driver.app.screen, LibraryScreen))


async def test_help_lists_its_keys_and_its_command(open_app: OpenApp) -> None:
    async with open_app(size=(100, 250)) as driver:
        await driver.press("f1")
        await driver.until(lambda: isinstance(driver.app.screen, HelpScreen))
        text = driver.screen_text
        assert "Use a persona or a prompt file" in text
        assert "Scroll the preview down" in text
        assert "/prompt [NAME]" in text


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
async def test_what_cannot_be_chosen_comes_back(
    open_app: OpenApp, own: Path, name: str, words: str
) -> None:
    async with open_app() as driver:
        driver.prompt.text = f"/prompt {name}"
        await driver.press("enter")
        await driver.until(lambda: driver.problem)
        assert words in driver.problem
        assert driver.prompt.text == f"/prompt {name}"
        assert driver.chat.conversation.chat.basis == Basis()
