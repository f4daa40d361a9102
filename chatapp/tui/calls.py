"""The tools that a reply has called: a line for each, which opens to its result.

Keep: folded until the user asks for it, and what is shown is foreign text, never markup.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from chatapp.foreign import printable

if TYPE_CHECKING:
    from chatapp.prompting.calls import Call

_WORDS = {
    "running": "under way",
    "done": "",
    "failed": "failed",
    "refused": "not allowed",
    "stopped": "stopped",
}


class ToolCalls(Vertical):
    """The calls of one reply; nothing where there are none."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = Static(markup=False)
        self._calls: tuple[Call, ...] = ()
        self._is_open = False
        self.display = False

    def compose(self) -> ComposeResult:
        yield self._lines

    def show(self, calls: "Sequence[Call]") -> None:
        """Show the calls of a reply."""
        self._calls = tuple(calls)
        self.display = bool(calls)
        self._tell()

    def toggle(self) -> None:
        """Open all results, or fold them."""
        self._is_open = not self._is_open
        self._tell()

    def begin(self, call: "Call") -> None:
        """Show one more call, which is under way."""
        self.show([*self._calls, call])

    def end(self, call: "Call") -> None:
        """Show what became of the last call."""
        self.show([*self._calls[:-1], call])

    def _tell(self) -> None:
        self._lines.update(printable("\n".join(map(self._told, self._calls))))

    def _told(self, call: "Call") -> str:
        from chatapp.tools.tool import call_in_words

        status = _WORDS[call.status]
        line = call_in_words(call.name, call.arguments) + (f" · {status}" if status else "")
        if self._is_open:
            return "\n".join([f"▾ {line}", *(f"  {part}" for part in call.result.splitlines())])
        first, *more = call.result.splitlines() or [""]
        if call.status != "done":
            return f"▸ {line}"
        return f"▸ {line}: {first}{' …' if more else ''}"
