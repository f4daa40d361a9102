"""The `finetune` command. Heavy modules are imported inside the command that needs them."""

import gc
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chatapp.common.command_groups import DailyFirst, number_option
from chatapp.common.foreign import printable
from chatapp.common.unforeseen import (
    INTERRUPTS,
    describe_unforeseen,
    prepare_streams,
    silence_libraries,
)
from chatapp.common.userfiles import reason
from chatapp.dialogue.feedback import FeedbackFormat
from chatapp.engine.kernels.machine import wait_briefly

if TYPE_CHECKING:
    from rich.console import Console


class _Group(DailyFirst):
    daily = ("check", "train", "resume", "eval", "feedback", "keys")


app = typer.Typer(
    name="finetune",
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Teach a GPT: instructions, feedback, linear heads, pretraining.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Config = Annotated[Path, typer.Argument(help="the configuration, a TOML file")]
Run = Annotated[Path, typer.Argument(help="the folder of a run")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="key=value, overrides the file", metavar="[KEY=VALUE]...")
]
_OVERRIDE = re.compile(r"[a-z_]+(\.\w+)*=")

_AGAIN = "interrupted; run the same command again to continue from the last checkpoint"

AsJson = Annotated[bool, typer.Option("--json", help="print one JSON document")]


@contextmanager
def errors_in_words(interrupted: str = "interrupted") -> Iterator["Console"]:
    """A console on standard error, where every error is one sentence."""
    from rich.console import Console

    first = os.environ.get("RANK", "0") == "0"
    console = Console(stderr=True, highlight=False, quiet=not first)
    try:
        yield console
    except KeyboardInterrupt:
        code, text = 130, interrupted
    except (typer.Exit, *INTERRUPTS):
        raise
    except BaseException as error:
        code, text = _verdict(error)
    else:
        return
    # Every process may fail differently; all messages are shown.
    Console(stderr=True, highlight=False, soft_wrap=True).print(printable(text), markup=False)
    raise typer.Exit(code) from None


def _verdict(error: BaseException) -> tuple[int, str]:
    """Exit status and sentence of an error."""
    from chatapp.common.userfiles import UserError, invalid_path, system_error
    from chatapp.tasks.evaluation.journal import NotWritten
    from finetune.config.sections import Interrupted

    if isinstance(error, UserError):
        return 2, str(error)
    if (problem := invalid_path(error)) is not None:
        return 2, problem
    if isinstance(error, Interrupted):
        return 130, str(error)
    if (failure := system_error(error)) is not None:
        why = reason(failure)
        return 1, f"{failure.filename}: {why}" if failure.filename else why
    if isinstance(error, FloatingPointError | MemoryError | NotWritten):
        return 1, str(error) or "there is not enough memory; try a smaller train.batch_size"
    if isinstance(error, RuntimeError) and "memory" in str(error):
        line = str(error).strip().splitlines()[0]
        return 1, f"there is not enough memory ({line}); try a smaller train.batch_size"
    return 1, describe_unforeseen(error)


def print_made(folder: Path) -> None:
    """Print a model's folder on standard output, and add it to `chatapp models list`."""
    from chatapp.engine.models.resolving import note_model

    note_model(folder)
    print_answer(str(folder))


def print_answer(text: str) -> None:
    """Print the answer on standard output, in the first of several processes."""
    if os.environ.get("RANK", "0") == "0":
        sys.stdout.write(text + "\n")


def _device() -> str:
    """The device of the settings."""
    from chatapp.common.settings import load_settings

    return load_settings().device


def _print_result(result: Any, *, as_json: bool) -> None:
    """Print a result that has a `document`, or as rich draws it."""
    from rich.console import Console

    if as_json:
        print_answer(json.dumps(result.document()))
    else:
        Console(highlight=False).print(result)


@app.command()
def check(
    config: Config,
    overrides: Overrides = None,
    as_json: AsJson = False,
    run_rewards: Annotated[
        bool, typer.Option("--run-rewards", help="run reward functions, as training does")
    ] = False,
) -> None:
    """Say what would be trained on what: rows kept and dropped and why, lengths, masks, cost."""
    with errors_in_words():
        from rich.console import Console

        from finetune.config.sections import FinetuneConfig, load_config

        settings = load_config(FinetuneConfig, config, overrides or [])
        from finetune.run import examine, show

        examination = examine(settings, _device(), runs_code=run_rewards)
        if as_json:
            print_answer(json.dumps(examination.document()))
        else:
            show(examination, Console(highlight=False))


@app.command()
def train(config: Config, overrides: Overrides = None) -> None:
    """Fine-tune a model on the rows of CONFIG; `chatapp --model RUN` then chats with it."""
    with errors_in_words() as console:
        from finetune.config.sections import FinetuneConfig, load_config

        settings = load_config(FinetuneConfig, config, overrides or [])
        from finetune import run

        print_made(run.train(settings, console, _device()))


@app.command()
def resume(run: Run, overrides: Overrides = None) -> None:
    """Continue a run that was stopped, from its last checkpoint, as if it had not been."""
    with errors_in_words() as console:
        from finetune.run import resume

        print_made(resume(run, overrides or [], console, _device()))


@app.command(name="eval")
def evaluate(
    run: Annotated[str, typer.Argument(help="a run, or another model with --data")],
    others: Annotated[
        list[str] | None,
        typer.Argument(
            help="a second model, measured on rows that both can use; key=value of data and head",
            metavar="[OTHER] [KEY=VALUE]...",
        ),
    ] = None,
    data: Annotated[
        str, typer.Option(help="rows to measure on; default: the run's held-out rows")
    ] = "",
    replies: Annotated[
        int, typer.Option(min=0, help="number of greedy replies per set of rows")
    ] = 100,
    max_tokens: Annotated[int, number_option("max_tokens", in_sentence=False)] = 128,
    shown: Annotated[int, typer.Option(min=0, help="number of replies to print")] = 5,
    as_json: AsJson = False,
) -> None:
    """Held-out loss, perplexity, accuracy, and greedy replies against those of the rows.

    A run's rows are those that its training measured; a file is read as the run's rows were.
    """
    with errors_in_words() as console:
        from rich.console import Console
        from rich.text import Text

        from finetune.evaluation import compare
        from finetune.measuring.results import differences, show

        overrides = [text for text in others or () if _OVERRIDE.match(text)]
        models = [run, *(text for text in others or () if not _OVERRIDE.match(text))]
        device = _device()
        with console.status("reading") as status:

            def progress(what: str, done: int, total: int) -> None:
                status.update(Text(f"{what}, {done:,} of {total:,}"))

            evaluations = compare(models, data, replies, max_tokens, progress, device, overrides)
        if as_json:
            runs = [evaluation.document() for evaluation in evaluations]
            pairs = [
                pair for name in evaluations[0].sets for pair in differences(name, evaluations)
            ]
            print_answer(json.dumps({"runs": runs, "comparisons": pairs}))
        else:
            Console(highlight=False).print(show(evaluations, shown))


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs")],
    output: Annotated[
        Path | None, typer.Option(help="write the curves as a picture: .png, .svg or .pdf")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What runs learned, and when: loss, heads, use of the context, step by step.

    Runs that differ only in their seed are shown as their mean and standard deviation.
    """
    with errors_in_words():
        from finetune.compare import RunComparison

        comparison = RunComparison.of(runs)
        if output:
            comparison.save_plot(output)
        _print_result(comparison, as_json=as_json)


@app.command()
def sweep(
    config: Config,
    values: Annotated[
        list[str], typer.Argument(help="keys with their values", metavar="KEY=A,B...")
    ],
    as_json: AsJson = False,
) -> None:
    """Train CONFIG with every combination of values, and compare the runs.

    Such as seed=0,1,2. The same command again continues after the last finished run.
    """
    with errors_in_words(_AGAIN) as console:
        from finetune import sweep
        from finetune.compare import RunComparison

        runs = sweep.sweep(config, values, console, _device())
        _print_result(RunComparison.of(runs), as_json=as_json)


@app.command()
def trace(
    run: Run,
    reply: Annotated[str, typer.Option(help="the reply to look for")],
    verbatim: Annotated[
        bool, typer.Option("--verbatim", help="word for word, the only way to look")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Which spans of a reply stand word for word in a run's training files, and in which row."""
    with errors_in_words():
        from finetune.measuring.verbatim import trace_copies

        _print_result(trace_copies(run, reply, _device()), as_json=as_json)


@app.command()
def predict(
    run: Annotated[str, typer.Argument(help="the folder of a run with a head")],
    text: Annotated[
        str, typer.Option("--input", help="the text, or a JSON object for rows with several fields")
    ] = "",
    inputs: Annotated[
        Path | None, typer.Option(help="a file of inputs: rows, or lines of a .txt file")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="file for the answers to --inputs; an existing one is continued"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Answer texts by a head: the label with its probabilities, or the score of regression."""
    hint = f"; run the same command again to continue {output}" if output else ""
    with errors_in_words(f"interrupted{hint}") as console:
        from finetune.config.sections import ConfigError

        if bool(text.strip()) == bool(inputs):
            raise ConfigError("expected --input with a text, or --inputs with a file of them")
        if output and not inputs:
            raise ConfigError("--output needs --inputs")
        from finetune.prediction import answer_file, open_predictor, parsed

        predictor = open_predictor(run, _device())
        if inputs:
            if bad := answer_file(predictor, inputs, output, console, print_answer):
                console.print(f"{bad:,} of the inputs could not be answered")
                raise typer.Exit(1)
            return
        row = predictor.row(parsed(text, predictor.roles), "--input")
        (answer,) = predictor.answers([row])
        if as_json:
            print_answer(json.dumps({"input": text, **answer}))
        else:
            print_answer(printable(str(answer.get("output", answer.get("score")))))
            probabilities = answer.get("label_probabilities", {})
            if isinstance(probabilities, dict):
                for label, probability in probabilities.items():
                    console.print(printable(f"  {label}  {probability:.4f}"), markup=False)


@app.command()
def feedback(
    chats: Annotated[list[int] | None, typer.Argument(help="ids of chats; default: all")] = None,
    model: Annotated[str, typer.Option(help="the model to train; default: the chat's")] = "",
    lesson: Annotated[
        FeedbackFormat | None,
        typer.Option(help="the objective; default: the first with enough feedback"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="the run folder; default: a new one in runs")
    ] = None,
    only_write: Annotated[
        bool, typer.Option(help="only write the rows and the configuration")
    ] = False,
) -> None:
    """Learn from the feedback on replies in the chat: preferences, corrections, verdicts.

    Rows and a small configuration are written, checked and trained; F8 in the chat then lists the
    new model.
    """
    with errors_in_words() as console:
        from chatapp.common.paths import database_path
        from chatapp.common.settings import load_settings
        from chatapp.dialogue.store import Store
        from finetune.config.sections import FinetuneConfig, load_config
        from finetune.feedback import write_lesson

        settings = load_settings()
        with closing(Store(database_path())) as store:
            path, rows = write_lesson(store, chats or (), lesson, model or settings.model, output)
        console.print(f"{rows}: {path}", markup=False)
        if only_write:
            print_answer(str(path))
            return
        from finetune import run
        from finetune.run import examine, show

        config = load_config(FinetuneConfig, path, [])
        show(examine(config, settings.device), console)
        print_made(run.train(config, console, settings.device))


@app.command()
def merge(
    run: Annotated[str, typer.Argument(help="the folder of a run with an adapter")],
    out: Annotated[Path, typer.Argument(help="a new folder")],
) -> None:
    """Write an adapter and its base model as one whole model."""
    with errors_in_words():
        from finetune.sharing import merge

        merge(run, out)
        print_made(out)


@app.command(name="filter")
def filter_documents(
    pool: Annotated[str, typer.Argument(help="documents to choose from: a file or a folder")],
    like: Annotated[str, typer.Option(help="good text, a file or a folder")],
    output: Annotated[Path, typer.Option(help="the chosen documents, a .jsonl file")],
    share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="share of the documents to keep, the likest")
    ] = 0.5,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="keep by chance, the likelier the more alike: GPT-3")
    ] = False,
    seed: Annotated[
        int,
        number_option("seed", in_sentence=False, meaning="of the classifier and of --pareto"),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Keep the pretraining documents that are most like a good text, by a linear classifier."""
    with errors_in_words() as console:
        from finetune.data.quality import filter_pool

        chosen = filter_pool(pool, like, output, share=share, pareto=pareto, seed=seed)
        for line in chosen.lines():
            console.print(line, markup=False)
        print_answer(json.dumps(chosen.document()) if as_json else str(output))


@app.command()
def push(
    run: Annotated[str, typer.Argument(help="the folder of a finished run, or a merged model")],
    repository: Annotated[str, typer.Argument(help="repository on the hub: NAME or OWNER/NAME")],
    private: Annotated[
        bool, typer.Option("--private", help="make a new repository private")
    ] = False,
) -> None:
    """Put a model on the hub, where transformers, vLLM and this program load it by its name."""
    with errors_in_words():
        from huggingface_hub import HfApi

        from finetune.sharing import push

        push(run, repository, HfApi(), private=private)
        print_answer(repository)


@app.command()
def keys(
    section: Annotated[
        str, typer.Argument(help="a section, such as train, or pretrain; default: all of train")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List the keys of a configuration: what each takes, its default, and what it does."""
    with errors_in_words():
        from finetune.config.keys import keys, lines

        chosen = keys(section)
        if as_json:
            print_answer(json.dumps([key.document() for key in chosen]))
        else:
            print_answer("\n".join(lines(chosen)))


@app.command()
def pretrain(config: Config, overrides: Overrides = None) -> None:
    """Train a GPT-2 from random weights on text; a second start continues the first."""
    with errors_in_words(_AGAIN) as console:
        from finetune.config.sections import PretrainConfig, load_config

        settings = load_config(PretrainConfig, config, overrides or [])
        from finetune.pretrain import pretrain as run

        print_made(run(settings, console))


def main() -> None:
    """Entry point of the `finetune` script."""
    prepare_streams()
    silence_libraries()
    wait_briefly(os.environ)
    try:
        app()
    except OSError as error:  # of --help, which no command writes
        sys.exit(f"standard output cannot be written: {reason(error)}")
    finally:
        gc.freeze()  # the interpreter's last collection would take a fifth of a short command


if __name__ == "__main__":
    main()
