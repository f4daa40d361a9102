"""The `finetune` command. Heavy imports happen inside the command that needs them."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="finetune",
    help="Teach a GPT: pretraining and supervised instruction tuning.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Teach a GPT: pretraining and supervised instruction tuning."""


@app.command()
def pretrain(
    config: Annotated[Path, typer.Argument(help="a TOML file")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value, laid over the file", metavar="KEY=VALUE")
    ] = None,
) -> None:
    """Train a GPT-2 from random weights on text; a second start goes on where the first ended."""
    from rich.console import Console

    from finetune.config import ConfigError, PretrainConfig, load_config

    console = Console(stderr=True, highlight=False)
    try:
        settings = load_config(PretrainConfig, config, overrides or [])
        from finetune.pretrain import pretrain as run

        folder = run(settings, console)
    except (ConfigError, ValueError) as error:
        console.print(str(error), markup=False)
        raise typer.Exit(2) from None
    except FloatingPointError as error:
        console.print(str(error), markup=False)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on from the last checkpoint")
        raise typer.Exit(130) from None
    print(folder)


def main() -> None:
    """Entry point of the `finetune` script."""
    app()


if __name__ == "__main__":
    main()
