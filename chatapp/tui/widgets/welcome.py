"""The content of an empty chat: an introduction, three suggestions, and the main keys.

Invariant: every suggestion works at once, with the keys of the settings.
"""

from typing import NamedTuple

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static
from textual.widgets.option_list import Option

from chatapp.engine.models.known_models import larger
from chatapp.engine.models.resolving import BUNDLED
from chatapp.tui.platform.actions import shown_key
from chatapp.tui.widgets.dialog import Options
from chatapp.tui.widgets.status import StatusLine

QUESTION = "How was your day?"
"""The bundled model is in doubt about it, so F3 shows alternatives."""


class Suggestion(NamedTuple):
    """A suggestion: its key, and the chat's action.

    key: the default, unless the settings have another for the action `id`.
    """

    key: str
    words: str
    action: str
    id: str


SUGGESTIONS = (
    Suggestion("Enter", f"ask it: {QUESTION}", "ask", "send"),
    Suggestion("F5", "use a prompt file: spam sorts messages", "prompts", "prompts"),
    Suggestion("F3", "look inside: probabilities and attention", "inspect", "inspect"),
)
KEYS = (
    ("Esc", "stop", "stop the reply"),
    ("Ctrl+J", "new_line", "new line; {editor} opens your own editor"),
    ("Ctrl+↑", "messages", "messages: regenerate, edit, copy, rate"),
    ("Ctrl+O", "chats", "earlier chats, with search"),
    ("F2 F4 F8", "parameters compare models", "sampling settings · compare replies · models"),
    ("/", "", "commands; ↑ ↓ choose one"),
    ("F1", "help", "help: all keys and commands"),
)


_BUNDLED = (
    "The bundled model is small and was made here: it reads English, chats, adds and follows "
    "examples, but knows little. {key} downloads a larger one ({larger})."
)


class Welcome(VerticalScroll, can_focus=False):
    """Shown instead of the messages until there is one."""

    def compose(self) -> ComposeResult:
        yield Static("chatapp", classes="title")
        yield Static("A GPT you can open. It runs on your own machine.", classes="about")
        key = shown_key(self.app, "models", "F8")
        yield Static(_BUNDLED.format(key=key, larger=larger()), id="bundled")
        yield Static("Three things to try", classes="heading")
        yield Options(
            *(
                Option(self._row(*suggestion[:2], suggestion.id), id=suggestion.action)
                for suggestion in SUGGESTIONS
            )
        )
        yield Static("Keys", classes="heading")
        editor = shown_key(self.app, "editor", "Ctrl+G")
        rows = [
            self._row(keys, words.format(editor=editor), actions) for keys, actions, words in KEYS
        ]
        yield Static(Content("\n").join(rows))

    def on_mount(self) -> None:
        self.watch(self.screen.query_one(StatusLine), "model", self._model_changed)

    def _model_changed(self, name: str) -> None:
        self.query_one("#bundled").display = name == BUNDLED

    def _row(self, keys: str, words: str, actions: str) -> Content:
        shown = keys
        if actions:
            pairs = zip(actions.split(), keys.split(), strict=True)
            shown = " ".join(shown_key(self.app, action, key) for action, key in pairs)
        return Content.assemble((f"{shown:<10}", "$text-accent"), words)
