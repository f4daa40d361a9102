"""`chatapp lesson`: a lecture in the terminal, and its check without a screen."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chatapp.commands.console import FAILED, complain, interruptible, write, write_output
from chatapp.commands.options import ForceOption
from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.common.settings import Settings
    from chatapp.dialogue.lessons.lesson import Lesson
    from chatapp.engine.model import LanguageModel

WORDS = ("check", "notebook")


def lesson(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[check|notebook] LESSON",
            help="A lesson's name or its TOML file; without one, list the lessons.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The notebook's file; LESSON.ipynb by default.")
    ] = None,
    force: ForceOption = False,
) -> None:
    """Give a lecture: ← → step through a lesson next to the live chat.

    `check` runs a lesson without a screen, prints a line a step, and fails where a step no longer
    shows what its text says. `notebook` writes it as a Jupyter notebook.
    """
    from chatapp.common.settings import load_settings
    from chatapp.dialogue.lessons.lesson import NAMES, find_lesson

    match words or []:
        case []:
            for name in NAMES:
                write(f"{name:<16}{find_lesson(name).title}\n")
        case [name] if name not in WORDS:
            _show(find_lesson(name), load_settings())
        case ["check", name]:
            _check(find_lesson(name), load_settings())
        case ["notebook", name]:
            _write(find_lesson(name), output, force=force)
        case _:
            raise UserError(
                f"there are {len(words or [])} words after `lesson`; expected a lesson's name or "
                "file, and before it `check`, `notebook` or nothing"
            )


def _show(lesson: "Lesson", settings: "Settings") -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError("a lesson needs a terminal; `chatapp lesson check` runs it without one")
    from chatapp.dialogue.store import Store
    from chatapp.tui.app import run

    raise typer.Exit(run(settings, store=Store(None), lesson=lesson))


def _write(lesson: "Lesson", output: Path | None, *, force: bool) -> None:
    from chatapp.dialogue.lessons.notebook import notebook_of

    path = output or Path(f"{Path(lesson.name).stem}.ipynb")
    write_output(path, json.dumps(notebook_of(lesson), indent=1) + "\n", force=force)
    write(f"{path}\n")


def _check(lesson: "Lesson", settings: "Settings") -> None:
    from chatapp.dialogue.lessons.teaching import check_lesson
    from chatapp.engine.models.loading import load_model

    def load(name: str) -> "LanguageModel":
        return load_model(name, precision=settings.precision, device=settings.device, say=complain)

    failed = 0
    with interruptible("interrupted"):
        for step in check_lesson(lesson, load):
            result = "; ".join(step.problems) or "ok"
            write(f"{step.number:>2}  {step.step.title}: {result}\n")
            failed += bool(step.problems)
    if failed:
        write(f"{failed} of {len(lesson.steps)} steps do not show what their text says\n")
        raise typer.Exit(FAILED)
