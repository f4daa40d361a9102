"""One message of the chat: speaker, text and status."""

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from textual import work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from chatapp.common.foreign import local_time
from chatapp.engine.events import REPEATED
from chatapp.tui.widgets.dialog import Notice
from chatapp.tui.widgets.message_parts import TextBody, Thoughts, ToolCalls
from chatapp.tui.widgets.rendered import source_place

if TYPE_CHECKING:
    from chatapp.dialogue.store.rows import Feedback, StoredMessage
    from chatapp.prompting.messages import Call
    from chatapp.tui.widgets.markdown import RenderedBody

_PACE = 0.05
"""Seconds between two layouts of a reply that is being written, at least."""
_REST = 5
"""How many times as long as the last layout took; keys come first."""

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
        header = Static(SPEAKERS["user"], markup=False, classes="header")
        super().__init__(header, TextBody(text), Notice(note, classes="note"), classes="-user")


class MessageView(Vertical, can_focus=True):
    """A message that can be focused."""

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
        self._note = Notice(classes="note")
        self._sources = Notice(classes="sources")
        self._correction = Notice(classes="correction")
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
        self._correction.say("" if correction is None else f"Correction: {correction}")
        places = (
            f"{'given' if source.number else 'left out'} {source_place(source)}"
            for source in message.sources
        )
        self._sources.say("\n".join(places))
        self.note = note
        self._note.say(note)
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
            written = local_time(message.created)
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

    def show_call(self, call: "Call", *, has_ended: bool) -> None:
        """Show that a tool is called, or the result of the last call."""
        self._calls.show_last(call, has_ended=has_ended)
        self.refresh_bindings()

    @property
    def has_parts(self) -> bool:
        """Whether it has thoughts or calls to open."""
        return self._thoughts.display or self._calls.display

    def toggle_parts(self) -> None:
        """Show or hide its thoughts and calls."""
        if self._thoughts.display:
            self._thoughts.toggle()
        if self._calls.display:
            self._calls.toggle()
