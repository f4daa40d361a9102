"""A GPT you can open: chat with it, look inside it, teach it, in a terminal."""

__version__ = "0.1.0"
