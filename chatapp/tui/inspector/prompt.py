"""The tab of the inspector that shows the exact prompt.

Keep: every character the model reads stands here, and nothing else in its place.
"""

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from chatapp.tui.inspector.look import Look
from chatapp.tui.inspector.view import View
from chatapp.tui.message import SPEAKERS
from chatapp.tui.rendered import colored, legend, one_line, shot_lines, source_lines

_SERVED = "The server is sent these as messages, and writes its model's own template around them."
_OUTDATED = "The reply was generated from another prompt. Below is the one there would be now."


class PromptView(View):
    """The exact string, coloured by where each part of it comes from."""

    hint = "↑ ↓ scroll the prompt"

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=True, id="prompt-scroll"):
            yield Static(_OUTDATED, id="prompt-outdated")
            yield Static(id="prompt-legend")
            yield Static(id="prompt-text", markup=False)
            yield Static(id="prompt-notes", markup=False)

    def show(self, look: Look) -> None:
        self.query_one("#prompt-legend", Static).update(legend(look.segments))
        self.query_one("#prompt-text", Static).update(colored(look.segments))
        notes = list(shot_lines(look.shots, look.dropped_shots))
        notes += source_lines(look.sources)
        if look.sent_as_messages:
            notes.append(Content.styled(_SERVED, "dim"))
        if look.left_out:
            count = len(look.left_out)
            words = f"Left out for length: {count} message{'s' * (count > 1)}"
            notes.append(Content.styled(words, "$text-warning"))
            for message in look.left_out:
                line = f"{SPEAKERS[message.role]}: {one_line(message.text)}"
                notes.append(Content.styled(line, "dim"))
        self.query_one("#prompt-notes", Static).update(Content("\n").join(notes))
        outdated = self.query_one("#prompt-outdated", Static)
        outdated.display = look.outdated
        self.query_one("#prompt-scroll").scroll_home(animate=False)
