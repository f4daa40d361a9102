"""`chatapp perplexity`: how well a model predicts a text file.

Keep: every figure is named with the unit it is per.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from chatapp.commands.ask import JsonOption, ModelOption, PrecisionOption, load
from chatapp.commands.console import write, write_json
from chatapp.commands.prompts import interruptible, progress
from chatapp.userfiles import UserError


def perplexity(
    file: Annotated[Path, typer.Argument(help="A text file in UTF-8.")],
    stride: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens scored in each window; half the model's window if not given."
        ),
    ] = None,
    model: ModelOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the perplexity of a text over a sliding window."""
    from chatapp.evaluation import perplexity as measure
    from chatapp.settings import load_settings

    text = _read(file)
    settings = load_settings({"model": model, "precision": precision})
    # A figure to compare is exact unless something else is asked for.
    wanted = settings.precision if precision else "float32"
    language_model = load(settings.model, wanted, settings.device)
    with interruptible("interrupted"), progress("Perplexity") as show:
        try:
            found = measure.perplexity(language_model, text, stride, show)
        except ValueError as error:
            raise UserError(f"{file}: {error}") from None
    per_unit = {
        "per_token": found.per_token,
        "per_word": found.per_word,
        "per_byte": found.per_byte,
    }
    if as_json:
        write_json({"model": settings.model, **per_unit, **asdict(found)})
        return
    for name, value in per_unit.items():
        write(f"perplexity {name.replace('_', ' ')}: {value:,.4f}\n")
    write(
        f"{found.tokens:,} tokens, {found.words:,} words, {found.bytes:,} bytes, "
        f"stride {found.stride}\n"
    )


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")  # its line breaks as they are
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise UserError(f"{file}: is not UTF-8 text; save the file as UTF-8") from None
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{file}: cannot be read: {reason}") from None
