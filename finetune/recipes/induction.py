"""Write passages of books, each of them twice, for `induction.toml`.

    python -m finetune.recipes.induction BOOKS OUT [--rows N] [--seed N]

BOOKS is a folder of text files. OUT receives repeated.jsonl.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from chatapp.common.userfiles import UserError, read_required
from finetune.recipes import run, write_rows

_WORDS = (3, 9)


def passages(books: Path, rows: int, seed: int) -> Iterator[str]:
    """Passages of 3 to 9 words from anywhere in the books, each twice. Raises UserError."""
    words = [word for path in sorted(books.glob("*.txt")) for word in read_required(path).split()]
    if len(words) < _WORDS[1]:
        raise UserError(f"{books}: expected text files of at least {_WORDS[1]} words")
    draw = random.Random(seed)
    for _ in range(rows):
        length = draw.randint(*_WORDS)
        first = draw.randrange(len(words) - length + 1)
        passage = " ".join(words[first : first + length])
        yield f"{passage}\n{passage}"


def build(
    books: Annotated[Path, typer.Argument(help="folder of text files")],
    out: Annotated[Path, typer.Argument(help="folder to write to")],
    rows: Annotated[int, typer.Option(min=1, max=1_000_000)] = 40_000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Write passages that come twice."""
    made = ({"text": text} for text in passages(books, rows, seed))
    write_rows(out / "repeated.jsonl", made, "passages, each twice")


if __name__ == "__main__":
    run(build)
