"""The server as a process that stays when the command that started it has returned.

Invariant: the command returns when the server is ready, or with the reason why it never will be.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import typer

from chatapp.commands.console import complain, status
from chatapp.common.paths import log_dir
from chatapp.common.userfiles import UserError
from chatapp.engine.models import background

_POLL_SECONDS = 0.05
_END_SECONDS = 30.0
_REASON_BYTES = 4000
"""Of the end of the log that are read for the reason of a failure."""


def start() -> None:
    """Run this command again without --background, in a process of its own.

    Raises UserError if a server runs already, typer.Exit if this one cannot start.
    """
    if (other := background.running()) is not None:
        raise _runs_already(other)
    arguments = [argument for argument in sys.argv[1:] if argument != "--background"]
    log = log_dir() / "api.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    alone = {"creationflags": 8} if os.name == "nt" else {"start_new_session": True}  # DETACHED
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "chatapp", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            **alone,
        )
    status("Loading …")
    try:
        _wait(lambda: process.poll() is not None or background.running() is not None)
    finally:
        status("")
    if process.poll() is not None:
        lines = log.read_bytes()[-_REASON_BYTES:].decode("utf-8", "replace").strip().splitlines()
        complain((lines or ["the server has ended"])[-1].removeprefix("chatapp: "))
        raise typer.Exit(process.returncode or 1)
    server = background.running()
    if server is None or server.pid != process.pid:  # another command was faster
        process.terminate()
        process.wait()
        raise UserError("the server has ended") if server is None else _runs_already(server)
    names = ", ".join(model.name for model in server.models)
    address = f"http://{server.address.host}:{server.address.port}/v1"
    typer.echo(f"Serving {names} on {address} · `chatapp api --stop` ends it · log: {log}")


def stop() -> None:
    """End the server that runs. Raises UserError if there is none."""
    server = background.running()
    if server is None:
        raise UserError("no server runs on this machine for this user")
    with suppress(ProcessLookupError):
        os.kill(server.pid, signal.SIGTERM)
    if not _wait(lambda: background.claim() is not None, _END_SECONDS):
        raise UserError(f"process {server.pid} has not ended within {_END_SECONDS:.0f} seconds")
    typer.echo("The server has ended.")


def _runs_already(server: background.Background) -> UserError:
    return UserError(
        f"a server is running already, on port {server.address.port}; `chatapp api --stop` ends it"
    )


def _wait(condition: Callable[[], bool], seconds: float = float("inf")) -> bool:
    """Wait until a condition holds; False if it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_SECONDS)
    return True
