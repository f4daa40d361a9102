"""Words: a list of common English ones that comes with the program, and the user's own.

Keep: the list stays as it is; tasks and rows generated from it would be others.
"""

from importlib.resources import files
from pathlib import Path

from chatapp.prompting.examples import PromptError
from chatapp.userfiles import read_required


def own_words() -> list[str]:
    """Common English words, of `words.txt`."""
    return files("chatapp.evaluation").joinpath("words.txt").read_text("utf-8").split()


def read_words(path: Path) -> list[str]:
    """Words from a file, separated by white space. Raises PromptError."""
    return read_required(path, PromptError).split()
