"""What the tests of the screens share: an app with a scripted model and a store of its own."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from fakes import ScriptedModel
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot
from textual.screen import Screen

from chatapp.common.paths import drafts_dir
from chatapp.common.settings import Settings
from chatapp.dialogue.store import Store
from chatapp.engine.model import LanguageModel
from chatapp.tui.app import ChatApp
from chatapp.tui.chat.screen import ChatScreen
from chatapp.tui.platform import programs
from chatapp.tui.widgets.prompt import PromptInput
from chatapp.tui.widgets.status import StatusLine
from chatapp.tui.widgets.transcript import Transcript

OpenedScreen = TypeVar("OpenedScreen", bound=Screen)


class Driver:
    """An app under test: its parts, and what a user does with it."""

    def __init__(self, app: ChatApp, pilot: Pilot[int]) -> None:
        self.app = app
        self.pilot = pilot

    async def press(self, *keys: str) -> None:
        """Press keys, letting everything that a key brings about happen before the next."""
        for key in keys:
            self.app.simulate_key(key)
            await self.settle()

    async def settle(self) -> None:
        """Let messages between widgets arrive, and the screen be drawn.

        Pilot's own `press` waits for an idle CPU, which a busy machine never is.
        """
        for _ in range(3):
            for _ in range(40):  # more than a message needs to go up and down the tree
                await asyncio.sleep(0)
            self.app.screen._on_timer_update()

    @property
    def chat(self) -> ChatScreen:
        return self.app.chat

    @property
    def prompt(self) -> PromptInput:
        return self.chat.query_one(PromptInput)

    @property
    def status(self) -> StatusLine:
        return self.chat.query_one(StatusLine)

    @property
    def transcript(self) -> Transcript:
        return self.chat.query_one(Transcript)

    @property
    def texts(self) -> list[str]:
        """The texts of the mounted messages."""
        return [view.message.text for view in self.transcript.views]

    @property
    def notes(self) -> list[str]:
        """What stands below the mounted messages."""
        return [view.note for view in self.transcript.views]

    @property
    def notices(self) -> list[str]:
        """What was said in passing and is still to be seen."""
        return [notification.message for notification in self.app._notifications]

    @property
    def problem(self) -> str:
        """The line above the prompt."""
        line = self.chat.query_one("#problem")
        return str(line.content) if line.display else ""

    @property
    def screen_text(self) -> str:
        """What a terminal would show, row by row."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text for strip in strips)

    @property
    def sentences(self) -> str:
        """What is on the screen in one line: a sentence with a path may be wrapped anywhere."""
        return re.sub(r"[\s│]+", " ", self.screen_text)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something to become true, and for the screen to show it."""
        async with asyncio.timeout(120):
            while not condition():
                await asyncio.sleep(0.005)
        await self.settle()

    async def until_left(self) -> None:
        """Wait until the app is on its way out."""
        async with asyncio.timeout(120):
            while not self.app._exit:
                await asyncio.sleep(0.005)

    async def ready(self) -> None:
        await self.until(lambda: self.chat.conversation.session is not None)

    async def idle(self) -> None:
        """Wait until no turn is running, no message waits, and all has been measured."""
        conversation = self.chat.conversation
        await self.until(lambda: conversation.turn is None and not conversation.has_running_threads)
        await self.listed()

    async def rest(self) -> None:
        """Wait until nothing is computed any more, nor asked for by what was computed."""
        for _ in range(3):
            await self.idle()

    async def press_and_rest(self, *keys: str) -> None:
        """Press keys, waiting after each until all that it brings about is computed."""
        for key in keys:
            await self.press(key)
            await self.rest()

    async def worked(self) -> None:
        """Wait until nothing is looked for any more that the screen in front shows."""
        workers = self.app.workers
        await self.until(
            lambda: all(each.is_finished for each in workers if each.node is self.app.screen)
        )

    async def listed(self) -> None:
        """Wait until the list of chats beside the chat, if there is one, shows them all."""
        await self.until(lambda: not any(worker.group == "sidebar" for worker in self.app.workers))

    async def order(self, text: str) -> None:
        """Write a command or a message, and send it."""
        self.chat.set_focus(self.prompt)
        self.prompt.text = text
        await self.press("enter")

    async def say(self, text: str) -> None:
        """Write a message, send it, and wait for the end of its reply."""
        await self.order(text)
        await self.idle()

    async def opens(self, screen: type[OpenedScreen], *keys: str) -> OpenedScreen:
        """Press keys, and wait for a screen of this kind."""
        await self.press(*keys)
        await self.until(lambda: isinstance(self.app.screen, screen))
        return cast(OpenedScreen, self.app.screen)

    async def back(self, *keys: str) -> None:
        """Press keys, and wait until the chat is in front again."""
        await self.press(*keys)
        await self.until(lambda: self.app.screen is self.chat)

    async def shows(self, words: str, *keys: str) -> None:
        """Press keys, and wait until the screen shows these words."""
        await self.press(*keys)
        await self.until(lambda: words in self.screen_text)


OpenApp = Callable[..., AbstractAsyncContextManager[Driver]]


@pytest.fixture(autouse=True, scope="session")
def parsed_once() -> Iterator[None]:
    """A style sheet is parsed once in each theme, and not by every app anew."""
    parse, rules = Stylesheet._parse_rules, dict[Any, list[RuleSet]]()

    def parse_once(sheet: Stylesheet, *given: Any, **named: Any) -> list[RuleSet]:
        key = (frozenset(sheet._variables.items()), given, frozenset(named.items()))
        if key not in rules:
            rules[key] = parse(sheet, *given, **named)
        return rules[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", parse_once)
        yield


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same terminal everywhere, and a home of our own."""
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(programs, "programs", list)  # nobody's own clipboard is filled
    monkeypatch.setattr(ChatApp, "NOTIFICATION_TIMEOUT", 600)  # a busy machine reads them late


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "chats.db")
    yield store
    store.close()


@pytest.fixture
def open_app(store: Store) -> OpenApp:
    """`async with open_app(model) as driver:` runs the app; it waits for the model."""

    @asynccontextmanager
    async def opened(
        model: ScriptedModel | None = None,
        *,
        load: Callable[[], LanguageModel] | None = None,
        chat_id: int | None = None,
        size: tuple[int, int] = (100, 30),
        settings: Settings | None = None,
        own_store: Store | None = None,
        markdown: str = "off",
    ) -> AsyncIterator[Driver]:
        model = model or ScriptedModel(["It is a scripted reply."])
        app = ChatApp(
            replace(settings or Settings(), markdown=markdown),  # most replies are read as text
            load=load or (lambda: model),
            store=own_store or store,
            chat_id=chat_id,
        )
        async with app.run_test(size=size) as pilot:
            driver = Driver(app, pilot)
            if load is None:
                await driver.ready()
            try:
                yield driver
            finally:
                driver.chat.conversation.close(5)
                app.workers.cancel_all()  # as at the end of every real run
        shutil.rmtree(drafts_dir(), ignore_errors=True)  # the next app is of the same process

    return opened


def fill(store: Store, texts: list[str]) -> int:
    """A chat in the store with these messages in turn, a user's first; returns its id."""
    chat_id = store.create_chat(template="plain", model="scripted")
    parent = None
    for number, text in enumerate(texts):
        role = "assistant" if number % 2 else "user"
        parent = store.add_message(chat_id, parent, role, text).id
    return chat_id
