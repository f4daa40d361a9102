"""Takes the pictures of the README: `python tests/screenshots.py [NAME …]` in the project's folder.

They are what the program shows with the bundled model, seed 1, and are drawn by the program. One of
them shows what the tour's pirate says, so that model is trained first.
"""

import asyncio
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE / "tui"), str(HERE.parent)]

from moving_picture import Frame, assemble  # noqa: E402
from textual.widgets import Input, OptionList, TextArea  # noqa: E402
from tui_driver import Driver  # noqa: E402

from chatapp.common.settings import Settings  # noqa: E402
from chatapp.dialogue.store import Store  # noqa: E402
from chatapp.engine.model import LanguageModel, Sampling  # noqa: E402
from chatapp.engine.models.loading import load_model  # noqa: E402
from chatapp.tui.app import ChatApp  # noqa: E402

ASSETS = HERE.parent / ".assets"
TOUR = HERE.parent / "chatapp" / "docs" / "tour.md"
SETTINGS = Settings(theme="chatapp", sampling=Sampling(seed=1, max_tokens=60))


Scene = Callable[[Driver], AsyncIterator[float]]
"""Plays something; yields for how many seconds what is on the screen is to be seen."""


async def rest(driver: Driver) -> None:
    """Wait until nothing is computed any more, nor asked for by what was computed."""
    for _ in range(3):
        await driver.idle()


async def write(driver: Driver, text: str) -> AsyncIterator[float]:
    for letter in text:
        await driver.press(letter)
        yield 0.06


async def reply(driver: Driver, key: str = "enter") -> AsyncIterator[float]:
    """The screens of a reply that is generated after a key, slowly enough to read."""
    await driver.press(key)
    while driver.chat.conversation.turn is not None:
        await asyncio.sleep(0.01)
        await driver.settle()
        yield 0.15
    await rest(driver)


async def chat(driver: Driver) -> AsyncIterator[float]:
    """A reply, its alternatives, a branch from one of them, and a reply without one head."""
    yield 1
    async for seconds in write(driver, "My name is Clara."):
        yield seconds
    async for seconds in reply(driver):
        yield seconds
    yield 2
    await driver.press("f3")
    await rest(driver)
    yield 2
    await driver.press("tab")
    alternatives = driver.chat.query_one("#tokens-alternatives", OptionList)
    await driver.until(lambda: alternatives.has_focus and alternatives.highlighted is not None)
    yield 1
    if "●" in str(alternatives.get_option_at_index(0).prompt):  # which came
        await driver.press("down")
        yield 1.5
    async for seconds in reply(driver):
        yield seconds
    yield 2
    await driver.press("escape")
    for text in ("What is 48 plus 76?", "/ablate 4.1"):
        async for seconds in write(driver, text):
            yield seconds
        async for seconds in reply(driver):
            yield seconds
        yield 1.5
    await driver.press("ctrl+up")
    yield 1
    async for seconds in reply(driver, "r"):
        yield seconds
    yield 4


async def tokens(driver: Driver) -> AsyncIterator[float]:
    for text in (
        "Who are you?",
        "What is the capital of France?",
        "And of Spain?",
        "What is 48 plus 76?",
    ):
        await driver.say(text)
    await driver.press("f3")
    await rest(driver)
    await driver.press("right", "right", "tab", "down")
    await rest(driver)
    yield 1


async def attention(driver: Driver) -> AsyncIterator[float]:
    await driver.press("f3")
    await rest(driver)
    await driver.press("4")
    await rest(driver)
    yield 1


async def compare(driver: Driver) -> AsyncIterator[float]:
    driver.prompt.text = "/compare seed=2"
    await driver.press("enter")
    await driver.until(lambda: "Enter sends it to both" in driver.screen_text)
    await driver.press(*"I had a bad day.", "enter")
    await driver.until(lambda: "Both bad" in driver.screen_text)
    yield 1


async def prompts(driver: Driver) -> AsyncIterator[float]:
    driver.prompt.text = "cheese"
    await driver.press("f5")
    await driver.until(lambda: "pirate" in driver.screen_text)
    await driver.press(*"english")
    await rest(driver)
    await driver.until(lambda: "bread" in driver.screen_text or "=>" in driver.screen_text)
    yield 1


async def teach(driver: Driver) -> AsyncIterator[float]:
    for text in ("Who are you?", "What is your favourite colour?"):
        await driver.say(text)
    yield 1


SCENES: dict[str, tuple[tuple[int, int], Scene]] = {
    "chat": ((100, 24), chat),
    "tokens": ((140, 34), tokens),
    "attention": ((100, 40), attention),
    "compare": ((100, 14), compare),
    "prompts": ((100, 30), prompts),
    "teach": ((100, 17), teach),
}


async def take(name: str, folder: Path, model: LanguageModel) -> Path:
    """Play a scene in a new chat; returns the picture's file."""
    size, scene = SCENES[name]
    store = Store(folder / "chats.db")
    app = ChatApp(SETTINGS, load=lambda: model, store=store)
    frames = []
    async with app.run_test(size=size) as pilot:
        driver = Driver(app, pilot)
        await driver.ready()
        await rest(driver)
        async for seconds in scene(driver):
            await driver.settle()
            frames.append(Frame(app.export_screenshot(title="chatapp"), seconds))
    store.close()
    path = folder / f"{name}.svg"
    path.write_text(assemble(frames), encoding="utf-8")
    return path


def train_pirate() -> LanguageModel:
    """The model that chapter 3 of the tour trains, from the files that stand there."""
    from finetune import train

    text = TOUR.read_text(encoding="utf-8")
    for name in ("pirate.jsonl", "pirate.toml"):
        block = re.search(rf"^```\w+ {re.escape(name)}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        assert block is not None
        Path(name).write_text(block[1], encoding="utf-8")
    return load_model(str(train("pirate.toml")), precision="float32")


def main() -> None:
    names = sys.argv[1:] or list(SCENES)
    os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    os.environ.pop("NO_COLOR", None)
    for widget in (Input, TextArea):
        widget.cursor_blink._default = False
    model = load_model("bundled", precision="float32")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CHATAPP_HOME"] = folder
        os.chdir(folder)
        for name in names:
            shown = train_pirate() if name == "teach" else model
            path = asyncio.run(take(name, Path(folder), shown))
            print(shutil.copy(path, ASSETS))


if __name__ == "__main__":
    main()
