"""What an empty chat shows: what this is, three things to try, and the main keys."""

from typing import NamedTuple

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

QUESTION = "Hello! Who are you?"


class Suggestion(NamedTuple):
    """Something to try: the key that does it at once, and the chat's action behind it."""

    key: str
    words: str
    action: str


SUGGESTIONS = (
    Suggestion("Enter", f"ask it: {QUESTION}", "ask"),
    Suggestion("F5", "show it how: examples, or a persona", "prompts"),
    Suggestion("F3", "look inside: what it reads and attends to", "inspect"),
)
KEYS = (
    ("Esc", "stop the reply"),
    ("Ctrl+J", "new line; Ctrl+G your own editor"),
    ("Ctrl+↑", "messages: another reply, edit, copy, judge"),
    ("Ctrl+O", "earlier chats, with search"),
    ("F2 F4 F8", "parameters · two replies compared · models"),
    ("/", "commands; Tab completes them"),
    ("F1", "all keys"),
)


class Welcome(VerticalScroll, can_focus=False):
    """Stands in the place of the messages until there is one."""

    def compose(self) -> ComposeResult:
        yield Static("chatapp", classes="title")
        yield Static("A GPT you can open. It runs on your own machine.")
        yield Static("Three things to try", classes="heading")
        yield OptionList(
            *(Option(_row(each.key, each.words), id=each.action) for each in SUGGESTIONS),
            markup=False,
            compact=True,
        )
        yield Static("Keys", classes="heading")
        yield Static(Content("\n").join(_row(key, words) for key, words in KEYS))


def _row(key: str, words: str) -> Content:
    return Content.assemble((f"{key:<10}", "$text-accent"), words)
