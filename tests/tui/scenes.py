"""What tests of whole screens play: what a user does, with which model, and what is then shown."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fakes import ScriptedModel
from glass import GlassModel
from stage import Stage
from thinking_model import CALLING, thinking_model
from tui_driver import Driver, OpenApp

from chatapp.common.settings import Settings
from chatapp.engine.model import Sampling
from chatapp.tui.screens.compare import CompareScreen
from chatapp.tui.widgets.dialog import Dialog

SETTINGS = Settings(theme="chatapp", markdown="off", sampling=Sampling(seed=1))
SMALL, USUAL, WIDE_SCREEN = (60, 20), (100, 30), (200, 60)

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
    "attention": ("f3", "4"),
    "layers": ("f3", "6"),
    "generation by steps": ("f3", "8"),
}
"""The keys that lead to each, from the prompt."""

SEA = (
    "The sea is a large body of salt water that covers most of the planet. It moves in waves "
    "and tides, and it is home to countless living things.\n\nPeople have always sailed on it."
)
WIDE = "It is [b]wide[/b]."


@dataclass(frozen=True)
class Scene:
    """act: what a user does; it ends at rest, so that the same is shown on any machine.
    shows: words that are then on the screen, whatever its size. pictured: compared with a picture.
    """

    act: Callable[[Driver], Awaitable[None]]
    make_model: Callable[[Stage], ScriptedModel]
    shows: tuple[str, ...]
    pictured: bool = False

    def check(self, driver: Driver) -> None:
        missing = [words for words in self.shows if words not in driver.sentences]
        assert not missing, driver.screen_text


def says(*replies: str | Exception) -> Callable[[Stage], ScriptedModel]:
    return lambda stage: ScriptedModel(replies)


def thinks(*replies: str) -> Callable[[Stage], ScriptedModel]:
    return lambda stage: thinking_model(stage.folder / "model", replies)


def calls(*replies: str) -> Callable[[Stage], ScriptedModel]:
    return lambda stage: thinking_model(stage.folder / "model", replies, template=CALLING)


def halts(*replies: str, tokens: int) -> Callable[[Stage], ScriptedModel]:
    return lambda stage: stage.halting([*replies], tokens)


def shows_inside(reply: str) -> Callable[[Stage], ScriptedModel]:
    return lambda stage: GlassModel([reply])


@asynccontextmanager
async def played(
    open_app: OpenApp, stage: Stage, scene: Scene, size: tuple[int, int] = SMALL
) -> AsyncIterator[Driver]:
    async with open_app(scene.make_model(stage), settings=SETTINGS, size=size) as driver:
        await scene.act(driver)
        yield driver
        stage.gate.set()


async def check_small_and_wide(open_app: OpenApp, stage: Stage, scene: Scene) -> None:
    """Play a scene in a small terminal, and read it there and when the terminal is made wide."""
    async with played(open_app, stage, scene) as driver:
        scene.check(driver)
        assert "Type to search" not in driver.screen_text
        await driver.pilot.resize_terminal(*WIDE_SCREEN)
        await driver.listed()
        scene.check(driver)
        has_list = not isinstance(driver.app.screen, CompareScreen | Dialog)  # they cover it
        assert ("Type to search" in driver.screen_text) == has_list
