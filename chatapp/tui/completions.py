"""The lines above the prompt that say what a command could become.

Keep: there are at most a few, and none while no command is being written.
"""

from collections.abc import Sequence
from typing import NamedTuple

from textual.content import Content
from textual.widgets import Static

from chatapp.foreign import printable

_MOST = 6


class Completion(NamedTuple):
    """A command as it could stand in the prompt: what would follow it, and what it does."""

    text: str
    argument: str = ""
    words: str = ""


class Completions(Static):
    """Hidden unless a command is being written."""

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.display = False

    def show(self, completions: Sequence[Completion]) -> None:
        """Show what a text could become; Tab goes through it."""
        rows = [self._row(completion) for completion in completions[:_MOST]]
        if len(completions) > _MOST:
            rows.append(Content.styled(f"… and {len(completions) - _MOST} more", "dim"))
        self.display = bool(rows)
        self.update(Content("\n").join(rows))

    def _row(self, completion: Completion) -> Content:
        text = printable(completion.text).strip().replace("\n", " ")
        shown = Content.styled(text, "$text-accent")
        if not completion.words:
            return shown
        return Content.assemble(
            shown,
            f" {completion.argument}" if completion.argument else "",
            ("  " + completion.words, "dim"),
        )
