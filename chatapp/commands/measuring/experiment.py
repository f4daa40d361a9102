"""`chatapp experiment`: what in a prompt file, or in a text, does an answer depend on?"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated

import typer

from chatapp.commands import options as shared
from chatapp.commands.console import interruptible, progress, write, write_json
from chatapp.commands.loading import load
from chatapp.commands.measuring.tasks import TEST_HELP, measure_model, print_table, read_tasks
from chatapp.common.command_groups import number_option
from chatapp.tasks.settings import SHOTS

if TYPE_CHECKING:
    from chatapp.tasks.evaluation.evaluate import Task
    from chatapp.tasks.evaluation.experiments import PairPreference
    from chatapp.tasks.evaluation.report import Result

app = typer.Typer(no_args_is_help=True, help="Find what the answers to a prompt depend on.")

FileArgument = Annotated[
    str,
    typer.Argument(help="A prompt file, or a name of the library.", autocompletion=shared.prompts),
]
TestOption = Annotated[Path, typer.Option(help=TEST_HELP)]
ShotsOption = Annotated[
    int, number_option(SHOTS, low=1, meaning="examples to show, the same to all items")
]
LimitOption = Annotated[int, typer.Option(min=1, help="Use at most this many test items.")]
SeedOption = Annotated[int, number_option("seed", meaning="draws the examples and the test items")]


@app.command()
def order(
    file: FileArgument,
    test: TestOption,
    shots: ShotsOption = 8,
    orders: Annotated[int, typer.Option(min=2, help="How many orders to try.")] = 10,
    limit: LimitOption = 100,
    seed: SeedOption = 0,
    model: shared.ModelOption = None,
    as_json: shared.JsonOption = False,
) -> None:
    """Show the same examples in different orders: how much do the measures vary?"""
    from chatapp.tasks.evaluation.experiments import order_variants

    (task,) = read_tasks([file], test, limit, seed, strict=False)
    results = _measure(order_variants(task, shots, orders, seed), model)
    summary = {metric: _spread(results, metric) for metric in task.prompt.metrics}
    if as_json:
        write_json({"summary": summary, "results": [result.to_json() for result in results]})
        return
    print_table(results)
    count = len({result.task for result in results})
    for metric, of in summary.items():
        write(
            f"{metric} over {count} orders: mean {of['mean']:.3f}, standard deviation "
            f"{of['spread']:.3f}, from {of['lowest']:.3f} to {of['highest']:.3f}\n"
        )


@app.command()
def labels(
    file: FileArgument,
    test: TestOption,
    shots: ShotsOption = 8,
    limit: LimitOption = 100,
    seed: SeedOption = 0,
    model: shared.ModelOption = None,
    as_json: shared.JsonOption = False,
) -> None:
    """Give the examples random, wrong or renamed labels: does the model learn from them?"""
    from chatapp.tasks.evaluation.experiments import label_variants

    (task,) = read_tasks([file], test, limit, seed, strict=False)
    results = _measure(label_variants(task, shots, seed), model)
    if as_json:
        write_json({"results": [result.to_json() for result in results]})
        return
    print_table(results)
    write(
        "gold: the examples' own labels; random: drawn; exchanged: all wrong; words: each label "
        "renamed to an\nunrelated word, also in the test items; none: no examples\n"
    )


def _measure(variants: "Sequence[Task]", model: str | None) -> "list[Result]":
    from chatapp.common.settings import load_settings
    from chatapp.tasks.evaluation.evaluate import Grid

    with interruptible("interrupted"):
        return measure_model(variants, Grid(), load_settings({"model": model}), None)[0]


def _spread(results: "Sequence[Result]", metric: str) -> dict[str, float]:
    """How a measure varies over the results of several orders."""
    means = [result.mean for result in results if result.metric == metric]
    ends = {"lowest": min(means), "highest": max(means)}
    return {"mean": fmean(means), "spread": stdev(means), **ends}


@app.command()
def pairs(
    file: Annotated[
        Path,
        typer.Argument(
            help="Texts as sent_more and sent_less, perhaps with a bias_type "
            "(.jsonl, .csv, CrowS-Pairs)."
        ),
    ],
    model: shared.ModelOption = None,
    as_json: shared.JsonOption = False,
) -> None:
    """Compare texts that differ in a word: which does the model find more likely?"""
    from chatapp.common.settings import load_settings
    from chatapp.tasks.evaluation.experiments import (
        preference,
        preferences_by_kind,
        read_text_pairs,
        score_pairs,
        with_equal_lengths,
    )

    texts = read_text_pairs(file)
    settings = load_settings({"model": model})
    with interruptible("interrupted"), progress("Scoring") as show:
        loaded = load(settings.model, "float32", settings.device)
        differences = score_pairs(loaded, texts, show)
    whole, by_kind = preference(differences), preferences_by_kind(texts, differences)
    equal = with_equal_lengths(loaded, texts, differences)
    if as_json:
        kinds = {kind: asdict(of) for kind, of in by_kind.items()}
        of_all = {"model": settings.model, "differences": differences, **asdict(whole)}
        lengths = {name.replace(" ", "_"): asdict(of) for name, of in equal.items()}
        write_json(of_all | lengths | {"bias_types": kinds})
        return
    _print_preferences({"all pairs": whole, **equal, **by_kind})


def _print_preferences(rows: "Mapping[str, PairPreference]") -> None:
    """A line for all pairs, and one for each kind of them."""
    width = max(map(len, rows))
    write(
        "log p(sent_more) - log p(sent_less) in nats, and in which share of the pairs sent_more is "
        "likelier;\nin brackets 95 % intervals\n\n"
    )
    for name, of in rows.items():
        low, high = of.preferred_interval
        spread = (
            "(one pair)" if of.interval is None else "({:+.2f} to {:+.2f})".format(*of.interval)
        )
        share = f"{of.preferred:.3f} ({low:.3f} to {high:.3f})"
        write(f"{name:{width}}  n {of.n:<5} {of.mean:+.2f} {spread:20} {share}\n")
