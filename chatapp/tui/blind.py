"""The blind test in the terminal: a reader says of each continuation who wrote it.

Invariant: nothing on the screen depends on who did.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Key
from textual.widgets import Static

from chatapp.common.foreign import printable
from chatapp.tui.platform.textual_internals import FailingApp
from chatapp.tui.theme import CALM, readable

if TYPE_CHECKING:
    from chatapp.tasks.evaluation.blind_test import Trial, Verdict


_KEYS: "Mapping[str, Verdict]" = {"h": "human", "m": "machine", "d": "unknown"}
_HINT = "H human · M machine · D don't know · Ctrl+Q stops here"


class BlindTestApp(FailingApp[None]):
    """Shows trials one after another; `verdicts` holds the answers so far, in their order."""

    TITLE = "Who wrote the continuation?"
    ENABLE_COMMAND_PALETTE = False
    CSS = "Static { padding: 1 2; } #place { color: $text-primary; }"

    def __init__(self, trials: "Sequence[Trial]") -> None:
        super().__init__()
        self.register_theme(CALM)
        self.theme = CALM.name
        self._trials = trials
        self.verdicts: list[Verdict] = []

    def get_css_variables(self) -> dict[str, str]:
        variables = super().get_css_variables()
        self.theme_variables = variables = readable(variables)
        return variables

    def compose(self) -> ComposeResult:
        yield Static("", id="place")
        with VerticalScroll():
            yield Static("", id="text", markup=False)
        yield Static(_HINT, id="keys")

    def on_mount(self) -> None:
        self._show()

    def on_key(self, event: Key) -> None:
        """Keep an answer, and show the next trial; after the last one, end."""
        verdict = _KEYS.get(event.key.lower())
        if verdict is None or len(self.verdicts) == len(self._trials):
            return
        self.verdicts.append(verdict)
        if len(self.verdicts) == len(self._trials):
            self.exit()
        else:
            self._show()

    def _show(self) -> None:
        number = len(self.verdicts)
        trial = self._trials[number]
        place = f"Text {number + 1} of {len(self._trials)}. Who wrote the bold part?"
        self.query_one("#place", Static).update(place)
        text = Content.assemble(
            f"{printable(trial.beginning)} … ", (printable(trial.continuation), "bold")
        )
        self.query_one("#text", Static).update(text)
        self.query_one(VerticalScroll).scroll_home(animate=False)
