"""What is used of Textual beyond its public interface is there, and used in one module only."""

import importlib
import inspect
import pkgutil
import types
from contextlib import suppress
from importlib.metadata import version

import pytest
from textual import keys
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.document._document import Document
from textual.document._wrapped_document import WrappedDocument
from textual.events import Key, Paste
from textual.widget import Widget
from textual.widgets import TextArea, _markdown
from textual_serve.server import Server

import chatapp.tui
from chatapp.tui.platform.textual_internals import know_alt_enter, know_pastes

INTERNALS = "chatapp.tui.platform.textual_internals"
BROWSER = "chatapp.commands.serving.browser"


@pytest.mark.parametrize(
    ("owner", "name", "module"),
    [
        (App(), "_keymap", INTERNALS),
        (App(), "_exception", INTERNALS),
        (App, "_fatal_error", INTERNALS),
        (App, "_close_messages_no_wait", INTERNALS),
        (Widget(), "_bindings", INTERNALS),
        (keys, "_character_to_key", INTERNALS),
        (WrappedDocument(Document("")), "_offset_to_line_info", INTERNALS),
        (TextArea, "_set_document", INTERNALS),
        (_markdown, "MarkdownTableCellContents", INTERNALS),
        (_markdown, "MarkdownTableContent", INTERNALS),
        (_markdown.MarkdownTable, "_get_headers_and_rows", INTERNALS),
        (Server, "_make_app", BROWSER),
    ],
)
def test_the_name_is_there(owner, name, module):
    package = "textual-serve" if module == BROWSER else "textual"
    assert hasattr(owner, name), (
        f"{package} {version(package)} has no {name} on {owner!r} any more, which {module} uses; "
        "look at what has taken its place, and name the version checked in that module."
    )


def own_classes():
    """The classes of the screens, without those of the module that may use private names."""
    for module in pkgutil.walk_packages(chatapp.tui.__path__, "chatapp.tui."):
        if module.name != INTERNALS:
            for value in vars(importlib.import_module(module.name)).values():
                if inspect.isclass(value) and value.__module__ == module.name:
                    yield value


def private_names(kind):
    """The names with an underscore that a class defines, or that its methods use."""
    empty = types.new_class("Empty", kind.__bases__)  # has what Textual gives to every class
    names = vars(kind).keys() - vars(empty).keys()
    for value in vars(kind).values():
        method = inspect.unwrap(getattr(value, "fget", None) or getattr(value, "__func__", value))
        if code := getattr(method, "__code__", None):
            names |= set(code.co_names)
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def names_of_textual(kind):
    """The names that the bases of a class from Textual have, or give to their instances."""
    names = set()
    for base in kind.__mro__[1:]:
        if base.__module__.startswith("textual"):
            names |= vars(base).keys()
            with suppress(TypeError):  # one that is made with arguments
                names |= vars(base()).keys()
    return names


@pytest.mark.parametrize("kind", own_classes(), ids=lambda kind: kind.__name__)
def test_no_class_uses_a_private_name_of_textual(kind):
    """The linter finds those of other objects; this, a name of one's own that Textual has too."""
    assert private_names(kind) & names_of_textual(kind) - {"_exit"} == set()  # os._exit


def test_alt_enter_is_told_from_enter():
    know_alt_enter()
    keys = [event.key for event in XTermParser().feed("a\x1b\rb\r") if isinstance(event, Key)]
    assert keys == ["a", "alt+enter", "b", "enter"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
@pytest.mark.parametrize(
    "text",
    ["", "plain", "a\x1b[31mred\x1b[0m z", "\x1b", "end \x1b[20", "\x1b[200~twice", "a\rb\x1bc"],
)
def test_what_is_pasted_comes_whole(text, size):
    know_pastes()
    typed = f"x\x1b[200~{text}\x1b[201~y\x1b[200~more\x1b[201~"
    parser = XTermParser()
    events = [
        event
        for start in range(0, len(typed), size)
        for event in parser.feed(typed[start : start + size])
    ]
    told = [event.text if isinstance(event, Paste) else event.key for event in events]
    assert told == ["x", text, "y", "more"]


def test_a_long_text_without_marks_is_one_paste():
    know_pastes()
    parser = XTermParser()
    events = [*parser.feed("a" * 100 + "\r")]
    assert events[0].text == "a" * 100
    assert [event.key for event in events[1:]] == ["enter"]
    typed = [*parser.feed("typed"), *parser.feed("\x1b[A")]
    assert [event.key for event in typed] == [*"typed", "up"]
