"""Write the seed tasks of Self-Instruct (Wang et al. 2023) in Alpaca layout, to measure
`instructions.toml` on instructions of another source.

    python -m finetune.recipes.instructions TASKS OUT

TASKS is JSONL with an `instruction` and its `instances`, each an `input` and an `output`, a line.
OUT receives JSONL with `instruction`, `input` and `output` a line.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from chatapp.rows.reading import BadRow, tables
from finetune.config.sections import ConfigError, TrainSource
from finetune.data.formats import text_field
from finetune.recipes import run, write_rows


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The instances of every task. Raises BadRow and ConfigError."""
    for table in tables(TrainSource.model_validate({"path": str(path)})):
        for row in table.rows():
            if isinstance(row, BadRow):
                raise row
            instruction = text_field(row, "instruction")
            match row.fields.get("instances"):
                case [*instances] if all(
                    isinstance(instance, dict) and {"input", "output"} <= instance.keys()
                    for instance in instances
                ):
                    for instance in instances:
                        shown = {name: instance[name] for name in ("input", "output")}
                        yield {"instruction": instruction, **shown}
                case _:
                    raise ConfigError(
                        f"{row.location}: expected 'instances', a list of {{input, output}}"
                    )


def build(
    tasks: Annotated[Path, typer.Argument(help="seed tasks", exists=True)],
    out: Annotated[Path, typer.Argument(help="the JSONL file to write")],
) -> None:
    """Write one row per instance."""
    write_rows(out, rows(tasks), "rows")


if __name__ == "__main__":
    run(build)
