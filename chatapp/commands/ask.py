"""`chatapp ask` and `chatapp complete`: one answer on standard output.

Keep: whatever ends an answer early (a signal, an error, a full window), what there was of it has
been printed.
"""

import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chatapp.commands import completion
from chatapp.commands.console import complain, status, write, write_json
from chatapp.commands.docs import METHOD_HELP, show_reading
from chatapp.commands.options import (
    JsonOption,
    ModelOption,
    PrecisionOption,
    TemplateOption,
    sampling_options,
    settings_of,
)
from chatapp.commands.question import (
    chat_to_go_on_with,
    instructions,
    message_of,
    open_store,
    standard_input,
)
from chatapp.parameters import known_values
from chatapp.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.dialogue.store import Chat
    from chatapp.engine.events import Event, Finished
    from chatapp.engine.model import LanguageModel, Sampling
    from chatapp.parameters import Choices
    from chatapp.passages.sources import Source
    from chatapp.prompting.chat_template import Template
    from chatapp.prompting.messages import Message
    from chatapp.settings import Settings

_INTERRUPTED = 130


@sampling_options()
def ask(
    context: typer.Context,
    question: Annotated[
        str | None, typer.Argument(help="What to ask. Standard input is appended to it.")
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("--file", "-f", help="Put a text file into the message; may be repeated."),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(help="Instructions in place of the template's own, or a file with them."),
    ] = None,
    persona: Annotated[
        str | None,
        typer.Option(help="Instructions by name.", autocompletion=completion.personas),
    ] = None,
    last: Annotated[
        bool, typer.Option("--continue", "-c", help="Go on with the last chat, and store it there.")
    ] = False,
    chat_id: Annotated[
        int | None,
        typer.Option(
            "--chat", help="Go on with the chat of this id.", autocompletion=completion.chats
        ),
    ] = None,
    model: ModelOption = None,
    template: TemplateOption = None,
    precision: PrecisionOption = None,
    think: Annotated[
        bool | None,
        typer.Option(
            "--think/--no-think",
            help="Let the model think first or not, where its template has a switch for that.",
            show_default=False,
        ),
    ] = None,
    best_of: Annotated[
        int,
        typer.Option(
            "--best-of", min=1, max=256, help="Draw so many answers and print the best by --reward."
        ),
    ] = 1,
    reward: Annotated[
        str, typer.Option(help="A run of finetune with objective.kind = 'reward'.")
    ] = "",
    docs: Annotated[
        list[str] | None,
        typer.Option(help="A file, folder or pattern whose passages are read; may be repeated."),
    ] = None,
    docs_method: Annotated[str, typer.Option(help=METHOD_HELP)] = "bm25",
    as_json: JsonOption = False,
) -> None:
    """Answer one question on standard output.

    Nothing is stored, unless the answer goes on with a chat.
    """
    chat = chat_to_go_on_with(last, chat_id)
    if chat is not None and (system is not None or persona is not None):
        raise UserError(f"chat {chat.id} has its instructions; --system and --persona begin anew")
    if best_of > 1 and not reward:
        raise UserError("--best-of needs a reward model that says which is best: --reward RUN")
    if chat is not None and reward:
        raise UserError("--reward is for a question of its own; leave out -c and --chat")
    if chat is not None and docs:
        raise UserError(f"chat {chat.id} has its documents; --docs is for a question by itself")
    settings = settings_of(context, model=None if chat is None else chat.model)
    text = message_of(question, files or ())
    own_system, asked_template = instructions(system, persona)
    if chat is not None:
        asked_template = chat.asked_template

    from chatapp.dialogue import oneshot
    from chatapp.dialogue.template_choice import choose_template, mismatch, with_thinking
    from chatapp.prompting.documents import DocumentSet
    from chatapp.prompting.messages import Message

    asked = DocumentSet(tuple(docs), docs_method) if docs else None
    language_model = load(settings.model, settings.precision, settings.device)
    try:
        chosen = choose_template(language_model, settings.template, asked_template)
        if think is not None:
            chosen = with_thinking(language_model, chosen, think)
        if warning := mismatch(language_model, chosen):
            complain(warning)
    except ValueError as error:
        raise UserError(str(error)) from None

    choices = choices_for(language_model, settings)
    sources: tuple[Source, ...] = ()
    if asked is not None:
        try:
            sources = oneshot.find_sources(
                language_model,
                chosen,
                text,
                asked,
                system=own_system,
                sampling=choices.sampling,
                progress=show_reading,
            )
        finally:
            status("")

    def answer(sampling: "Sampling", cancel: threading.Event) -> "Iterator[Event]":
        if chat is not None:
            return _answer_in(chat, language_model, chosen, text, sampling, cancel)
        return oneshot.ask(
            language_model,
            chosen,
            text,
            system=own_system,
            sources=sources,
            sampling=sampling,
            cancel=cancel,
        )

    if chat is not None:
        flags = {name for name, origin in settings.origins.items() if origin == "flag"}
        own = known_values(chat.chosen)
        choices = choices.of("this chat", {name: own[name] for name in own if name not in flags})
    if reward:
        said = [
            *([Message("system", own_system)] if own_system else []),
            Message("user", text),
        ]
        _print_best(
            answer, settings.model, choices, chosen.name, reward, said, best_of, as_json=as_json
        )
    else:
        _print_answer(
            answer, settings.model, choices, chosen.name, as_json=as_json, sources=sources
        )


def _answer_in(
    chat: "Chat",
    model: "LanguageModel",
    template: "Template",
    text: str,
    sampling: "Sampling",
    cancel: threading.Event,
) -> "Iterator[Event]":
    """The reply to a message that goes on with a stored chat, where it ends; both are stored."""
    from chatapp.dialogue.session import Session, Started

    with open_store() as store:
        session = Session(model, template=template, store=store, chat_id=chat.id, sampling=sampling)
        for event in session.say(text, cancel):
            if not isinstance(event, Started):
                yield event


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

    choices = choices_for(language_model, settings)
    _print_answer(answer, settings.model, choices, None, as_json=as_json)


def load(name: str, precision: str, device: str) -> "LanguageModel":
    """Load a model, saying so on a terminal. Raises ModelError."""
    from chatapp.engine.generation_config import generation_config
    from chatapp.engine.load import load_model
    from chatapp.engine.remote import RemoteModel
    from chatapp.engine.used_folders import note_folder

    def say(sentence: str) -> None:
        status("")
        complain(sentence)

    status(f"Loading {name} …")
    try:
        model = load_model(name, precision=precision, device=device, say=say)
    finally:
        status("")
    note_folder(name)
    if isinstance(model, RemoteModel) and model.remark:
        complain(model.remark)
    for sentence in generation_config(model).ignored:
        complain(sentence)
    return model


def choices_for(model: "LanguageModel", settings: "Settings") -> "Choices":
    """The sampling parameters of an answer, and whose each is."""
    from chatapp.engine.generation_config import generation_config

    return settings.choices(generation_config(model).sampling)


def _print_answer(
    answer: "Callable[[Sampling, threading.Event], Iterator[Event]]",
    model: str,
    choices: "Choices",
    template: str | None,
    *,
    as_json: bool,
    sources: "Sequence[Source]" = (),
) -> None:
    """Print an answer while it comes, or as JSON at its end. Raises typer.Exit."""
    from chatapp.dialogue.prompt import seeded
    from chatapp.engine.events import Finished

    sampling = seeded(choices.sampling)
    cancel = threading.Event()
    reply = thoughts = ""
    thought_tokens = 0
    finished = Finished("error")
    is_thinking = False
    with _interruptible(cancel):
        for event in answer(sampling, cancel):
            if (event.thought is not None and not event.text) != is_thinking:
                is_thinking = not is_thinking
                status("Thinking …" if is_thinking else "")
            reply += event.text
            thoughts += event.thought or ""
            if not as_json:
                write(event.text)
            if isinstance(event, Finished):
                finished = event
            else:
                thought_tokens += event.thought is not None
    if is_thinking:
        status("")
    if as_json:
        document = _document(reply, finished, model, template, sampling.seed)
        thought = {"thoughts": thoughts.strip(), "thought_tokens": thought_tokens}
        found = {"sources": [asdict(source) for source in sources]} if sources else {}
        write_json(document | thought | found | {"sampling": choices.document(sampling)})
    elif not reply.endswith("\n"):
        write("\n")
    for source in sources:
        if source.number:
            complain(f"[{source.number}] {source.file}, {source.place}")
    if thought_tokens:
        complain(f"thought for {thought_tokens} tokens")
    _end(finished)


def _print_best(
    answer: "Callable[[Sampling, threading.Event], Iterator[Event]]",
    model: str,
    choices: "Choices",
    template: str,
    reward: str,
    asked: "Sequence[Message]",
    count: int,
    *,
    as_json: bool,
) -> None:
    """Print the answer that a reward model scores highest of so many. Raises typer.Exit."""
    from chatapp.dialogue.best_of import ReplyScorer, best_of
    from chatapp.dialogue.prompt import seeded

    scorer = ReplyScorer.load(reward)
    sampling = seeded(choices.sampling)
    cancel = threading.Event()

    def tell(done: int) -> None:
        status(f"{done:,} of {count:,} answers …")

    with _interruptible(cancel):
        try:
            replies = best_of(answer, scorer, asked, count, sampling, cancel, tell)
        except ValueError as error:
            raise UserError(str(error)) from None
        finally:
            status("")
    best = replies[0]
    scores = [reply.score for reply in replies]
    if as_json:
        document = _document(best.text, best.finished, model, template, sampling.seed)
        thoughts = {"thoughts": best.thoughts.strip()}
        rewards = {"reward_model": reward, "rewards": [finite(score) for score in scores]}
        write_json(document | thoughts | rewards | {"sampling": choices.document(sampling)})
    else:
        write(best.text if best.text.endswith("\n") else f"{best.text}\n")
    if len(scores) > 1:
        complain(f"scores: {', '.join(f'{score:.2f}' for score in scores)}")
    _end(best.finished)


def finite(score: float) -> float | None:
    """A score as JSON has it; None for a reply that could not be scored."""
    return score if math.isfinite(score) else None


def _end(finished: "Finished") -> None:
    """Say how an answer has ended, where that was not as it should. Raises typer.Exit."""
    from chatapp.engine.events import REPEATED

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
