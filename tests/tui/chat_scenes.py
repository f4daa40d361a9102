"""Scenes in the chat: what a user writes there, and how a model answers."""

import re

from scenes import SEA, WIDE, Scene, calls, halts, says, thinks
from tui_driver import Driver

from chatapp.tui.widgets.approval import Approval
from chatapp.tui.widgets.markdown import RenderedBody

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
IN_SECOND = len(re.findall(r" ?\S+|\s", SEA)) + 20
"""Tokens until the twentieth of a second reply."""


async def nothing(driver: Driver) -> None:
    await driver.until(lambda: driver.status.limit and driver.status.used)


async def stream(driver: Driver) -> None:
    """One finished turn, and one that halts in the middle."""
    await driver.say("Tell me about the sea.")
    await driver.order("More, please.")
    await driver.until(lambda: driver.chat.conversation.turn.replies[0].tokens == 20)
    driver.chat.conversation.turn.flush()
    # One word, because where the line breaks depends on the size.
    await driver.until(lambda: "waves" in driver.screen_text.split("More, please.")[-1])


async def stop(driver: Driver) -> None:
    await stream(driver)
    await driver.press_and_rest("escape")


async def think(driver: Driver) -> None:
    await driver.say("Tell me about the sea.")
    await driver.press("ctrl+up", "enter")
    await driver.press("escape")
    await driver.say("More, please.")


async def ask_with_notes(driver: Driver) -> None:
    await driver.order("/docs notes")
    await driver.until(lambda: any("2 files" in note for note in driver.notices))
    driver.app.clear_notifications()
    await driver.say("Why does the sea rise?")


async def ask_with_tools(driver: Driver) -> None:
    """Ask what is answered with two tools, up to the question whether one may run."""
    await driver.order("/tools calculator weather")
    await driver.until(lambda: driver.notices)
    driver.app.clear_notifications()
    await driver.order("What is 48*76, and how is the weather in Rome?")
    await driver.until(lambda: driver.chat.query_one(Approval).display)


async def open_calls(driver: Driver) -> None:
    await ask_with_tools(driver)
    await driver.press("down", "enter")
    await driver.idle()
    await driver.press("ctrl+up", "enter")


async def fail(driver: Driver) -> None:
    await driver.say("Tell me about the sea.")
    await driver.say("And now?")


async def see_markdown(driver: Driver) -> None:
    await driver.order("/markdown on")
    await driver.say("What is the sea?")
    await driver.until(lambda: any(body.display for body in driver.transcript.query(RenderedBody)))


async def begin_command(driver: Driver) -> None:
    await driver.say("Tell me about the sea.")
    await driver.press(*"/")


async def mistype(driver: Driver) -> None:
    await driver.order("/tempalte plain")
    await driver.until(lambda: driver.problem)


async def ask_again(driver: Driver) -> None:
    await driver.say("Tell me about the sea.")
    await driver.press("ctrl+up", "r")
    await driver.idle()
    await driver.press("ctrl+up")


async def correct(driver: Driver) -> None:
    await driver.say("Tell me about the sea.")
    await driver.press("ctrl+up", "w", *" And deep.")


CHAT_SCENES = {
    "first run": Scene(
        nothing,
        says(SEA),
        ("Three things to try", "F1 help: all keys and commands", "13/1,024 tokens"),
        pictured=True,
    ),
    "streaming": Scene(
        stream,
        halts(SEA, SEA, tokens=IN_SECOND),
        ("More, please.", "in waves and", "● streaming · Esc stops", "86/1,024 tokens"),
        pictured=True,
    ),
    "stopped": Scene(
        stop,
        halts(SEA, SEA, tokens=IN_SECOND),
        ("stopped · c continues, r regenerates", "● stopped", "in waves and"),
    ),
    "thoughts": Scene(
        think,
        thinks(THOUGHT + SEA),
        ("▸ thought for 16 tokens", "People have always sailed on it."),
        pictured=True,
    ),
    "notes": Scene(
        ask_with_notes,
        says("Because the moon pulls it."),
        ("given [1] tides.md, The sea > Tides, line 1", "given [2] boats.txt, line 1"),
    ),
    "a tool that asks": Scene(
        ask_with_tools,
        calls(*CALLS),
        (
            "▸ calculator(expression=48*76): 3648",
            "▸ weather(city=Rome) · under way",
            "The model wants to run weather. Allow it?",
            '"city": "Rome"',
            "Yes, always in this chat",
            "● waiting for your answer · Esc stops",
        ),
        pictured=True,
    ),
    "calls opened": Scene(
        open_calls,
        calls(*CALLS),
        (
            "▾ calculator(expression=48*76)",
            "▾ weather(city=Rome)",
            "18 degrees, clear",
            "wind from the west",
            "48 times 76 is 3648, and in Rome the sky is clear.",
        ),
    ),
    "error": Scene(
        fail,
        says(SEA, RuntimeError("out of memory")),
        ("the model failed here · r tries again", "The model failed: out of memory", "● error"),
        pictured=True,
    ),
    "markdown": Scene(
        see_markdown,
        says(MARKDOWN),
        ("1 waves", "ocean depth", "Pacific 4,000 m", "print('sea')", "▌ People have"),
        pictured=True,
    ),
    "completions": Scene(
        begin_command,
        says(SEA),
        ("/new start a new chat", "/help search all keys and commands", "23 · ↑ ↓ choose"),
        pictured=True,
    ),
    "refused": Scene(
        mistype,
        says(SEA),
        ("there is no command /tempalte; did you mean /template?", "A space before"),
    ),
    "two versions": Scene(
        ask_again,
        says(SEA, WIDE),
        ("▌ Tell me about the sea.", "Assistant ‹ 2/2 ›", "It is [b]wide[/b].", "r Reg"),
    ),
    "correcting": Scene(
        correct,
        says(SEA),
        ("Correction · Enter saves it, empty removes it", "sailed on it. And deep."),
    ),
}
