"""What an answer of `ask` may look like."""

from typing import TYPE_CHECKING, Annotated

import typer

from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.engine.constraint.constraint import Constraint

SchemaOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|JSON", help="Answer with JSON that fits this JSON schema, a file or its text."
    ),
]
PatternOption = Annotated[
    str | None, typer.Option(metavar="RE", help="Answer with a text that this pattern matches.")
]
GrammarOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="Answer with a text of this Lark grammar.")
]


def constraint_of(
    schema: str | None, pattern: str | None, grammar: str | None, tools: str
) -> "Constraint | None":
    """The constraint of one of the options, or None. Raises UserError."""
    given = {"schema": schema, "pattern": pattern, "grammar": grammar}
    named = [(kind, text) for kind, text in given.items() if text is not None]
    if not named:
        return None
    if len(named) > 1:
        raise UserError("use one of --schema, --pattern and --grammar")
    if tools:
        raise UserError(f"--{named[0][0]} and --tools cannot be used together")
    from chatapp.engine.constraint.constraint import Constraint

    kind, text = named[0]
    return Constraint.read(kind, text)  # type: ignore[arg-type]
