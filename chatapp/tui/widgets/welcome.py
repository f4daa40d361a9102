"""The content of an empty chat: an introduction, three suggestions, and the main keys."""

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
    """A suggestion: the action whose key it shows, its words, and the chat's method for it."""

    key_of: str
    words: str
    action: str


SUGGESTIONS = (
    Suggestion("send", f"ask it: {QUESTION}", "ask"),
    Suggestion("prompts", "use a prompt file: spam sorts messages", "prompts"),
    Suggestion("inspect", "look inside: probabilities and attention", "inspect"),
)
KEYS = (
    ("stop", "stop the reply"),
    ("new_line", "new line; {editor} opens your own editor"),
    ("messages", "messages: regenerate, edit, copy, rate"),
    ("chats", "earlier chats, with search"),
    ("parameters compare models", "sampling settings · compare replies · models"),
    ("", "commands; ↑ ↓ choose one"),
    ("help", "help: all keys and commands"),
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
        key = shown_key(self.app, "models")
        yield Static(_BUNDLED.format(key=key, larger=larger()), id="bundled")
        yield Static("Three things to try", classes="heading")
        yield Options(
            *(
                Option(self._row(suggestion.key_of, suggestion.words), id=suggestion.action)
                for suggestion in SUGGESTIONS
            )
        )
        yield Static("Keys", classes="heading")
        editor = shown_key(self.app, "editor")
        rows = [self._row(actions, words.format(editor=editor)) for actions, words in KEYS]
        yield Static(Content("\n").join(rows))

    def on_mount(self) -> None:
        self.watch(self.screen.query_one(StatusLine), "model", self._model_changed)

    def _model_changed(self, name: str) -> None:
        self.query_one("#bundled").display = name == BUNDLED

    def _row(self, actions: str, words: str) -> Content:
        """The keys of actions, and what they do; without an action, the key is a slash."""
        shown = " ".join(shown_key(self.app, action) for action in actions.split()) or "/"
        return Content.assemble((f"{shown:<10}", "$text-accent"), words)
