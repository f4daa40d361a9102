"""The checks that give rewards, [[objective.rewards]] of GRPO: one model a kind.

Keep: a check gives a reply a number by itself, from 0 to 1 unless it is a model's or the user's
own; what is worth more has a larger weight.
"""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from finetune.section import Section


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return pattern


def _names_function(place: str) -> str:
    file, _, name = place.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise ValueError(f"is {place!r}; expected file.py:function")
    return place


class _Check(Section):
    weight: float = Field(
        1.0, ge=-1000, le=1000, description="what the check gives counts so many times"
    )


class ExactMatch(_Check):
    """1 where the reply is that of the row but for white space, else 0."""

    kind: Literal["exact_match"]


class NumericMatch(_Check):
    """1 where the last number in the reply is the last one in the row's reply, else 0."""

    kind: Literal["numeric_match"]


class Regex(_Check):
    """1 where the expression is found in the reply, else 0."""

    kind: Literal["regex"]
    pattern: Annotated[str, AfterValidator(_compiles)] = Field(
        min_length=1, description="what is looked for, in Python's syntax"
    )


class Length(_Check):
    """1 between the bounds; outside it falls in a straight line, to 0 at nothing and at twice the
    most."""

    kind: Literal["length"]
    least: int = Field(0, ge=0, description="tokens")
    most: int = Field(512, ge=1, description="tokens")

    @model_validator(mode="after")
    def _in_order(self) -> "Length":
        if self.least > self.most:
            raise ValueError(f"least is {self.least}, more than most, {self.most}")
        return self


class Format(_Check):
    """1 where the whole reply has the form, else 0."""

    kind: Literal["format"]
    form: Literal["number", "json", "line"] = Field(
        description="a number; a JSON object or list; one line that is not empty"
    )


class Model(_Check):
    """The score by a reward model."""

    kind: Literal["model"]
    run: str = Field(min_length=1, description="a run with objective.kind = 'reward'")


class Function(_Check):
    """What a function of the user's own gives, which runs as any program of theirs."""

    kind: Literal["function"]
    function: Annotated[str, AfterValidator(_names_function)] = Field(
        description="as in rewards.py:score; called with prompt, reply and reference, three texts, "
        "it gives a number. It is code of your own, and runs"
    )
    timeout: float = Field(10.0, gt=0, le=3600, description="seconds that a call may take")


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
