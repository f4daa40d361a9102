"""Learning from feedback, with progress: runs `finetune feedback` as a command."""

import sys
from typing import ClassVar

from textual.binding import Binding, BindingType

from chatapp.tui.widgets.command import KEYS, CommandScreen


def command(model: str) -> list[str]:
    """The command that trains a model on the feedback in all chats."""
    return [sys.executable, "-m", "finetune", "feedback", "--model", model]


class LearnScreen(CommandScreen):
    """Returns the name of the trained model, when the user accepts it, else None."""

    TASK = "learning from feedback"
    BINDING_GROUP_TITLE = "Learning from feedback"
    BINDINGS: ClassVar[list[BindingType]] = [*KEYS, Binding("enter", "use", "Use the new model")]
    _made = ""

    def answered(self, answer: str) -> tuple[str, str]:
        self._made = answer
        text = f"The new model is {answer}; the list of models (F8) has it."
        return text, "Enter uses the new model · Esc closes"

    def action_use(self) -> None:
        if self._made:
            self.dismiss(self._made)
