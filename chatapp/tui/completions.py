"""The lines above the prompt that say what a command could become.

Keep: there are at most a few, the chosen one among them, and none while no command is written.
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

    def show(self, completions: Sequence[Completion], chosen: int) -> None:
        """Show what a text could become. chosen: which of it stands in the prompt; -1 is none."""
        first = max(0, min(chosen - _MOST // 2, len(completions) - _MOST))
        rows = [
            self._row(completion, number == chosen)
            for number, completion in enumerate(completions[first : first + _MOST], first)
        ]
        if len(completions) > _MOST:
            place = f"{chosen + 1} of {len(completions)}" if chosen >= 0 else f"{len(completions)}"
            rows.append(Content.styled(f"  {place} · ↑ ↓ choose", "dim"))
        self.display = bool(rows)
        self.update(Content("\n").join(rows))

    def _row(self, completion: Completion, is_chosen: bool) -> Content:
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
