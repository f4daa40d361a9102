"""The words of a lesson beside the live screen: a step, its question, and the guess."""

from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import Static

from chatapp.common.foreign import printable
from chatapp.tui.platform.actions import Acting, Action
from chatapp.tui.widgets.dialog import Notice
from chatapp.tui.widgets.rendered import in_rows

_LONGEST = 200

OTHER_SIDE = Action(
    "Go to the live screen, or back", "f6", "Lesson", call="screen.other_side", name="other_side"
)
"""The panel has this action, where F1 finds it, and the whole screen."""


class LessonPanel(Acting, Vertical, can_focus=True):
    """One step of a lesson."""

    BINDING_GROUP_TITLE = "Lesson"
    ALSO = (OTHER_SIDE,)
    DEFAULT_CSS = """
    LessonPanel {
        dock: left; width: 30%; min-width: 34; height: 100%; padding: 0 2;
        background: $surface; border-right: outer $border-blurred;
        &:focus { border-right: outer $accent; }
        &:ansi { border-right: vkey ansi_default; }
    }
    LessonPanel > .title { color: $accent; text-style: bold; margin-bottom: 1; height: auto; }
    LessonPanel > #lesson-name { height: auto; }
    LessonPanel > VerticalScroll {
        height: 1fr; scrollbar-size-vertical: 1; scrollbar-background: $surface;
        scrollbar-color: $border-blurred;
    }
    LessonPanel #lesson-text, LessonPanel #lesson-guess { height: auto; }
    LessonPanel #lesson-guess { margin-bottom: 1; }
    LessonPanel > #lesson-keys { height: auto; color: $text-muted; }
    """

    @dataclass
    class Stepped(Message):
        """The user wants another step, so many further on."""

        by: int

    @dataclass
    class Revealed(Message):
        """The user wants to see what happens. guess: theirs, or "" for none."""

        guess: str

    def __init__(self) -> None:
        super().__init__(classes="-aside")
        self._question: str | None = None
        self.waits = False
        """Whether the outcome waits for a guess."""
        self._guess = ""
        self._text = ""

    def compose(self) -> ComposeResult:
        yield Static(id="lesson-name", markup=False)
        yield Static(id="lesson-title", classes="title", markup=False)
        with VerticalScroll(can_focus=False):
            yield Notice(id="lesson-guess")
            yield Static(id="lesson-text", markup=False)
        yield Static(id="lesson-keys", markup=False)

    def show(
        self, name: str, title: str, text: str, question: str | None, guess: str | None
    ) -> None:
        """Show a step. question: to guess at before its outcome. guess: that was made before."""
        self._question, self._guess = question, guess or ""
        self.waits = bool(question) and guess is None
        self.query_one("#lesson-name", Static).update(printable(name))
        self.query_one("#lesson-title", Static).update(printable(title))
        self._text = text.strip()
        self.query_one(VerticalScroll).scroll_home(animate=False)
        self._show_guess()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show_guess)

    def _show_guess(self) -> None:
        # The text says what happens, so it waits, too.
        text = self.query_one("#lesson-text", Static)
        text.update("" if self.waits else printable(self._text))
        text.display = not self.waits
        lines = []
        if self._question:
            lines.append(Content.styled(printable(self._question), "bold $text-warning"))
            mark = "▏" if self.waits else ""
            label = "Your guess: "
            if self.waits or self._guess:
                lines.append(Content.assemble((label, "bold"), printable(self._guess), mark))
        self.query_one(Notice).say(Content("\n").join(lines))
        keys = "Type a guess, Enter shows what happens" if self.waits else "→ next step"
        words = f"{keys} · ← back · F6 the live screen · Esc Esc leaves"
        line = self.query_one("#lesson-keys", Static)
        line.update(in_rows(words, line.size.width))

    def on_key(self, event: Key) -> None:
        if self.waits and event.is_printable and event.character:
            event.stop()
            event.prevent_default()
            self._write(event.character)

    def on_paste(self, event: Paste) -> None:
        event.stop()
        if self.waits:
            self._write(" ".join(event.text.split()))

    def _write(self, text: str) -> None:
        self._guess = (self._guess + printable(text))[:_LONGEST]
        self._show_guess()

    @Action("Delete the last letter of the guess", "backspace", name="delete_letter")
    def action_delete(self) -> None:
        if self.waits:
            self._guess = self._guess[:-1]
            self._show_guess()

    @Action("Show what happens; again: do the step once more", "enter")
    def action_reveal(self) -> None:
        self.waits = False
        self._show_guess()
        self.post_message(self.Revealed(self._guess.strip()))

    @Action("Next step", "right,pagedown", call="step(1)", name="next_step")
    @Action("Previous step", "left,pageup", call="step(-1)", name="previous_step")
    def action_step(self, by: int) -> None:
        self.post_message(self.Stepped(by))

    @Action("Scroll the text up", "up", call="scroll(-1)", name="scroll_up")
    @Action("Scroll the text down", "down", call="scroll(1)", name="scroll_down")
    def action_scroll(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)
