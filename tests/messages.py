"""The sentences with which wrong input is refused, as one list: tests/messages.txt.

Tests assert the file, line and key that a sentence names; the list shows the English, so that it
can be read and mended in one place. `pytest --snapshot-update FILE` writes the sentences of a test
file anew.
"""

import re
import sys
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("messages.txt")


def check_message(key: str, sentence: str, folder: Path, config: pytest.Config) -> None:
    """Compare a sentence with that of the list. folder: what is FOLDER there.

    Other systems and other versions of Python word some reasons otherwise: the list is compared on
    Linux with Python 3.11 alone.
    """
    if sys.platform != "linux" or sys.version_info[:2] != (3, 11):
        return
    # A column counts the folder's own name, too.
    shown = re.sub(r"column \d+", "column N", sentence.strip().replace(str(folder), "FOLDER"))
    known = dict(line.split(" => ", 1) for line in LIST.read_text("utf-8").splitlines())
    if config.getoption("update_snapshots"):
        lines = (f"{name} => {text}\n" for name, text in sorted((known | {key: shown}).items()))
        LIST.write_text("".join(lines), "utf-8")
    else:
        assert known.get(key) == shown
