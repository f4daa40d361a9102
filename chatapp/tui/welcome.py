"""What an empty chat shows: what this is, three things to try, and the main keys."""

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import OptionList, Static

SUGGESTIONS = (
    "Hello! Who are you?",
    "What do you like to do?",
    "Tell me something about the sea.",
)


class Welcome(VerticalScroll, can_focus=False):
    """Stands in the place of the messages until there is one."""

    def compose(self) -> ComposeResult:
        yield Static("chatapp", classes="title")
        yield Static("A GPT you can open. It runs on your own machine.")
        yield Static("Three things to try · Tab, then Enter", classes="heading")
        yield OptionList(*SUGGESTIONS, markup=False, compact=True)
        yield Static("Keys", classes="heading")
        yield Static(self._keys())

    def _keys(self) -> Content:
        rows = (
            ("Enter", "send"),
            ("Ctrl+J", "new line"),
            ("Esc", "stop the reply"),
            ("Ctrl+↑", "messages: regenerate, continue, edit, copy"),
            ("Ctrl+O", "earlier chats"),
            ("F2", "parameters"),
            ("F1", "all keys"),
        )
        return Content("\n").join(
            Content.assemble((f"{key:<8}", "$text-accent"), words) for key, words in rows
        )
