"""The input: a text area that grows, sends on Enter and has a history; its completions, and the
messages that wait to be sent.

Invariant: no text is ever lost. It leaves the prompt at once, so that text typed after Enter
belongs to the next message, and comes back with `give_back` when it could not be sent; a message
that waits is shown until it is sent or back. The list of completions shows a few, including the
chosen one, and none unless a command is written.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from rich.text import Text
from textual.content import Content
from textual.events import Key, Paste, Resize
from textual.widgets.text_area import Location, Selection

from chatapp.common.foreign import one_line, printable
from chatapp.tui.events import Pasted, Submitted, Suggested
from chatapp.tui.platform.actions import Acting, Action, shown_key
from chatapp.tui.platform.programs import EditorError, edited
from chatapp.tui.platform.textual_internals import LongTextArea, bindings_for
from chatapp.tui.widgets.dialog import Notice

if TYPE_CHECKING:
    from chatapp.dialogue.store.rows import StoredMessage


Complete = Callable[[str], list[str]]

_TASKS = {
    "user": "Editing your message · Enter sends it, Esc cancels",
    "assistant": "Correction · Enter saves it, empty removes it",
    "in place": "Editing the reply · Enter saves it, Esc cancels",
}


class PromptInput(Acting, LongTextArea):
    """The input.

    earlier: returns the texts sent before, oldest first, on demand. complete: returns the
    completions of an unfinished command. take_back: puts the last message that waits to be
    sent back into the prompt; False when there is none.
    """

    BINDING_GROUP_TITLE = "Writing"
    ALSO = (
        Action("Go to the messages", "ctrl+up", call="screen.focus_last_message", name="messages"),
        Action("Scroll the chat up", "pageup", call="screen.page(-1)", name="page_up"),
        Action("Scroll the chat down", "pagedown", call="screen.page(1)", name="page_down"),
    )

    def __init__(
        self,
        earlier: Callable[[], Sequence[str]],
        complete: Complete,
        take_back: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(compact=True, highlight_cursor_line=False)
        self._wrapped_width = 0
        self._invitations: Sequence[str] = ()
        """The hints in an empty prompt, the longest first."""
        self._load_earlier = earlier
        self._complete = complete
        self._take_back = take_back
        self._typed = ""
        self._completions: list[str] = []
        self._completed = -1
        self._chosen: str | None = None
        self._earlier: list[str] | None = None
        self._place = 0
        self._draft = ""
        self.editing: StoredMessage | None = None
        self.in_place = False
        """Whether the text of a reply itself is edited."""

    def on_mount(self) -> None:
        send = shown_key(self.app, "send")
        new_line = shown_key(self.app, "new_line")
        sending = f"Write a message · {send} sends"
        self._invitations = (f"{sending}, {new_line} starts a new line", sending)

    def get_line(self, line_index: int) -> Text:
        # Pasted text is kept unchanged; only its display is made safe.
        return Text(printable(self.document.get_line(line_index)), end="", no_wrap=True)

    async def on_key(self, event: Key) -> None:
        # Textual runs bindings only after a key has bubbled to the app, when the keys typed after
        # it have already been inserted. Here keys take effect in order.
        for binding in bindings_for(self, event.key):
            if await self.app.run_action(binding.action, self):
                event.stop()
                event.prevent_default()
                return

    def on_paste(self, event: Paste) -> None:
        event.stop()  # the screen passes on text pasted elsewhere
        self.post_message(Pasted(event.text))

    def on_resize(self, event: Resize) -> None:
        # Growing line by line changes nothing about the wrapping of the text.
        if self.wrap_width == self._wrapped_width:
            event.prevent_default()
        self._wrapped_width = self.wrap_width
        self._invite()

    def _invite(self) -> None:
        """Show the hint of an empty prompt; an edit has its own hint above it."""
        fitting = (
            invitation
            for invitation in self._invitations
            if cell_len(invitation) <= self.wrap_width
        )
        self.placeholder = "" if self.editing else next(fitting, "")

    def find_matching_bracket(self, bracket: str, search_from: Location) -> Location | None:
        # It is useless in prose, and it scans the whole of a long paste.
        return None

    def give_back(
        self, text: str, editing: "StoredMessage | None" = None, in_place: bool = False
    ) -> None:
        """Put a text back that could not be sent, before anything written since."""
        self._start_over(f"{text}\n{self.text}" if self.text else text, editing, in_place)

    def give_back_command(self, text: str) -> None:
        """Put back a command that failed, selected: what is typed next replaces it."""
        self.give_back(text)
        row = text.count("\n")
        self.selection = Selection((0, 0), (row, len(text.rsplit("\n", 1)[-1])))

    def empty(self) -> bool:
        """Delete the text so that undo restores it; False when there is none."""
        had_text = bool(self.text)
        self.clear()
        return had_text

    def edit_message(self, message: "StoredMessage", text: str, in_place: bool = False) -> None:
        """Edit a message's text, or its unsent new version."""
        self._start_over(text, message, in_place)

    def leave_edit(self) -> None:
        """Cancel editing a message."""
        self._start_over("")

    def _start_over(
        self, text: str, editing: "StoredMessage | None" = None, in_place: bool = False
    ) -> None:
        self.editing, self.in_place = editing, in_place
        self.border_title = _TASKS["in place" if in_place else editing.role] if editing else ""
        self._invite()
        self._place = 0
        self._show(text)

    def _show(self, text: str) -> None:
        self.text = text
        self.move_cursor(self.document.end)

    def replace_last(self, text: str, other: str) -> None:
        """Replace the last occurrence of a text, if it is still there; undo brings it back."""
        before, match, after = self.text.rpartition(text)
        if match:
            start, end = _location(before), _location(before + text)
            self.replace(other, start, end, maintain_selection_offset=bool(after))

    @Action("Send", "enter", name="send")
    def action_submit(self) -> None:
        if self._completions and self._completed < 0 and not self.text.startswith("/"):
            self._choose(1)  # a file
            return
        sent = Submitted(self.text, self.editing, self.in_place)
        text = sent.text
        if text.strip() or self._takes_nothing:
            if self._earlier is not None and text.strip():
                self._earlier.append(text)
            self._start_over("")
            self.post_message(sent)
        else:
            self.screen.call_later(self.run_action, "screen.ask")

    @property
    def _takes_nothing(self) -> bool:
        """Whether an empty text has a meaning: it withdraws a correction."""
        editing = self.editing
        return editing is not None and editing.role == "assistant" and not self.in_place

    def on_text_area_changed(self) -> None:
        self._suggest()

    def suggest_again(self) -> None:
        """Update the completions: there are more values. The chosen one stays chosen."""
        if self._chosen is not None and self.text == self._chosen:
            completions = self._complete(self._typed)
            if self._chosen in completions:
                self._completions, self._completed = completions, completions.index(self._chosen)
                self.post_message(Suggested(self._typed, completions, self._completed))
                return
        self._typed, self._chosen = "", None
        self._suggest()

    def _suggest(self) -> None:
        """Show the completions of the current command."""
        is_short = self.document.line_count == 1
        ends_in_name = "@" in self.text[-202:] and self.cursor_location == self.document.end
        text = self.text if is_short or ends_in_name else ""
        if text not in (self._typed, self._chosen):
            self._typed, self._chosen, self._completed = text, None, -1
            self._completions = [] if self.editing else self._complete(text)
            self.post_message(Suggested(text, self._completions))

    @Action("Complete a command", "tab", unless=lambda prompt: prompt.nothing_to_complete)
    def action_complete(self) -> None:
        """Insert the next completion of the command."""
        self._choose(1)

    def _choose(self, step: int) -> None:
        """Insert the completion `step` places on."""
        start = self._completed if self._completed >= 0 or step > 0 else 0
        self._completed = (start + step) % len(self._completions)
        chosen = self._completions[self._completed]
        # While there is more to choose from, the list stays unchanged.
        self._chosen = chosen if len(self._completions) > 1 else None
        self._show(chosen)
        if self._chosen is not None:
            self.post_message(Suggested(self._typed, self._completions, self._completed))

    @Action("Write in your editor ($VISUAL or $EDITOR)", "ctrl+g")
    async def action_editor(self) -> None:
        """Let the user write the text in an editor."""
        try:
            text = edited(self.text, self.app.suspend)
        except EditorError as error:
            self.notify(printable(str(error)), severity="warning", markup=False)
        else:
            self._show(text)

    @Action("Quit, when nothing is typed", "ctrl+d")
    async def action_leave(self) -> None:
        """Quit the program; if the prompt is not empty, delete the character at the cursor."""
        if self.text:
            self.action_delete_right()
        else:
            await self.app.run_action("app.quit")

    @Action("New line", "ctrl+j,shift+enter,alt+enter", name="new_line")
    def action_newline(self) -> None:
        self.insert("\n")

    @property
    def nothing_to_complete(self) -> str:
        """Why no completion can be inserted; empty when there is one."""
        return "" if self._completions else "There is nothing to complete."

    @property
    def _has_menu(self) -> bool:
        """Whether completions can be chosen: not while browsing the history."""
        return bool(self._completions) and self._place == 0

    @Action("Previous message, on the first line", "up", name="earlier_input")
    def action_cursor_up(self, select: bool = False) -> None:
        if not select and self._has_menu:
            self._choose(-1)
        elif select or not self.navigator.is_first_wrapped_line(self.cursor_location):
            super().action_cursor_up(select)
        elif self.text or not self._take_back():
            self._recall(-1)

    @Action("Next message, on the last line", "down", name="later_input")
    def action_cursor_down(self, select: bool = False) -> None:
        if not select and self._has_menu:
            self._choose(1)
        elif select or not self.navigator.is_last_wrapped_line(self.cursor_location):
            super().action_cursor_down(select)
        elif not self._recall(1):
            self.screen.call_later(self.run_action, "screen.focus_below")

    @Action("Previous version, when nothing is typed", "left", name="earlier_reply")
    def action_cursor_left(self, select: bool = False) -> None:
        if select or self.text:
            super().action_cursor_left(select)
        else:
            self.screen.call_later(self.run_action, "screen.show_version(-1)")

    @Action("Next version, when nothing is typed", "right", name="later_reply")
    def action_cursor_right(self, select: bool = False) -> None:
        if select or self.text:
            super().action_cursor_right(select)
        else:
            self.screen.call_later(self.run_action, "screen.show_version(1)")

    def _recall(self, step: int) -> bool:
        """Move through the history; False at its end. Place 0 is the current text."""
        if self._earlier is None:
            self._earlier = list(self._load_earlier())
        place = self._place + step
        if not -len(self._earlier) <= place <= 0:
            return False
        if self._place == 0:
            self._draft = self.text
        self._place = place
        self._show(self._earlier[place] if place else self._draft)
        return True


def _location(before: str) -> Location:
    """The row and column after a text."""
    return before.count("\n"), len(before) - (before.rfind("\n") + 1)


_MOST = 6


class CommandCompletion(NamedTuple):
    """A command in the prompt: its rest, and its description."""

    text: str
    argument: str = ""
    words: str = ""


class CommandCompletions(Notice):
    """Hidden unless a command is being written."""

    def show(self, completions: Sequence[CommandCompletion], chosen: int) -> None:
        """Show completions. chosen: the one in the prompt; -1 is none."""
        first = max(0, min(chosen - _MOST // 2, len(completions) - _MOST))
        rows = [
            self._row(completion, number == chosen)
            for number, completion in enumerate(completions[first : first + _MOST], first)
        ]
        if len(completions) > _MOST:
            place = f"{chosen + 1} of {len(completions)}" if chosen >= 0 else f"{len(completions)}"
            rows.append(Content.styled(f"  {place} · ↑ ↓ choose", "dim"))
        self.say(Content("\n").join(rows))

    def _row(self, completion: CommandCompletion, is_chosen: bool) -> Content:
        text = printable(completion.text).strip().replace("\n", " ")
        style = "bold $text-accent" if is_chosen else "$text-accent"
        shown = Content.assemble("› " if is_chosen else "  ", (text, style))
        if not completion.words:
            return shown
        return Content.assemble(
            shown,
            f" {completion.argument}" if completion.argument else "",
            ("  " + completion.words, "dim"),
        )


_MOST_QUEUED = 3
"""Rows of messages."""
_LENGTH = 300
"""Characters of a message of which a row may show some."""


class QueuedMessages(Notice):
    """Hidden while no message waits."""

    def show(self, texts: Sequence[str]) -> None:
        """Show the messages that wait, the next one first."""
        key = shown_key(self.app, "earlier_input")
        rows = [one_line(text[:_LENGTH]) for text in texts[:_MOST_QUEUED]]
        shown = [Content.assemble(("queued  ", "$text-warning"), row) for row in rows]
        more = f" · {len(texts) - _MOST_QUEUED} more" if len(texts) > _MOST_QUEUED else ""
        hint = f"sent after this reply{more} · {key} in the empty prompt takes the last one back"
        self.display = bool(texts)
        self.update(Content("\n").join([*shown, Content.styled(hint, "dim")]))
