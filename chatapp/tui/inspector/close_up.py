"""Close-ups in the inspector: what in the prompt mattered, a circuit, one weight, and more.

Invariant: a close-up belongs to the token and the head that were chosen when it was opened, and to
the model with the changes of its chat. It ends as soon as a reply is to be generated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Group
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import Static

from chatapp.common.userfiles import UserError
from chatapp.lab.drawing.console import drawn
from chatapp.lab.view import Subject, View
from chatapp.lab.views import VIEWS
from chatapp.tui.inspector.choosing import TokenText
from chatapp.tui.inspector.view import InspectorTab, Look

if TYPE_CHECKING:
    from chatapp.common.progress import Progress

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

    _view: View | None = None

    class Back(Message):
        """The user goes back to the tab."""

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=True, id="close-up-scroll"):
            yield Static(id="close-up-detail", markup=False)

    def show(self, look: Look) -> None:
        """Another text has none of this."""

    def views(self) -> Sequence[View]:
        return [] if self._view is None else [self._view]

    def open(self, closer: LookCloser) -> None:
        """Compute a close-up and show it."""
        view, subject = closer.view, closer.subject
        self._view, self.formula = None, view.formula

        def work(tell: "Progress") -> View:
            subject.progress = tell
            return view.look(subject, closer.options)

        self.measure(f"Computing {view.title}", work, self._present)

    def _present(self, view: View) -> None:
        self._view = view
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def on_unmount(self) -> None:
        self._view = None

    def _draw(self) -> None:
        if self._view is not None:
            width = max(20, self.query_one("#close-up-scroll").size.width - 1)
            rows = drawn([self._view], width)
            self.query_one("#close-up-detail", Static).update(Group(*rows))

    def action_back(self) -> None:
        self.post_message(self.Back())
