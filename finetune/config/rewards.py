"""The checks of replies: the tables [[objective.rewards]].

A check gives a reply a number of its own, from 0 to 1 unless it is a model or the user's function;
`weight` sets its importance.
"""

import re
from collections.abc import Callable
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from finetune.config.tables import Section


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return pattern


def _names_function(place: str) -> str:
    file, _, name = place.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise ValueError(f"is {place!r}; expected file.py:function")
    return place


class _Check(Section):
    weight: float = Field(1.0, ge=-1000, le=1000, description="weight of the check's result")

    def relocated(self, there: Callable[[str], str]) -> Self:
        """A copy with its paths mapped by `there`."""
        return self


class ExactMatch(_Check):
    """1 if the reply equals that of the row, ignoring white space, else 0."""

    kind: Literal["exact_match"]


class NumericMatch(_Check):
    """1 if the last number in the reply is the last one in the row's reply, else 0."""

    kind: Literal["numeric_match"]


class Regex(_Check):
    """1 if the expression is found in the reply, else 0."""

    kind: Literal["regex"]
    pattern: Annotated[str, AfterValidator(_compiles)] = Field(
        min_length=1, description="the pattern to search for, in Python's syntax"
    )


class Length(_Check):
    """1 between the bounds; outside it falls linearly, to 0 at nothing and at twice the most."""

    kind: Literal["length"]
    least: int = Field(0, ge=0, description="minimum length in tokens")
    most: int = Field(512, ge=1, description="maximum length in tokens")

    @model_validator(mode="after")
    def _in_order(self) -> "Length":
        if self.least > self.most:
            raise ValueError(f"least is {self.least}, more than most, {self.most}")
        return self


class Format(_Check):
    """1 if the whole reply has the form, else 0."""

    kind: Literal["format"]
    form: Literal["number", "json", "line"] = Field(
        description="a number; a JSON object or list; one line that is not empty"
    )


class Model(_Check):
    """The score by a reward model."""

    kind: Literal["model"]
    run: str = Field(min_length=1, description="a run with objective.kind = 'reward'")

    def relocated(self, there: Callable[[str], str]) -> Self:
        return self.model_copy(update={"run": there(self.run)})


class Function(_Check):
    """The result of a user's function, which runs like any program of theirs."""

    kind: Literal["function"]
    function: Annotated[str, AfterValidator(_names_function)] = Field(
        description="as in rewards.py:score; called with prompt, reply and reference, three texts, "
        "it gives a number. It is code of your own, and runs"
    )
    timeout: float = Field(10.0, gt=0, le=3600, description="time limit of a call in seconds")

    def relocated(self, there: Callable[[str], str]) -> Self:
        file, colon, name = self.function.rpartition(":")
        return self.model_copy(update={"function": there(file) + colon + name})


class WithheldFunction(Function):
    """A function that may not run: it gives every reply 0."""


Check = Annotated[
    Annotated[ExactMatch, Tag("exact_match")]
    | Annotated[NumericMatch, Tag("numeric_match")]
    | Annotated[Regex, Tag("regex")]
    | Annotated[Length, Tag("length")]
    | Annotated[Format, Tag("format")]
    | Annotated[Model, Tag("model")]
    | Annotated[Function, Tag("function")],
    Discriminator("kind"),
]
"""Every kind of check."""
