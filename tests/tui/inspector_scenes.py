"""Scenes in the inspector, on a chat of one turn with a model that shows its inside."""

from collections.abc import Awaitable, Callable

from library_driver import choose
from scenes import Scene, shows_inside
from tui_driver import Driver

SAID = shows_inside(" The sea is a large body of salt water.\n\nPeople have always sailed on it.")


def inspect(*keys: str) -> Callable[[Driver], Awaitable[None]]:
    """Open the inspector on a chat of one turn, and press these keys."""

    async def press(driver: Driver) -> None:
        await driver.say("Tell me about the sea.")
        for key in ("f3", *keys):
            await driver.press(key)
            await driver.rest()

    return press


async def inspect_task(driver: Driver) -> None:
    await choose(driver, "feel")
    driver.app.clear_notifications()  # which would go when their time is over
    await driver.say("red ice")
    await driver.press_and_rest("f3")
    await driver.press_and_rest("1")


INSPECTOR_SCENES = {
    "inspected prompt": Scene(
        inspect("1"),
        SAID,
        (
            "23 tokens of prompt, 17 of reply · template plain",
            "instruction marker user assistant",
            "User: Tell me about the sea.",
            "Assistant: The sea is a large body",
        ),
        pictured=True,
    ),
    "inspected task": Scene(
        inspect_task,
        shows_inside(" It feels nice."),
        (
            "24 tokens of prompt, 3 of reply · prompt file feel",
            "Feels: It feels nice.",
            "0.56 white ice → icy",
            "0.38 red rose → warm",
        ),
    ),
    "tokens": Scene(
        inspect("2", "right", "right", "tab"),
        SAID,
        ("token 25 is id 3 p <0.1% rank 30 entropy 3.61 bits", "› 1 always 14.1%"),
        pictured=True,
    ),
    "attention": Scene(
        inspect("4", "left", "enter", "left", "tab", "up", "up"),
        SAID,
        ("on pinned attends to The 8.2%", "layer 4, head 0: 3.1% on sailed", "5 2 4 1 3"),
        pictured=True,
    ),
    "layers": Scene(
        inspect("6", "left"),
        SAID,
        ("After token 21", "Assistant: followed", "5 3.6 18 is 14.2%"),
        pictured=True,
    ),
    "steps": Scene(
        inspect("8", "space", "space", "right", "plus", "plus", "down"),
        SAID,
        ("2 tokens left, of which", "› 2 the 13.3%"),
        pictured=True,
    ),
}
