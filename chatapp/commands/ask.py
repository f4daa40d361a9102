"""`chatapp ask` and `chatapp complete`: one answer to what the command line says.

Keep: nothing is stored but what goes on with a chat, and wrong input is told before a model loads.
"""

import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chatapp.commands import completion
from chatapp.commands.answers import print_answer, print_best
from chatapp.commands.console import complain, status
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
from chatapp.commands.tools import allowed_names, names_in, toolbox_of
from chatapp.parameters import known_values
from chatapp.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.dialogue.call_events import ReplyEvent
    from chatapp.dialogue.store import Chat
    from chatapp.engine.events import Event
    from chatapp.engine.model import LanguageModel, Sampling
    from chatapp.parameters import Choices
    from chatapp.passages.sources import Source
    from chatapp.prompting.chat_template import Template
    from chatapp.prompting.documents import DocumentSet
    from chatapp.settings import Settings


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
    tools: Annotated[
        str, typer.Option(help="Tools that the model may call, with commas: calculator,clock.")
    ] = "",
    yes_tools: Annotated[
        str, typer.Option(help="Those of them that would ask before they run, and may.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Answer one question on standard output.

    Nothing is stored, unless the answer goes on with a chat.
    """
    chat = chat_to_go_on_with(last, chat_id)
    _check_together(chat, system, persona, docs, best_of, reward, tools)
    wanted = names_in(tools)
    allowed = allowed_names(names_in(yes_tools), wanted)
    settings = settings_of(context, model=None if chat is None else chat.model)
    text = message_of(question, files or ())
    own_system, asked_template = instructions(system, persona)
    if chat is not None:
        asked_template = chat.asked_template

    from chatapp.dialogue import oneshot
    from chatapp.prompting.documents import DocumentSet
    from chatapp.prompting.messages import Message

    language_model = load(settings.model, settings.precision, settings.device)
    chosen = _template(language_model, settings.template, asked_template, think)
    choices = choices_for(language_model, settings)
    if chat is not None:
        flags = {name for name, origin in settings.origins.items() if origin == "flag"}
        own = known_values(chat.chosen)
        choices = choices.of("this chat", {name: own[name] for name in own if name not in flags})
    sources: tuple[Source, ...] = ()
    if docs:
        documents = DocumentSet(tuple(docs), docs_method)
        sources = _sources(language_model, chosen, text, documents, own_system, choices.sampling)

    def answer(sampling: "Sampling", cancel: threading.Event) -> "Iterator[Event]":
        return oneshot.ask(
            language_model,
            chosen,
            text,
            system=own_system,
            sources=sources,
            sampling=sampling,
            cancel=cancel,
        )

    def answer_with_tools(sampling: "Sampling", cancel: threading.Event) -> "Iterator[ReplyEvent]":
        if chat is not None:
            return _answer_in(chat, language_model, chosen, text, allowed, sampling, cancel)
        if not wanted:
            return answer(sampling, cancel)
        return oneshot.ask_with_tools(
            language_model,
            chosen,
            text,
            toolbox_of(language_model, chosen, wanted, allowed),
            system=own_system,
            sources=sources,
            sampling=sampling,
            cancel=cancel,
        )

    model_name, layout = settings.model, chosen.name
    if reward:
        said = [Message("user", text)]
        if own_system:
            said.insert(0, Message("system", own_system))
        print_best(answer, model_name, choices, layout, reward, said, best_of, as_json=as_json)
    else:
        print_answer(
            answer_with_tools, model_name, choices, layout, as_json=as_json, sources=sources
        )


def _check_together(
    chat: "Chat | None",
    system: str | None,
    persona: str | None,
    docs: "Sequence[str] | None",
    best_of: int,
    reward: str,
    tools: str,
) -> None:
    """Refuse options that do not go together. Raises UserError."""
    if best_of > 1 and not reward:
        raise UserError("--best-of needs a reward model that says which is best: --reward RUN")
    if reward and tools:
        raise UserError("--reward scores many answers; --tools is for one")
    if chat is None:
        return
    if system is not None or persona is not None:
        raise UserError(f"chat {chat.id} has its instructions; --system and --persona begin anew")
    if reward:
        raise UserError("--reward is for a question of its own; leave out -c and --chat")
    if docs:
        raise UserError(f"chat {chat.id} has its documents; --docs is for a question by itself")
    if tools:
        raise UserError(f"chat {chat.id} has its tools; --tools is for a question by itself")


def _template(model: "LanguageModel", requested: str, asked: str, think: bool | None) -> "Template":
    """The template to ask in, with a warning where it is not the model's. Raises UserError."""
    from chatapp.dialogue.template_choice import choose_template, mismatch, with_thinking

    try:
        chosen = choose_template(model, requested, asked)
        if think is not None:
            chosen = with_thinking(model, chosen, think)
        if warning := mismatch(model, chosen):
            complain(warning)
    except ValueError as error:
        raise UserError(str(error)) from None
    return chosen


def _sources(
    model: "LanguageModel",
    template: "Template",
    text: str,
    documents: "DocumentSet",
    system: str | None,
    sampling: "Sampling",
) -> "tuple[Source, ...]":
    """The passages for a question, said on a terminal while files are read."""
    from chatapp.dialogue import oneshot

    try:
        return oneshot.find_sources(
            model,
            template,
            text,
            documents,
            system=system,
            sampling=sampling,
            progress=show_reading,
        )
    finally:
        status("")


def _answer_in(
    chat: "Chat",
    model: "LanguageModel",
    template: "Template",
    text: str,
    allowed: "Collection[str]",
    sampling: "Sampling",
    cancel: threading.Event,
) -> "Iterator[ReplyEvent]":
    """The reply to a message that goes on with a stored chat, where it ends; both are stored.

    allowed: the names of tools that may run though they ask.
    """
    from chatapp.dialogue.session import Session, Started

    with open_store() as store:
        session = Session(model, template=template, store=store, chat_id=chat.id, sampling=sampling)
        session.ask_by(lambda tool, given, cancel: "once" if tool.name in allowed else "no")
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
    print_answer(answer, settings.model, choices, None, as_json=as_json)


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
