"""Where in a text and in a model `chatapp inspect` looks."""

from dataclasses import dataclass
from typing import Annotated

import typer

from chatapp.common.userfiles import UserError


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the text and in the model it is looked, and how many alternatives are shown."""

    token: Annotated[
        int | None, typer.Option(help="The token's index, from 0; -1 is the last and the default.")
    ] = None
    layer: Annotated[
        int | None, typer.Option(help="Show this layer's attention only, numbered from 0.")
    ] = None
    head: Annotated[
        int | None, typer.Option(help="Show this head's attention only, numbered from 0.")
    ] = None
    top: Annotated[int, typer.Option(min=1, max=100, help="Number of alternatives to show.")] = 10


def text_position(token: int | None, count: int) -> int:
    """The position of --token among `count` tokens. Raises UserError when there is none."""
    position = count - 1 if token is None else token + count * (token < 0)
    if not 0 <= position < count:
        raise UserError(f"--token is {token}; the text has {count} tokens, numbered from 0")
    return position


def checked_place(name: str, value: int | None, size: int) -> int | None:
    """A layer or head from an option. Raises UserError when there is none."""
    if value is not None and not 0 <= value < size:
        raise UserError(f"--{name} is {value}; the model has {size}, numbered from 0")
    return value
