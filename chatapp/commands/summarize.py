"""`chatapp summarize`: one summary of a document of any length, each sentence with its passages."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chatapp.commands import options as shared
from chatapp.commands.console import complain, interruptible, progress, write, write_json
from chatapp.commands.loading import load, prompt_path
from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.dialogue.documents.passages import Piece
    from chatapp.engine.model import LanguageModel
    from chatapp.tasks.answering import Answerer
    from chatapp.tasks.summaries import Summary, TracedSentence

_PASSAGE = 400
"""Tokens of a passage at most: in one sentence, a small model can say little about more."""

_SAMPLE = 100_000
"""Characters in which the length of a token is measured."""

_TOO_SMALL = 100_000_000
"""Parameters below which no model that we tried wrote a summary that says what its text says."""


def summarize(
    file: Annotated[Path, typer.Argument(help="A document: text, Markdown, HTML or PDF.")],
    prompt: Annotated[
        str,
        typer.Option(help="The prompt file that summarizes a text.", autocompletion=shared.prompts),
    ] = "summary",
    model: shared.ModelOption = None,
    as_json: shared.JsonOption = False,
) -> None:
    """Summarize a document longer than the window: its passages, then the summaries."""
    from chatapp.common.settings import load_settings
    from chatapp.dialogue.prompt_files import answerer_for
    from chatapp.tasks.files.promptfile import load_prompt
    from chatapp.tasks.summaries import summarize, trace_sentences

    task = load_prompt(prompt_path(prompt))
    if task.labels or task.choices or task.text is not None or len(task.form.query_fields) != 1:
        raise UserError(f"{task.path}: does not turn a text into another; --prompt names one")
    settings = load_settings({"model": model})
    language_model = load(settings.model, settings.precision, settings.device)
    pieces = _pieces(file, language_model)
    # The text stands alone: no passages of other documents come before it.
    answerer = answerer_for(replace(task, documents=None), language_model)
    _warn_of_size(language_model)
    texts = [piece.text for piece in pieces]
    with interruptible("interrupted"), progress("Summarizing") as show:
        levels = summarize(
            texts,
            _in_turn(answerer, show),
            lambda text: len(language_model.tokenizer.encode(text)) <= language_model.context // 2,
        )
    sentences = trace_sentences(levels[-1][0], texts)
    if as_json:
        write_json(_document(levels, sentences, pieces))
    else:
        _print(levels, sentences, pieces)


def _warn_of_size(model: "LanguageModel") -> None:
    from chatapp.engine.models.description import read_sizes

    count = read_sizes(model.files).parameters if model.files else None
    if count and count < _TOO_SMALL:
        complain(
            f"{model.name} has {count / 1e6:.1f} million parameters, too few for a summary that "
            "can be trusted; `chatapp models get smollm2` brings a larger model"
        )


def _pieces(file: Path, model: "LanguageModel") -> "list[Piece]":
    """Passages of a third of the window or less. Raises UserError for a file without text."""
    from chatapp.dialogue.documents.passages import Unreadable
    from chatapp.dialogue.documents.reader import DocumentReader

    reader = DocumentReader()

    def read(size: float) -> "list[Piece]":
        batches = reader.read(str(file.absolute()), max(1, int(size)), "")
        return [piece for _, _, pieces in batches for piece in pieces]

    try:
        text = read(_SAMPLE)[0].text
        per_token = len(text) / max(1, len(model.tokenizer.encode(text)))
        return read(per_token * min(_PASSAGE, model.context / 3))
    except Unreadable as error:
        raise UserError(f"{file}: {error}") from None
    finally:
        reader.close()


def _in_turn(
    answerer: "Answerer", show: Callable[[int, None], None]
) -> Callable[[Sequence[str]], list[str]]:
    """Summarizes texts one after another, and shows how many are done."""
    done = 0

    def answer(text: str) -> str:
        nonlocal done
        (answer,) = answerer.answer([answerer.prepare(text)]) if text else [None]
        if answer and answer.finished and answer.finished.reason == "error":
            raise UserError(answer.finished.message)
        done += 1
        show(done, None)
        return answer.output if answer else ""

    return lambda texts: [answer(text) for text in texts]


def _document(
    levels: "Sequence[Sequence[Summary]]",
    sentences: "Sequence[TracedSentence]",
    pieces: "Sequence[Piece]",
) -> dict[str, Any]:
    def places(numbers: Sequence[int]) -> list[str]:
        return [pieces[number].place for number in numbers]

    return {
        "summary": levels[-1][0].text,
        "sentences": [{"text": one.text, "passages": places(one.passages)} for one in sentences],
        "levels": [
            [asdict(summary) | {"passages": places(summary.passages)} for summary in level]
            for level in levels
        ],
    }


def _print(
    levels: "Sequence[Sequence[Summary]]",
    sentences: "Sequence[TracedSentence]",
    pieces: "Sequence[Piece]",
) -> None:
    """The summary, then what it was made from: the summary of each passage."""
    for sentence in sentences:
        places = "; ".join(pieces[number].place for number in sentence.passages)
        write(f"{sentence.text}  [{places or 'no passage'}]\n")
    if len(pieces) > 1:
        write("\n")
        for summary, piece in zip(levels[0], pieces, strict=True):
            write(f"[{piece.place}]  {summary.text}\n")
    counts = ", ".join(str(len(level)) for level in levels)
    write(f"\n{len(pieces)} passages; summaries on each level: {counts}\n")
