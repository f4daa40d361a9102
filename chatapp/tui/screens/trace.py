"""Where a reply is from: runs `finetune trace` as a command.

What stands in the training files is found in seconds; the rows that taught it, by training again.
"""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from chatapp.common.foreign import printable
from chatapp.tui.widgets.command import KEYS, CommandScreen

if TYPE_CHECKING:
    from pathlib import Path

    from chatapp.tui.conversation.conversation import Conversation

_COPIES_HINT = "Enter ranks the training rows, by training again without some · Esc closes"


def trace_command(run: "Path", reply: str, *more: str) -> list[str]:
    """The command that traces a reply to the training rows of a run."""
    return [sys.executable, "-m", "finetune", "trace", str(run), f"--reply={reply}", *more]


class TraceScreen(CommandScreen):
    """Shows copies of training text in a reply, and on demand the rows that taught it.

    rows_command: what finds the rows.
    """

    TASK = "tracing a reply"
    BINDING_GROUP_TITLE = "Where a reply is from"
    BINDINGS: ClassVar[list[BindingType]] = [
        *KEYS,
        Binding("enter", "rows", "Rank the training rows"),
    ]

    def __init__(
        self, conversation: "Conversation", copies: Sequence[str], rows_command: Sequence[str]
    ) -> None:
        super().__init__(conversation, copies)
        self._rows_command: Sequence[str] | None = rows_command

    def answered(self, answer: str) -> tuple[str | Content, str]:
        if self._rows_command is None:
            return answer, "Esc closes"
        return _copies(
            json.loads(answer)
        ), "Enter ranks the training rows, by training again without some · Esc closes"

    def action_rows(self) -> None:
        if self._has_ended and self._rows_command is not None:
            command, self._rows_command = self._rows_command, None
            self.start(command)


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
