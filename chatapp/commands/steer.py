"""`chatapp steer`: directions by name, made from pairs of texts, and what they do to a reply."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chatapp.commands.console import complain, interruptible, progress, write, write_json
from chatapp.commands.loading import load
from chatapp.commands.options import ForceOption, JsonOption, ModelOption
from chatapp.common.command_groups import number_option
from chatapp.common.foreign import printable
from chatapp.common.userfiles import UserError, reason

if TYPE_CHECKING:
    from rich.console import RenderableType

    from chatapp.dialogue.events import TurnEvent
    from chatapp.engine.decoder.interventions import Interventions
    from chatapp.lab.steering import Sweep

app = typer.Typer(no_args_is_help=True, help="Make, list and try directions that change replies.")

_STRENGTHS = "0,0.05,0.1,0.2,0.4"


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="The name, or a file NAME.gguf.")],
    pairs: Annotated[
        Path, typer.Argument(help='JSON Lines with the texts "positive" and "negative".')
    ],
    layer: Annotated[
        int | None, typer.Option(help="The layer, from 0; the middle one by default.")
    ] = None,
    force: ForceOption = False,
    model: ModelOption = None,
) -> None:
    """Make a direction from pairs of texts, and save it as a GGUF control vector."""
    from chatapp.common.settings import load_settings
    from chatapp.lab.steering import make_direction, path_of, read_pairs, save_direction

    path = path_of(name)
    if path.exists() and not force:
        raise UserError(f"{path}: this file already exists; --force replaces it")
    texts = read_pairs(pairs)
    settings = load_settings({"model": model})
    language_model = load(settings.model, "float32", settings.device)
    with interruptible("interrupted"), progress("Reading pairs") as report:
        direction = make_direction(language_model, path.stem, texts, layer, report)
    files = language_model.files
    try:
        save_direction(direction, path, files.family if files is not None else "")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {reason(error)}") from None
    (at,) = direction.vectors
    complain(f"{name} is made from {len(texts)} pairs, for layer {at}: {path}")


@app.command("list")
def list_directions(
    name: Annotated[str | None, typer.Argument(help="Only this one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the saved directions with their layers."""
    from chatapp.lab.steering import direction_names, load_direction

    names = direction_names() if name is None else [name]
    rows = [{"name": name, "layers": sorted(load_direction(name).vectors)} for name in names]
    if as_json:
        write_json({"directions": rows})
        return
    for row in rows:
        write(f"{row['name']}  layers {', '.join(map(str, row['layers']))}\n")
    if not rows:
        complain("there is no direction yet; `chatapp steer make NAME PAIRS.jsonl` makes one")


@app.command()
def sweep(
    name: Annotated[str, typer.Argument(help="The direction, or a GGUF control vector.")],
    prompt: Annotated[str, typer.Argument(help="The message to reply to.")],
    strengths: Annotated[
        str, typer.Option(help="Strengths, separated by commas; 0 is the model itself.")
    ] = _STRENGTHS,
    max_tokens: Annotated[int, number_option("max_tokens")] = 40,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show greedy replies at several strengths, with KL divergence and perplexity."""
    from chatapp.common.settings import load_settings
    from chatapp.engine.model import Sampling
    from chatapp.lab.steering import load_direction
    from chatapp.lab.steering import sweep as replies_by_strength

    wanted = _numbers(strengths)
    if not prompt.strip():
        raise UserError("the prompt is empty")
    direction = load_direction(name)
    settings = load_settings({"model": model})
    language_model = load(settings.model, "float32", settings.device)

    from chatapp.dialogue.events import Options
    from chatapp.dialogue.turn import turn, write_prompt
    from chatapp.dialogue.writers.choosing import choose_template, writer_for
    from chatapp.dialogue.writers.prompt import Exchange

    writer = writer_for(language_model, choose_template(language_model, ""))
    options = Options(Sampling(temperature=0, max_tokens=max_tokens))
    exchanges = [Exchange(prompt)]
    written = write_prompt(writer, exchanges, options)

    def draw(changes: "Interventions") -> "Iterator[TurnEvent]":
        changed = replace(options, changes=changes)
        return turn(language_model, writer, exchanges, changed, written)

    with interruptible("interrupted"), progress("Replying") as report:
        results = replies_by_strength(language_model, direction, written.ids, wanted, draw, report)
    if as_json:
        write_json({"model": language_model.name, "prompt": prompt, **results.to_json()})
        return
    from rich.console import Console

    console = Console(highlight=False)
    for part in draw_sweep(results):
        console.print(part)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--strengths is {text!r}; expected numbers as in {_STRENGTHS}") from None


def draw_sweep(results: "Sweep") -> "list[RenderableType]":
    """Each reply below its numbers."""
    from rich.text import Text

    from chatapp.lab.drawing.console import heading

    parts: list[RenderableType] = [heading("Steering", results.reading)]
    for reply in results.replies:
        numbers = (
            f"strength {reply.strength:g}  KL {reply.kl:.3f}  perplexity {reply.perplexity:.2f}"
        )
        parts += [Text(), Text(numbers, "bold"), Text(printable(reply.text.strip()))]
    return parts
