"""Teach a GPT, from Python as from the command line: `train`, `evaluate` and `predict`.

Keep: a function does what the command of its name does, takes the same keys, and raises
`chatapp.common.userfiles.UserError` for what the user can put right.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def train(config: Mapping[str, Any] | str | Path, *overrides: str, device: str = "auto") -> Path:
    """Fine-tune a model; returns the folder of the run, which `evaluate` takes.

    config: a TOML file, or its tables as dictionaries (`finetune keys` lists them).
    overrides: key=value, laid over it. device: "auto", "cpu" or "cuda".
    """
    from rich.console import Console

    from finetune.config.sections import FinetuneConfig, lay_over, load_config, validated
    from finetune.run import train as run

    if isinstance(config, Mapping):
        settings = validated(FinetuneConfig, dict(config), "the configuration")
        settings = lay_over(settings, overrides)
    else:
        settings = load_config(FinetuneConfig, Path(config), overrides)
    return run(settings, Console(stderr=True, highlight=False), device)


def evaluate(
    run: str | Path,
    *overrides: str,
    data: str | Path = "",
    replies: int = 100,
    max_tokens: int = 128,
    device: str = "auto",
) -> dict[str, Any]:
    """What `finetune eval RUN --json` prints of a model, sets of rows by their names.

    data: rows to measure on; default: the run's held-out rows. overrides: key=value of data
    and head. replies: greedy replies to make a set, of at most `max_tokens` tokens.
    """
    from finetune.evaluation import evaluate as measure

    def quiet(what: str, done: int, total: int) -> None:
        pass

    name = str(run)
    measured = measure(name, name, str(data), replies, max_tokens, quiet, device, overrides)
    return measured.document()


def predict(
    run: str | Path, inputs: Sequence[str | Mapping[str, Any]], device: str = "auto"
) -> list[dict[str, Any]]:
    """What a run with a head answers to each input: a text, or the fields of a row.

    Each answer has `output` and `label_probabilities`, or the `score` of regression.
    """
    from finetune.prediction import open_predictor

    predictor = open_predictor(str(run), device)
    rows = [
        predictor.row(given if isinstance(given, str) else dict(given), f"input {number}")
        for number, given in enumerate(inputs, 1)
    ]
    return predictor.answers(rows)
