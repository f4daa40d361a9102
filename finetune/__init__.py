"""Train, evaluate and use a GPT, from Python as from the command line: `check`, `train`, `evaluate`
and `predict`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finetune.config.sections import FinetuneConfig


def train(config: Mapping[str, Any] | str | Path, *overrides: str, device: str = "auto") -> Path:
    """Fine-tune a model; return the folder of the run, which `evaluate` takes.

    config: a TOML file, or its tables as dictionaries (`finetune keys` lists them). overrides:
    key=value, replacing values of it. device: "auto", "cpu" or "cuda".
    """
    from rich.console import Console

    from finetune.run import train as run

    return run(_settings(config, overrides), Console(stderr=True, highlight=False), device)


def check(
    config: Mapping[str, Any] | str | Path, *overrides: str, device: str = "auto"
) -> dict[str, Any]:
    """What would be trained on what: the output of `finetune check CONFIG --json`. Arguments as of
    `train`; nothing that came with the rows runs.
    """
    from finetune.run import examine

    return examine(_settings(config, overrides), device, runs_code=False).document()


def _settings(config: Mapping[str, Any] | str | Path, overrides: Sequence[str]) -> "FinetuneConfig":
    from finetune.config.sections import FinetuneConfig, lay_over, load_config, validated

    if isinstance(config, Mapping):
        settings = validated(FinetuneConfig, dict(config), "the configuration")
        return lay_over(settings, overrides)
    return load_config(FinetuneConfig, Path(config), overrides)


def evaluate(
    run: str | Path,
    *overrides: str,
    data: str | Path = "",
    replies: int = 100,
    max_tokens: int = 128,
    device: str = "auto",
) -> dict[str, Any]:
    """Evaluate a model: the output of `finetune eval RUN --json`, by the names of the row sets.

    data: rows to evaluate on; default: the run's held-out rows. overrides: key=value of data and
    head. replies: number of greedy replies per set, each of at most `max_tokens` tokens.
    """
    from finetune.evaluation import evaluate as measure

    name, silent = str(run), lambda *_: None
    evaluation = measure(name, name, str(data), replies, max_tokens, silent, device, overrides)
    return evaluation.document()


def predict(
    run: str | Path, inputs: Sequence[str | Mapping[str, Any]], device: str = "auto"
) -> list[dict[str, Any]]:
    """The answers of a run with a head to each input: a text, or the fields of a row.

    Each answer has `output` and `label_probabilities`, or the `score` of regression.
    """
    from finetune.prediction import open_predictor

    predictor = open_predictor(str(run), device)
    rows = [
        predictor.row(entry if isinstance(entry, str) else dict(entry), f"input {number}")
        for number, entry in enumerate(inputs, 1)
    ]
    return predictor.answers(rows)
