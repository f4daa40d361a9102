"""`chatapp ask`: one answer to a question.

Invariant: nothing is stored except a message that continues a chat, and invalid input is reported
before a model loads: bytes that are not text are refused in a sentence that names their place. A
tool that needs permission is named in an option, or the user is asked on the terminal; without one
it does not run.
"""

import os
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from chatapp.commands import options as shared
from chatapp.commands.answers import (
    AblateOption,
    ServedQuestion,
    SteerOption,
    ask_served,
    changes_of,
    print_answer,
    print_best,
)
from chatapp.commands.console import (
    MOST_INPUT,
    complain,
    decoded,
    reading_documents,
    standard_input,
)
from chatapp.commands.loading import choices_for, load, open_store
from chatapp.common.foreign import printable
from chatapp.common.userfiles import (
    UserError,
    missing_path,
    open_named,
    read_text,
    reason,
    suggestion,
)

if TYPE_CHECKING:
    from chatapp.dialogue.chat import Ask, Decision
    from chatapp.dialogue.documents.sources import Source
    from chatapp.dialogue.events import Options, TurnEvent
    from chatapp.dialogue.store.rows import StoredChat
    from chatapp.dialogue.tool_calls import Toolbox
    from chatapp.dialogue.tools.tool import PermissionRequest
    from chatapp.dialogue.writers.prompt import ToolChoice
    from chatapp.engine.constraint.constraint import Constraint
    from chatapp.engine.model import LanguageModel, Sampling
    from chatapp.prompting.chat_template import ChatTemplate
    from chatapp.tasks.files.documents import DocumentSet


@dataclass(frozen=True)
class AskOptions:
    """The options of `ask` beside those of sampling."""

    files: Annotated[
        list[Path] | None,
        typer.Option("--file", "-f", help="Insert a text file into the message; may be repeated."),
    ] = None
    system: Annotated[
        str | None,
        typer.Option(help="Instructions, or a file of them, that replace the template's own."),
    ] = None
    persona: Annotated[
        str | None,
        typer.Option(help="Use a persona's instructions.", autocompletion=shared.personas),
    ] = None
    last: Annotated[
        bool,
        typer.Option("--continue", "-c", help="Continue the last chat and save the answer in it."),
    ] = False
    chat_id: Annotated[
        int | None,
        typer.Option("--chat", help="Continue the chat with this id.", autocompletion=shared.chats),
    ] = None
    model: shared.ModelOption = None
    template: shared.TemplateOption = None
    precision: shared.PrecisionOption = None
    think: Annotated[
        bool | None,
        typer.Option(
            "--think/--no-think",
            help="Turn thinking on or off, if the model's template has a switch for it.",
            show_default=False,
        ),
    ] = None
    best_of: Annotated[
        int,
        typer.Option(
            "--best-of",
            min=1,
            max=256,
            help="Sample this many answers; print the one that --reward scores highest.",
        ),
    ] = 1
    reward: Annotated[
        str, typer.Option(help="A reward model: a finetune run with objective.kind = 'reward'.")
    ] = ""
    docs: Annotated[
        list[str] | None,
        typer.Option(
            help="A file, folder or pattern to search for passages; may be repeated. Saved with "
            "the chat."
        ),
    ] = None
    docs_method: shared.MethodOption = "bm25"
    tools: Annotated[
        str,
        typer.Option(
            help="Tools that the model may call, separated by commas: calculator,clock. Saved "
            "with the chat."
        ),
    ] = ""
    yes_tools: Annotated[
        str, typer.Option(help="Tools that may run without asking you on the terminal first.")
    ] = ""
    mcp_servers: shared.McpServersOption = None
    tool_choice: Annotated[
        Literal["own", "scored"] | None,
        typer.Option(
            help="own: the model opens calls itself. scored: the tool, or none, is chosen by "
            "likelihood after examples. By default as `models info` says.",
            show_default=False,
        ),
    ] = None
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|JSON",
            help="Answer with JSON that fits this JSON schema, a file or its text.",
        ),
    ] = None
    pattern: Annotated[
        str | None,
        typer.Option(metavar="RE", help="Answer with a text that this pattern matches."),
    ] = None
    grammar: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Answer with a text of this Lark grammar."),
    ] = None
    ablate: AblateOption = None
    steer: SteerOption = None
    no_server: shared.NoServerOption = False
    as_json: shared.JsonOption = False


@shared.sampling_options()
@shared.grouped_options
def ask(
    context: typer.Context,
    flags: AskOptions,
    question: Annotated[
        str | None, typer.Argument(help="The message. Standard input is appended to it.")
    ] = None,
) -> None:
    """Answer one question on standard output.

    Nothing is stored, unless a chat is continued.
    """
    shared.name_mcp_servers(flags.mcp_servers)
    chat = _chat_to_go_on_with(flags)
    _check_together(chat, flags)
    constraint = _constraint_of(flags)
    wanted = _names_in(flags.tools)
    allowed = _allowed_names(_names_in(flags.yes_tools), wanted)
    settings = shared.settings_of(context, model=None if chat is None else chat.model)
    text = _message_of(question, flags.files or ())
    own_system, template_of_chat = _instructions(flags, chat)
    may_be_served = not (flags.no_server or flags.ablate or flags.steer)
    if may_be_served and not (chat or flags.docs or wanted or flags.reward or constraint):
        question_only = ServedQuestion(text, own_system, settings.template, flags.think)
        if ask_served(question_only, settings, as_json=flags.as_json):
            return
    loaded = load(settings.model, settings.precision, settings.device, may_be_served=may_be_served)
    from chatapp.dialogue.events import Options
    from chatapp.dialogue.turn import answer
    from chatapp.prompting.messages import Message

    chosen = _template(loaded, settings.template, template_of_chat, flags.think)
    choices = choices_for(loaded, settings, chat)
    documents = _documents(flags, chat)
    read_now = None if chat else documents  # a chat searches its own
    sources = _sources(loaded, chosen, text, read_now, own_system, choices.sampling)
    changes = changes_of(loaded, flags.ablate, flags.steer)
    toolbox = None
    if wanted and chat is None:
        toolbox = _toolbox_of(loaded, chosen, wanted, allowed, flags.tool_choice)
    options = Options(
        choices.sampling, system=own_system, constraint=constraint, toolbox=toolbox, changes=changes
    )

    def reply(options: Options) -> "Iterator[TurnEvent]":
        if chat is None:
            return answer(loaded, chosen, text, options, sources)
        given = documents, wanted, allowed, sources
        return _reply_in(chat, loaded, chosen, text, options, *given)

    named = settings.model, choices, chosen.name
    if flags.reward:
        opening = [Message("system", own_system)] if own_system else []
        scored = flags.reward, [*opening, Message("user", text)], flags.best_of
        print_best(loaded, reply, options, *named, *scored, as_json=flags.as_json)
    else:
        print_answer(reply, options, *named, as_json=flags.as_json, sources=sources)


def _check_together(chat: "StoredChat | None", flags: AskOptions) -> None:
    """Refuse options that exclude each other. Raises UserError."""
    if flags.best_of > 1 and not flags.reward:
        raise UserError("--best-of needs a reward model to choose the best answer: --reward RUN")
    if flags.reward and flags.tools:
        raise UserError("--reward and --tools cannot be used together")
    if chat is None:
        return
    if flags.system is not None or flags.persona is not None:
        raise UserError(
            f"chat {chat.id} already has instructions; --system and --persona are for a new chat"
        )
    if flags.reward:
        raise UserError("--reward cannot be used with -c or --chat")


def _template(
    model: "LanguageModel", requested: str, of_chat: str, think: bool | None
) -> "ChatTemplate":
    """The template for the question, with a warning if it is not the model's. Raises UserError."""
    from chatapp.dialogue.writers.choosing import choose_template, mismatch, with_thinking

    try:
        chosen = choose_template(model, requested, of_chat)
        if think is not None:
            chosen = with_thinking(model, chosen, think)
        if warning := mismatch(model, chosen):
            complain(warning)
    except ValueError as error:
        raise UserError(str(error)) from None
    return chosen


def _documents(flags: AskOptions, chat: "StoredChat | None") -> "DocumentSet | None":
    """The documents of `--docs`, with absolute paths for a chat. Raises DocumentsError."""
    if not flags.docs:
        return None
    from chatapp.tasks.files.documents import DocumentSet

    paths = flags.docs
    if chat is not None:
        paths = [os.path.abspath(os.path.expanduser(path)) for path in paths]
    return DocumentSet(tuple(paths), flags.docs_method)


def _sources(
    model: "LanguageModel",
    template: "ChatTemplate",
    text: str,
    documents: "DocumentSet | None",
    system: str | None,
    sampling: "Sampling",
) -> "list[Source]":
    """The passages for a question; a terminal shows the progress."""
    if documents is None:
        return []
    from chatapp.dialogue.documents.search import Documents
    from chatapp.dialogue.documents.sources import NO_PASSAGE
    from chatapp.dialogue.writers.choosing import writer_for

    with reading_documents() as show:
        passages = Documents(documents, model).search(text, show)
    writer, most = writer_for(model, template), sampling.max_tokens
    sources = writer.sources(system, text, passages, max_tokens=most)
    if not sources:
        complain(NO_PASSAGE)
    return list(sources)


def _reply_in(
    chat: "StoredChat",
    model: "LanguageModel",
    template: "ChatTemplate",
    text: str,
    options: "Options",
    documents: "DocumentSet | None",
    tools: "Sequence[str]",
    allowed: "Collection[str]",
    sources: "list[Source]",
) -> "Iterator[TurnEvent]":
    """The reply to a message that continues a stored chat; both are stored.

    documents, tools: used if the chat has none of its own. allowed: the names of tools that may run
    without asking. sources: receives the passages of the reply.
    """
    from chatapp.dialogue.chat import Chat
    from chatapp.dialogue.documents.search import Documents
    from chatapp.dialogue.events import Started
    from chatapp.dialogue.session import Session

    if documents is not None:
        with reading_documents() as show:
            Documents(documents).renew(show)  # unreadable ones are not stored in the chat
    with open_store() as store, closing(Chat(store, chat.id)) as opened:
        opened.ask = asking(allowed)
        opened.interventions, opened.constraint = options.changes, options.constraint
        if documents is not None:
            opened.use_documents(documents)
        session = Session(opened, model, template=template, sampling=options.sampling)
        if tools:
            session.set_tools(tools)
            for problem in session.find_tools().problems_of(tools):
                complain(problem)
        for event in session.say(text, options.cancel):
            if isinstance(event, Started):
                sources += event.message.sources
                if event.dropped:
                    complain(f"messages out of context: {event.dropped}")
            else:
                yield event


def _constraint_of(flags: AskOptions) -> "Constraint | None":
    """The constraint of one of the options, or None. Raises UserError."""
    given = {"schema": flags.schema, "pattern": flags.pattern, "grammar": flags.grammar}
    named = [(kind, text) for kind, text in given.items() if text is not None]
    if not named:
        return None
    if len(named) > 1:
        raise UserError("use one of --schema, --pattern and --grammar")
    if flags.tools:
        raise UserError(f"--{named[0][0]} and --tools cannot be used together")
    from chatapp.engine.constraint.constraint import Constraint

    kind, text = named[0]
    return Constraint.read(kind, text)  # type: ignore[arg-type]


def _message_of(question: str | None, files: Sequence[Path]) -> str:
    """A question, the contents of files under their names, and standard input, in that order."""
    parts = [question or "", *map(_named, files), standard_input()]
    text = "\n\n".join(part for part in parts if part.strip())
    if not text:
        raise UserError("there is no question; pass it in quotes or on standard input")
    return text


def _instructions(flags: AskOptions, chat: "StoredChat | None") -> tuple[str | None, str]:
    """The instructions and the template for a question; None and "" for the defaults.

    chat: the continued one, with its own template.
    """
    if chat is not None:
        return None, chat.asked_template
    system, persona = flags.system, flags.persona
    if persona is None:
        return (None if system is None else _text_or_file(system)), ""
    if system is not None:
        raise UserError("use either --system or --persona, not both")
    from chatapp.tasks.files.library import personas
    from chatapp.tasks.files.promptfile import Persona, load_for_chat

    known = personas()
    if persona not in known:
        raise UserError(f"there is no persona {persona!r}{suggestion(persona, known)}")
    chosen = load_for_chat(known[persona])
    if not isinstance(chosen, Persona):
        raise UserError(f"{known[persona]}: is a prompt file, expected a persona")
    return chosen.system, chosen.template


def _chat_to_go_on_with(flags: AskOptions) -> "StoredChat | None":
    """The chat with an id, or the last one; None for neither. Raises UserError."""
    chat_id = flags.chat_id
    if not flags.last and chat_id is None:
        return None
    if flags.last and chat_id is not None:
        raise UserError("use either --continue or --chat, not both")
    with open_store() as store:
        if chat_id is None:
            newest = store.chats(limit=1)
            if not newest:
                raise UserError("there is no chat to continue yet")
            chat_id = newest[0].id
        chat = store.chat(chat_id)
    if chat.deleted is not None:
        raise UserError(f"chat {chat_id} is deleted; you can restore it in the list of chats")
    return chat


def _text_or_file(text: str) -> str:
    path = os.path.expanduser(text)
    if os.path.isfile(path):
        return read_text(Path(path)).strip()
    if " " not in text and (problem := missing_path(text, "file")):
        raise UserError(problem)
    return text


def _named(file: Path) -> str:
    """A file's text under its name."""
    try:
        with open_named(file.expanduser()) as content:
            text = decoded(content.read(MOST_INPUT + 1), str(file))
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{file}: cannot be read: {reason(error)}") from None
    return f"{file.name}:\n{text.strip()}" if text.strip() else ""


def _names_in(option: str) -> list[str]:
    """The names in an option, separated by commas."""
    return [name.strip() for name in option.split(",") if name.strip()]


def _allowed_names(names: Collection[str], tools: Collection[str]) -> Collection[str]:
    """The tools that need no permission. Raises UserError for one that is not on, where some are,
    and for one that asks for every call.
    """
    if not names:
        return names
    from chatapp.dialogue.tools.registry import find_tools

    known = find_tools().tools
    for name in names:
        if name in known and known[name].asks_each_time:
            raise UserError(f"--yes-tools names {name!r}, which shows every call and asks for it")
        # A tool of a server may be named separately if all of the server's are on.
        if tools and not any(f"{name}_".startswith(f"{tool}_") for tool in tools):
            raise UserError(f"--yes-tools names {name!r}, which is not among --tools")
    return names


def asking(allowed: Collection[str]) -> "Ask":
    """What allows a tool if it or its server is in `allowed`, and else asks on the terminal."""

    def ask(request: "PermissionRequest", cancel: threading.Event) -> "Decision":
        tool = request.tool
        if not tool.asks_each_time and (tool.name in allowed or tool.server in allowed):
            return "once"
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return "no"
        question = f"\n{request.text(is_expanded=True)}\n[y/N] "
        print(printable(question), end="", file=sys.stderr, flush=True)
        with suppress(ImportError):  # Windows
            import termios

            termios.tcflush(sys.stdin, termios.TCIFLUSH)  # keys typed before are not an answer
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return "once" if sys.stdin.readline().strip().lower() in ("y", "yes") else "no"
        except KeyboardInterrupt:
            cancel.set()
            return "no"
        finally:
            signal.signal(signal.SIGINT, before)

    return ask


def _toolbox_of(
    model: "LanguageModel",
    template: "ChatTemplate",
    names: Collection[str],
    allowed: Collection[str],
    tool_choice: "ToolChoice | None",
) -> "Toolbox":
    """The tools for one question. tool_choice: None for the model's default. Raises UserError for a
    tool that does not exist, or that the model cannot call.
    """
    from chatapp.dialogue.tool_calls import Toolbox, chooser_of, out_of_reach
    from chatapp.dialogue.tools.registry import find_tools
    from chatapp.dialogue.tools.tool import PermissionRequest
    from chatapp.dialogue.writers.choosing import writer_for

    registry = find_tools()
    tools = registry.chosen(names)
    for problem in registry.problems_of(names):
        complain(problem)
    writer = writer_for(model, template)
    writer.tool_choice = tool_choice or writer.tool_choice
    if problem := out_of_reach(writer, list(tools)):
        raise UserError(problem)
    ask = asking(allowed)
    return Toolbox(
        tools,
        lambda tool, arguments, cancel: ask(PermissionRequest(tool, arguments), cancel) != "no",
        chooser_of(model, writer, tools),
    )
