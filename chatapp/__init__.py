"""A GPT you can open: chat with it, look inside it, teach it, in a terminal, a notebook, a program.

`load`, `open_chat` and `prompt_file` are the door for Python; see `chatapp docs python`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chatapp.open_model import load as load
    from chatapp.open_model import open_chat as open_chat
    from chatapp.open_model import prompt_file as prompt_file

__version__ = "0.1.0"

__all__ = ["load", "open_chat", "prompt_file"]


def __getattr__(name: str) -> Any:
    """Import the door at its first use, because that takes a second."""
    if name not in __all__:
        raise AttributeError(f"module 'chatapp' has no attribute {name!r}")
    return getattr(importlib.import_module("chatapp.open_model"), name)


def __dir__() -> list[str]:
    """What a notebook completes."""
    return [*__all__, "__doc__", "__version__"]
