"""The fixtures of the tests of the screens."""

from library_driver import own  # noqa: F401
from stage import stage  # noqa: F401
from tui_driver import open_app, parsed_once, store, terminal  # noqa: F401
