"""The search in the open chat, above the prompt."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from chatapp.tui.platform.actions import Acting, Action
from chatapp.tui.widgets.dialog import Field

if TYPE_CHECKING:
    from chatapp.dialogue.store.rows import StoredMessage
    from chatapp.tui.widgets.transcript import Transcript


def matching_ids(path: "Sequence[StoredMessage]", words: str) -> list[int]:
    """The messages whose text contains `words`; case does not matter."""
    folded = words.casefold()
    return [message.id for message in path if folded in message.text.casefold()]


class FindBar(Acting, Horizontal):
    """Hidden until it is opened. Begins at the last match, which is nearest to the prompt."""

    BINDING_GROUP_TITLE = "Search in this chat"

    @dataclass
    class Wanted(Message):
        """The user searches for `words`, or goes on to another match."""

        words: str

    @dataclass
    class Closed(Message):
        """The user has closed the search."""

    def __init__(self) -> None:
        super().__init__()
        self.display = False
        self._place = -1
        """The match's place, counted when a key is pressed: the next may come before it shows."""

    def compose(self) -> ComposeResult:
        yield Field(placeholder="Search in this chat", compact=True)
        yield Static(markup=False)

    def open(self, words: str = "") -> None:
        """Show the search, with these words or those of the last time, and focus it."""
        self.display = True
        field = self.query_one(Field)
        field.focus()
        field.value = words or field.value
        self._want(0)

    async def show(self, transcript: "Transcript", words: str) -> None:
        """Show a match in the transcript, and how many there are."""
        ids: list[int] = []
        if words:
            ids = await asyncio.to_thread(matching_ids, list(transcript.path), words)
        number = self._place % max(1, len(ids))
        place = f"{number + 1} of {len(ids)}" if ids else "no match" if words else ""
        self.query_one(Static).update(f"{place} · ↑ ↓ · Esc closes" if place else "Esc closes")
        transcript.highlight(words if ids else "")
        if ids:
            await transcript.reveal(ids[number])
            transcript.highlight(words)

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        self._want(0)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._want(1)

    def _want(self, step: int) -> None:
        """Go on by `step` matches; 0 is for new words."""
        if self.display:
            self._place = self._place + step if step else -1
            self.post_message(self.Wanted(self.query_one(Field).value))

    @Action("Next match", "down,enter", call="step(1)", name="next_match")
    @Action("Previous match", "up,shift+enter", call="step(-1)", name="previous_match")
    def action_step(self, step: int) -> None:
        self._want(step)

    @Action("Close", "escape")
    def action_close(self) -> None:
        self.display = False
        self.post_message(self.Closed())
