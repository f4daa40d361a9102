"""`chatapp inspect --heads`: what the heads of a model do, and how those of another differ.

Invariant: nothing of torch is imported before a model is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chatapp.commands.console import progress
from chatapp.commands.loading import load
from chatapp.common.userfiles import UserError
from chatapp.lab.findings import Finding

if TYPE_CHECKING:
    from chatapp.common.settings import Settings


@dataclass(frozen=True, slots=True)
class HeadOptions:
    """What the options of `inspect` say of heads."""

    heads: Annotated[
        bool,
        typer.Option(
            "--heads",
            help="Show what each head does: previous token, induction, copying and more. Without "
            "a text, measured on the texts of --texts, or on a sample.",
        ),
    ] = False
    sort: Annotated[str, typer.Option(help="The measure that --heads sorts by.")] = "induction"
    texts: Annotated[
        Path | None, typer.Option(help="A file of texts for --heads, an empty line after each.")
    ] = None


def find_heads(
    settings: "Settings",
    options: HeadOptions,
    content: str,
    against: str | None,
    cell: tuple[int | None, int | None],
) -> Sequence[Finding]:
    """The scores of all heads; or of the chosen one the texts where it is strongest.

    content: a text to measure on, instead of those of `--texts` or the sample. against: another
    model. cell: a layer and a head, or neither. Raises UserError.
    """
    from chatapp.lab.head_texts import strongest_texts
    from chatapp.lab.heads import (
        check_measure,
        check_same_shape,
        sample_texts,
        score_heads,
    )

    sort, texts = options.sort, options.texts
    check_measure(sort)
    layer, head = cell
    if (layer is None) != (head is None):
        raise UserError("--heads takes --layer and --head together, or neither")
    if content and texts is not None:
        raise UserError("give either a text or --texts")
    chosen = [content] if content else sample_texts(texts) if texts is not None else sample_texts()
    if layer is not None and against is not None:
        raise UserError("--against compares all heads; leave --layer and --head out")
    model = load(settings.model, "float32", settings.device)
    if layer is not None and head is not None:
        with progress("Reading texts") as report:
            return [strongest_texts(model, layer, head, chosen, progress=report)]
    other = None if against is None else load(against, "float32", settings.device)
    if other is not None:
        check_same_shape(model, other)
    with progress("Scoring heads") as report:
        scores = score_heads(model, chosen, sorted_by=sort, progress=report)
    if other is not None:
        with progress(f"Scoring heads of {other.name}") as report:
            before = score_heads(other, chosen, sorted_by=sort, progress=report)
        scores = replace(scores, against=before)
    return [scores]
