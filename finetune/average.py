"""`finetune average`: a model whose weights are the mean of others', of checkpoints or of stages.

The mean of the last checkpoints is often better than any of them (Izmailov et al. 2018, arXiv
1803.05407). After fine-tuning, weights on the straight line back to those before it are often
better on the old tasks and no worse on the new (WiSE-FT; Wortsman et al. 2022, arXiv 2109.01903).
"""

from pathlib import Path
from typing import Annotated

import typer

from finetune.console import errors_in_words, print_made


def average(
    models: Annotated[list[str], typer.Argument(help="models of one shape, such as checkpoints")],
    output: Annotated[Path, typer.Option(help="a new folder")],
    share: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="of all but the last model; default: equal shares"),
    ] = None,
) -> None:
    """Write the mean of several models' weights as a model, with the other files of the last one.

    It is stored in float16.
    """
    with errors_in_words():
        write_average(models, output, share)
        print_made(output)


def write_average(models: list[str], output: Path, share: float | None = None) -> None:
    """See `average`. Raises ConfigError and ModelError."""
    import torch

    from chatapp.engine.backends.transformers_loading import load_causal
    from chatapp.engine.models.resolving import find_model
    from finetune.config.sections import ConfigError
    from finetune.training.adapters import copy_companions, require_new_folder
    from finetune.training.export import whole_model

    *others, last = models
    if not others:
        raise ConfigError(f"expected several models to average; there is one, {last}")
    require_new_folder(output)
    part = 1 / len(models) if share is None else share / len(others)
    files = find_model(last)
    mean = load_causal(files)
    with torch.no_grad():
        weights = dict(mean.named_parameters())  # a tied one once
        shapes = [(key, weight.shape) for key, weight in weights.items()]
        for weight in weights.values():
            weight.mul_(1 - part * len(others))
        for name in others:
            other = dict(load_causal(find_model(name)).named_parameters())
            if [(key, w.shape) for key, w in other.items()] != shapes:
                raise ConfigError(f"{name} and {last} are models of different shapes")
            for key, weight in weights.items():
                weight.add_(other[key], alpha=part)
    with whole_model(output) as aside:
        mean.half().save_pretrained(aside)
        copy_companions(files, aside)
