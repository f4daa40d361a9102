"""Random keys and pastes on every screen: nothing breaks, and the chats stay whole.

One seed is one story: after each event the test waits until all that it brought about has been
done, but for a reply that halts in the middle until the story lets it go on. FUZZ_EVENTS=5000
makes the stories longer.
"""

import asyncio
import os
import random
import sqlite3
import threading
from collections.abc import Iterator
from itertools import count
from typing import ClassVar

import pytest
import torch
from glass import GlassModel
from scenes import PLACES
from textual.events import Key, Paste
from textual.geometry import Size
from tui_driver import fill

from chatapp.engine.errors import ModelError
from chatapp.engine.models import loading, resolving
from chatapp.tui.app import ChatApp

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

EVENTS = int(os.environ.get("FUZZ_EVENTS", "380"))
"""How many there are in all stories together."""

PATIENCE = 300
"""Seconds until an event is said to stand still: many times what the slowest machine needs."""

STAY = 12
"""Events after which the story goes back to its place."""

MOVES = """up down left right home end pageup pagedown tab shift+tab enter enter enter escape
    backspace delete ctrl+up ctrl+down shift+left shift+right ctrl+left ctrl+right""".split()
OTHER = [
    *(f"f{number}" for number in range(1, 13)),
    *(f"ctrl+{letter}" for letter in "abcdefghijklmnoprstuvwxyz"),  # q would end the story
]
LETTERS = "abcdeknruwxy 0123456789+-./[]\\\"'{}é文\u0301"
PASTES = (
    "Hello there",
    "[b]bold[/b] [/] [@click=app.quit]x[/]",
    "\x1b[2J\x1b]0;title\x07\x00\x9b31m",
    "\ud800 \udfff alone",
    "e\u0301\u0302\u0303 \u202e right to left \u200b 👩‍👩‍👧 文字",
    "word" * 500,
    "many lines of text\n" * 3_000,
    "\t\r\n \n\r",
    "",
    *(
        "/set temperature 0|/set max_tokens 5|/set seed nonsense|/system [b]Be brief.[/b]"
        "|/system default|/title a [/b] title|/theme nord|/template plain|/template no-such-one"
        "|/model other|/model no-such-one|/prompt english_to_french|/prompt sentiment"
        "|/prompt pirate|/prompt no-such-one|/prompt none|/compare temperature=0 max_tokens=4"
        "|/compare model=other|/markdown on|/preset no-such-one|/export chat.md|/export chat.json"
        "|/chats|/new|/nonsense"
    ).split("|"),
)


class Halting(GlassModel):
    """Halts in the middle of each reply, all of which differ, until it may go on."""

    made: ClassVar[list["Halting"]] = []
    numbers: ClassVar[Iterator[int]] = count(1)

    def __init__(self, seed):
        self._random = random.Random(seed)
        super().__init__(self._say, context=300, name="halting")
        self.go_on = threading.Event()
        self.halts = False
        self._left = 0
        self.made.append(self)

    def _say(self, prompt):
        if self._random.random() < 0.05:
            return RuntimeError("out of [/b] memory")
        self._left = self._random.randrange(8)
        self.go_on.clear()
        words = self._random.choices(
            ["the", "[b]", "文字", "\x1b[2J", "\n\n", "e\u0301", "it"], k=9
        )
        return f" Reply{next(self.numbers)} {' '.join(words)}"

    def _wait(self, cancel):
        self._left -= 1
        if self._left == 0 and cancel is not None:
            self.halts = True
            while not (self.go_on.is_set() or cancel.wait(0.002)):
                pass
            self.halts = False
        return super()._wait(cancel)

    def logits(self, ids, layer=None):
        sharp = 4.0 if layer is None else 4 * (layer + 1) / (self.layers + 1)
        values = sharp * torch.sin(1.7 * torch.arange(self.tokenizer.size) + 0.9 * len(ids))
        values[0] = -30.0  # an end in the beginning would be a reply that is like another
        return values


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    """Files go to a folder of their own, there is no editor, and nothing ends the program."""

    async def stay(app):
        pass

    def load_model(name, **_):
        if name != "other":
            raise ModelError(f"there is no model {name!r}")
        return Halting(0)

    Halting.made.clear()
    Halting.numbers = count(1)
    monkeypatch.setattr(ChatApp, "action_quit", stay)
    monkeypatch.setattr(loading, "load_model", load_model)
    monkeypatch.setattr(resolving, "local_models", lambda: ["bundled", "other"])
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.chdir(tmp_path)


class Story:
    """Random events on an app, every one of which is told when something breaks."""

    def __init__(self, driver, seed):
        self.driver = driver
        self.random = random.Random(seed)
        self.told = []

    def go_on(self):
        """Let a reply that halts go on."""
        for model in Halting.made:
            model.go_on.set()

    async def happen(self, event):
        app = self.driver.app
        if isinstance(event, Size):
            self.told.append(f"{event.width}x{event.height}")
            await self.driver.pilot.resize_terminal(*event)
        else:
            self.told.append(event.key if isinstance(event, Key) else repr(event.text[:60]))
            app.post_message(event)
        try:
            await self.driver.settle()
            async with asyncio.timeout(PATIENCE):
                while app.failure is None and not self._is_quiet():
                    await asyncio.sleep(0.005)
            await self.driver.settle()
        except TimeoutError as error:
            raise AssertionError(f"it stands still after {self._tale()}") from error
        if app.failure is not None:
            raise AssertionError(f"it breaks down after {self._tale()}") from app.failure

    def _tale(self):
        return f"{len(self.told)} events, at last {' '.join(self.told[-40:])}"

    def _is_quiet(self):
        """Whether nothing is under way, but for a reply that halts."""
        app = self.driver.app
        at_work = app.screen is not app.chat and any(
            worker.node is app.screen and not worker.is_finished for worker in app.workers
        )
        running = self.driver.chat.conversation.has_running_threads
        return not at_work and (not running or any(model.halts for model in Halting.made))

    async def press(self, *keys):
        for key in keys:
            await self.happen(Key(key, None))

    async def go_to(self, keys):
        await self.press("escape", "escape", "escape", *keys)

    def any_event(self):
        kind = self.random.random()
        if kind < 0.4:
            bound = sorted({*self.driver.app.screen.active_bindings} - {"ctrl+q"})
            return Key(self.random.choice(bound), None)
        if kind < 0.6:
            return Key(self.random.choice(MOVES), None)
        if kind < 0.8:
            return Key(self.random.choice(LETTERS), None)
        if kind < 0.9:
            return Key(self.random.choice(OTHER), None)
        if kind < 0.99:
            return Paste(self.random.choice(PASTES))
        return Size(*self.random.choice([(60, 20), (100, 30), (130, 40), (20, 8)]))

    async def run(self, events, way):
        for number in range(events):
            if number % STAY == 0:
                await self.go_to(way)
            if self.random.random() < 0.2:
                self.go_on()
            await self.happen(self.any_event())

    async def end(self):
        for _ in range(8):
            self.go_on()
            await self.press("escape")
        await self.driver.idle()


def faults(path):
    """What is wrong with a database of chats."""
    connection = sqlite3.connect(path)
    yield from (row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok")
    yield from map(str, connection.execute("PRAGMA foreign_key_check"))
    connection.execute("INSERT INTO message_index (message_index) VALUES ('integrity-check')")
    for words, query in {
        "the parent is not in the chat": """SELECT child.id FROM messages AS child
            JOIN messages AS parent ON parent.id = child.parent_id
            WHERE child.chat_id != parent.chat_id""",
        "somebody answers themselves": """SELECT child.id FROM messages AS child
            JOIN messages AS parent ON parent.id = child.parent_id
            WHERE child.role = parent.role""",
        "a reply to nothing": """SELECT id FROM messages
            WHERE parent_id IS NULL AND role = 'assistant'""",
        "a message without a reply": """SELECT id FROM messages AS said WHERE role = 'user'
            AND NOT EXISTS (SELECT 1 FROM messages WHERE parent_id = said.id)""",
        "a reply without a turn": """SELECT id FROM messages AS reply WHERE role = 'assistant'
            AND chat_id > 2 AND NOT EXISTS (SELECT 1 FROM turns WHERE message_id = reply.id)""",
        "two siblings are one reply": """SELECT one.id FROM messages AS one
            JOIN messages AS two ON two.parent_id = one.parent_id AND two.text = one.text
            WHERE one.id < two.id AND one.role = 'assistant' AND one.text != ''""",
        "nobody writes it any more": "SELECT id FROM messages WHERE status = 'partial'",
        "the leaf is not in the chat": """SELECT chats.id FROM chats
            JOIN messages ON messages.id = leaf_id WHERE messages.chat_id != chats.id""",
        "no leaf": """SELECT id FROM chats AS chat WHERE leaf_id IS NULL
            AND EXISTS (SELECT 1 FROM messages WHERE chat_id = chat.id)""",
        "messages are miscounted": """SELECT id FROM chats AS chat WHERE messages !=
            (SELECT count(*) FROM messages WHERE chat_id = chat.id)""",
    }.items():
        yield from (f"{words}: {row[0]}" for row in connection.execute(query))
    connection.close()


@pytest.mark.parametrize("place", PLACES)
async def test_random_events(open_app, store, tmp_path, place):
    fill(store, ["Tell me [b]more[/b].", "It is \x1b[2J wide.", "Go on.", "The sea. " * 40])
    fill(store, ["Another chat"] + ["文字", "more"] * 40 + ["the end"])
    model = Halting(len(place))
    async with open_app(model, chat_id=1) as driver:
        story = Story(driver, place)
        await story.press("ctrl+up", "r")  # so that there is something to rank
        await story.run(EVENTS // len(PLACES), PLACES[place])
        await story.end()
        assert list(faults(tmp_path / "chats.db")) == [], story.told


def test_the_faults_would_be_seen(store, tmp_path):
    path = tmp_path / "chats.db"
    for _ in range(2):
        fill(store, ["Hello", "Hi"])
    assert list(faults(path)) == []
    store._database._connection.executescript("""
        PRAGMA foreign_keys = OFF;
        UPDATE messages SET parent_id = 1 WHERE id = 4;
        UPDATE chats SET leaf_id = 4 WHERE id = 1;
        INSERT INTO messages (chat_id, parent_id, role, text, status, created)
            VALUES (1, 1, 'assistant', 'Hi', 'partial', 0), (1, 9, 'user', 'x', 'complete', 0);
    """)
    seen = "\n".join(faults(path))
    for words in (
        "('messages', 6, 'messages'",
        "the parent is not in the chat: 4",
        "a message without a reply: 3",
        "two siblings are one reply: 2",
        "nobody writes it any more: 5",
        "the leaf is not in the chat: 1",
        "messages are miscounted: 1",
    ):
        assert words in seen
