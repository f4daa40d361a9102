"""`chatapp run`: a prompt file on one input, or on a file of them."""

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chatapp.commands import options as shared
from chatapp.commands.console import (
    complain,
    interruptible,
    progress,
    reading_documents,
    write,
    write_json,
)
from chatapp.commands.loading import choices_for, load, prompt_path, report_pool
from chatapp.common.command_groups import number_option
from chatapp.common.foreign import printable
from chatapp.common.userfiles import UserError
from chatapp.rows.examples import read_pool
from chatapp.rows.reading import RowsError
from chatapp.tasks.settings import SETTINGS

if TYPE_CHECKING:
    from chatapp.lab.views.prompt_part_view import PromptParts
    from chatapp.tasks.answering import Answer, Answering, Question
    from chatapp.tasks.files.promptfile import PromptFile

_STYLES = {
    "instruction": "bold magenta",
    "example": "cyan",
    "document": "blue",
    "user": "bold green",
    "assistant": "bold yellow",
    "thinking": "dim italic",
    "tool": "red",
    "marker": "dim",
    "special": "reverse",
    "end": "reverse",
}


FileArgument = Annotated[
    str | None,
    typer.Argument(
        help="Prompt file (.toml, .txt), pool (.jsonl, .csv), or library name; "
        "without it, the library is listed.",
        show_default=False,
        autocompletion=shared.prompts,
    ),
]


@dataclass(frozen=True)
class RunOptions:
    """The options of `run` beside those that stand for keys of the prompt file."""

    pool: Annotated[
        str | None,
        typer.Option(
            help="Examples (file, hub id) in place of the prompt file's; without a prompt file, "
            "one is proposed from their columns and printed, to be saved."
        ),
    ] = None
    input: Annotated[
        str | None,
        typer.Option("--input", help="The input; where it has several fields, a JSON object."),
    ] = None
    inputs: Annotated[
        str | None,
        typer.Option(
            help="File of inputs, one per row (.jsonl, .csv) or line; - is standard input."
        ),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            help="File for the answers to --inputs (JSON Lines); an existing one is continued."
        ),
    ] = None
    seed: Annotated[int | None, number_option("seed", meaning="seed of selection and sampling")] = (
        None
    )
    strict: shared.StrictOption = False
    model: shared.ModelOption = None
    concurrency: shared.ConcurrencyOption = None
    no_server: shared.NoServerOption = False
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="Show the exact prompt on standard error.")
    ] = False
    parts: Annotated[
        bool,
        typer.Option(
            "--parts", help="Show which example, passage or other part decided the answer."
        ),
    ] = False
    as_json: shared.JsonOption = False


@shared.prompt_options()
@shared.grouped_options
def run(context: typer.Context, options: RunOptions, file: FileArgument = None) -> None:
    """Answer inputs as a prompt file says: by a label, or by generated text."""
    if file is None and options.pool is None:
        if options.input is not None or options.inputs is not None:
            raise UserError("there is no prompt file; `chatapp run` alone lists the library")
        _list(as_json=options.as_json)
        return
    if (prompt := _prompt_of(file, options)) is None:
        return
    texts = {name: text for name in SETTINGS if (text := context.params[name]) is not None}
    keys = {name: SETTINGS[name].read(name, text) for name, text in texts.items()}
    given = [f"--{name}" for name in keys]
    _refuse(prompt, options, given)
    prompt = prompt.changed(**keys, seed=options.seed)
    report_pool(prompt.pool, strict=options.strict)
    hint = f"; run the same command again to continue {options.output}" if options.output else ""
    with interruptible(f"interrupted{hint}"):
        (_one if options.inputs is None else _many)(prompt, options, given)


def _prompt_of(file: str | None, options: RunOptions) -> "PromptFile | None":
    """The prompt file, perhaps with another pool; where there is none, the one proposed for a pool.

    A proposal is printed; it is None where no input uses it at once. Raises UserError.
    """
    from chatapp.tasks.files.promptfile import load_prompt, prompt_from
    from chatapp.tasks.files.proposal import propose

    if (pool := options.pool) is None:
        return load_prompt(prompt_path(file or ""))
    path = Path(file or Path(pool).name.split(".")[0])
    with suppress(UserError):
        path = prompt_path(file) if file else path
    if file and path.is_file():
        prompt = load_prompt(path)
        if prompt.text is not None:
            raise UserError(f"--pool cannot be used with {path}, a text to complete")
        return replace(prompt, pool=read_pool(Path(pool).expanduser(), prompt.columns))
    path = path.with_suffix(".toml")
    source = propose(pool, path)
    prompt = prompt_from(path, source)  # so that only what can be used is proposed
    complain(f"proposed from the columns of {pool}; save it as {path}")
    if options.input is None and options.inputs is None:
        write(source)
        return None
    complain(source)
    return prompt


def _list(*, as_json: bool) -> None:
    """The prompts of the library, each with what it is for."""
    from chatapp.tasks.files.library import tasks
    from chatapp.tasks.files.promptfile import load_prompt

    rows: list[dict[str, str]] = []
    for name, path in tasks().items():
        try:
            rows.append({"name": name, "description": load_prompt(path).description})
        except RowsError as error:  # the others can still be used
            rows.append({"name": name, "error": str(error)})
    if as_json:
        write_json(rows)
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        write(f"{row['name']:{width}}  {row.get('error') or row['description']}\n")


def _refuse(prompt: "PromptFile", options: RunOptions, given: Sequence[str]) -> None:
    """Raise UserError for options that exclude each other. given: those for keys of the file."""
    text, inputs = options.input, options.inputs
    if text is not None and inputs is not None:
        raise UserError("use either --input or --inputs, not both")
    if prompt.text is not None:
        if text is not None or inputs is not None:
            raise UserError(f"{prompt.path}: is a text to complete and takes no input")
        for option in given:
            raise UserError(f"{option} cannot be used with {prompt.path}, a text to complete")
    elif text is None and inputs is None:
        raise UserError(
            "there is no input; pass it with --input, or a file of inputs with --inputs"
        )
    if text is not None and not text.strip():
        raise UserError("--input is empty")
    if inputs is None and options.output is not None:
        raise UserError("--output needs --inputs")
    for_one = {
        "--show-prompt": options.show_prompt,
        "--parts": options.parts,
        "--json": options.as_json,
    }
    for option in (name for name, is_set in for_one.items() if is_set and inputs is not None):
        raise UserError(f"{option} is for one input; the answers to --inputs hold everything")


def _answerer(
    prompt: "PromptFile", options: RunOptions, given: Sequence[str]
) -> "tuple[Answering, str]":
    """The answerer, and a text that identifies it."""
    from chatapp.common.settings import load_settings
    from chatapp.dialogue.prompt_files import answerer_for
    from chatapp.engine.models.resolving import model_identity
    from chatapp.tasks.answering import HeadAnswerer, head_of, sampling_of
    from chatapp.tasks.evaluation.journal import prompt_identity

    settings = load_settings({"model": options.model})
    sampling = sampling_of(prompt)
    # In float32, likelihoods of labels are exact.
    language_model = load(
        settings.model,
        "float32",
        settings.device,
        options.concurrency,
        may_be_served=not options.no_server,
    )
    identity = f"{prompt_identity(prompt)}-{model_identity(language_model)}"
    if prompt.labels and (head := head_of(language_model)):
        for option in given:
            raise UserError(
                f"{option} cannot be used with {head.name}, whose head reads only the input"
            )
        return HeadAnswerer(head, prompt), identity
    # The program's defaults complete a task, the user's settings complete a text.
    if prompt.text is not None:
        sampling = sampling_of(prompt, choices_for(language_model, settings).sampling)
    answerer = answerer_for(prompt, language_model, sampling, progress, reading_documents)
    return answerer, identity


def _one(prompt: "PromptFile", options: RunOptions, given: Sequence[str]) -> None:
    """Answer one input. Raises typer.Exit(1) when the answer breaks off."""
    from chatapp.engine.events import REPEATED
    from chatapp.tasks.evaluation.inputs import query_of
    from chatapp.tasks.evaluation.journal import document

    text = options.input or ""
    query = text if prompt.text is not None else query_of(text, prompt.columns, "--input")
    answerer, _ = _answerer(prompt, options, given)
    question = answerer.prepare(query)
    if options.show_prompt:
        _show(question)
    (answer,) = answerer.answer([question])
    explained = explain_answer(answerer, answer) if options.parts else None
    if options.as_json:
        more = {} if explained is None else {explained.name: explained.to_json()}
        write_json(document(answer) | more)
    else:
        write(answer.output.removesuffix("\n") + "\n")
        _show_probabilities(answer)
        if explained is not None:
            show_parts(explained)
        if question.dropped and not options.show_prompt:
            chosen = len(question.examples) + len(question.dropped)
            complain(f"{len(question.dropped)} of {chosen} examples did not fit and were left out")
    if answer.finished and answer.finished.reason == "repetition":
        complain(REPEATED)
    finished = answer.finished
    if finished and (finished.reason == "error" or finished.valid is False):
        complain(finished.message)
        raise typer.Exit(1)


def _many(prompt: "PromptFile", options: RunOptions, given: Sequence[str]) -> None:
    """Answer every input. Raises typer.Exit(1) at the end when one of them was bad."""

    from chatapp.tasks.evaluation.inputs import read_inputs, read_stream
    from chatapp.tasks.evaluation.journal import Journal, answer_all

    inputs, output, columns = options.inputs or "", options.output, prompt.columns
    is_stream = inputs == "-"
    texts = (
        read_stream(sys.stdin.buffer, columns=columns)
        if is_stream
        else read_inputs(Path(inputs), columns)
    )
    total = None if is_stream else _lines(Path(inputs))
    answerer, identity = _answerer(prompt, options, given)
    answered = bad = 0

    def report(sentence: str) -> None:
        nonlocal bad
        bad += 1
        complain(sentence)

    with ExitStack() as stack:
        journal = stack.enter_context(Journal(output)) if output else None
        show = stack.enter_context(progress("Answering"))
        answers = answer_all(
            answerer,
            texts,
            source="standard input" if is_stream else inputs,
            identity=identity,
            journal=journal,
            report=report,
        )
        for rows in answers:
            answered += len(rows)
            show(rows[-1]["line"], total)
            if journal is None:
                write("".join(json.dumps(row) + "\n" for row in rows), verbatim=True)
    if not answered and not bad:
        is_done = output is not None and output.stat().st_size > 0
        complain(f"{output}: all inputs are already answered" if is_done else f"{inputs}: is empty")
    if bad:
        complain(f"{bad} of the inputs could not be answered")
        raise typer.Exit(1)


def _lines(path: Path) -> int | None:
    """The approximate number of rows of a file, to show progress; None if unknown."""
    try:
        if not path.is_file():  # a pipe can be read once
            return None
        with path.open("rb") as file:
            return sum(1 for _ in file)
    except (OSError, ValueError):
        return None  # reading the rows will report the fault


def _show(question: "Question") -> None:
    """The exact prompt, each segment in the colour of its kind, and its examples."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    if question.segments:  # a vote uses no model
        pieces = ((printable(segment.text), _STYLES[segment.kind]) for segment in question.segments)
        console.print(Text.assemble(*pieces))
    for title, items in (("shown", question.examples), ("dropped", question.dropped)):
        for item in items:
            near = "" if item.similarity is None else f", similarity {item.similarity:.3f}"
            console.print(f"example {item.index} {title}{near}", markup=False, style="dim")


def _show_probabilities(answer: "Answer") -> None:
    width, among_all = max(map(len, answer.probabilities), default=0), answer.of_vocabulary
    if among_all:
        print(f"  {'':{width}}  over the labels  over the vocabulary", file=sys.stderr)
    for label, probability in answer.probabilities.items():
        more = f"{'':11}{among_all[label]:.4g}" if among_all else ""
        print(f"  {printable(label):{width}}  {probability:.4f}{more}", file=sys.stderr)


def explain_answer(answerer: "Answering", answer: "Answer") -> "PromptParts":
    """What in its prompt made an answer: the label against the second most likely one, or the first
    token of a generated text against its runner-up.

    Raises UserError for answers that no single prompt was scored for.
    """
    from chatapp.lab.prompt_parts import parts_of_segments
    from chatapp.lab.views.prompt_part_view import attribute_prompt
    from chatapp.tasks.answering import Answerer

    likelihoods = answer.likelihoods
    is_direct = likelihoods is None or not likelihoods.channel
    if not isinstance(answerer, Answerer) or not answer.question.segments or not is_direct:
        raise UserError(
            "--parts explains labels that are scored directly and generated texts, not votes, "
            "heads or channel scoring"
        )
    labels: list[list[int]] = []
    if likelihoods is not None:
        direct = likelihoods.direct
        others = (label for label in direct if label != answer.output)
        second = max(others, key=direct.__getitem__, default=None)
        chosen = [answer.output] if second is None else [answer.output, second]
        options = answerer.option_ids(answer.question.item)
        labels = [options[label] for label in chosen]
    with progress("Hiding parts of the prompt") as report:
        return attribute_prompt(
            answerer.model,
            answerer.prompt_ids(answer.question),
            parts_of_segments(answer.question.segments, answerer.model.tokenizer),
            *labels,
            by_token=False,
            progress=report,
        )


def show_parts(parts: "PromptParts") -> None:
    """Print on standard error which part was used most, and the effect of each."""
    from rich.console import Console

    from chatapp.lab.drawing.console import drawn

    console = Console(stderr=True, highlight=False)
    for part in drawn([parts], console.width):
        console.print(part)
