"""The common parts of the inspector's tabs, and close-ups of what is chosen in them."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.message import Message
from textual.widgets import Static

from chatapp.common.foreign import printable
from chatapp.common.userfiles import UserError
from chatapp.engine.decoder.interventions import UNCHANGED, Interventions
from chatapp.lab.drawing.console import drawn
from chatapp.lab.view import Subject, View
from chatapp.lab.views import VIEWS
from chatapp.lab.views.text_views import Tokens
from chatapp.prompting.messages import Segment
from chatapp.prompting.template import in_a_sentence
from chatapp.tui.inspector.token_choice import HeatMap, TokenText
from chatapp.tui.platform.actions import Acting, Action

if TYPE_CHECKING:
    from chatapp.common.userfiles import Progress
    from chatapp.dialogue.reading import PromptReading
    from chatapp.dialogue.session import Session
    from chatapp.dialogue.store.rows import StoredMessage
    from chatapp.engine.constraint.constraint import Constraint
    from chatapp.engine.model import LanguageModel
    from chatapp.lab.inspectable import Inspectable
    from chatapp.lab.predictions import Limit
    from chatapp.lab.traces import Trace
    from chatapp.tui.conversation.conversation import Conversation


EXAMPLE = "Anna has a zanfo. Anna likes the z"
"""A made-up word begins again: a head that copies looks at what followed its first letter."""


ALTERNATIVES = 25
"""How many alternatives of each token are listed."""


@dataclass(frozen=True, slots=True)
class Target:
    """The text to inspect: a message, or else an unsent text, or else the last message.

    instead_of: the user's message that the draft would replace.
    """

    message_id: int | None = None
    draft: str = ""
    instead_of: int | None = None


@dataclass(frozen=True, slots=True)
class Opening:
    """What an inspector shows first, without taking the focus.

    tab: its name. choose: returns the place of the chosen token among those of a text, or None.
    head: layer and head; None for all.
    """

    tab: str
    choose: Callable[[Sequence[str]], int | None]
    head: tuple[int, int] | None = None


@dataclass
class Look:
    """A text as the model reads it.

    tokens: those from `start` on are the reply. reading: the role of the text in its chat; None for
    the example sentence. template: in words, its layout; "" is none. is_draft: whether it is
    unsent. trace, model: None when the model cannot be inspected, and then `reason` explains that.
    changes: those inside the model. constraint: on the reply. writer: the model that wrote the
    reply, where another one reads it here; "" otherwise.
    """

    tokens: Tokens
    start: int
    reading: "PromptReading | None" = None
    template: str = ""
    is_draft: bool = False
    reason: str = ""
    model: "Inspectable | None" = None
    trace: "Trace | None" = None
    changes: Interventions = UNCHANGED
    constraint: "Constraint | None" = None
    writer: str = ""

    def subject(
        self, model: "LanguageModel", position: int, cell: tuple[int, int] | None = None
    ) -> Subject:
        """What a view looks at: a token, and a layer and head where one is chosen."""
        subject = Subject(
            model,
            self.tokens.ids,
            position,
            self.start,
            cell=cell,
            changes=self.changes,
            segments=self.segments,
            is_chat=True,
        )
        if self.trace is not None:
            subject.trace = self.trace  # computed already
        return subject

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments of the text before `start`."""
        if self.reading is None:
            return (Segment("user", EXAMPLE),)
        return tuple(self.reading.prompt.segments)

    @property
    def message(self) -> "StoredMessage | None":
        """The reply's row, if it can be branched."""
        return self.reading.reply if self.reading else None

    def close(self) -> None:
        """Release the model, which takes much memory: for some time after widgets were removed
        Textual keeps them, and they keep their contents.
        """
        self.model = self.trace = None


def look(session: "Session", target: Target, *, example: bool = False) -> Look:
    """Inspect a target, or the example sentence in a chat without messages.

    Takes one pass of the model. Raises ValueError with a sentence when the text does not fit.
    """
    from chatapp.dialogue.turn import after_thought
    from chatapp.lab.inspectable import inspectable

    model, reading = session.model, None if example else _reading(session, target)
    if reading is None:
        ids = tuple(model.tokenizer.encode(EXAMPLE))
        start = len(ids)
    else:
        ids, start = (*reading.prompt.ids, *reading.reply_ids), len(reading.prompt.ids)
    opened = inspectable(model)
    changes = session.chat.interventions.added_after(start)
    trace = None if opened is None else opened.inspect(ids[:start], changes, ids[start:])
    drawn = reading.drawn if reading else ()
    constraint = after_thought(session.constraint, reading.prompt) if reading else None
    limits = _limits(model, trace, start, constraint) if trace and constraint else ()
    return Look(
        Tokens.of(trace, ALTERNATIVES, limits)
        if trace
        else Tokens.of_served(ids, start, drawn, model.tokenizer),
        start,
        reading,
        template=_layout(session) if reading else "",
        is_draft=reading is not None and target.message_id is None and bool(target.draft),
        reason=""
        if opened
        else f"The model {model.name} cannot be inspected: only its text is known.",
        model=opened,
        trace=trace,
        changes=changes,
        constraint=constraint,
        writer=_other_writer(session, reading),
    )


def _other_writer(session: "Session", reading: "PromptReading | None") -> str:
    """The model that wrote a reply, unless it is the one that reads it; "" otherwise."""
    if reading is None or reading.reply is None or session.chat.id is None:
        return ""
    made = session.chat.store.generations(session.chat.id)
    writers = [one.model for one in made if one.message_id == reading.reply.id and one.model]
    return writers[-1] if writers and writers[-1] != session.model.name else ""


def _limits(
    model: "LanguageModel", trace: "Trace", start: int, constraint: "Constraint"
) -> "tuple[Limit | None, ...]":
    """What the chat's constraint did at each token of the reply."""
    from chatapp.engine.generation import LocalGenerator
    from chatapp.engine.models.running import model_here
    from chatapp.lab.inspectable import limits_of

    local = model_here(model)
    return limits_of(local, trace, start, constraint) if isinstance(local, LocalGenerator) else ()


def _reading(session: "Session", target: Target) -> "PromptReading | None":
    """The model's input for a target; None when there is neither message nor draft."""
    from chatapp.dialogue.reading import draft, read

    if target.message_id is not None:
        return read(session, target.message_id)
    if target.draft:
        return draft(session, target.draft, target.instead_of)
    messages = session.chat.messages
    return read(session, messages[-1].id) if messages else None


def _layout(session: "Session") -> str:
    if prompt := session.chat.basis.prompt:
        return f"prompt file {os.path.basename(prompt)}"
    return in_a_sentence(session.layout)


@dataclass
class Compute(Message):
    """Runs `work` on a thread, then `show` with its result.

    fail: called instead with the reason of a failure. slot: a newer request of the same name
    cancels this one; "" is never cancelled.
    """

    work: Callable[[], Any]
    show: Callable[[Any], None]
    fail: Callable[[str], None]
    slot: str = ""


@dataclass
class Measuring(Message):
    """How far a tab's measurement is."""

    done: int
    total: int


class Left(Exception):
    """Nobody wants the rest of a measurement any more."""


@dataclass
class Branch(Message):
    """The user wants another reply that begins with the tokens `begin`."""

    message_id: int
    begin: tuple[int, ...]


@dataclass
class SwitchPart(Message):
    """The user switches a part of the model, such as 3.5, off in the chat, or on again."""

    name: str


class InspectorTab(Acting, Vertical):
    """One tab. hint: its main keys, in words. formula: what is computed, and its source.

    Its first line, `#ID-detail`, says what is seen, or how far a measurement is. A tab that is left
    gives its measurement up, and begins again when it is chosen again.
    """

    hint = ""
    formula = ""
    _look = Look(Tokens((), (), ()), 0)
    _wanted: object | None = None
    """Stands for the measurement whose result is waited for."""
    _state = ""
    _view: View | None = None
    """What is shown, where that is one view."""

    @dataclass
    class GaveUp(Message):
        """What the tab should show is not computed."""

        sender: "InspectorTab"

    def __init__(self, conversation: "Conversation", *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._conversation = conversation

    def measure(
        self,
        words: str,
        work: "Callable[[Progress], Any]",
        show: Callable[[Any], None],
        state: Callable[[str], None] | None = None,
    ) -> None:
        """Compute on a thread, and show the result; the state is shown at once.

        It ends early for a reply, for another measurement of the tab, or when the tab is left.
        state: shows how far it is, in place of the tab's first line.
        """
        wanted = self._wanted = object()
        self._state, self._show_state = words, state or self.say
        self._show_state(f"{words} …")

        def tell(done: int, total: int) -> None:
            if self._wanted is not wanted or self._conversation.turn is not None:
                raise Left
            self.post_message(Measuring(done, total))

        def compute() -> Any:
            try:
                return work(tell) if self._wanted is wanted else None
            except Left:
                return None

        def arrived(result: Any) -> None:
            if self._wanted is wanted:
                self._wanted = None
                if result is None:
                    self._show_state("Stopped for a reply.")
                else:
                    show(result)

        def failed(reason: str) -> None:
            if self._wanted is wanted:
                self._wanted = None
                self.failed(reason)

        self.post_message(Compute(compute, arrived, failed, self.id or ""))

    @on(Measuring)
    def _show_measuring(self, event: Measuring) -> None:
        event.stop()
        if self._wanted is not None:
            self._show_state(f"{self._state}: {event.done} of {event.total} … Esc stops")

    def say(self, words: str) -> None:
        """Show a sentence in the first line."""
        self.query_one(f"#{self.id}-detail", Static).update(Content.styled(printable(words), "dim"))

    def failed(self, reason: str) -> None:
        """Show why there is nothing."""
        self.say(reason)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self._wanted is not None if action == "stop" else True

    def action_stop(self) -> None:
        """Stop measuring."""
        self._wanted = None
        self._show_state("Stopped. Choose the tab again to measure.")
        self.post_message(self.GaveUp(self))

    def on_hide(self) -> None:
        if self._wanted is not None:
            self._wanted = None
            self.post_message(self.GaveUp(self))

    def on_unmount(self) -> None:
        self._wanted = self._view = None  # a view may hold the model

    def legend(self) -> Content:
        """The meaning of its colours; empty when the tab shows it itself."""
        return Content()

    def show(self, look: Look) -> None:
        """Show another text."""
        raise NotImplementedError

    def views(self) -> Sequence[View]:
        """What is shown, for a file; none while there is nothing."""
        return () if self._view is None else (self._view,)

    def take_focus(self) -> None:
        """Focus the first widget that accepts it."""
        for widget in self.query("*"):
            if widget.can_focus and widget.display:
                widget.focus()
                return


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
    ALSO = (
        *(
            Action(view.summary, view.key, call=f"closer('{name}')", name=f"view_{name}")
            for name, view in CLOSE_UPS.items()
        ),
    )
    closer_hint = " · ".join(f"{view.key} {name}" for name, view in CLOSE_UPS.items())

    shared: int | None = None
    """The token that was chosen in another tab, for one without a choice of its own."""

    @property
    def cell(self) -> tuple[int, int] | None:
        """The chosen layer and head; None in a tab without a map of them."""
        maps = self.query(HeatMap)
        return maps.first().cell if maps else None

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
    hint = "↑ ↓ scroll · Esc: back"

    class Back(Message):
        """The user goes back to the tab."""

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=True, id="close-up-scroll"):
            yield Static(id="close-up-detail", markup=False)

    def show(self, look: Look) -> None:
        """Another text has none of this."""

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

    @on(Resize)
    def _draw(self) -> None:
        if self._view is not None:
            width = max(20, self.query_one("#close-up-scroll").size.width - 1)
            rows = drawn([self._view], width)
            self.query_one("#close-up-detail", Static).update(Group(*rows))

    @Action("Back to the tab, or stop measuring", "escape")
    def action_back(self) -> None:
        self.post_message(self.Back())
