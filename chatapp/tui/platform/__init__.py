"""Differences between terminals and systems: keys, clipboard, editor, Textual's internals."""
