"""One message answered in two ways, side by side, and the user's preference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from chatapp.common.foreign import printable
from chatapp.dialogue.chat import recent_inputs
from chatapp.dialogue.store.database import StoreError
from chatapp.engine.models.known_models import LARGER
from chatapp.engine.models.resolving import BUNDLED
from chatapp.tui import events
from chatapp.tui.conversation.conversation import Conversation
from chatapp.tui.conversation.turn import ReplyTurn, ShownReply
from chatapp.tui.platform.actions import Action
from chatapp.tui.platform.runtime import in_words
from chatapp.tui.widgets.dialog import Field, LeftOnce, Notice, PlainOptions
from chatapp.tui.widgets.message import SPEAKERS, status_words
from chatapp.tui.widgets.message_parts import TextBody
from chatapp.tui.widgets.prompt import PromptInput
from chatapp.tui.widgets.rendered import difference
from chatapp.tui.widgets.status import KeyBar

if TYPE_CHECKING:
    from chatapp.dialogue.events import Started
    from chatapp.dialogue.store import Store
    from chatapp.dialogue.store.rows import StoredMessage, Verdict
    from chatapp.dialogue.variants import Pair, Variant
    from chatapp.engine.events import Finished
    from chatapp.prompting.messages import Call

_STORED_VERDICTS: "dict[Verdict, str]" = {
    "left": "Saved: the left reply is better.",
    "right": "Saved: the right reply is better.",
    "equal": "Saved: both are equally good.",
    "both bad": "Saved: both are bad.",
}


HOW = "Enter sends it to both · Tab: these settings"


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """The result of a comparison. chat_id: its chat; None when nothing was sent, and then `text` is
    the user's text.
    """

    chat_id: int | None = None
    text: str = ""


class Side(Vertical):
    """One of the two: its parameters, and its reply, which it displays in a turn.

    on_end: gets the error, or "", at the end of its reply.
    """

    def __init__(
        self, title: str, change: str, id: str, store: "Store", on_end: Callable[[str], None]
    ) -> None:
        super().__init__(id=id)
        self._title = title
        self._change = change
        self._store = store
        self._on_end = on_end
        self.note = ""
        """The line below the reply."""
        self.reply: StoredMessage | None = None

    def compose(self) -> ComposeResult:
        yield Static(classes="variant", markup=False)
        yield Field(self._change, placeholder="model=smollm2 temperature=0 …", compact=True)
        with VerticalScroll(can_focus=False):
            yield TextBody()
            yield Static(classes="note", markup=False)

    def read(self, base: "Variant") -> "Variant":
        """The parameters of the reply. Raises ValueError with a sentence, and takes the focus."""
        field = self.query_one(Field)
        try:
            return base.changed(field.value)
        except ValueError as error:
            field.focus()
            raise ValueError(f"{self._title}: {error}") from None

    def describe(self, base: "Variant", others: Sequence[str]) -> None:
        """Show the parameters of the reply that are not among `others`, or what is wrong."""
        words = [word for word in self.words(base) if word not in others]
        settings = [Content.styled(printable(word), "$text-accent bold") for word in words]
        line = Content(" · ").join((Content.styled(self._title, "bold"), *settings))
        self.query_one(".variant", Static).update(line)
        if not self.has_class("-asked"):
            self.show_note(self._problem(base) or HOW)

    def _problem(self, base: "Variant") -> str:
        """What is wrong in the field; "" if nothing is."""
        try:
            base.changed(self.query_one(Field).value)
        except ValueError as error:
            return str(error)
        return ""

    def words(self, base: "Variant") -> list[str]:
        """The parameters of the reply; empty while the field is incomplete."""
        return [] if self._problem(base) else base.changed(self.query_one(Field).value).words()

    def ask(self) -> None:
        """Replace the field by the reply, which is about to be generated."""
        self.add_class("-asked")
        self.show_note("thinking · Esc stops")
        self.query_one(VerticalScroll).can_focus = True

    async def begin(self, started: "Started") -> None:
        self.reply = started.message
        self.show_note("")

    def go_on(self, reply: ShownReply, text: str, thought: str) -> None:
        if reply.thought_tokens:
            thinking = f"thinking · {reply.thought_tokens} tokens · Esc stops"
            self.show_note("" if reply.text else thinking)
        if text:
            scroll = self.query_one(VerticalScroll)
            follows = scroll.is_vertical_scroll_end
            self.body.append(text)
            if follows:
                scroll.scroll_end(animate=False)

    def show_call(self, call: "Call", *, has_ended: bool) -> None:
        """Nothing: only the reply's text is compared."""

    async def end(self, finished: "Finished") -> None:
        failed = finished.reason == "error"
        self._end(finished.reason, f"The model failed: {finished.message}" if failed else "")

    async def fail(self, reason: str) -> None:
        self._end("error", reason)

    def _end(self, reason: str, problem: str) -> None:
        """Show the stored reply."""
        self.show_note("")
        try:
            if self.reply is not None:
                message = self.reply = self._store.message(self.reply.id)
                self.body.replace(message.text)
                words = status_words(message, reason).split(" · ")[0]
                self.show_note(" · ".join(filter(None, (message.notes, words))))
        except StoreError as error:
            problem = problem or str(error)
        self._on_end(problem)

    @property
    def body(self) -> TextBody:
        """The reply's text."""
        return self.query_one(TextBody)

    def show_note(self, words: str) -> None:
        """Show a note below the reply."""
        self.note = words
        self.query_one(".note", Static).update(printable(words))


class _Ready(PlainOptions):
    """Comparisons to choose from, between the prompt and the fields: arrows lead on at its ends."""

    def action_cursor_up(self) -> None:
        if self.highlighted:
            super().action_cursor_up()
        else:
            self.screen.focus_previous()

    def action_cursor_down(self) -> None:
        if self.highlighted == self.option_count - 1:
            self.screen.focus_next()
        else:
            super().action_cursor_down()


class CompareScreen(LeftOnce[ComparisonResult]):
    """Generates and shows both replies, and takes the user's choice.

    message: a text to send next, which may still be changed; or an existing message of the user.
    change: of the right one, as `Variant.changed` reads it. has_larger: whether the model to
    compare the bundled one with is on this machine.
    """

    BINDING_GROUP_TITLE = "Comparing two replies"

    def __init__(
        self,
        conversation: Conversation,
        message: "str | StoredMessage",
        change: str = "",
        has_larger: bool = True,
    ) -> None:
        super().__init__()
        self._conversation = conversation
        self._message = message
        self._store = store = conversation.chat.store
        self._sides = (
            Side("Left", "", "left", store, self._side_ended),
            Side("Right", change, "right", store, self._side_ended),
        )
        self._base = conversation.variant()
        is_bundled = self._base.model == BUNDLED
        other = LARGER if is_bundled else BUNDLED
        self._ready = {"Compare temperature 0 and 1": ("temperature=0", "temperature=1")}
        if has_larger or not is_bundled:
            words = printable(f"Compare {self._base.model} and {other}")
            self._ready = {words: ("", f"model={other}"), **self._ready}
        self._pair: Pair | None = None
        self._problems: list[str] = []

    def compose(self) -> ComposeResult:
        with Vertical(id="asked"):
            if isinstance(self._message, str):
                yield PromptInput(self._earlier_inputs, lambda text: [])
            yield Static(SPEAKERS["user"], classes="header")
            with VerticalScroll(can_focus=False):
                yield TextBody("" if isinstance(self._message, str) else self._message.text)
        yield _Ready(*self._ready, id="ready")
        with Horizontal(id="sides"):
            yield from self._sides
        yield Static(id="difference")
        yield Notice(id="compare-problem")
        yield KeyBar()

    def on_mount(self) -> None:
        self._describe()
        if isinstance(self._message, str):
            prompt = self.query_one(PromptInput)
            prompt.give_back(self._message)
            prompt.focus()
        else:
            self.add_class("-sent")
            self._sides[1].query_one(Field).focus()

    # Asking

    @on(PlainOptions.OptionSelected)
    def _take_ready(self, event: PlainOptions.OptionSelected) -> None:
        changes = list(self._ready.values())[event.option_index]
        for side, change in zip(self._sides, changes, strict=True):
            side.query_one(Field).value = change
        self.query("PromptInput, Side Field").first().focus()

    @on(Input.Changed)
    def _describe(self) -> None:
        left, right = self._sides
        left.describe(self._base, right.words(self._base))
        right.describe(self._base, left.words(self._base))

    @on(Input.Submitted)
    def _send(self) -> None:
        if self.has_class("-sent"):
            self._ask("")
        else:
            self.query_one(PromptInput).action_submit()

    @on(events.Submitted)
    def _submitted(self, event: events.Submitted) -> None:
        self._ask(event.text)

    def _ask(self, text: str) -> None:
        """Generate the missing replies, if their parameters are valid.

        text: the message, unless it has been sent before.
        """
        open_sides = [side for side in self._sides if side.reply is None]
        try:
            variants = [side.read(self._base) for side in open_sides]
            if self._pair is None:
                sent = self._message if isinstance(self._message, str) else self._message.id
                self._pair = self._conversation.pair(text or sent)
        except ValueError as error:
            if text:
                self.query_one(PromptInput).give_back(text)
            self._show_problem(in_words(error))
            return
        if text:
            self._message = text
            self.query_one("#asked TextBody", TextBody).replace(text)
        self._show_problem("")
        self.add_class("-sent")
        self.query_one("#ready").display = False
        for side in open_sides:
            side.ask()
        self._sides[0].query_one(VerticalScroll).focus()
        self._problems.clear()
        pair = self._pair
        turn = ReplyTurn(lambda session, cancel: pair.answers(variants, cancel), open_sides)
        self._conversation.begin(turn, self)
        self.refresh_bindings()

    def _ask_again(self) -> None:
        """Let the user change a request that failed."""
        open_sides = [side for side in self._sides if side.reply is None]
        for side in open_sides:
            side.remove_class("-asked")
        if len(open_sides) == len(self._sides):  # then nothing has been stored
            self._pair = None
            if isinstance(self._message, str):
                self.remove_class("-sent")
                self.query_one(PromptInput).give_back(self._message)
        self.query_one("#ready").display = True
        open_sides[0].query_one(Field).focus()

    def _earlier_inputs(self) -> Sequence[str]:
        """The user's earlier inputs, oldest first."""
        try:
            return recent_inputs(self._store)
        except StoreError as error:
            self._show_problem(str(error))
            return []

    def _show_problem(self, problem: str) -> None:
        self.query_one(Notice).say(problem)

    # Generating

    def _side_ended(self, problem: str) -> None:
        """Show an error, and after the last side let the user choose."""
        if problem and problem not in self._problems:
            self._problems.append(problem)
            self._show_problem(" · ".join(self._problems))
        if self._conversation.turn is not None:
            return
        if all(side.reply is not None for side in self._sides):
            self._show_difference()
        else:
            self._ask_again()
        self.refresh_bindings()

    def _show_difference(self) -> None:
        """Mark the differences between the replies."""
        left, right = (side.body for side in self._sides)
        changes = difference(left.text, right.text)
        left.mark(changes.left)
        right.mark(changes.right)
        self.query_one("#difference", Static).update(changes.words)

    # Choosing and leaving

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("stop", "leave"):
            return (self._conversation.turn is not None) == (action == "stop")
        if action != "choose":
            return True
        return self._conversation.turn is None and all(
            side.reply is not None for side in self._sides
        )

    @Action("The left reply is better", "1", "Left", call="choose('left')", name="left_is_better")
    @Action(
        "The right reply is better", "2", "Right", call="choose('right')", name="right_is_better"
    )
    @Action(
        "Both are equally good; continue with the left",
        "e",
        "Equal",
        call="choose('equal')",
        name="equal",
    )
    @Action(
        "Both are bad; continue with the left",
        "b",
        "Both bad",
        call="choose('both bad')",
        name="both_bad",
    )
    def action_choose(self, choice: "Verdict") -> None:
        left, right = (side.reply for side in self._sides)
        if left is None or right is None:
            return
        try:
            self._store.add_comparison(left.id, right.id, choice)
            self._store.set_leaf(left.chat_id, right.id if choice == "right" else left.id)
        except StoreError as error:
            self._show_problem(str(error))
        else:
            self.notify(f"{_STORED_VERDICTS[choice]} k on the reply ranks them anew.", markup=False)
            self.dismiss(ComparisonResult(left.chat_id))

    @Action("Stop the replies", "escape", "Stop")
    def action_stop(self) -> None:
        """Stop the running replies."""
        if (turn := self._conversation.turn) is not None:
            turn.cancel.set()

    @Action("Leave without a choice", "escape", "Leave", name="close")
    def action_leave(self) -> None:
        """Leave without a choice."""
        replies = [side.reply for side in self._sides if side.reply is not None]
        if replies:
            self.dismiss(ComparisonResult(replies[0].chat_id))
        elif self.has_class("-sent"):
            self.dismiss(ComparisonResult())
        else:
            self.dismiss(ComparisonResult(text=self.query_one(PromptInput).text))

    def action_page(self, step: int) -> None:
        """Scroll both replies, from the prompt."""
        for side in self._sides:
            scroll = side.query_one(VerticalScroll)
            (scroll.scroll_page_up if step < 0 else scroll.scroll_page_down)(animate=False)

    def action_focus_below(self) -> None:
        """The target of the prompt's arrow from its last line."""
        self.screen.focus_next()

    def action_focus_last_message(self) -> None:
        """The target of the prompt's key for messages."""
        self._sides[0].query_one(Field).focus()
