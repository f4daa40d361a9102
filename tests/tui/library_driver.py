"""The picker of personas and prompt files under test: its folder, and what a user does."""

from pathlib import Path

import pytest
from textual.widgets import OptionList
from tui_driver import Driver

from chatapp.tui.screens.library import LibraryScreen
from chatapp.tui.widgets.dialog import Field

ROWS = [("red rose", "warm"), ("blue sea", "cold"), ("red fire", "hot"), ("white ice", "icy")]
NEAREST = '[select]\nmethod = "knn"\nk = 2\nencoder = "tfidf"\n[generate]\nmax_tokens = 9\n'


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The folder of the user's own prompts, with one of them and one persona."""
    folder = tmp_path / "home" / "config" / "prompts"
    (folder / "personas").mkdir(parents=True)
    rows = ", ".join(f'{{input = "{first}", output = "{then}"}}' for first, then in ROWS)
    (folder / "feel.toml").write_text(
        'description = "How things feel"\ninstruction = "Say how it feels."\n'
        'input_prefix = "Thing: "\noutput_prefix = "Feels:"\nseparator = "\\n"\nstop = ["\\n"]\n'
        f"examples = [{rows}]\n{NEAREST}"
    )
    (folder / "personas" / "monk.toml").write_text(
        'description = "A silent monk"\nsystem = "The monk says little."\ntemplate = "alpaca"\n'
    )
    return folder


async def picker(driver: Driver) -> LibraryScreen:
    """Open it, and wait until it has found what there is."""
    await driver.press("f5")
    await driver.until(lambda: isinstance(driver.app.screen, LibraryScreen) and rows(driver))
    await driver.rest()
    screen = driver.app.screen
    assert isinstance(screen, LibraryScreen)
    return screen


def rows(driver: Driver) -> list[str]:
    """What is listed, without the mark of the chosen line."""
    options = driver.app.screen.query_one(OptionList)
    return [str(option.prompt)[2:] for option in options.options]


async def type_in(driver: Driver, text: str) -> None:
    driver.app.screen.query_one(Field).value = text
    await driver.settle()
    await driver.worked()  # a file is looked for on a thread
    await driver.rest()


async def choose(driver: Driver, name: str) -> None:
    await picker(driver)
    await type_in(driver, name)
    await driver.back("enter")
    await driver.rest()
