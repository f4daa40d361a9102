"""Write labelled sentences for `sentiment.toml` and `flan.toml` from one file a label.

    python -m finetune.recipes.sentiment POSITIVE NEGATIVE OUT [--encoding latin-1]

POSITIVE and NEGATIVE are plain text, one sentence a line, as in the movie reviews of Pang and
Lee (2005). OUT receives JSONL with `text` and `label` a line.
"""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from finetune.recipes import run, write_rows


def sentences(path: Path, encoding: str) -> list[str]:
    """The sentences of a file, without repetitions."""
    # Not splitlines: it also splits at characters that occur within sentences.
    lines = path.read_text(encoding=encoding).split("\n")
    return list(dict.fromkeys(line.strip() for line in lines if line.strip()))


def build(
    positive: Annotated[Path, typer.Argument(help="sentences of praise", exists=True)],
    negative: Annotated[Path, typer.Argument(help="sentences of blame", exists=True)],
    out: Annotated[Path, typer.Argument(help="the JSONL file to write")],
    encoding: Annotated[str, typer.Option(help="of the two files")] = "latin-1",
) -> None:
    """Write one row per sentence."""
    labelled = [
        (text, label)
        for label, path in (("positive", positive), ("negative", negative))
        for text in sentences(path, encoding)
    ]
    occurrences = Counter(text for text, _ in labelled)
    rows = [{"text": text, "label": label} for text, label in labelled if occurrences[text] == 1]
    write_rows(out, rows, "sentences")


if __name__ == "__main__":
    run(build)
