"""The guides as tests read them, and the tables of keys and of views in two of them.

`python tests/guides.py` writes these tables from the code.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import finetune
from chatapp.lab.views import VIEWS
from chatapp.lab.views.text_views import PromptText
from finetune.config.keys import keys

ROOT = Path(__file__).parent.parent
TEACHING = Path(finetune.__file__).with_name("README.md")
MICROSCOPE = ROOT / "chatapp" / "docs" / "microscope.md"
GUIDES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / ".github" / "CONTRIBUTING.md",
    ROOT / "tests" / "benchmarks" / "RESULTS.md",
    TEACHING,
    *sorted((ROOT / "chatapp" / "docs").glob("*.md")),
]

_TABLE_BEGINS = "<!-- The table below is written by tests/guides.py. -->\n"


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


def table() -> str:
    """The keys of a configuration as a table in Markdown."""
    rows = ["| key | values | default | meaning |", "|---|---|---|---|"]
    for key in keys():
        kind = f" (kind {key.kind})" if key.kind else ""
        cells = (f"`{key.name}`", key.values, f"`{key.default}`" if key.default else "required")
        rows.append("| " + " | ".join(map(_cell, (*cells, key.meaning + kind))) + " |")
    return "\n".join(rows) + "\n"


def table_of_views() -> str:
    """The views of the inside of a model as a table in Markdown."""
    rows = ["| command | F3 | what it shows |", "|---|---|---|"]
    for view in VIEWS.values():
        if view is PromptText:
            continue  # `chatapp render` shows that of a chat
        words = [
            option.metavar or field.name.upper()
            for field in fields(view.Options)
            if (option := field.metadata.get("option")) is not None and option.is_argument
        ]
        words += ["TEXT"] if view.takes_text == "always" else []
        key = f"`{view.key}`" if view.key else ""
        command = f"`chatapp inspect {' '.join([view.name, *words])}`"
        rows.append(f"| {command} | {key} | {_cell(view.summary)} |")
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


TABLES = {TEACHING: table, MICROSCOPE: table_of_views}


def written_table(guide: Path) -> str:
    """The table as it stands in a guide."""
    return _parts(guide)[1]


def _parts(guide: Path) -> tuple[str, str, str]:
    """A guide up to its table, the table, and what follows."""
    before, mark, rest = guide.read_text(encoding="utf-8").partition(_TABLE_BEGINS)
    rows, divider, after = rest.partition("\n\n")
    return before + mark, rows + "\n" * bool(divider), divider[1:] + after


if __name__ == "__main__":
    for guide, rows in TABLES.items():
        before, _, after = _parts(guide)
        guide.write_text(before + rows() + after, encoding="utf-8")
