"""Learning from feedback, with progress: runs `finetune feedback` as a command.

Invariant: the command equals the one in a terminal; it does not outlive the screen.
"""

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from chatapp.common.foreign import printable
from chatapp.tui.platform.keymap import HELP
from chatapp.tui.widgets.dialog import Dialog

if TYPE_CHECKING:
    from chatapp.tui.conversation.conversation import Conversation

_LINES = 12
_LONGEST = 2**20
_WIDTH = "100"

_HINT = "Esc stops after this step; Esc again stops at once"
_DONE_HINT = "Enter uses the new model · Esc closes"


def command(model: str) -> list[str]:
    """The command that trains a model on the feedback in all chats."""
    return [sys.executable, "-m", "finetune", "feedback", "--model", model]


class LearnScreen(Dialog[str | None]):
    """Returns the name of the trained model, when the user accepts it, else None."""

    BINDING_GROUP_TITLE = "Learning from feedback"
    BINDINGS: ClassVar[list[BindingType]] = [
        HELP,
        Binding("enter", "use", "Use the new model"),
        Binding("escape", "stop", "Stop, or close"),
    ]

    def __init__(self, conversation: "Conversation", command: Sequence[str]) -> None:
        super().__init__()
        self._conversation = conversation
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._made = ""
        self._has_ended = False

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Learning from feedback", classes="title")
            yield Static("Starting …", id="progress", markup=False)
            yield Static(_HINT, classes="hint", id="keys")

    def on_mount(self) -> None:
        self._learn()

    def on_unmount(self) -> None:
        self.end()

    def end(self) -> None:
        """End the command at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    @work
    async def _learn(self) -> None:
        with self._conversation.under_way("learning from feedback"):
            await self._run()

    async def _run(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            env={**os.environ, "COLUMNS": _WIDTH, "PYTHONUNBUFFERED": "1"},
            limit=_LONGEST,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        answer, _ = await asyncio.gather(
            self._process.stdout.read(), self._follow(self._process.stderr)
        )
        status = await self._process.wait()
        self._has_ended = True
        if status == 0:
            self._made = answer.decode(errors="replace").strip()
            self._say(f"The new model is {self._made}; the list of models (F8) has it.")
        elif not self._lines:
            self._say(f"The command ended with status {status}.")
        self.query_one("#keys", Static).update(_DONE_HINT if self._made else "Esc closes")

    async def _follow(self, stdout: asyncio.StreamReader) -> None:
        async for line in stdout:
            self._say(line.decode(errors="replace"))

    def _say(self, line: str) -> None:
        self._lines.append(printable(line).rstrip())
        self.query_one("#progress", Static).update("\n".join(self._lines))

    def action_use(self) -> None:
        if self._made:
            self.dismiss(self._made)

    def action_stop(self) -> None:
        if self._has_ended or self._process is None:
            self.dismiss(None)
            return
        with suppress(ProcessLookupError):  # it has just ended
            # Windows sends no SIGINT to another process: there, training ends at once.
            self._process.send_signal(signal.SIGINT if os.name == "posix" else signal.SIGTERM)
