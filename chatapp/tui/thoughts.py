"""What was thought before a reply: one dim line, which opens.

Keep: folded until the user asks for it, and what is shown is foreign text, never markup.
"""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from chatapp.tui.body import TextBody


class Thoughts(Vertical):
    """The thoughts of one reply; nothing where there are none."""

    def __init__(self) -> None:
        super().__init__()
        self._line = Static(markup=False)
        self._body = TextBody()
        self._text = ""
        self._words = ""
        self._body.display = self.display = False

    def compose(self) -> ComposeResult:
        yield self._line
        yield self._body

    def show(self, text: str, tokens: int) -> None:
        """Show the thoughts of a reply, of so many tokens; 0 where that is not known."""
        if text != self._text:
            self._body.replace(text.strip())
        self._text = text
        self.display = bool(text.strip())
        self._tell(f"thought for {tokens} tokens" if tokens else "thought")

    def append(self, text: str, tokens: int) -> None:
        """Go on with a thought that is under way, of so many tokens by now."""
        self._body.append(text if self._text else text.lstrip())
        self._text += text
        self.display = True
        self._tell(f"thinking · {tokens} tokens")

    def toggle(self) -> None:
        """Open the thoughts, or fold them."""
        self._body.display = not self._body.display
        self._tell(self._words)

    def _tell(self, words: str) -> None:
        self._words = words
        self._line.update(f"{'▾' if self._body.display else '▸'} {words}")
