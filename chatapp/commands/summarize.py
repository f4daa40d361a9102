"""`chatapp summarize`: one summary of a document of any length, each sentence with its passages.

Invariant: the texts are summarized by a prompt file, as `chatapp run` does it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chatapp.commands import options as completion
from chatapp.commands.console import interruptible, progress, write, write_json
from chatapp.commands.loading import load, prompt_path, template_for
from chatapp.commands.options import JsonOption, ModelOption
from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.engine.model import LanguageModel
    from chatapp.fewshot.answering import Answerer
    from chatapp.passages.reading import Piece


def summarize(
    file: Annotated[Path, typer.Argument(help="A document: text, Markdown, HTML or PDF.")],
    prompt: Annotated[
        str,
        typer.Option(
            help="The prompt file that summarizes a text.", autocompletion=completion.prompts
        ),
    ] = "summary",
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Summarize a document longer than the window: its passages, then the summaries."""
    from dataclasses import asdict

    from chatapp.common.settings import load_settings
    from chatapp.fewshot.answering import Answerer
    from chatapp.fewshot.options import selector_for
    from chatapp.fewshot.summaries import summarize, trace_sentences
    from chatapp.prompting.files.promptfile import load_prompt

    task = load_prompt(prompt_path(prompt))
    if task.labels or task.choices or task.text is not None or len(task.form.query_fields) != 1:
        raise UserError(f"{task.path}: does not turn a text into another; --prompt names one")
    settings = load_settings({"model": model})
    language_model = load(settings.model, settings.precision, settings.device)
    pieces = _pieces(file, language_model)
    template = template_for([task], language_model)
    answerer = Answerer(language_model, task, selector_for(task, language_model), template=template)
    with interruptible("interrupted"), progress("Summarizing") as show:
        done = 0

        def answer(texts: Sequence[str]) -> list[str]:
            nonlocal done
            outputs = []
            for text in texts:
                outputs.append(_summary(answerer, text) if text else "")
                done += 1
                show(done, None)
            return outputs

        half = language_model.context // 2
        texts = [piece.text for piece in pieces]
        levels = summarize(
            texts, answer, lambda text: len(language_model.tokenizer.encode(text)) <= half
        )
    (last,) = levels[-1]
    sentences = trace_sentences(last, texts)
    if as_json:
        traced = [
            {"text": sentence.text, "passages": [pieces[n].place for n in sentence.passages]}
            for sentence in sentences
        ]
        kept = [
            [
                asdict(summary) | {"passages": [pieces[n].place for n in summary.passages]}
                for summary in level
            ]
            for level in levels
        ]
        write_json({"summary": last.text, "sentences": traced, "levels": kept})
        return
    for sentence in sentences:
        places = "; ".join(pieces[number].place for number in sentence.passages)
        write(f"{sentence.text}  [{places or 'in no passage'}]\n")
    counts = ", ".join(str(len(level)) for level in levels)
    write(f"\n{len(pieces)} passages; summaries on each level: {counts}\n")


def _pieces(file: Path, model: "LanguageModel") -> "list[Piece]":
    """Passages of a third of the window or less. Raises UserError for a file without text."""
    from chatapp.passages.reading import Unreadable, cut, read_blocks, read_bytes

    try:
        blocks = read_blocks(file, read_bytes(file))
    except Unreadable as error:
        raise UserError(f"{file}: {error}") from None
    text = " ".join(block.text for block in blocks)
    per_token = len(text) / max(1, len(model.tokenizer.encode(text)))
    return list(cut(blocks, max(1, int(per_token * model.context / 3))))


def _summary(answerer: "Answerer", text: str) -> str:
    """The answer of the prompt file to a text. Raises UserError when there is none."""
    (answer,) = answerer.answer([answerer.prepare(text)])
    if answer.finished and answer.finished.reason == "error":
        raise UserError(answer.finished.message)
    return answer.output
