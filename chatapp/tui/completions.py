"""The lines above the prompt that say what a command could become."""

from textual.content import Content
from textual.widgets import Static

from chatapp.foreign import printable
from chatapp.tui.slash import usage

_MOST = 6


class Completions(Static):
    """Hidden unless a command is being written."""

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.display = False

    def show(self, text: str, completions: list[str]) -> None:
        """Show what a text could become; Tab goes through it."""
        rows = [self._row(each) for each in completions[:_MOST]]
        if len(completions) > _MOST:
            rows.append(Content.styled(f"… and {len(completions) - _MOST} more", "dim"))
        if not rows and usage(text) is not None:
            rows = [self._row(text)]
        self.display = bool(rows)
        self.update(Content("\n").join(rows))

    def _row(self, completion: str) -> Content:
        command = usage(completion.rstrip())
        shown = Content.styled(printable(completion).strip().replace("\n", " "), "$text-accent")
        if command is None or completion.strip() != f"/{command.name}":
            return shown
        return Content.assemble(
            shown,
            f" {command.argument}" if command.argument else "",
            ("  " + command.words, "dim"),
        )
