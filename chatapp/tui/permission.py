"""The question whether a tool may run, asked in the chat.

Keep: a key that was meant for something else never says yes: No is highlighted, and a turn that
is stopped is a no.
"""

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.message_pump import MessagePump
from textual.widgets import OptionList, Static

from chatapp.foreign import printable
from chatapp.tui.options import Options

if TYPE_CHECKING:
    from chatapp.dialogue.permission import Decision
    from chatapp.tools.tool import Arguments, Tool

_POLL_SECONDS = 0.05

_ANSWERS: "tuple[tuple[Decision, str], ...]" = (
    ("no", "No"),
    ("once", "Yes, this once"),
    ("chat", "Yes, always in this chat"),
    ("always", "Yes, always, in every chat"),
)


class Question:
    """Asked on the thread of a turn, answered on the screen. text: what would run, in words."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._decision: Decision = "no"
        self._answered = threading.Event()

    def answer(self, decision: "Decision") -> None:
        """Let the thread go on."""
        self._decision = decision
        self._answered.set()

    def wait(self, cancel: threading.Event) -> "Decision":
        """The answer; no as soon as the turn is stopped."""
        while not self._answered.wait(_POLL_SECONDS):
            if cancel.is_set():
                return "no"
        return self._decision


@dataclass
class ToolAsks(Message):
    """A tool may run only when the user says so."""

    question: Question


def asked_on(
    listener: MessagePump, tool: "Tool", given: "Arguments", cancel: threading.Event
) -> "Decision":
    """Ask the user, by way of the screen, whether a tool may run with what it is given."""
    from chatapp.tools.tool import in_words

    question = Question(f"{tool.name}({in_words(given)})")
    listener.post_message(ToolAsks(question))
    return question.wait(cancel)


class Approval(Vertical):
    """Shows a question with its answers; nothing while there is none."""

    @dataclass
    class Answered(Message):
        """The user has decided; the question still waits to be told."""

        question: Question
        decision: "Decision"

    def __init__(self) -> None:
        super().__init__()
        self._words = Static(markup=False)
        self._options = Options(*(words for _, words in _ANSWERS))
        self._question: Question | None = None
        self.display = False

    def compose(self) -> ComposeResult:
        yield self._words
        yield self._options

    def ask(self, question: Question) -> None:
        """Show a question, and take the keys."""
        self._question = question
        self._words.update(printable(f"The model wants to run {question.text}. May it?"))
        self.display = True
        self._options.highlighted = 0
        self._options.focus()

    def withdraw(self) -> None:
        """Ask no more: the turn is over."""
        if self._question is not None:
            self._question.answer("no")
        self._question, self.display = None, False

    @on(OptionList.OptionSelected)
    def _answer(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if self._question is not None:
            self.post_message(self.Answered(self._question, _ANSWERS[event.option_index][0]))
        self._question, self.display = None, False
