"""The guides as tests read them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import finetune

ROOT = Path(__file__).parent.parent
TEACHING = Path(finetune.__file__).with_name("README.md")
GUIDES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / ".github" / "CONTRIBUTING.md",
    ROOT / "tests" / "benchmarks" / "RESULTS.md",
    TEACHING,
    *sorted((ROOT / "chatapp" / "docs").glob("*.md")),
]


class Command(NamedTuple):
    """A command line of a guide.

    runs: whether its block is marked to be run. is_prose: whether it is a mention in a sentence,
    which may leave arguments out.
    """

    guide: str
    words: tuple[str, ...]
    runs: bool = False
    is_prose: bool = False


def commands(guide: Path) -> Iterator[Command]:
    """Every command line of chatapp and finetune in the blocks of a guide, and in its text."""
    text = guide.read_text(encoding="utf-8")
    blocks = re.findall(r"^```console ?(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for mark, block in blocks:
        for line in _lines(block):
            for part in re.split(r" && |; |^echo .* \| ", line):
                words = shlex.split(part, comments=True)
                if words and Path(words[0].replace("\\", "/")).name in ("chatapp", "finetune"):
                    yield Command(guide.name, tuple(words), mark == "run")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`((?:chatapp|finetune) [^`]+)`", prose):
        words = shlex.split(" ".join(code.split()))
        if not {"…", "...", "COMMAND"} & set(words):
            yield Command(guide.name, tuple(words), is_prose=True)


def _lines(block: str) -> Iterator[str]:
    """The lines of a block; a quotation may go on over several."""
    waiting = ""
    for line in block.splitlines():
        waiting += line
        try:
            shlex.split(waiting, comments=True)
        except ValueError:
            waiting += "\n"
        else:
            yield waiting
            waiting = ""
