"""What the fixtures of tests/commands give: the program as it ran, and a model by a name."""

from collections.abc import Callable
from typing import NamedTuple

from fakes import ScriptedModel


class Result(NamedTuple):
    """The exit status of the program, its standard output and its standard error."""

    status: int
    out: str
    err: str


Run = Callable[..., Result]
UseModel = Callable[..., ScriptedModel]
