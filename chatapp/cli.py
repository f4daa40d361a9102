"""The command line: `chatapp` is the chat, its commands are one-shot.

Invariant: no user sees a traceback. What the user can correct is one sentence and exit status 2;
anything else is one sentence, exit status 1, and a traceback in the log.
"""

import gc
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from io import UnsupportedOperation
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chatapp import __version__
from chatapp.commands import options as shared
from chatapp.commands.console import complain
from chatapp.common.command_groups import DailyFirst
from chatapp.common.unforeseen import (
    INTERRUPTS,
    describe_unforeseen,
    prepare_streams,
    silence_libraries,
)
from chatapp.common.userfiles import DISK_FULL, UserError, invalid_path, reason
from chatapp.engine.kernels.machine import wait_briefly

if TYPE_CHECKING:
    from chatapp.dialogue.store import Store

_COMMANDS = {
    "ask": "ask:ask",
    "complete": "complete:complete",
    "run": "run:run",
    "eval": "measuring.eval:evaluate",
    "summarize": "summarize:summarize",
    "perplexity": "perplexity:perplexity",
    "inspect": "inspect:app",
    "tokens": "tokens:tokens",
    "lesson": "lesson:lesson",
    "render": "render:render",
    "bench": "bench:bench",
    "serve": "serving.serve:serve",
    "api": "serving.api:api",
    "history": "history:app",
    "docs": "docs:app",
    "experiment": "measuring.experiment:app",
    "steer": "steer:app",
    "models": "models.models:app",
}
"""The function, or the group, of each command, below `chatapp.commands`."""


class _Commands(Mapping[str, Any]):
    """Each command, imported when it is used: all imports take longer than an answer."""

    def __getitem__(self, name: str) -> Any:
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


@cache
def _command(name: str) -> Any:
    """The command in typer's form. Raises KeyError."""
    module, _, attribute = _COMMANDS[name].partition(":")
    command = getattr(import_module(f"chatapp.commands.{module}"), attribute)
    around = typer.Typer(rich_markup_mode=None)
    if isinstance(command, typer.Typer):
        around.add_typer(command, name=name)
    else:
        around.command(name)(command)
    return typer.main.get_group(around).commands[name]


class _Group(DailyFirst):
    """The program, with commands that are not imported yet."""

    daily = ("ask", "run", "eval", "inspect", "lesson", "models", "history", "docs")

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes | {"commands": _Commands()})


app = typer.Typer(
    cls=_Group,
    rich_markup_mode=None,  # help texts contain foreign text, and start without rich
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def chat(
    context: typer.Context,
    model: shared.ModelOption = None,
    template: shared.TemplateOption = None,
    precision: shared.PrecisionOption = None,
    last: shared.LastOption = False,
    inline: Annotated[
        bool,
        typer.Option(
            "--inline", help="Draw the chat below the shell prompt and keep earlier output."
        ),
    ] = False,
    unsaved: Annotated[
        bool, typer.Option("--unsaved", help="Save nothing: the chat is gone when you quit.")
    ] = False,
    mcp_servers: shared.McpServersOption = None,
    no_server: shared.NoServerOption = False,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """A GPT you can open: without a command, a chat in the terminal."""
    if version:
        typer.echo(f"chatapp {__version__}")
        raise typer.Exit
    if context.invoked_subcommand:
        if any(context.params.values()):
            raise UserError("put options after the command: chatapp ask --model …")
        return
    shared.name_mcp_servers(mcp_servers)
    if unsaved and last:
        raise UserError(
            "--continue and --unsaved cannot be used together; an unsaved chat is always new"
        )
    in_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not in_terminal and "TEXTUAL_DRIVER" not in os.environ:  # set by the browser server
        raise UserError("the chat needs a terminal; `chatapp ask` answers without one")
    if inline and not sys.stderr.isatty():
        raise UserError("--inline draws on standard error, which is not a terminal")

    from chatapp.common.settings import load_settings
    from chatapp.tui.app import run

    store = _open_store(unsaved=unsaved, may_ask=in_terminal)
    chat = next(iter(store.chats(limit=1)), None) if last else None
    wanted = model or (chat.model if chat is not None else None) or None
    settings = load_settings({"model": wanted, "template": template, "precision": precision})
    chat_id = chat.id if chat is not None else None
    status = run(settings, chat_id, store=store, inline=inline, may_be_served=not no_server)
    if not unsaved:
        from chatapp.common.paths import database_path
        from chatapp.dialogue.store.backup import back_up

        back_up(database_path())
    raise typer.Exit(status)


def main() -> None:
    """The `chatapp` command."""
    prepare_streams()
    silence_libraries()
    wait_briefly(os.environ)
    try:
        app(prog_name="chatapp")
    except INTERRUPTS:
        raise
    except BaseException as error:
        sys.exit(_report(error))
    finally:
        gc.freeze()  # the interpreter's last collection would take a fifth of a short command


def _open_store(*, unsaved: bool, may_ask: bool) -> "Store":
    """Open the store of the chats. Raises StoreError.

    unsaved: in memory only. may_ask: whether the user can be asked about that.
    """
    from chatapp.common.paths import database_path
    from chatapp.dialogue.store import Store
    from chatapp.dialogue.store.database import StoreError

    if unsaved:
        return Store(None)
    try:
        return Store(database_path())
    except StoreError as error:
        if not may_ask:
            raise
        complain(str(error))
        if not typer.confirm("Chat without saving anything (--unsaved)?", default=True, err=True):
            raise typer.Exit(2) from None
        return Store(None)


def _report(error: BaseException) -> int:
    """Report an error; return the exit status."""
    if isinstance(error, UserError):
        complain(str(error))
        return 2
    if (problem := invalid_path(error)) is not None:
        complain(problem)
        return 2
    if isinstance(error, UnsupportedOperation) or (
        isinstance(error, OSError) and reason(error) == DISK_FULL
    ):
        complain(f"{error.filename or 'standard output'} cannot be written: {reason(error)}")
    else:
        complain(describe_unforeseen(error))
    return 1
