"""`chatapp api`: the model for other programs, over OpenAI's protocol.

Invariant: only programs on this machine reach it unless the user explicitly allows more, and then
only with a key. A server on loopback is noted in a file of this user, so that other commands of
this program use it instead of loading its models. With --background the command returns when the
server is ready, or with the reason why it never will be.
"""

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from chatapp.commands.console import FAILED, complain, status
from chatapp.commands.loading import choices_for, load
from chatapp.commands.options import HostOption, PortOption, PrecisionOption, TemplateOption
from chatapp.common.userfiles import UserError, make_private, open_own, read_regular

if TYPE_CHECKING:
    from chatapp.common.settings import Settings
    from chatapp.engine.models.running import Running, ServedModel
    from chatapp.server.server import Access
    from chatapp.server.service import Service

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_PATIENCE = 2.0
"""Seconds that open requests get when the server ends."""

_LONGEST_END = 10.0
"""Seconds after which it ends although a computation goes on."""

_POLL_SECONDS, _END_SECONDS = 0.05, 20.0
_REASON_BYTES = 4000
"""How much of the log's end is read for the reason of a failure."""

_MOST_FILES = 16_384
"""Open connections and files that are requested from the system."""


def api(
    models: Annotated[
        list[str] | None, typer.Option("--model", help="A model to serve; repeat it for several.")
    ] = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8080,
    expose: Annotated[
        bool,
        typer.Option(
            "--expose", help="Allow an address that other machines can reach; needs a key."
        ),
    ] = False,
    key_env: Annotated[
        str | None,
        typer.Option("--key-env", help="Environment variable with the API key that clients need."),
    ] = None,
    origins: Annotated[
        list[str] | None,
        typer.Option("--origin", help="A web page's origin that may use the server."),
    ] = None,
    inside: Annotated[
        bool,
        typer.Option(
            "--inside", help="Let other machines and web pages look inside models, and change them."
        ),
    ] = False,
    template: TemplateOption = None,
    precision: PrecisionOption = None,
    background: Annotated[
        bool, typer.Option("--background", help="Return when the server is ready.")
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the server that runs.")] = False,
) -> None:
    """Serve models to other programs over OpenAI's protocol.

    While it runs, `ask`, `run` and the chat use its models instead of loading them again.
    """
    from chatapp.common.settings import load_settings

    if stop:
        _stop()
        return
    key = _key(key_env)
    hosts = _hosts(host, may_be_reached=expose and bool(key))
    names = models or [load_settings().model]
    if len(set(names)) < len(names):
        raise UserError(f"--model names {max(names, key=names.count)!r} twice")
    if background:
        _start_in_background()
        return
    from chatapp.server.server import Access

    access = Access(hosts, key, frozenset(origins or ()), inside)
    chosen = {"template": template, "precision": precision}
    _serve([load_settings(chosen | {"model": name}) for name in names], access, host, port)


def _key(variable: str | None) -> str:
    if variable is None:
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise UserError(f"--key-env: the environment variable {variable} is empty or not set")
    return key


def _hosts(host: str, *, may_be_reached: bool) -> frozenset[str]:
    """The names by which requests may call the server; none where all are allowed.

    Raises UserError for an address that other machines reach, unless it may be reached.
    """
    from chatapp.engine.backends.remote.http import is_loopback

    if is_loopback(host):
        return _LOOPBACK | {host}
    if may_be_reached:
        return frozenset()
    raise UserError(
        f"{host} can be reached from other machines; --expose with --key-env allows this"
    )


def _serve(wanted: "list[Settings]", access: "Access", host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with ExitStack() as stack:
        try:
            listening = stack.enter_context(socket.create_server((host, port), family=family))
        except OSError as error:
            complain(f"{host} port {port} cannot be listened on: {error.strerror or error}")
            raise typer.Exit(FAILED) from None
        served, described = {}, []
        for settings in wanted:
            served[settings.model], about = _served(settings)
            stack.callback(served[settings.model].close)
            described.append(about)
        _run(served, described, access, listening)


def _served(settings: "Settings") -> "tuple[Service, ServedModel]":
    """A loaded model, and what other commands have to know of it. Raises UserError."""
    from chatapp.dialogue.writers.choosing import choose_template, mismatch
    from chatapp.engine.files.model_files import read_generation_config
    from chatapp.engine.models.running import describe
    from chatapp.server.service import Service

    model = load(settings.model, settings.precision, settings.device)
    try:
        template = choose_template(model, settings.template)
        remark = mismatch(model, template)
    except ValueError as error:
        raise UserError(str(error)) from None
    makers = read_generation_config(model.files).sampling
    about = describe(settings.model, model, (settings.precision, settings.device), makers)
    named = replace(about, asked_template=settings.template, template=template.name, remark=remark)
    return Service(model, template, choices_for(model, settings), settings.model), named


def _run(
    served: "dict[str, Service]",
    described: "list[ServedModel]",
    access: "Access",
    listening: socket.socket,
) -> None:
    """Serve until a signal. described: for the user's file, if this is the first server."""
    from aiohttp import web

    from chatapp.engine.models.running import OwnServer, Running, claim, forget, note
    from chatapp.server.server import BACKLOG, SILENCE, APIServer

    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("chatapp.server").setLevel(logging.INFO)
    _allow_connections()
    host, port = listening.getsockname()[:2]
    claimed = []  # the lock, held until the process ends

    def announce(_: str) -> None:
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{port}/v1"
        if (lock := claim()) is not None:
            claimed.append(lock)
            own = address.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")
            note(Running(os.getpid(), OwnServer(own, own_key=access.key), (*described,)))
        models = ", ".join(served)
        print(f"Serving {models} on {address} · Ctrl+C ends it", file=sys.stderr, flush=True)

    application = APIServer(served, access).app()
    application.on_shutdown.append(_end_in_time)
    try:
        web.run_app(
            application,
            sock=listening,
            backlog=BACKLOG,
            print=announce,
            access_log=None,
            shutdown_timeout=_PATIENCE,
            keepalive_timeout=SILENCE,
            handler_cancellation=True,
        )
    finally:
        forget(os.getpid())


async def _end_in_time(_: object) -> None:
    """End this process, whatever its threads compute then, once it had time to end by itself."""
    timer = threading.Timer(_LONGEST_END, os._exit, (0,))
    timer.daemon = True
    timer.start()


def _allow_connections() -> None:
    """Use all the open files that the system allows: each connection is one, and 256 are soon
    full of clients that wait.
    """
    with suppress(ImportError, ValueError, OSError):  # Windows has no such limit
        import resource

        now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _MOST_FILES if most == resource.RLIM_INFINITY else min(most, _MOST_FILES)
        if now != resource.RLIM_INFINITY and now < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _start_in_background() -> None:
    """Run this command again without --background, in a process of its own.

    Raises UserError if a server runs already, typer.Exit if this one cannot start.
    """
    from chatapp.common.limited_process import module_command
    from chatapp.common.paths import log_dir
    from chatapp.engine.models import running

    if (other := running.running()) is not None:
        raise _runs_already(other)
    arguments = [argument for argument in sys.argv[1:] if argument != "--background"]
    log = log_dir() / "api.log"
    make_private(log.parent)
    alone = {"creationflags": 8} if os.name == "nt" else {"start_new_session": True}  # DETACHED
    with open_own(log, "wb") as output:
        process = subprocess.Popen(
            module_command("chatapp", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            **alone,
        )
    status("Loading …")
    try:
        _wait(lambda: process.poll() is not None or running.running() is not None)
    finally:
        status("")
    if process.poll() is not None:
        lines = read_regular(log)[-_REASON_BYTES:].decode("utf-8", "replace").strip().splitlines()
        complain((lines or ["the server has ended"])[-1].removeprefix("chatapp: "))
        raise typer.Exit(process.returncode or 1)
    server = running.running()
    if server is None or server.pid != process.pid:  # another command was faster
        process.terminate()
        process.wait()
        raise UserError("the server has ended") if server is None else _runs_already(server)
    names = ", ".join(model.name for model in server.models)
    typer.echo(
        f"Serving {names} on {server.server.url} · `chatapp api --stop` ends it · log: {log}"
    )


def _stop() -> None:
    """End the process of the server that runs, by force if need be. Raises UserError for none."""
    import psutil

    from chatapp.engine.models import running

    server = running.running()
    if server is None:
        raise UserError("no server runs on this machine for this user")
    words = "The server has ended."
    with suppress(psutil.NoSuchProcess):  # it ended in the meantime
        process = psutil.Process(server.pid)

        def has_ended() -> bool:
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE

        process.terminate()
        if not _wait(has_ended, _END_SECONDS):
            process.kill()
            _wait(has_ended)
            running.forget(server.pid)
            words = f"The server did not end within {_END_SECONDS:.0f} seconds, and was killed."
    typer.echo(words)


def _runs_already(other: "Running") -> UserError:
    port = urlsplit(other.server.url).port
    return UserError(f"a server is running already, on port {port}; `chatapp api --stop` ends it")


def _wait(condition: Callable[[], bool], seconds: float = float("inf")) -> bool:
    """Wait until a condition holds; False if it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_SECONDS)
    return True
