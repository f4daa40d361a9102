"""Every screen over the chat is named where help lists the keys of all."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

from textual.screen import ModalScreen

from chatapp.tui import screens
from chatapp.tui.chat import help


def every_screen() -> Iterator[type]:
    for module in pkgutil.iter_modules(screens.__path__):
        loaded = importlib.import_module(f"{screens.__name__}.{module.name}")
        for value in vars(loaded).values():
            is_own = inspect.isclass(value) and value.__module__ == loaded.__name__
            if is_own and issubclass(value, ModalScreen):
                yield value


def test_help_lists_the_keys_of_every_screen() -> None:
    found = list(every_screen())
    assert len(found) > 5
    assert [kind.__name__ for kind in found if kind not in help._SCREENS] == []
