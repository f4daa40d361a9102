"""`chatapp perplexity`: how well a model predicts a text file."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from chatapp.commands import options as shared
from chatapp.commands.console import interruptible, progress, write, write_json
from chatapp.commands.loading import load
from chatapp.common.userfiles import UserError, read_required


def perplexity(
    file: Annotated[Path, typer.Argument(help="A text file in UTF-8.")],
    stride: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens scored in each window; default: half the model's window."),
    ] = None,
    model: shared.ModelOption = None,
    precision: shared.PrecisionOption = None,
    concurrency: shared.ConcurrencyOption = None,
    as_json: shared.JsonOption = False,
) -> None:
    """Measure the perplexity of a text over a sliding window."""
    from chatapp.common.settings import load_settings
    from chatapp.tasks.evaluation import language_modelling as measure

    text = read_required(file)
    settings = load_settings({"model": model, "precision": precision})
    # A figure for comparisons is exact unless --precision changes it.
    wanted = settings.precision if precision else "float32"
    language_model = load(settings.model, wanted, settings.device, concurrency)
    with interruptible("interrupted"), progress("Perplexity") as show:
        try:
            result = measure.perplexity(language_model, text, stride, show)
        except ValueError as error:
            raise UserError(f"{file}: {error}") from None
    per_unit = {
        "per_token": result.per_token,
        "per_word": result.per_word,
        "per_byte": result.per_byte,
    }
    if as_json:
        figures = {key: value for key, value in asdict(result).items() if value is not None}
        write_json({"model": settings.model, **per_unit, **figures})
        return
    for name, value in per_unit.items():
        # Four digits of a small figure, and whole numbers of a large one.
        decimals = max(0, 4 - len(str(int(value)))) if math.isfinite(value) else 0
        write(f"perplexity {name.replace('_', ' ')}: {value:,.{decimals}f}\n")
    if result.without_memory is not None:
        alone = measure.exp_or_inf(result.without_memory / result.tokens)
        write(f"perplexity per token without memory: {alone:,.3f}\n")
    write(
        f"per word: over all tokens of a word, {result.tokens / result.words:.1f} here; "
        "models with other tokens compare by it\n"
        f"{result.tokens:,} tokens, {result.words:,} words, {result.bytes:,} bytes, "
        f"stride {result.stride}\n"
    )
