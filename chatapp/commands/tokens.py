"""`chatapp tokens`: how a model cuts a text, and how a vocabulary is made."""

from dataclasses import asdict
from enum import StrEnum
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chatapp.commands.console import interruptible, progress, write, write_json
from chatapp.commands.options import JsonOption, ModelOption
from chatapp.common.shading import visible
from chatapp.common.userfiles import UserError, read_required

if TYPE_CHECKING:
    from chatapp.engine.model import PieceTokenizer

# Alternating backgrounds show where a token ends.
_STYLES = ("black on cyan", "black on white")


class Method(StrEnum):
    bpe = "bpe"
    wordpiece = "wordpiece"


def tokens(
    text: Annotated[str | None, typer.Argument(help="The text to tokenize.")] = None,
    file: Annotated[Path | None, typer.Option(help="A text file in UTF-8 instead.")] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="Show how each word becomes tokens, merge by merge.")
    ] = False,
    learn: Annotated[
        Path | None,
        typer.Option(help="Learn a vocabulary from a text, or from lines of a word and its count."),
    ] = None,
    method: Annotated[Method, typer.Option(help="What --learn learns.")] = Method.bpe,
    merges: Annotated[int, typer.Option(min=1, max=100_000, help="How many merges to learn.")] = 20,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how a model cuts a text into tokens; also by a GGUF file that holds a vocabulary.

    With --learn, no model is used: it shows which tokens BPE or WordPiece would make of a file.
    """
    from chatapp.common.settings import load_settings
    from chatapp.engine.models.loading import read_tokenizer

    if learn is not None:
        if text is not None or file is not None or steps:
            raise UserError("--learn takes a file and no other text, and not --steps")
        with interruptible("interrupted"):
            _learn(learn, method, merges, as_json)
        return
    if (text is None) == (file is None):
        raise UserError("give either a text or --file")
    content = read_required(file) if file is not None else text or ""
    name = load_settings({"model": model}).model
    tokenizer = read_tokenizer(name)
    ids = tokenizer.encode(content)
    pieces = [tokenizer.piece(id) for id in ids]
    document = {"model": name, "ids": ids, "pieces": pieces}
    if steps:
        _show_steps(tokenizer, content, document if as_json else None)
    elif as_json:
        write_json(document)
    else:
        _show_pieces(pieces)
        whole = "".join(pieces)
        for character in dict.fromkeys(one for one in content if one not in whole):
            write(f"{character} = {character.encode(errors='replace').hex(' ').upper()}\n")
        write(f"{len(ids):,} tokens of {len(content):,} characters: {' '.join(map(str, ids))}\n")


def _show_pieces(pieces: list[str]) -> None:
    """The tokens one after the other, coloured if the terminal has colours; otherwise bars show
    where a token ends.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    has_colors = console.color_system is not None and console.is_terminal
    line = Text("" if has_colors else "│")
    for piece, style in zip(pieces, cycle(_STYLES), strict=False):
        line.append(visible(piece), style)
        if not has_colors:
            line.append("│")
    console.print(line)


def _show_steps(tokenizer: "PieceTokenizer", text: str, document: dict[str, Any] | None) -> None:
    """The steps of each word; as JSON, with the rest of a document."""
    from chatapp.lab.vocabulary import merge_steps

    words = merge_steps(tokenizer, text)
    if document is not None:
        write_json(document | {"words": [asdict(word) for word in words]})
        return
    for word in words:
        write(f"{_cut(word.tokens)}\n")
        for number, step in enumerate(word.steps, start=1):
            rank = "" if step.rank is None else f"   merge {step.rank:,}"
            write(f"{number:>4}  {_cut(step.tokens)}   makes │{visible(step.token)}│{rank}\n")
    sum_ = sum(len(word.steps[-1].tokens if word.steps else word.tokens) for word in words)
    write(f"{sum_:,} tokens, the same as the tokenizer's own\n")


def _cut(tokens: tuple[str, ...]) -> str:
    return f"│{'│'.join(map(visible, tokens))}│"


def _learn(path: Path, method: Method, merges: int, as_json: bool) -> None:
    """Learn a vocabulary and show its steps. Raises UserError for a file without words."""
    from chatapp.lab.vocabulary import learn_vocabulary, read_words

    words = read_words(read_required(path))
    if not words.total():
        raise UserError(f"{path}: there are no words to learn from")
    alphabet = sorted({character for word in words for character in word})
    learned = []
    with progress("Merging pairs") as report:
        for step in learn_vocabulary(words, method.value, merges):
            learned.append(step)
            report(len(learned), merges)
    if as_json:
        rows = [asdict(step) for step in learned]
        write_json({"method": method.value, "alphabet": alphabet, "steps": rows})
        return
    write(
        f"{words.total():,} words, {len(words):,} different, of {len(alphabet):,} characters: "
        f"{visible(' '.join(alphabet[:200]))}\n"
    )
    score = "" if method is Method.bpe else "      score"
    write(f"step    count{score}  pair\n")
    for number, step in enumerate(learned, start=1):
        score = "" if method is Method.bpe else f"  {step.score:9.2g}"
        one, other = map(visible, step.pair)
        write(f"{number:>4}  {step.count:>7,}{score}  {one} + {other} = {visible(step.token)}\n")
