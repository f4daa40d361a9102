"""What is used of Textual beyond its public interface is there, and used in one module only."""

import ast
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

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
def test_the_name_is_there(owner: object, name: str, module: str) -> None:
    package = "textual-serve" if module == BROWSER else "textual"
    assert hasattr(owner, name), (
        f"{package} {version(package)} has no {name} on {owner!r} any more, which {module} uses; "
        "look at what has taken its place, and name the version checked in that module."
    )


def of_itself(tree: ast.AST) -> set[str]:
    """The names that a class, or the classes of a module, have or look for in themselves."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            names.add(node.attr)
    return names


@cache
def of_module(name: str) -> set[str]:
    return of_itself(ast.parse(inspect.getsource(sys.modules[name])))


def private_names_of_textual(kind: type) -> set[str]:
    """The names with an underscore that the bases of a class from Textual's packages use."""
    names: set[str] = set()
    for base in kind.__mro__[1:]:
        if base.__module__.partition(".")[0] in ("textual", "textual_serve"):
            names |= of_module(base.__module__) | set(vars(base))
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def own_classes(module: str) -> Iterator[tuple[ast.ClassDef, type]]:
    loaded = importlib.import_module(module)
    for node in ast.parse(Path(loaded.__file__ or "").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node, getattr(loaded, node.name)


def private_imports(module: str) -> Iterator[str]:
    loaded = importlib.import_module(module)
    for node in ast.walk(ast.parse(Path(loaded.__file__ or "").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("textual", "rich")):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from (name for name in names if name.startswith("_"))
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            is_own |= ast.unparse(node) in ("os._exit", "super().__init__")
            if not is_own and not node.attr.startswith("__"):
                yield ast.unparse(node)


MODULES = [
    module.name
    for module in pkgutil.walk_packages(chatapp.tui.__path__, "chatapp.tui.")
    if module.name not in (INTERNALS, BROWSER)
]


@pytest.mark.parametrize("module", MODULES)
def test_other_modules_use_none(module: str) -> None:
    assert list(private_imports(module)) == []
    for node, kind in own_classes(module):
        clashes = of_itself(node) & private_names_of_textual(kind)
        assert not clashes, f"{kind.__name__} uses {clashes}, which are names of Textual's own"


def test_alt_enter_is_told_from_enter() -> None:
    know_alt_enter()
    keys = [event.key for event in XTermParser().feed("a\x1b\rb\r") if isinstance(event, Key)]
    assert keys == ["a", "alt+enter", "b", "enter"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
@pytest.mark.parametrize(
    "text",
    ["", "plain", "a\x1b[31mred\x1b[0m z", "\x1b", "end \x1b[20", "\x1b[200~twice", "a\rb\x1bc"],
)
def test_what_is_pasted_comes_whole(text: str, size: int) -> None:
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


def test_a_long_text_without_marks_is_one_paste() -> None:
    know_pastes()
    parser = XTermParser()
    events = [*parser.feed("a" * 100 + "\r")]
    assert events[0].text == "a" * 100
    assert [event.key for event in events[1:]] == ["enter"]
    typed = [*parser.feed("typed"), *parser.feed("\x1b[A")]
    assert [event.key for event in typed] == [*"typed", "up"]
