"""`chatapp experiment`: what in a prompt file, or in a text, does an answer depend on?

Invariant: each experiment changes one thing and prints what changed with an interval.
"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chatapp.commands import options as completion
from chatapp.commands.console import interruptible, progress, write, write_json
from chatapp.commands.eval import measure_model, print_table, read_tasks
from chatapp.commands.loading import choices_for, load
from chatapp.commands.options import JsonOption, ModelOption
from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chatapp.common.settings import Settings
    from chatapp.evaluation.evaluate import Task
    from chatapp.evaluation.report import Result

app = typer.Typer(no_args_is_help=True)

FileArgument = Annotated[
    str,
    typer.Argument(
        help="A prompt file, or a name of the library.", autocompletion=completion.prompts
    ),
]
TestOption = Annotated[
    Path, typer.Option(help="Test items with their gold answers (.jsonl, .csv).")
]
ShotsOption = Annotated[int, typer.Option(min=1, help="Examples to show, the same to all items.")]
LimitOption = Annotated[int, typer.Option(min=1, help="Use at most this many test items.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Draws the examples and the test items.")]


@app.command()
def order(
    file: FileArgument,
    test: TestOption,
    shots: ShotsOption = 8,
    orders: Annotated[int, typer.Option(min=2, help="How many orders to try.")] = 10,
    limit: LimitOption = 100,
    seed: SeedOption = 0,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the same examples in different orders: how much do the measures vary?"""
    from statistics import fmean, stdev

    from chatapp.common.settings import load_settings
    from chatapp.evaluation.variants import order_variants

    (task,) = read_tasks([file], test, limit, seed, strict=False)
    variants = order_variants(task, shots, orders, seed)
    results = _measure(variants, load_settings({"model": model}))
    summary = {}
    for metric in task.prompt.metrics:
        means = [result.mean for result in results if result.metric == metric]
        ends = {"lowest": min(means), "highest": max(means)}
        summary[metric] = {"mean": fmean(means), "spread": stdev(means), **ends}
    if as_json:
        write_json({"summary": summary, "results": [asdict(result) for result in results]})
        return
    print_table(results)
    for metric, of in summary.items():
        write(
            f"{metric} over {len(variants)} orders: mean {of['mean']:.3f}, standard deviation "
            f"{of['spread']:.3f}, from {of['lowest']:.3f} to {of['highest']:.3f}\n"
        )


@app.command()
def labels(
    file: FileArgument,
    test: TestOption,
    shots: ShotsOption = 8,
    limit: LimitOption = 100,
    seed: SeedOption = 0,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give the examples random, wrong or renamed labels: does the model learn from them?"""
    from chatapp.common.settings import load_settings
    from chatapp.evaluation.variants import label_variants

    (task,) = read_tasks([file], test, limit, seed, strict=False)
    results = _measure(label_variants(task, shots, seed), load_settings({"model": model}))
    if as_json:
        write_json({"results": [asdict(result) for result in results]})
        return
    print_table(results)
    write(
        "gold: the examples' own labels; random: drawn; exchanged: all wrong; words: each label "
        "renamed to an\nunrelated word, also in the test items; none: no examples\n"
    )


@app.command()
def pairs(
    file: Annotated[
        Path, typer.Argument(help="Texts as sent_more and sent_less (.jsonl, .csv, CrowS-Pairs).")
    ],
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare texts that differ in a word: which does the model find more likely?"""
    from chatapp.common.settings import load_settings
    from chatapp.evaluation.text_pairs import measure_preference, read_text_pairs

    texts = read_text_pairs(file)
    settings = load_settings({"model": model})
    with interruptible("interrupted"):
        preference = measure_preference(load(settings.model, "float32", settings.device), texts)
    if as_json:
        write_json({"model": settings.model, **asdict(preference)})
        return
    low, high = preference.interval
    write(f"{len(texts)} pairs: log p(sent_more) - log p(sent_less)\n")
    write(f"mean {preference.mean:+.3f} nats, 95 % {low:+.3f} to {high:+.3f}\n")
    low, high = preference.preferred_interval
    write(f"sent_more is likelier in {preference.preferred:.3f}, 95 % {low:.3f} to {high:.3f}\n")


@app.command()
def blind(
    file: Annotated[Path, typer.Argument(help="Passages (.jsonl, .csv, or a line each).")],
    words: Annotated[
        int, typer.Option(min=1, help="Words of a beginning, and at most of its continuation.")
    ] = 50,
    limit: Annotated[int, typer.Option(min=1, help="Use at most this many passages.")] = 30,
    seed: SeedOption = 0,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read continuations in the terminal: can you tell the model's from the passages' own?"""
    from chatapp.common.settings import load_settings
    from chatapp.evaluation.blind_test import make_trials, recognitions
    from chatapp.evaluation.evaluate import subset
    from chatapp.evaluation.language_modelling import read_passages

    passages = [item.input for item in subset(read_passages(file), limit, seed)]
    settings = load_settings({"model": model})
    if not sys.stdin.isatty():
        raise UserError("a reader answers in a terminal, and standard input is none")
    language_model = load(settings.model, settings.precision, settings.device)
    sampling = choices_for(language_model, settings).sampling
    with interruptible("interrupted"), progress("Writing") as show:
        trials = make_trials(language_model, passages, words, sampling, seed, show)

    from chatapp.tui.blind import BlindTestApp

    reading = BlindTestApp(trials)
    reading.run()
    if reading.failure is not None:
        raise reading.failure
    results = recognitions(trials, reading.verdicts)
    if as_json:
        answered = zip(trials, reading.verdicts, strict=False)
        rows = [asdict(trial) | {"verdict": verdict} for trial, verdict in answered]
        write_json({"recognitions": [asdict(result) for result in results], "trials": rows})
        return
    for result in results:
        low, high = result.interval
        write(
            f"{result.origin} against human: {result.accuracy:.3f} right, 95 % {low:.3f} to "
            f"{high:.3f}, n {result.n}, don't know {result.unknown}\n"
        )


def _measure(variants: "Sequence[Task]", settings: "Settings") -> "list[Result]":
    from chatapp.evaluation.evaluate import Grid

    with interruptible("interrupted"):
        return measure_model(variants, Grid(), settings, None)[0]
