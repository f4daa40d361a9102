"""`chatapp ask` and `chatapp complete`: one answer on standard output.

Keep: whatever ends an answer early (a signal, an error, a full window), what there was of it has
been printed.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chatapp.commands.console import complain, status, write, write_json
from chatapp.commands.options import (
    JsonOption,
    ModelOption,
    PrecisionOption,
    TemplateOption,
    sampling_options,
    settings_of,
)
from chatapp.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.engine.events import Event, Finished
    from chatapp.engine.model import LanguageModel, Sampling
    from chatapp.settings import Settings

_INTERRUPTED = 130
_MOST_INPUT = 16 * 2**20
"""Bytes read from standard input: far more than any model's window."""


@sampling_options()
def ask(
    context: typer.Context,
    question: Annotated[
        str | None, typer.Argument(help="What to ask. Standard input is appended to it.")
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="Instructions in place of the template's own.")
    ] = None,
    model: ModelOption = None,
    template: TemplateOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answer one question on standard output. Nothing is stored."""
    settings = settings_of(context)
    parts = [part for part in (question, standard_input()) if part and part.strip()]
    if not parts:
        raise UserError("there is no question; give it in quotes or on standard input")

    from chatapp.dialogue import oneshot
    from chatapp.dialogue.template_choice import choose_template

    language_model = load(settings.model, settings.precision, settings.device)
    try:
        chosen = choose_template(language_model, settings.template)
    except ValueError as error:
        raise UserError(str(error)) from None
    text = "\n\n".join(parts)

    def answer(sampling: "Sampling", cancel: threading.Event) -> "Iterator[Event]":
        return oneshot.ask(
            language_model, chosen, text, system=system, sampling=sampling, cancel=cancel
        )

    _print_answer(answer, settings, chosen.name, as_json=as_json)


@sampling_options()
def complete(
    context: typer.Context,
    text: Annotated[
        str | None, typer.Argument(help="What to go on with. Standard input is appended to it.")
    ] = None,
    model: ModelOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a text as it stands, without any dialogue."""
    settings = settings_of(context)
    prompt = (text or "") + standard_input().removesuffix("\n")
    if not prompt.strip():
        raise UserError("there is no text to go on with; give it in quotes or on standard input")

    from chatapp.dialogue import oneshot

    language_model = load(settings.model, settings.precision, settings.device)

    def answer(sampling: "Sampling", cancel: threading.Event) -> "Iterator[Event]":
        return oneshot.complete(language_model, prompt, sampling=sampling, cancel=cancel)

    _print_answer(answer, settings, None, as_json=as_json)


def standard_input() -> str:
    """What was piped in; "" when standard input is a terminal or closed."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    data = sys.stdin.buffer.read(_MOST_INPUT + 1)
    if len(data) > _MOST_INPUT:
        raise UserError(f"standard input is longer than {_MOST_INPUT // 2**20} MiB")
    return data.decode("utf-8", errors="replace")


def load(name: str, precision: str, device: str) -> "LanguageModel":
    """Load a model, saying so on a terminal. Raises ModelError."""
    from chatapp.engine.load import load_model
    from chatapp.engine.remote import RemoteModel

    status(f"Loading {name} …")
    try:
        model = load_model(name, precision=precision, device=device)
    finally:
        status("")
    if isinstance(model, RemoteModel) and model.remark:
        complain(model.remark)
    return model


def _print_answer(
    answer: "Callable[[Sampling, threading.Event], Iterator[Event]]",
    settings: "Settings",
    template: str | None,
    *,
    as_json: bool,
) -> None:
    """Print an answer while it comes, or as JSON at its end. Raises typer.Exit."""
    from chatapp.dialogue.prompt import seeded
    from chatapp.engine.events import REPEATED, Finished

    sampling = seeded(settings.sampling)
    cancel = threading.Event()
    reply = ""
    finished = Finished("error")
    with _interruptible(cancel):
        for event in answer(sampling, cancel):
            reply += event.text
            if not as_json:
                write(event.text)
            if isinstance(event, Finished):
                finished = event
    if as_json:
        write_json(_document(reply, finished, settings.model, template, sampling.seed))
    elif not reply.endswith("\n"):
        write("\n")
    if finished.message:
        complain(finished.message)
    if finished.reason == "repetition":
        complain(REPEATED)
    if finished.reason == "error":
        raise typer.Exit(1)
    if finished.reason == "cancelled":
        raise typer.Exit(_INTERRUPTED)


def _document(
    reply: str, finished: "Finished", model: str, template: str | None, seed: int | None
) -> dict[str, Any]:
    """Times are in seconds."""
    return {
        "reply": reply,
        "finish_reason": finished.reason,
        "model": model,
        "template": template,
        "seed": seed,
        "prompt_tokens": finished.prompt_tokens,
        "reused_tokens": finished.reused_tokens,
        "reply_tokens": finished.reply_tokens,
        "time_to_first_token": finished.time_to_first_token,
        "tokens_per_second": finished.tokens_per_second,
    }


@contextmanager
def _interruptible(cancel: threading.Event) -> Iterator[None]:
    """Let the first Ctrl+C end the answer, and a second one the program."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if cancel.is_set():
            raise KeyboardInterrupt
        cancel.set()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
