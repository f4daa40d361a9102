"""The content of an empty chat: an introduction, three suggestions, and the main keys."""

import asyncio
from typing import NamedTuple

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static
from textual.widgets.option_list import Option

from chatapp.engine.models.known_models import LARGER, known_models
from chatapp.engine.models.resolving import BUNDLED
from chatapp.tui.platform.actions import shown_key
from chatapp.tui.widgets.dialog import PlainOptions
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
    "examples, but knows little. {key} lists larger ones."
)
_OFFER = (
    "{key} downloads {name}, {size}, and goes on with it. The bundled model is small and was made "
    "here: it chats, but knows little."
)


class Welcome(VerticalScroll, can_focus=False):
    """Shown instead of the messages until there is one.

    larger_is_here: whether the larger model is on this machine; None until the bundled one is in
    use and that is known.
    """

    larger_is_here: bool | None = None

    def compose(self) -> ComposeResult:
        yield Static("chatapp", classes="title")
        yield Static("A GPT you can open. It runs on your own machine.", classes="about")
        yield Static(id="bundled")
        yield Static("Three things to try", classes="heading")
        yield PlainOptions(
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
        self.larger_is_here = None
        self._introduce()
        if name == BUNDLED:
            self.run_worker(self._look_for_larger(), exclusive=True, exit_on_error=False)

    async def _look_for_larger(self) -> None:
        # On a thread, because it imports the hub's client and reads files.
        self.larger_is_here = await asyncio.to_thread(_larger_is_here)
        self._introduce()

    @property
    def offers_larger(self) -> bool:
        """Whether one key downloads the larger model: not to this machine from a browser."""
        return self.larger_is_here is False and not self.app.is_web

    def _introduce(self) -> None:
        """Say what the bundled model is, and how to get a larger one."""
        words = _BUNDLED.format(key=shown_key(self.app, "models"))
        if self.offers_larger:
            key, size = shown_key(self.app, "larger"), known_models()[LARGER].size
            words = _OFFER.format(key=key, name=LARGER, size=size)
        self.query_one("#bundled", Static).update(words)

    def _row(self, actions: str, words: str) -> Content:
        """The keys of actions, and what they do; without an action, the key is a slash."""
        shown = " ".join(shown_key(self.app, action) for action in actions.split()) or "/"
        return Content.assemble((f"{shown:<10}", "$text-accent"), words)


def _larger_is_here() -> bool:
    from chatapp.engine.models.catalogue import is_here

    return is_here(LARGER)
