"""What the command lines of both programs share: the help of a program with many commands, those
of every day first, and the range of a number.
"""

from dataclasses import replace
from typing import Any

import typer
from typer.core import TyperGroup

from chatapp.common.parameters import PARAMETERS, Parameter


def number_option(name: str | Parameter, *, in_sentence: bool = True, **differing: Any) -> Any:
    """The option of a number that is accepted elsewhere, too, with its range and meaning.

    name: of a sampling parameter, or any other. in_sentence: whether its help is a sentence.
    differing: fields of `Parameter` that are others here.
    """
    parameter = replace(PARAMETERS[name] if isinstance(name, str) else name, **differing)

    def in_range(value: float | None) -> float | None:
        try:
            if value is not None:
                parameter.check_range(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        return value

    help = parameter.sentence if in_sentence else parameter.help
    return typer.Option(help=help, callback=in_range)


class DailyFirst(TyperGroup):
    """A group whose help lists the commands in `daily` first, in that order, then the others."""

    daily: tuple[str, ...] = ()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the lists of commands, each with the first sentence of its help."""
        names = self.list_commands(ctx)
        known = {name: command for name in names if (command := self.get_command(ctx, name))}
        width = max(map(len, known))
        rows = [
            (name, known[name].get_short_help_str(formatter.width - 6 - width))
            for name in sorted(known, key=lambda name: (*self.daily, name).index(name))
            if not known[name].hidden
        ]
        for title, listed in (
            ("Commands", [row for row in rows if row[0] in self.daily]),
            ("For research and other programs", [row for row in rows if row[0] not in self.daily]),
        ):
            with formatter.section(title):
                formatter.write_dl(listed, col_max=width)
