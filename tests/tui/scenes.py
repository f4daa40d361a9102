"""The scenes that tests of whole screens play: what a user does, with which model.

Keep: a scene ends at rest, so that it shows the same on any machine.
"""

import re
from collections.abc import Awaitable, Callable

from fakes import ScriptedModel
from glass import GlassModel
from library_driver import choose, picker, type_in
from stage import Stage
from textual.command import CommandPalette
from thinking_model import thinking_model
from tui_driver import Driver

from chatapp.common.paths import presets_path
from chatapp.common.presets import save_preset
from chatapp.common.settings import Settings
from chatapp.engine.model import Sampling
from chatapp.tui.screens.compare import CompareScreen
from chatapp.tui.screens.models import ModelScreen
from chatapp.tui.screens.ranking import RankScreen
from chatapp.tui.widgets.approval import Approval
from chatapp.tui.widgets.dialog import Field
from chatapp.tui.widgets.markdown import RenderedBody

SETTINGS = Settings(theme="chatapp", sampling=Sampling(seed=1))

PLACES: dict[str, tuple[str, ...]] = {
    "first run": ("ctrl+n",),
    "writing": (),
    "commands": ("/",),
    "messages": ("ctrl+up",),
    "history": ("ctrl+o",),
    "branches": ("ctrl+b",),
    "ranking": ("ctrl+up", "k"),
    "parameters": ("f2",),
    "comparing": ("f4",),
    "prompts": ("f5",),
    "models": ("f8",),
    "palette": ("ctrl+p",),
    "help": ("f1",),
    "inspected prompt": ("f3", "1"),
    "tokens": ("f3", "2"),
    "attention": ("f3", "3"),
    "layers": ("f3", "4"),
    "generation by steps": ("f3", "5"),
}
"""The keys that lead to each, from the prompt."""

# What the models say.
SEA = (
    "The sea is a large body of salt water that covers most of the planet. It moves in waves "
    "and tides, and it is home to countless living things.\n\nPeople have always sailed on it."
)
WIDE = "It is [b]wide[/b]."
DEEP = "It is [b]wide[/b], and deep. " * 12
THOUGHT = "<think>\nThe user asks about the sea. I should say what it is.\n</think>\n\n"
CALLS = (
    "Let me see."
    '<tool_call>{"name": "calculator", "arguments": {"expression": "48*76"}}</tool_call>',
    '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>',
    "48 times 76 is 3648, and in Rome the sky is clear.",
)
MARKDOWN = (
    "# The sea\n\nIt is *salt* and **wide** ([b]not markup[/b]), see [a map](http://a.b):\n\n"
    "1. waves\n2. tides\n\n| ocean | depth |\n|---|---|\n| Pacific | 4,000 m |\n\n"
    "```python\nprint('sea')\n```\n\n> People have `always` sailed."
)

# What the user does.


async def nothing(driver: Driver) -> None:
    await driver.until(lambda: driver.status.limit)


async def stream(driver: Driver) -> None:
    """One finished turn, and one that halts in the middle."""
    await driver.say("Tell me about the sea.")
    driver.prompt.text = "More, please."
    await driver.press("enter")
    await driver.until(lambda: driver.chat.conversation.turn.replies[0].tokens == 20)
    driver.chat.turns.flush()
    # One word, because where the line breaks depends on the size.
    await driver.until(lambda: "waves" in driver.screen_text.split("More, please.")[-1])


async def stop(driver: Driver) -> None:
    await stream(driver)
    await driver.press("escape")
    await driver.idle()


async def think(driver: Driver) -> None:
    await driver.say("Tell me about the sea.")
    await driver.press("ctrl+up", "enter")
    await driver.press("escape")
    await driver.say("More, please.")


async def ask_with_notes(driver: Driver) -> None:
    driver.prompt.text = "/docs notes"
    await driver.press("enter")
    await driver.until(lambda: any("2 files" in note for note in driver.notices))
    driver.app.clear_notifications()
    await driver.say("Why does the sea rise?")


async def read_source(driver: Driver) -> None:
    await ask_with_notes(driver)
    await driver.press("ctrl+up", "enter")


async def ask_with_tools(driver: Driver) -> None:
    """Ask what is answered with two tools, up to the question whether one may run."""
    driver.prompt.text = "/tools calculator weather"
    await driver.press("enter")
    await driver.until(lambda: driver.notices)
    driver.app.clear_notifications()
    driver.prompt.text = "What is 48*76, and how is the weather in Rome?"
    await driver.press("enter")
    await driver.until(lambda: driver.chat.query_one(Approval).display)


async def open_calls(driver: Driver) -> None:
    await ask_with_tools(driver)
    await driver.press("down", "enter")
    await driver.idle()
    await driver.press("ctrl+up", "enter")


async def fail(driver: Driver) -> None:
    await driver.say("Tell me about the sea.")
    await driver.say("And now?")


async def ask_again(driver: Driver) -> None:
    await driver.say("Tell me about the sea.")
    await driver.press("ctrl+up", "r")
    await driver.idle()
    await driver.press("ctrl+up")


async def open_help(driver: Driver) -> None:
    await driver.press("f1")


async def set_wrongly(driver: Driver) -> None:
    await driver.press("f2")
    driver.app.screen.query_one("#temperature", Field).value = "hot"
    await driver.press("enter")


async def search(driver: Driver) -> None:
    for text in ("Tell me about the sea.", "What does [/b] mean?", "Do you like tea?"):
        await driver.say(text)
        await driver.press("ctrl+n")
    await driver.press("ctrl+o", *"sea")
    # The list is as long before it is searched; only a search shows what was found.
    await driver.until(lambda: "The sea is a large" in driver.screen_text)
    await driver.press("down", "down", "a")
    await driver.until(lambda: "archived" in driver.screen_text)
    await driver.press("n")


async def open_archive(driver: Driver) -> None:
    await driver.say("Tell me about the sea.")
    await driver.press("ctrl+o")
    await driver.until(lambda: "2 messages" in driver.screen_text)
    await driver.press("ctrl+t")
    await driver.until(lambda: "The archive is empty." in driver.screen_text)


async def begin_command(driver: Driver) -> None:
    await driver.say("Tell me about the sea.")
    await driver.press(*"/")


async def mistype(driver: Driver) -> None:
    driver.prompt.text = "/tempalte plain"
    await driver.press("enter")
    await driver.until(lambda: driver.problem)


async def open_branches(driver: Driver) -> None:
    await driver.say("Tell me about the sea.")
    await driver.press("ctrl+up", "r")
    await driver.idle()
    await driver.say("Go on.")
    await driver.press("ctrl+up", "up", "up", "up", "e", "!", "enter")
    await driver.idle()
    await driver.press("ctrl+b")
    await driver.until(lambda: "You  ‹ 2/2 ›" in driver.screen_text)


async def rank(driver: Driver) -> None:
    await driver.say("Tell me about the sea.")
    await driver.press("ctrl+up", "plus", "r")
    await driver.idle()
    await driver.press("minus", "w", "!", "enter")
    await driver.press("ctrl+up", "k")
    await driver.until(lambda: isinstance(driver.app.screen, RankScreen))
    await driver.press("u", "d")


async def correct(driver: Driver) -> None:
    await driver.say("Tell me about the sea.")
    await driver.press("ctrl+up", "w", *" And deep.")


async def learn(driver: Driver) -> None:
    driver.prompt.text = "/learn"
    await driver.press("enter")
    await driver.until(lambda: "The new model is" in driver.screen_text)


async def see_markdown(driver: Driver) -> None:
    driver.prompt.text = "/markdown on"
    await driver.press("enter")
    await driver.say("What is the sea?")
    await driver.until(lambda: any(body.display for body in driver.transcript.query(RenderedBody)))


async def open_palette(driver: Driver) -> None:
    await driver.press("ctrl+p")
    await driver.until(lambda: isinstance(driver.app.screen, CommandPalette))
    await driver.press(*"reply")
    palette = driver.app.screen
    await driver.until(
        lambda: (
            "Set the chat's instructions" in driver.screen_text
            and all(worker.is_finished for worker in driver.app.workers if worker.node is palette)
        )
    )


async def load_preset(driver: Driver) -> None:
    save_preset(presets_path(), "[b]wild[/b]", Sampling(temperature=1.5))
    save_preset(presets_path(), "exact", Sampling(temperature=0.0))
    await driver.press("f2")
    driver.app.screen.query_one("#preset", Field).focus()
    await driver.press(*"exact", "ctrl+l")
    await driver.until(lambda: "These are the values of 'exact'" in driver.screen_text)


async def compare(driver: Driver) -> CompareScreen:
    await driver.press(*"What is the sea?", "f4")
    await driver.until(
        lambda: isinstance(driver.app.screen, CompareScreen) and driver.app.screen.focused
    )
    await driver.press("tab", "tab", *"temperature=0 seed=5")
    screen = driver.app.screen
    assert isinstance(screen, CompareScreen)
    return screen


async def ask_two(driver: Driver) -> None:
    await compare(driver)


async def stream_two(driver: Driver) -> None:
    screen = await compare(driver)
    await driver.press("enter")
    await driver.until(
        lambda: (
            (turn := driver.chat.conversation.turn)
            and [reply.tokens for reply in turn.replies] == [20, 20]
        )
    )
    screen.turns.flush()
    await driver.until(lambda: "moves" in driver.screen_text and "deep" in driver.screen_text)


async def choose_of_two(driver: Driver) -> None:
    screen = await compare(driver)
    await driver.press("enter")
    await driver.until(lambda: screen.check_action("choose", ()))


async def list_models(driver: Driver) -> None:
    await driver.press("f8")
    await driver.until(lambda: isinstance(driver.app.screen, ModelScreen))
    await driver.until(lambda: "Looking for models" not in driver.screen_text)


async def name_model(driver: Driver) -> None:
    await list_models(driver)
    await driver.press("down", *"tok")
    await driver.until(lambda: "Load tok" in driver.screen_text)


async def choose_model_to_get(driver: Driver) -> None:
    await list_models(driver)
    await driver.press(*"gemma", "enter")
    await driver.until(lambda: "Enter downloads and uses it" in driver.screen_text)


async def get_model(driver: Driver) -> None:
    await list_models(driver)
    await driver.press(*"smollm2", "enter", "enter")
    await driver.until(lambda: "50%" in driver.screen_text)


async def choose_persona(driver: Driver) -> None:
    await picker(driver)
    await driver.press("down")
    await driver.rest()


async def choose_task(driver: Driver) -> None:
    driver.prompt.text = "red ice"
    await picker(driver)
    await type_in(driver, "feel")


async def inspect_task(driver: Driver) -> None:
    await choose(driver, "feel")
    driver.app.clear_notifications()  # which would go when their time is over
    await driver.say("red ice")
    await driver.press("f3")
    await driver.rest()
    await driver.press("1")
    await driver.rest()


def inspect(*keys: str) -> Callable[[Driver], Awaitable[None]]:
    """Open the inspector on a chat of one turn, and press these keys."""

    async def press(driver: Driver) -> None:
        await driver.say("Tell me about the sea.")
        for key in ("f3", *keys):
            await driver.press(key)
            await driver.rest()

    return press


# The models.


def says(*replies: str | Exception) -> Callable[[Stage], ScriptedModel]:
    return lambda stage: ScriptedModel(replies)


def thinks(*replies: str) -> Callable[[Stage], ScriptedModel]:
    return lambda stage: thinking_model(stage.folder / "model", replies)


def halts(*replies: str, tokens: int) -> Callable[[Stage], ScriptedModel]:
    return lambda stage: stage.halting([*replies], tokens)


def shows_inside(reply: str) -> Callable[[Stage], ScriptedModel]:
    return lambda stage: GlassModel([reply])


IN_SECOND = len(re.findall(r" ?\S+|\s", SEA)) + 20
"""Tokens until the twentieth of a second reply."""
SAID = shows_inside(" The sea is a large body of salt water.\n\nPeople have always sailed on it.")

Act = Callable[[Driver], Awaitable[None]]
Scene = tuple[Act, Callable[[Stage], ScriptedModel]]

PICTURED: dict[str, Scene] = {
    "first run": (nothing, says(SEA)),
    "streaming": (stream, halts(SEA, SEA, tokens=IN_SECOND)),
    "thoughts": (think, thinks(THOUGHT + SEA)),
    "sources": (read_source, says("Because the moon pulls it.")),
    "a tool that asks": (ask_with_tools, thinks(*CALLS)),
    "error": (fail, says(SEA, RuntimeError("out of memory"))),
    "markdown": (see_markdown, says(MARKDOWN)),
    "help": (open_help, says(SEA)),
    "parameters": (set_wrongly, says(SEA)),
    "history": (search, says(SEA)),
    "completions": (begin_command, says(SEA)),
    "branches": (open_branches, says(SEA, WIDE)),
    "ranking": (rank, says(SEA, WIDE)),
    "palette": (open_palette, says(SEA)),
    "prompts": (choose_task, shows_inside(" It feels nice.")),
    "models": (name_model, lambda stage: ScriptedModel(["Hi."], name="runs/instructions")),
    "comparing": (stream_two, halts(SEA, DEEP, tokens=40)),
    "learning": (learn, says(SEA)),
    "inspected prompt": (inspect("1"), SAID),
    "tokens": (inspect("2", "right", "right", "tab"), SAID),
    "attention": (inspect("3", "left", "enter", "left", "tab", "up", "up"), SAID),
    "layers": (inspect("4", "left"), SAID),
    "steps": (inspect("5", "space", "space", "right", "plus", "plus", "down"), SAID),
}
SCENES: dict[str, Scene] = PICTURED | {
    "stopped": (stop, halts(SEA, SEA, tokens=IN_SECOND)),
    "notes": (ask_with_notes, says("Because the moon pulls it.")),
    "calls opened": (open_calls, thinks(*CALLS)),
    "two versions": (ask_again, says(SEA, WIDE)),
    "archive": (open_archive, says(SEA)),
    "refused": (mistype, says(SEA)),
    "correcting": (correct, says(SEA)),
    "presets": (load_preset, says(SEA)),
    "asking two": (ask_two, says(SEA)),
    "choosing of two": (choose_of_two, says(SEA, DEEP)),
    "a model to get": (choose_model_to_get, says(SEA)),
    "a model being downloaded": (get_model, says(SEA)),
    "persona": (choose_persona, shows_inside(" It feels nice.")),
    "inspected task": (inspect_task, shows_inside(" It feels nice.")),
}
