"""The fixtures of the tests of the screens."""

from tui_driver import open_app, store, terminal  # noqa: F401
