"""Commands of `finetune` on the screen: where a reply is from, and learning from feedback."""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from textual import work
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from chatapp.common.foreign import parse_json, printable
from chatapp.common.limited_process import module_command
from chatapp.tui.conversation.conversation import Conversation
from chatapp.tui.platform.actions import Action
from chatapp.tui.widgets.dialog import Dialog

_LINES = 12
_LONGEST = 2**20
_WIDEST = 120
_MARGINS = 8

_HINT = "Esc stops after this step; Esc again stops at once"


class CommandScreen(Dialog[str | None]):
    """Shows what a command says while it runs, and then its answer; a subclass says what is next.

    TASK: what is under way meanwhile.
    """

    TASK = ""

    def __init__(self, conversation: Conversation, command: Sequence[str]) -> None:
        super().__init__()
        self._conversation = conversation
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._has_ended = False

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self.BINDING_GROUP_TITLE or "", classes="title")
            with VerticalScroll():
                yield Static("Starting …", id="progress", markup=False)
                yield Static(id="answer", markup=False)
            yield Static(_HINT, classes="hint", id="keys")

    def on_mount(self) -> None:
        self.start(self._command)

    def on_unmount(self) -> None:
        self.end()

    def answered(self, answer: str) -> tuple[str | Content, str]:
        """What to show once the command has answered, and which keys are next."""
        raise NotImplementedError

    def end(self) -> None:
        """End the command at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    @work
    async def start(self, command: Sequence[str]) -> None:
        """Run a command."""
        self._has_ended = False
        self._lines.clear()
        self.query_one("#progress").display = True
        self.query_one("#progress", Static).update("Starting …")
        self.query_one("#answer", Static).update("")
        self.query_one("#keys", Static).update(_HINT)
        with self._conversation.under_way(self.TASK):
            await self._run(command)

    async def _run(self, command: Sequence[str]) -> None:
        pipe = asyncio.subprocess.PIPE
        width = max(min(self.size.width, _WIDEST) * 95 // 100 - _MARGINS, 1)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                env={**os.environ, "COLUMNS": str(width), "PYTHONUNBUFFERED": "1"},
                limit=_LONGEST,
            )
        except (OSError, ValueError) as error:  # the system takes no argument of that length
            self._close_with(f"The command cannot start: {error}", "Esc closes")
            return
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        answer, _ = await asyncio.gather(
            self._process.stdout.read(), self._follow(self._process.stderr)
        )
        status = await self._process.wait()
        if status == 0:
            self._close_with(*self.answered(answer.decode(errors="replace").strip()))
        else:
            default = f"The command ended with status {status}."
            self._close_with("" if self._lines else default, "Esc closes")

    def _close_with(self, answer: str | Content, keys: str) -> None:
        self._has_ended = True
        if not self._lines:
            self.query_one("#progress").display = False
        text = printable(answer) if isinstance(answer, str) else answer
        self.query_one("#answer", Static).update(text)
        self.query_one("#answer").display = bool(answer)
        self.query_one("#keys", Static).update(keys)

    async def _follow(self, messages: asyncio.StreamReader) -> None:
        async for line in messages:
            self._say(line.decode(errors="replace"))

    def _say(self, line: str) -> None:
        self._lines.append(printable(line).rstrip())
        self.query_one("#progress", Static).update("\n".join(self._lines))

    @Action("Stop, or close", "escape", name="close")
    def action_stop(self) -> None:
        if self._has_ended or self._process is None:
            self.dismiss(None)
            return
        with suppress(ProcessLookupError):  # it has just ended
            # Windows sends no SIGINT to another process: there, training ends at once.
            self._process.send_signal(signal.SIGINT if os.name == "posix" else signal.SIGTERM)


def trace_command(run: Path, reply: str) -> list[str]:
    """The command that looks for a reply in the training files of a run."""
    return module_command("finetune", "trace", str(run), f"--reply={reply}", "--json")


class TraceScreen(CommandScreen):
    """Shows copies of training text in a reply."""

    TASK = "tracing a reply"
    BINDING_GROUP_TITLE = "Where a reply is from"

    def answered(self, answer: str) -> tuple[str | Content, str]:
        return _copies(parse_json(answer)), "Esc closes"


def _copies(document: dict[str, Any]) -> Content:
    """The reply with its copies underlined, and where they are from."""
    text = Content(printable(document["reply"]))
    lines = []
    for copy in document["copies"]:
        text = text.stylize("underline", copy["start"], copy["end"])
        times = "once" if copy["count"] == 1 else f"{copy['count']:,} times"
        words = f"“{copy['text']}”: {copy['words']:,} words, {times}, first in {copy['row']}"
        lines.append(Content(printable(words)))
    if not lines:
        lines.append(Content("No longer span of it stands in the training files."))
    nats = document["nats_per_word"]
    baseline = f"{nats['ngram']:.2f} by the n-grams of its training files"
    lines.append(Content(f"{nats['model']:.2f} nats a word by the model, {baseline}"))
    return Content("\n\n").join([text, *lines])


def command(model: str) -> list[str]:
    """The command that trains a model on the feedback in all chats."""
    return module_command("finetune", "feedback", "--model", model)


class LearnScreen(CommandScreen):
    """Returns the name of the trained model, when the user accepts it, else None."""

    TASK = "learning from feedback"
    BINDING_GROUP_TITLE = "Learning from feedback"
    _made = ""

    def answered(self, answer: str) -> tuple[str, str]:
        self._made = answer
        text = f"The new model is {answer}; the list of models (F8) has it."
        return text, "Enter uses the new model · Esc closes"

    @Action("Use the new model", "enter", name="choose")
    def action_use(self) -> None:
        if self._made:
            self.dismiss(self._made)
