"""Close-ups in the inspector: what in the prompt mattered, a circuit, one weight, and more.

Invariant: a close-up belongs to the token and the head that were chosen when it was opened, and to
the model with the changes of its chat. It ends as soon as a reply is to be generated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from rich.console import Group
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from chatapp.common.foreign import printable
from chatapp.common.userfiles import UserError
from chatapp.lab.view import Subject, View
from chatapp.lab.views import VIEWS
from chatapp.lab.views.text_views import Tokens
from chatapp.tui.conversation.conversation import Conversation
from chatapp.tui.inspector.token_text import TokenText
from chatapp.tui.inspector.view import Compute, InspectorTab, Left, Look, Measuring

CLOSE_UPS = {view.name: view for view in VIEWS.values() if view.key}
"""The views that a key opens, by name."""


@dataclass
class LookCloser(Message):
    """The user wants a close-up of what is chosen: a view, with options."""

    view: type[View]
    subject: Subject
    options: Any


class CloserView(InspectorTab):
    """A tab from which close-ups are opened, of the chosen token and head."""

    BINDING_GROUP_TITLE = "Inspector: close-ups, from Prompt, Why, Attention, Heads and Layers"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(view.key, f"closer('{name}')", view.summary, show=False)
            for name, view in CLOSE_UPS.items()
        ),
    ]
    closer_hint = " · ".join(f"{view.key} {name}" for name, view in CLOSE_UPS.items())

    _look = Look(Tokens((), (), ()), 0)

    def __init__(self, conversation: Conversation, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._conversation = conversation

    shared: int | None = None
    """The token that was chosen in another tab, for one without a choice of its own."""

    @property
    def cell(self) -> tuple[int, int] | None:
        """The chosen layer and head."""
        return None

    @property
    def position(self) -> int:
        """The chosen token's; at first that of the last one before the reply."""
        if texts := self.query(TokenText):
            return texts.first().cursor
        return max(0, self._look.start - 1) if self.shared is None else self.shared

    def action_closer(self, name: str) -> None:
        """Open a close-up."""
        view, session = CLOSE_UPS[name], self._conversation.session
        if self._look.trace is None or session is None:
            return
        subject = self._look.subject(session.model, self.position, self.cell)
        try:
            options = view.here(subject)
        except UserError as error:
            self.notify(str(error), markup=False)
            return
        self.post_message(LookCloser(view, subject, options))


class CloseUpView(InspectorTab):
    """A close-up, over the tab that it was opened from."""

    BINDING_GROUP_TITLE = "Inspector: close-up"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back to the tab, or stop measuring", show=False)
    ]
    hint = "↑ ↓ scroll · Esc: back"

    class Back(Message):
        """The user goes back to the tab."""

    def __init__(self, conversation: Conversation, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._conversation = conversation
        self._findings: Sequence[View] = ()
        self._wanted: object | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=True, id="close-up-scroll"):
            yield Static(id="close-up-text", markup=False)

    def show(self, look: Look) -> None:
        """Another text has none of this."""

    def findings(self) -> Sequence[View]:
        return self._findings

    def open(self, closer: LookCloser) -> None:
        """Compute a close-up and show it."""
        view, subject = closer.view, closer.subject
        self.formula = view.formula
        self._findings = ()
        self._say(f"Computing {view.title} …")
        wanted = self._wanted = object()

        def tell(done: int, total: int) -> None:
            if self._wanted is not wanted or self._conversation.turn is not None:
                raise Left
            self.post_message(Measuring(done, total))

        def work() -> Sequence[View]:
            try:
                subject.progress = tell
                return [view.look(subject, closer.options)]
            except Left:
                return ()

        self.post_message(Compute(work, partial(self._present, wanted), self._say, "close-up"))

    @on(Measuring)
    def _show_measuring(self, event: Measuring) -> None:
        event.stop()
        if self._wanted is not None and not self._findings:
            self._say(f"Measuring: {event.done} of {event.total} … Esc stops")

    def _say(self, words: str) -> None:
        """Show a sentence instead of findings."""
        text = Content.styled(printable(words), "dim")
        self.query_one("#close-up-text", Static).update(text)

    def _present(self, wanted: object, findings: Sequence[View]) -> None:
        if self._wanted is not wanted:
            return
        self._wanted, self._findings = None, findings
        if findings:
            self._draw()
        else:
            self._say("Stopped for a reply.")

    def on_hide(self) -> None:
        self._wanted = None

    def on_resize(self) -> None:
        if self._findings:
            self._draw()

    def on_unmount(self) -> None:
        self._wanted, self._findings = None, ()

    def _draw(self) -> None:
        from chatapp.lab.drawing.console import drawn

        width = max(20, self.query_one("#close-up-scroll").size.width - 1)
        parts = Group(*drawn(self._findings, width))
        self.query_one("#close-up-text", Static).update(parts)

    def action_back(self) -> None:
        self.post_message(self.Back())
