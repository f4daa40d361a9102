"""The help of a program with many commands: those of every day first."""

from typing import Any

from typer.core import TyperGroup


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
