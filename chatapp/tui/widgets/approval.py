"""The question whether a tool may run, in the chat."""

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.message_pump import MessagePump
from textual.widgets import OptionList, Static

from chatapp.tui.platform.actions import Acting, Action
from chatapp.tui.widgets.dialog import Notice, PlainOptions

if TYPE_CHECKING:
    from chatapp.dialogue.chat import Decision
    from chatapp.dialogue.tools.tool import PermissionRequest

_POLL_SECONDS = 0.05

_ANSWERS: "tuple[tuple[Decision, str], ...]" = (
    ("no", "No"),
    ("once", "Yes, this once"),
    ("chat", "Yes, always in this chat"),
    ("always", "Yes, always, in every chat"),
)


class ToolQuestion:
    """Asked on the thread of a turn, answered on the screen. request: the call."""

    def __init__(self, request: "PermissionRequest") -> None:
        self.request = request
        self._decision: Decision = "no"
        self._answered = threading.Event()

    def answer(self, decision: "Decision") -> None:
        """Set the answer and wake the thread."""
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
    """A tool needs the user's permission."""

    question: ToolQuestion


def ask_on_screen(
    listener: MessagePump, request: "PermissionRequest", cancel: threading.Event
) -> "Decision":
    """Ask the user, through the screen, whether a call may run."""
    question = ToolQuestion(request)
    listener.post_message(ToolAsks(question))
    return question.wait(cancel)


class _Answers(PlainOptions):
    """The answers, one line at a time: only the arrows move away from No."""

    def action_cursor_up(self) -> None:
        if self.highlighted:
            super().action_cursor_up()

    def action_cursor_down(self) -> None:
        if self.highlighted != self.option_count - 1:
            super().action_cursor_down()

    def action_last(self) -> None:
        """Nothing: moving to the end of a message must not select yes."""


class Approval(Acting, Vertical):
    """Shows a question with its answers; nothing while there is none.

    The whole call can be read before the answer.
    """

    BINDING_GROUP_TITLE = "When a tool asks"

    @dataclass
    class Answered(Message):
        """The user has decided; the question's thread still waits."""

        question: ToolQuestion
        decision: "Decision"

    def __init__(self) -> None:
        super().__init__()
        self._words = Static(markup=False)
        self._page = VerticalScroll(self._words, can_focus=False)
        self._options = _Answers()
        self._question: ToolQuestion | None = None
        self._is_cut = False
        self.display = False

    def compose(self) -> ComposeResult:
        yield self._page
        yield Notice(classes="more")
        yield self._options

    def ask(self, question: ToolQuestion) -> None:
        """Show a question, and take the focus."""
        self._question = question
        self._words.update(question.request.text())
        self._is_cut = question.request.is_cut
        answers = _ANSWERS[:2] if question.request.tool.asks_each_time else _ANSWERS
        self._options.set_options(words for _, words in answers)
        self.display = True
        self._page.scroll_home(animate=False)
        self._options.highlighted = 0
        self._options.focus()
        self.call_after_refresh(self._tell_more)

    def on_resize(self) -> None:
        self.call_after_refresh(self._tell_more)

    def _tell_more(self) -> None:
        hints = ["PgDn scrolls"] if self._page.max_scroll_y else []
        hints += ["e shows all of it"] if self._is_cut else []
        self.query_one(Notice).say(" · ".join(hints))

    @Action("Show all of a long call", "e", name="expand_call")
    def action_expand(self) -> None:
        """Show long arguments completely."""
        if self._question is not None:
            self._words.update(self._question.request.text(is_expanded=True))
            self._is_cut = False
            self.call_after_refresh(self._tell_more)

    @Action("Scroll the call up", "pageup", priority=True, call="read(-1)", name="call_up")
    @Action("Scroll the call down", "pagedown", priority=True, call="read(1)", name="call_down")
    def action_read(self, step: int) -> None:
        """Scroll a long question."""
        self._page.scroll_relative(y=step * (self._page.size.height - 1), animate=False)

    def withdraw(self) -> None:
        """Remove the question: the turn is over."""
        if self._question is not None:
            self._question.answer("no")
        self._question, self.display = None, False

    @on(OptionList.OptionSelected)
    def _answer(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if self._question is not None:
            self.post_message(self.Answered(self._question, _ANSWERS[event.option_index][0]))
        self._question, self.display = None, False
