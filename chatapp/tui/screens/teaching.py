"""Commands of `finetune` on the screen: where a reply is from, and learning from feedback."""

import json
import sys
from typing import TYPE_CHECKING, Any

from textual.content import Content

from chatapp.common.foreign import printable
from chatapp.tui.platform.actions import Action
from chatapp.tui.widgets.command import CommandScreen

if TYPE_CHECKING:
    from pathlib import Path


def trace_command(run: "Path", reply: str) -> list[str]:
    """The command that looks for a reply in the training files of a run."""
    return [sys.executable, "-m", "finetune", "trace", str(run), f"--reply={reply}", "--json"]


class TraceScreen(CommandScreen):
    """Shows copies of training text in a reply."""

    TASK = "tracing a reply"
    BINDING_GROUP_TITLE = "Where a reply is from"

    def answered(self, answer: str) -> tuple[str | Content, str]:
        return _copies(json.loads(answer)), "Esc closes"


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
    return [sys.executable, "-m", "finetune", "feedback", "--model", model]


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
