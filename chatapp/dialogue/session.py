"""The dialogue loop: a user's message becomes a prompt, the model's answer a stored reply.

Invariant: the store is never behind the screen. A message is stored before the model sees it, and a
growing reply within half a second, all of it however the generation ends. While the disk has no
room, the reply continues, and the error at its end contains it.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace

from chatapp.common.foreign import without_surrogates
from chatapp.common.parameters import Choices, seeded
from chatapp.common.unforeseen import INTERRUPTS
from chatapp.common.userfiles import Progress
from chatapp.dialogue.chat import Chat
from chatapp.dialogue.documents.search import Documents
from chatapp.dialogue.documents.sources import NO_PASSAGE, Source, texts_in_prompt
from chatapp.dialogue.events import (
    Called,
    Calling,
    Options,
    PromptWritten,
    ReplyEvent,
    SessionEvent,
    Started,
)
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.database import StoreError
from chatapp.dialogue.store.rows import Conditions, Status, StoredMessage
from chatapp.dialogue.tool_calls import Toolbox, chooser_of, out_of_reach
from chatapp.dialogue.tools.registry import Registry
from chatapp.dialogue.tools.tool import ToolError
from chatapp.dialogue.turn import ALTERNATIVES, turn, write_prompt
from chatapp.dialogue.writers.choosing import choose_template, writer_for
from chatapp.dialogue.writers.prompt import Exchange, Prompt, Writer, with_constraint
from chatapp.engine.backends.remote.remote_model import RemoteModel
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.events import Finished, FinishReason, Token
from chatapp.engine.model import NO_TOKEN, ContextOverflow, Generate, LanguageModel, Sampling
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.messages import Message, Role
from chatapp.tasks.files.documents import DocumentsError, DocumentSet

_STORE_EVERY_SECONDS = 0.5
"""Half of the time that a crash may cost."""

# Every other reason leaves a reply complete.
_STATUS: dict[FinishReason, Status] = {"cancelled": "stopped", "error": "error"}


@dataclass(frozen=True, slots=True)
class _Plan:
    """A reply that is to be generated.

    path: the messages before it, from the chat's first. text: a new message of the user; None to
    answer the last one. beginning: a reply whose text up to its last call begins this one, with its
    calls; goes_on: it is that reply. forced: its first tokens. is_another: it is to differ from the
    versions beside it.
    """

    path: list[StoredMessage]
    text: str | None = None
    beginning: StoredMessage | None = None
    goes_on: bool = False
    forced: Sequence[int] = ()
    is_another: bool = False

    @property
    def messages(self) -> list[StoredMessage]:
        """Those in its prompt, except a new one."""
        return self.path if self.beginning is None else [*self.path, self.beginning]


class Session:
    """A chat with a model.

    Each of `say`, `regenerate`, `branch`, `continue_reply` and `edit` yields one Started, Tokens, a
    Calling and a Called for each tool call, and one Finished; their texts together are the reply.
    Setting `cancel` ends the reply within one token, closing the iterator ends it at once, and both
    keep the text so far. One turn runs at a time. Model and template are fixed for a session;
    instructions, documents and tools may change.
    """

    def __init__(
        self,
        chat: Chat,
        model: LanguageModel,
        *,
        template: ChatTemplate | None = None,
        sampling: Sampling | None = None,
        generate: Generate | None = None,
    ) -> None:
        """template: of the chat; None is the model's own. sampling: used where the chat's prompt
        file has no value; None is the chat's choice. generate: draws the replies; None is the
        model's own. Raises ValueError with a sentence when there is no template.
        """
        self.chat = chat
        self.model = model
        self.template = template or choose_template(model, "", chat.basis.asked_template)
        self.generate = generate
        self._sampling = sampling
        self._sampling_is_set = False
        self._file_sampling: Mapping[str, int | float] = {}
        """The values in the chat's prompt file, once it is read, as far as they apply."""
        self._documents: Documents | None = None
        self._writer: Writer | None = None
        self._drawn: dict[int, list[Token]] = {}

    @property
    def layout(self) -> str:
        """The layout of its prompts: the name of the prompt file, or of the template."""
        return self.chat.basis.prompt or self.template.name

    @property
    def sampling(self) -> Sampling:
        """The sampling parameters. A new value applies from the next turn on."""
        return self._sampling or self.chat.choices.sampling

    @sampling.setter
    def sampling(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._sampling_is_set = True

    @property
    def choices(self) -> Choices:
        """The origin of each sampling parameter."""
        return self.chat.choices.of("prompt file", self._file_sampling).changed_to(self.sampling)

    @property
    def constraint(self) -> Constraint | None:
        """What its next reply may look like: the chat's choice, or else the prompt file's."""
        return self.chat.constraint or self.writer.constraint

    # Turns

    def say(self, text: str, cancel: threading.Event | None = None) -> Iterator[SessionEvent]:
        """Add a user's message and generate its reply.

        Raises ValueError for an empty text, MessageTooLong when it does not fit; then nothing is
        stored.
        """
        yield from self._reply(_Plan(self.chat.messages, message_text(text)), cancel)

    def edit(
        self, message_id: int, text: str, cancel: threading.Event | None = None
    ) -> Iterator[SessionEvent]:
        """Send another text in place of a user's message. Both stay, as siblings."""
        message = self.message(message_id, "user")
        path = self.chat.path_to(message.parent_id)
        yield from self._reply(_Plan(path, message_text(text)), cancel)

    def regenerate(
        self, message_id: int, cancel: threading.Event | None = None
    ) -> Iterator[SessionEvent]:
        """Generate another reply beside the reply `message_id`, from another seed where the same
        would draw the same reply.

        Given a user's message, it generates a reply to it.
        """
        message = self.message(message_id, "user", "assistant")
        is_another = message.role == "assistant"
        path = self.chat.path_to(message.parent_id if is_another else message.id)
        yield from self._reply(_Plan(path, is_another=is_another), cancel)

    def branch(
        self, message_id: int, begin: Sequence[int], cancel: threading.Event | None = None
    ) -> Iterator[SessionEvent]:
        """Generate another reply beside the reply `message_id`, with a given beginning.

        begin: its first tokens; if the last is the end-of-text token, they are the whole reply.
        Raises ValueError when they end within a character, ContextOverflow when they leave no room
        in the window; then nothing is stored.
        """
        message = self.message(message_id, "assistant")
        if self.model.tokenizer.decode(list(begin)).endswith("\ufffd"):
            raise ValueError("this token is only part of a character; branch before or after it")
        path, beginning = self.chat.path_to(message.parent_id), up_to_call(message)
        plan = _Plan(path, beginning=beginning if message.calls else None, forced=begin)
        yield from self._reply(plan, cancel)

    def continue_reply(
        self, message_id: int, cancel: threading.Event | None = None
    ) -> Iterator[SessionEvent]:
        """Continue a reply at its end, in the same message.

        Raises ValueError when later messages follow it, ContextOverflow when the window is full.
        """
        reply = self.message(message_id, "assistant")
        if self.chat.store.latest_leaf(message_id) != message_id:
            raise ValueError("only the last reply of a chat can be continued")
        path = self.chat.path_to(reply.parent_id)
        yield from self._reply(_Plan(path, beginning=reply, goes_on=True), cancel)

    # One turn

    def _reply(self, plan: _Plan, cancel: threading.Event | None) -> Iterator[SessionEvent]:
        """A turn: write the prompt, store the messages, draw, record."""
        toolbox = self._toolbox(cancel) if self.chat.tools else None
        prompt = self._render_plan(plan, cancel)
        user, reply = self._store(plan, prompt)
        self.chat.messages = [*plan.path, *([user] if user else []), reply]
        with self._recording(reply) as recorder:
            sampling = self._unused(reply, prompt) if plan.is_another else seeded(self.sampling)
            constraint = self.constraint
            # A server's alternatives are available only now.
            top = ALTERNATIVES if constraint or isinstance(self.model, RemoteModel) else 0
            if constraint is not None and reply.text:
                constraint = replace(constraint, begun=reply.text)
            options = Options(
                sampling,
                cancel,
                self._system,
                constraint,
                toolbox,
                self.chat.interventions,
                plan.forced,
                top=top,
                generate=self.generate,
            )
            *history, newest = self._exchanges(plan.messages, plan.text, prompt.sources)
            exchanges = [*history, replace(newest, thoughts=reply.thoughts)]
            is_grounded = bool(prompt.sources) or self._named_documents() is None
            events = turn(self.model, self.writer, exchanges, options, prompt)
            # In any case, a model on a server learns at once that the reply is over.
            with closing(events):
                for event in events:
                    if isinstance(event, PromptWritten):
                        self._begin(recorder, event.prompt, sampling)
                        if event.prompt is prompt:
                            dropped = messages_in(prompt.dropped, self.chat.messages)
                            row = replace(reply, status="partial")
                            yield Started(row, user, len(prompt.ids), dropped)
                        continue
                    if isinstance(event, Finished) and event.reason != "error" and not is_grounded:
                        remarks = filter(None, (event.message, NO_PASSAGE))
                        event = replace(event, message=" · ".join(remarks))
                    recorder.add(event)
                    self.chat.messages[-1] = recorder.reply
                    if not isinstance(event, Finished):
                        yield event
        if recorder.finished is not None:
            yield recorder.finished

    def _render_plan(self, plan: _Plan, cancel: threading.Event | None) -> Prompt:
        """The prompt for a reply. Raises the errors of rendering it."""
        if plan.goes_on and plan.beginning is not None:
            sources = plan.beginning.sources
        else:
            message = plan.path[-1].text if plan.text is None else plan.text
            sources = self.find_sources(message, cancel)
        prompt = self.render(plan.messages, plan.text, sources)
        if len(prompt.ids) + len(plan.forced) >= self.model.context:
            raise ContextOverflow(
                f"the reply would begin with {len(plan.forced)} tokens and fill the model's window "
                f"of {self.model.context}"
            )
        return replace(prompt, messages=()) if plan.forced else prompt  # only a text is continued

    def _store(self, plan: _Plan, prompt: Prompt) -> tuple[StoredMessage | None, StoredMessage]:
        """The rows of the user's new message, if there is one, and of the reply at its
        beginning."""
        store, beginning = self.chat.store, plan.beginning
        if beginning is not None and plan.goes_on:
            store.set_leaf(beginning.chat_id, beginning.id)
            store.update_message(beginning.id, beginning.text, "partial")
            if prompt.messages:  # a server restarts a reply that was cut off within a thought
                beginning = replace(beginning, thoughts="", thought_tokens=0)
            return None, beginning
        parent_id = plan.path[-1].id if plan.path else None
        user, reply = self.chat.add_messages(
            parent_id, plan.text, prompt.sources, template=self.template.name, model=self.model.name
        )
        if beginning is not None:
            reply = replace(reply, text=beginning.text, calls=beginning.calls)
        return user, reply

    @contextmanager
    def _recording(self, reply: StoredMessage) -> Iterator["_Recorder"]:
        """Record a reply; at its end, store it and keep its tokens."""
        recorder = _Recorder(self.chat.store, reply)
        try:
            yield recorder
        except INTERRUPTS:
            raise
        except BaseException:
            recorder.reply = replace(recorder.reply, status="error")
            raise
        finally:
            self.chat.messages[-1] = recorder.reply
            try:
                recorder.end()
            finally:
                self._remember(reply, recorder)

    def _begin(self, recorder: "_Recorder", prompt: Prompt, sampling: Sampling) -> None:
        """Record the conditions of a reply."""
        system, writer = self.chat.basis.system, self.writer
        opening = prompt.opening or ([Message("system", system)] if system else [])
        conditions = Conditions(
            tuple((message.role, message.text) for message in opening),
            writer.prefix,
            writer.goes_on,
            prompt.choose is not None,
            writer.tools,
        )
        recorder.mark(self.chat.interventions.words)
        recorder.generation_id = self.chat.store.begin_generation(
            recorder.reply.id,
            model=self.model.name,
            template=writer.name,
            prompt=prompt.text,
            sampling=asdict(sampling),
            seed=sampling.seed or 0,
            conditions=asdict(conditions),
        )

    def _remember(self, before: StoredMessage, recorder: "_Recorder") -> None:
        """Keep the drawn tokens of a reply. before: its row before generation."""
        reply, tokens = recorder.reply, recorder.tokens
        if isinstance(self.model, RemoteModel):
            earlier = self._drawn.get(reply.id, []) if reply.calls == before.calls else []
            self._drawn[reply.id] = [*earlier, *tokens]
        if not reply.calls:
            tokenizer = self.model.tokenizer
            end_id = tokenizer.end_id if tokenizer.names_end else NO_TOKEN
            ids = (token.id for token in tokens if token.thought is None and token.id != end_id)
            self.writer.remember(reply.text, [*self.writer.reply_ids(before.text), *ids])

    def _unused(self, reply: StoredMessage, prompt: Prompt) -> Sampling:
        """The sampling, from the first seed of which no version beside a reply was drawn."""
        sampling, store = self.sampling, self.chat.store
        if sampling.seed is None:
            return seeded(sampling)
        versions = {version.id: version.changes for version in store.siblings(reply.id)}
        now = self.model.name, prompt.text, self.chat.interventions.words
        used = [
            generation.sampling
            for generation in store.generations(reply.chat_id)
            if (generation.model, generation.prompt, versions.get(generation.message_id)) == now
        ]
        while sampling.seed is not None and asdict(sampling) in used:
            sampling = replace(sampling, seed=sampling.seed + 1)
        return sampling

    def _toolbox(self, cancel: threading.Event | None) -> Toolbox:
        """The tools of the chat. Raises ToolError for one that does not exist."""
        tools = self.find_tools().chosen(self.chat.tools, cancel)
        changed = bool(self.chat.interventions)
        choose = None if changed else chooser_of(self.model, self.writer, tools)
        return Toolbox(tools, self.chat.permits, choose)

    # Parts of a prompt

    @property
    def writer(self) -> Writer:
        """The writer of the chat's prompts.

        The first use reads the chat's prompt file, whose sampling then applies unless changed.
        Raises PromptError while the file is invalid.
        """
        if self._writer is None and self.chat.basis.prompt:
            from chatapp.dialogue.writers.fewshot import FewShotWriter

            writer = FewShotWriter.open(self.model, self.chat.basis.prompt, self.template)
            if not self._sampling_is_set:
                self._sampling = writer.sampling(self.sampling)
                self._file_sampling = writer.prompt.generate
            self._writer = writer
        elif self._writer is None:
            self._writer = writer_for(self.model, self.template)
        return self._writer

    def render(
        self, path: list[StoredMessage], text: str | None, sources: Sequence[Source]
    ) -> Prompt:
        """The prompt for a reply to `text`, or else for the message after `path`.

        sources: the passages before the last message. Raises MessageTooLong and ContextOverflow.
        """
        writer, tools = self.writer, self.find_tools().tools if self.chat.tools else {}
        writer.use_tools([tools[name].to_dict() for name in self.chat.tools if name in tools])
        options = Options(self.sampling, system=self._system)
        prompt = write_prompt(writer, self._exchanges(path, text, sources), options)
        return replace(prompt, sources=tuple(sources))

    @property
    def _system(self) -> str | None:
        """The instructions; a prompt file shows what it wants by its demonstrations instead."""
        basis, constraint = self.chat.basis, self.chat.constraint
        constraint = None if basis.prompt else constraint
        return with_constraint(basis.system, self.template, constraint)

    def _exchanges(
        self, path: Iterable[StoredMessage], text: str | None, sources: Sequence[Source]
    ) -> list[Exchange]:
        exchanges = exchanges_of(path)
        if text is not None:
            exchanges.append(Exchange(text))
        return [*exchanges[:-1], replace(exchanges[-1], passages=texts_in_prompt(sources))]

    def find_sources(
        self, message: str, cancel: threading.Event | None = None
    ) -> tuple[Source, ...]:
        """The passages of the chat's documents for a message; those that fit are numbered.

        The documents stay open while the same ones are used, so that only changes are read again.
        Raises DocumentsError and ModelError when they cannot be searched, and MessageTooLong.
        """
        writer, named = self.writer, self._named_documents()
        if named is None:
            return ()
        if self._documents is None or self._documents.document_set != named:
            self._documents = Documents(named, self.model)
        passages = self._documents.search(message, until(cancel))
        system, most = self.chat.basis.system, self.sampling.max_tokens
        return writer.sources(system, message, passages, max_tokens=most)

    def _named_documents(self) -> DocumentSet | None:
        return self.chat.documents or self.writer.documents

    def find_tools(self) -> Registry:
        """The tools available to the chat. The first use may read its prompt file."""
        return self.chat.find_tools(self._named_documents())

    def find_tools_without_reading(self) -> Registry:
        """Like `find_tools`; ignores the documents of a prompt file that has not been read."""
        return self.chat.find_tools(None if self._writer is None else self._writer.documents)

    def set_tools(self, names: Sequence[str]) -> None:
        """Let the model call these tools from the next message on, and store that.

        Raises ToolError for a tool that does not exist, or that the model cannot call.
        """
        chosen = tuple(self.find_tools().chosen(names))
        if problem := out_of_reach(self.writer, chosen):
            raise ToolError(problem)
        self.chat.use_tools(chosen)

    def drawn(self, message_id: int) -> tuple[Token, ...]:
        """The drawn tokens of a reply of a server's model since its last call, with alternatives;
        empty for other models, or a reply of an earlier session.
        """
        return tuple(self._drawn.get(message_id, ()))

    def message(self, message_id: int, *roles: Role) -> StoredMessage:
        """A message of this chat with one of `roles`. Raises ValueError otherwise."""
        message = self.chat.store.message(message_id)
        if message.chat_id != self.chat.id:
            raise ValueError(f"message {message_id} is not in this chat")
        if message.role not in roles:
            raise ValueError(f"message {message_id} is from the {message.role}")
        return message


class ReplyNotStored(StoreError):
    """A reply has ended but could not be stored. store: tries again; raises StoreError."""

    def __init__(self, error: StoreError, store: Callable[[], None]) -> None:
        super().__init__(f"the reply is not saved: {error}")
        self.store = store


class _Recorder:
    """Writes a reply into its row of the store while it grows.

    reply: its final row; stopped, unless its end or an error changes that. tokens: those drawn
    since the last tool call. finished: the generation's end, once known.
    """

    def __init__(self, store: Store, reply: StoredMessage) -> None:
        """reply: the current row; generated text is appended to its text."""
        self.reply = replace(reply, status="stopped")
        self.tokens: list[Token] = []
        self.finished: Finished | None = None
        self._store = store
        self.generation_id: int | None = None
        self._stored_at = time.monotonic()

    def mark(self, changes: str) -> None:
        """Store what is changed inside the model, in words; a reply keeps that of earlier parts."""
        if changes and changes not in self.reply.changes:
            changes = " · ".join(filter(None, (self.reply.changes, changes)))
            self.reply = replace(self.reply, changes=changes)
            self._store.update_changes(self.reply.id, changes)

    def add(self, event: ReplyEvent) -> None:
        """Add an event's text; store it if the last time was long enough ago, or a tool
        is called."""
        text, calls = self.reply.text + event.text, self.reply.calls
        if isinstance(event, Called):
            self.reply = replace(self.reply, text=text, calls=(*calls[:-1], event.call))
            return
        self.reply = replace(self.reply, text=text)
        if isinstance(event, Calling):
            self.reply = replace(self.reply, calls=(*calls, event.call))
            self.tokens.clear()
            self._store_partial()
            return
        if isinstance(event, Token):
            self.tokens.append(event)
        if event.thought is not None:
            self.reply = replace(
                self.reply,
                thoughts=self.reply.thoughts + without_surrogates(event.thought),
                thought_tokens=self.reply.thought_tokens + isinstance(event, Token),
            )
        if isinstance(event, Finished):
            self.finished = event
            status = _STATUS.get(event.reason, "complete")
            remark = "" if status == "error" else event.message
            self.reply = replace(self.reply, status=status, remark=remark)
        elif time.monotonic() - self._stored_at >= _STORE_EVERY_SECONDS:
            self._store_partial()

    def end(self) -> None:
        """Store all of the reply, and how its generation ended. Raises ReplyNotStored."""
        try:
            self._store_all()
        except StoreError as error:
            raise ReplyNotStored(error, self._store_all) from error

    def _store_partial(self) -> None:
        with suppress(StoreError):  # the end stores all of it, or reports the error
            self._store_reply("partial")
        self._stored_at = time.monotonic()

    def _store_all(self) -> None:
        self._store_reply(self.reply.status)
        if self.finished is not None and self.generation_id is not None:
            self._store.finish_generation(
                self.generation_id,
                reason=self.finished.reason,
                prompt_tokens=self.finished.prompt_tokens,
                reused_tokens=self.finished.reused_tokens,
                reply_tokens=self.finished.reply_tokens,
                time_to_first_token=self.finished.time_to_first_token,
                seconds=self.finished.seconds,
            )

    def _store_reply(self, status: Status) -> None:
        reply = self.reply
        with self._store.transaction():
            self._store.update_message(reply.id, reply.text, status)
            self._store.update_thoughts(reply.id, reply.thoughts, reply.thought_tokens)
            self._store.update_remark(reply.id, reply.remark)
            if reply.calls:
                self._store.update_calls(reply.id, reply.calls)


def message_text(text: str) -> str:
    """A user's text as a message. Raises ValueError when it is empty."""
    if not text.strip():
        raise ValueError("the message is empty")
    return without_surrogates(text)


def exchanges_of(path: Iterable[StoredMessage]) -> list[Exchange]:
    """A chat from its first message on."""
    exchanges: list[Exchange] = []
    for message in path:
        if message.role == "user":
            exchanges.append(Exchange(message.text))
        else:
            exchanges[-1] = replace(exchange_of(message), user=exchanges[-1].user)
    return exchanges


def exchange_of(reply: StoredMessage) -> Exchange:
    """A reply as part of a prompt, without the message that it answers."""
    return Exchange("", reply.text, reply.thoughts, calls=reply.calls)


def up_to_call(reply: StoredMessage) -> StoredMessage:
    """A reply as it was at the end of its last call; unchanged if it has none."""
    if not reply.calls:
        return reply
    last = reply.calls[-1]
    return replace(reply, text=reply.text[: last.at + last.inside])


def messages_in(exchanges: int, path: Sequence[StoredMessage]) -> int:
    """The number of messages in the first `exchanges` exchanges of a path."""
    starts = [place for place, message in enumerate(path) if message.role == "user"]
    return [*starts, len(path)][exchanges]


def until(cancel: threading.Event | None) -> Progress:
    """A callback that raises DocumentsError once `cancel` is set."""

    def go_on(done: int, of: int) -> None:
        if cancel is not None and cancel.is_set():
            raise DocumentsError("stopped while reading documents; the next message continues")

    return go_on
