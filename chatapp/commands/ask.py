"""`chatapp ask`: one answer to a question.

Invariant: nothing is stored except a message that continues a chat, and invalid input is reported
before a model loads.
"""

import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from chatapp.commands import options
from chatapp.commands.answers import print_answer, print_best
from chatapp.commands.ask_inputs import (
    allowed_names,
    asking,
    chat_to_go_on_with,
    instructions,
    message_of,
    names_in,
    toolbox_of,
)
from chatapp.commands.changes import AblateOption, SteerOption, changes_of
from chatapp.commands.console import complain, show_reading, status
from chatapp.commands.constraints import (
    GrammarOption,
    PatternOption,
    SchemaOption,
    constraint_of,
)
from chatapp.commands.loading import choices_for, load, open_store
from chatapp.commands.options import (
    METHOD_HELP,
    JsonOption,
    McpServersOption,
    ModelOption,
    NoServerOption,
    PrecisionOption,
    TemplateOption,
    name_mcp_servers,
    sampling_options,
    settings_of,
)
from chatapp.commands.serving.ask_served import ServedQuestion, ask_served
from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.dialogue.documents.sources import Source
    from chatapp.dialogue.events import ReplyEvent
    from chatapp.dialogue.store.rows import StoredChat
    from chatapp.dialogue.tool_calls import Toolbox
    from chatapp.engine.constraint.constraint import Constraint
    from chatapp.engine.decoder.interventions import Interventions
    from chatapp.engine.events import Event
    from chatapp.engine.model import Generate, LanguageModel, Sampling
    from chatapp.prompting.chat_template import Template
    from chatapp.prompting.messages import Message
    from chatapp.tasks.files.documents import DocumentSet


QuestionArgument = Annotated[
    str | None, typer.Argument(help="The message. Standard input is appended to it.")
]
FilesOption = Annotated[
    list[Path] | None,
    typer.Option("--file", "-f", help="Insert a text file into the message; may be repeated."),
]
SystemOption = Annotated[
    str | None,
    typer.Option(help="Instructions, or a file of them, that replace the template's own."),
]
PersonaOption = Annotated[
    str | None, typer.Option(help="Use a persona's instructions.", autocompletion=options.personas)
]
LastOption = Annotated[
    bool, typer.Option("--continue", "-c", help="Continue the last chat and save the answer in it.")
]
ChatOption = Annotated[
    int | None,
    typer.Option("--chat", help="Continue the chat with this id.", autocompletion=options.chats),
]
ThinkOption = Annotated[
    bool | None,
    typer.Option(
        "--think/--no-think",
        help="Turn thinking on or off, if the model's template has a switch for it.",
        show_default=False,
    ),
]
BestOfOption = Annotated[
    int,
    typer.Option(
        "--best-of",
        min=1,
        max=256,
        help="Sample this many answers; print the one that --reward scores highest.",
    ),
]
RewardOption = Annotated[
    str, typer.Option(help="A reward model: a finetune run with objective.kind = 'reward'.")
]
DocsOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A file, folder or pattern to search for passages; may be repeated. Saved with "
        "the chat."
    ),
]
ToolsOption = Annotated[
    str,
    typer.Option(
        help="Tools that the model may call, separated by commas: calculator,clock. Saved "
        "with the chat."
    ),
]
YesToolsOption = Annotated[
    str, typer.Option(help="Tools that may run without asking you on the terminal first.")
]
ToolChoiceOption = Annotated[
    Literal["own", "scored"] | None,
    typer.Option(
        help="own: the model opens calls itself. scored: the tool, or none, is chosen by "
        "likelihood after examples. By default as `models info` says.",
        show_default=False,
    ),
]


@sampling_options()
def ask(
    context: typer.Context,
    question: QuestionArgument = None,
    files: FilesOption = None,
    system: SystemOption = None,
    persona: PersonaOption = None,
    last: LastOption = False,
    chat_id: ChatOption = None,
    model: ModelOption = None,
    template: TemplateOption = None,
    precision: PrecisionOption = None,
    think: ThinkOption = None,
    best_of: BestOfOption = 1,
    reward: RewardOption = "",
    docs: DocsOption = None,
    docs_method: Annotated[str, typer.Option(help=METHOD_HELP)] = "bm25",
    tools: ToolsOption = "",
    yes_tools: YesToolsOption = "",
    mcp_servers: McpServersOption = None,
    tool_choice: ToolChoiceOption = None,
    schema: SchemaOption = None,
    pattern: PatternOption = None,
    grammar: GrammarOption = None,
    ablate: AblateOption = None,
    steer: SteerOption = None,
    no_server: NoServerOption = False,
    as_json: JsonOption = False,
) -> None:
    """Answer one question on standard output.

    Nothing is stored, unless a chat is continued.
    """
    name_mcp_servers(mcp_servers)
    chat = chat_to_go_on_with(last, chat_id)
    _check_together(chat, system, persona, best_of, reward, tools)
    constraint = constraint_of(schema, pattern, grammar, tools)
    wanted = names_in(tools)
    allowed = allowed_names(names_in(yes_tools), wanted)
    settings = settings_of(context, model=None if chat is None else chat.model)
    text = message_of(question, files or ())
    own_system, asked_template = instructions(system, persona, chat)
    may_be_served = not (no_server or ablate or steer)
    if may_be_served and not (chat or docs or wanted or reward or constraint):
        question_only = ServedQuestion(text, own_system, settings.template, think)
        if ask_served(question_only, settings, as_json=as_json):
            return
    loaded = load(settings.model, settings.precision, settings.device, may_be_served=may_be_served)
    chosen = _template(loaded, settings.template, asked_template, think)
    choices = choices_for(loaded, settings, chat)
    documents = _documents(docs, docs_method, chat)
    read_now = None if chat else documents  # a chat searches its own
    sources = _sources(loaded, chosen, text, read_now, own_system, choices.sampling)
    changes = changes_of(loaded, ablate, steer)
    alone = _Question(loaded, chosen, text, own_system, tuple(sources), changes, constraint)
    named = settings.model, choices, chosen.name
    if reward:
        print_best(alone.answers, *named, reward, alone.messages, best_of, as_json=as_json)
        return
    answer: Callable[[Sampling, threading.Event], Iterator[ReplyEvent]] = alone.answer
    if chat is not None:
        given = documents, wanted, allowed, sources, changes, constraint
        answer = partial(_answer_in, chat, loaded, chosen, text, *given)
    elif wanted:
        toolbox = toolbox_of(loaded, chosen, wanted, allowed, tool_choice)
        answer = partial(alone.answer_with_tools, toolbox)
    print_answer(answer, *named, as_json=as_json, sources=sources, changes=changes.words)


def _check_together(
    chat: "StoredChat | None",
    system: str | None,
    persona: str | None,
    best_of: int,
    reward: str,
    tools: str,
) -> None:
    """Refuse options that exclude each other. Raises UserError."""
    if best_of > 1 and not reward:
        raise UserError("--best-of needs a reward model to choose the best answer: --reward RUN")
    if reward and tools:
        raise UserError("--reward and --tools cannot be used together")
    if chat is None:
        return
    if system is not None or persona is not None:
        raise UserError(
            f"chat {chat.id} already has instructions; --system and --persona are for a new chat"
        )
    if reward:
        raise UserError("--reward cannot be used with -c or --chat")


def _template(
    model: "LanguageModel", requested: str, of_chat: str, think: bool | None
) -> "Template":
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


def _documents(
    paths: "Sequence[str] | None", method: str, chat: "StoredChat | None"
) -> "DocumentSet | None":
    """The documents of `--docs`, with absolute paths for a chat. Raises DocumentsError."""
    from chatapp.tasks.files.documents import DocumentSet

    if not paths:
        return None
    if chat is not None:
        paths = [os.path.abspath(os.path.expanduser(path)) for path in paths]
    return DocumentSet(tuple(paths), method)


def _read(documents: "DocumentSet") -> None:
    """Read documents, with progress on a terminal. Raises DocumentsError."""
    from chatapp.dialogue.documents.search import Documents

    try:
        Documents(documents).renew(show_reading)
    finally:
        status("")


def _sources(
    model: "LanguageModel",
    template: "Template",
    text: str,
    documents: "DocumentSet | None",
    system: str | None,
    sampling: "Sampling",
) -> "list[Source]":
    """The passages for a question; a terminal shows the progress."""
    from chatapp.dialogue import oneshot
    from chatapp.dialogue.documents.sources import NO_PASSAGE

    if documents is None:
        return []
    try:
        sources = oneshot.find_sources(
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
    if not sources:
        complain(NO_PASSAGE)
    return list(sources)


@dataclass(frozen=True, slots=True)
class _Question:
    """A single question, which is not stored, and the model that answers it."""

    model: "LanguageModel"
    template: "Template"
    text: str
    system: str | None
    sources: "tuple[Source, ...]"
    changes: "Interventions"
    constraint: "Constraint | None"

    @property
    def messages(self) -> "list[Message]":
        """The messages that a reward model reads before an answer."""
        from chatapp.prompting.messages import Message

        instructions = [Message("system", self.system)] if self.system else []
        return [*instructions, Message("user", self.text)]

    def answers(
        self, samplings: "Sequence[Sampling]", cancel: threading.Event
    ) -> "list[Iterator[Event]]":
        """Several answers, to be drawn in turn."""
        generate = self.model.together(len(samplings))
        return [self.answer(sampling, cancel, generate) for sampling in samplings]

    def answer(
        self, sampling: "Sampling", cancel: threading.Event, generate: "Generate | None" = None
    ) -> "Iterator[Event]":
        """The answer."""
        from chatapp.dialogue import oneshot
        from chatapp.engine.model import with_interventions

        return oneshot.ask(
            self.model,
            self.template,
            self.text,
            system=self.system,
            sources=self.sources,
            sampling=sampling,
            cancel=cancel,
            generate=with_interventions(generate or self.model.generate, self.changes),
            constraint=self.constraint,
        )

    def answer_with_tools(
        self, toolbox: "Toolbox", sampling: "Sampling", cancel: threading.Event
    ) -> "Iterator[ReplyEvent]":
        """The answer of a model that may call tools."""
        from chatapp.dialogue import oneshot
        from chatapp.engine.model import with_interventions

        return oneshot.ask_with_tools(
            self.model,
            self.template,
            self.text,
            toolbox,
            system=self.system,
            sources=self.sources,
            sampling=sampling,
            cancel=cancel,
            generate=with_interventions(self.model.generate, self.changes),
        )


def _answer_in(
    chat: "StoredChat",
    model: "LanguageModel",
    template: "Template",
    text: str,
    documents: "DocumentSet | None",
    tools: "Sequence[str]",
    allowed: "Collection[str]",
    sources: "list[Source]",
    changes: "Interventions",
    constraint: "Constraint | None",
    sampling: "Sampling",
    cancel: threading.Event,
) -> "Iterator[ReplyEvent]":
    """The reply to a message that continues a stored chat; both are stored.

    documents, tools: used if the chat has none of its own. allowed: the names of tools that may run
    without asking. sources: receives the passages of the reply.
    """
    from chatapp.dialogue.chat import Chat
    from chatapp.dialogue.events import Started
    from chatapp.dialogue.session import Session

    if documents is not None:
        _read(documents)  # unreadable documents are not stored in the chat
    with open_store() as store, closing(Chat(store, chat.id)) as opened:
        opened.ask = asking(allowed)
        opened.interventions, opened.constraint = changes, constraint
        if documents is not None:
            opened.use_documents(documents)
        session = Session(opened, model, template=template, sampling=sampling)
        if tools:
            session.set_tools(tools)
            for problem in session.find_tools().problems_of(tools):
                complain(problem)
        for event in session.say(text, cancel):
            if isinstance(event, Started):
                sources += event.message.sources
            else:
                yield event
