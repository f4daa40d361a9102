"""One message of the chat: speaker, text and status.

Invariant: the widget shows exactly one row of the store; text that is not stored yet is appended,
and `show` replaces it by the row's own text.
"""

import asyncio
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.actions import parse
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Key
from textual.widgets import Static

from chatapp.common.foreign import printable
from chatapp.engine.events import REPEATED
from chatapp.tui.platform.programs import code_blocks
from chatapp.tui.platform.textual_internals import bindings_for
from chatapp.tui.widgets.message_parts import TextBody, Thoughts, ToolCalls
from chatapp.tui.widgets.rendered import given_places

if TYPE_CHECKING:
    from chatapp.dialogue.store.rows import Feedback, StoredMessage
    from chatapp.prompting.messages import Call
    from chatapp.tui.widgets.markdown import RenderedBody

_PACE = 0.05
"""Seconds between two layouts of a reply that is being written, at least."""
_REST = 5
"""How many times as long as the last layout took; keys come first."""

_VERSIONS = Binding.Group("Versions", compact=True)
_VERDICT = Binding.Group("Good or bad", compact=True)

SPEAKERS = {"user": "You", "assistant": "Assistant", "system": "Instructions"}


def status_words(message: "StoredMessage", reason: str) -> str:
    """The status of a message in words; empty when there is nothing to report.

    reason: why its generation finished, if known.
    """
    if message.status == "partial":
        return "interrupted · c continues, r regenerates"
    if message.status == "stopped":
        return "stopped · c continues, r regenerates"
    if message.status == "error":
        return "the model failed here · r tries again"
    if reason == "length":
        return "reached the reply limit · c continues"
    if reason == "context":
        return "the context window is full"
    if reason == "repetition":
        return REPEATED
    return ""


def verdict_words(feedback: "Feedback | None") -> str:
    """The user's feedback on a reply, in words."""
    if feedback is None:
        return ""
    words = [{1: "good", 0: "", -1: "bad"}[feedback.thumb]]
    words.append(f"ranked {feedback.rank}" if feedback.rank else "")
    words.append("corrected" if feedback.correction is not None else "")
    return " · ".join(word for word in words if word)


class Waiting(Vertical):
    """A message of the user that is not part of the chat yet."""

    def __init__(self, text: str, note: str) -> None:
        super().__init__(classes="-user")
        self._text = text
        self._words = note

    def compose(self) -> ComposeResult:
        yield Static(SPEAKERS["user"], markup=False, classes="header")
        yield TextBody(self._text)
        note = Static(self._words, markup=False, classes="note")
        note.display = bool(self._words)
        yield note


class MessageView(Vertical, can_focus=True):
    """A message that can be focused; its screen handles its actions."""

    BINDING_GROUP_TITLE = "On a message"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,ctrl+up", "act('step', -1)", "Message above", show=False, id="message_above"),
        Binding(
            "down,ctrl+down", "act('step', 1)", "Message below", show=False, id="message_below"
        ),
        Binding(
            "r",
            "act('regenerate')",
            "Regenerate",
            tooltip="Another reply to the same message",
            id="regenerate",
        ),
        Binding(
            "left", "act('sibling', -1)", "Previous version", group=_VERSIONS, id="earlier_version"
        ),
        Binding("right", "act('sibling', 1)", "Next version", group=_VERSIONS, id="later_version"),
        Binding(
            "c",
            "act('continue')",
            "Continue",
            tooltip="Continue the reply where it ended",
            id="continue",
        ),
        Binding(
            "e", "act('edit')", "Edit", tooltip="Edit your message and send it again", id="edit"
        ),
        Binding(
            "E",
            "act('edit_reply')",
            "Edit the reply",
            show=False,
            tooltip="Edit a reply in place; it is marked as edited",
            id="edit_reply",
        ),
        Binding(
            "f",
            "act('fork')",
            "Fork",
            show=False,
            tooltip="A new chat with the messages up to this one",
            id="fork",
        ),
        Binding(
            "t",
            "screen.times",
            "Times",
            show=False,
            tooltip="Show or hide when messages were written",
            id="times",
        ),
        Binding(
            "enter",
            "thoughts",
            "Open",
            tooltip="Show or hide a reply's thoughts and tool results",
            id="thoughts",
        ),
        Binding(
            "s",
            "act('sources')",
            "Sources",
            tooltip="Read the passages of documents behind a reply",
            id="sources",
        ),
        Binding("y", "act('copy')", "Copy", tooltip="Copy the text to the clipboard", id="copy"),
        Binding(
            "Y",
            "act('copy_code')",
            "Copy code",
            show=False,
            tooltip="Copy a code block; press again for the next",
            id="copy_code",
        ),
        Binding(
            "d,delete",
            "act('delete')",
            "Delete",
            show=False,
            tooltip="Delete the message and those that follow it",
            id="delete",
        ),
        Binding(
            "u",
            "screen.undelete",
            "Undo",
            show=False,
            tooltip="Bring back what was deleted last",
            id="undelete",
        ),
        Binding(
            "plus",
            "act('rate', 1)",
            "Good",
            tooltip="Good reply; press again to clear",
            group=_VERDICT,
            id="good",
        ),
        Binding(
            "minus",
            "act('rate', -1)",
            "Bad",
            tooltip="Bad reply; press again to clear",
            group=_VERDICT,
            id="bad",
        ),
        Binding(
            "w",
            "act('correct')",
            "Correct",
            tooltip="Correct the reply: write what it should be",
            id="correct",
        ),
        Binding("k", "act('rank')", "Rank", tooltip="Rank the versions of a reply", id="rank"),
        Binding(
            "i",
            "act('trace')",
            "Where from",
            show=False,
            tooltip="Which training text a reply of your own run is from",
            id="trace",
        ),
    ]

    def __init__(
        self,
        message: "StoredMessage",
        note: str = "",
        feedback: "Feedback | None" = None,
        *,
        markdown: bool = False,
    ) -> None:
        super().__init__(classes=f"-{message.role}")
        self.message = message
        self.note = ""
        """The line below the text."""
        self._markdown = markdown
        self._rendered: RenderedBody | None = None
        self._text = message.text
        self._words = ""
        """What is highlighted."""
        self._feedback: Feedback | None = None
        self._has_time = False
        self._is_laying_out = False
        self._header = Static(markup=False, classes="header")
        self._thoughts = Thoughts()
        self._calls = ToolCalls()
        self._body = TextBody(message.text)
        self._note = Static(markup=False, classes="note")
        self._sources = Static(markup=False, classes="sources")
        self._correction = Static(markup=False, classes="correction")
        self.show(message, note, feedback)

    def compose(self) -> ComposeResult:
        yield self._header
        yield self._thoughts
        yield self._calls
        yield self._body
        yield self._correction
        yield self._sources
        yield self._note

    def show(self, message: "StoredMessage", note: str, feedback: "Feedback | None") -> None:
        """Show a newer state of the message, or another message of the same role.

        note: the line below the text. feedback: the user's.
        """
        if message.text != self._text:
            self._body.replace(message.text)
        self.message, self._text = message, message.text
        self._thoughts.show(message.thoughts, message.thought_tokens)
        self._calls.show(message.calls)
        self._feedback = feedback
        self._show_header()
        correction = feedback.correction if feedback is not None else None
        self._correction.update(f"Correction: {printable(correction or '')}")
        self._correction.display = correction is not None
        self._sources.update(given_places(message.sources))
        self._sources.display = bool(message.sources)
        self._show_note(note)
        self._show_body()

    def show_time(self, time: bool) -> None:
        """Show when the message was written, or not."""
        self._has_time = time
        self._show_header()

    def _show_header(self) -> None:
        message, title = self.message, Content(SPEAKERS[self.message.role])
        if message.siblings > 1:
            place = f"  ‹ {message.sibling}/{message.siblings} ›"
            title += Content.styled(place, "not bold")
        if verdict := verdict_words(self._feedback):
            title += Content.styled(f"  {verdict}", "not bold")
        if self._has_time:
            written = datetime.fromtimestamp(message.created)
            title += Content.styled(f"  {written:%Y-%m-%d %H:%M}", "not bold")
        self._header.update(title)

    def highlight(self, words: str) -> None:
        """Highlight words in the text; case does not matter."""
        text, spans, start = self._body.text.lower(), [], 0
        while words and (start := text.find(words.lower(), start)) >= 0:
            spans.append((start, start + len(words)))
            start += len(words)
        self._body.mark(spans)
        self._words = words
        if self._rendered is not None:
            self._rendered.mark(words)

    def on_mount(self) -> None:
        self._show_body()

    def set_markdown(self, markdown: bool) -> None:
        """Show the reply as Markdown, or as plain text."""
        self._markdown = markdown
        self._show_body()

    def _show_body(self) -> None:
        """Show the text as requested, and as plain text until the first layout is ready."""
        is_rendered = self._markdown and self.message.role == "assistant" and bool(self._text)
        is_ready = is_rendered and self._rendered is not None and bool(self._rendered.text)
        self._body.display = not is_ready and bool(self._text or not self.note)
        if self._rendered is not None:
            self._rendered.display = is_ready
        if is_rendered and self.is_attached and not self._is_laying_out:
            self._is_laying_out = True
            self._lay_out()

    @work
    async def _lay_out(self) -> None:
        """Lay out the text until the layout has caught up with a reply that is being written."""
        from chatapp.tui.widgets.markdown import LONGEST, RenderedBody  # not before a reply

        try:
            while self._markdown:
                if len(text := self._text) > LONGEST:
                    await self._remove_layout()
                    break
                if self._rendered is None:
                    self._rendered = RenderedBody()
                    self._rendered.display = False
                    self._rendered.mark(self._words)
                    await self.mount(self._rendered, after=self._body)
                begin = monotonic()
                self._rendered.show(text)
                self._body.display, self._rendered.display = False, self._markdown
                if text == self._text:
                    break
                await asyncio.sleep(max(_PACE, _REST * (monotonic() - begin)))
        finally:
            self._is_laying_out = False
            self._body.display = self._rendered is None or not self._rendered.display

    async def _remove_layout(self) -> None:
        """Show a text that has become too long as plain text."""
        if self._rendered is not None:
            rendered, self._rendered = self._rendered, None
            await rendered.remove()

    def _show_note(self, note: str) -> None:
        self.note = note
        self._note.update(printable(note))
        self._note.display = bool(note)

    def append(self, text: str) -> None:
        """Add streamed text."""
        self._body.append(text)
        self._text += text
        if self._markdown:
            self._show_body()

    def think(self, text: str, tokens: int) -> None:
        """Add a streamed thought, with its number of tokens so far."""
        self._thoughts.append(text, tokens)
        self.refresh_bindings()

    def begin_call(self, call: "Call") -> None:
        """Show that a tool is called."""
        self._calls.begin(call)
        self.refresh_bindings()

    def end_call(self, call: "Call") -> None:
        """Show the result of the call."""
        self._calls.end(call)

    def has_command(self, key: str) -> bool:
        """Whether a key is a command on messages."""
        return bool(bindings_for(self, key))

    def on_key(self, event: Key) -> None:
        # Textual does not explain why a command is unavailable.
        for binding in bindings_for(self, event.key):
            _, action, parameters = parse(binding.action)
            if reason := self._reason_against(action, parameters):
                event.stop()
                self.notify(reason, markup=False)

    def _reason_against(self, action: str, parameters: tuple[object, ...]) -> str:
        """Why an action is unavailable for this message, in words; empty when it is available."""
        name = parameters[0] if action == "act" else action
        replies_only = ("continue", "rate", "correct", "rank", "edit_reply", "trace")
        if name in replies_only and self.message.role != "assistant":
            return "This works on replies only; this message is yours."
        if name == "edit_reply" and self.message.calls:
            return "A reply with calls of tools cannot be edited; w corrects it."
        if name in ("rank", "sibling") and self.message.siblings < 2:
            return "There is only one version; r on a reply makes another."
        if name == "copy_code" and not code_blocks(self.message.text):
            return "There is no code block in this message."
        if name == "sources" and not self.message.sources:
            return "No passage of a document was looked up for this message."
        opens = self._thoughts.display or self._calls.display or self.message.sources
        if name == "thoughts" and not opens:
            return "This message has no thoughts, calls or passages."
        return ""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not self._reason_against(action, parameters)

    async def action_act(self, name: str, *arguments: object) -> None:
        """Run an action of the screen with this message."""
        await self.app.run_action(("", name, (self.message, *arguments)), self.screen)

    async def action_thoughts(self) -> None:
        if self._thoughts.display:
            self._thoughts.toggle()
        if self._calls.display:
            self._calls.toggle()
        if not (self._thoughts.display or self._calls.display):
            await self.action_act("sources")
