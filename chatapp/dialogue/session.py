"""The dialogue loop: what the user says becomes a prompt, what the model says a stored reply.

Keep: the store knows at any moment what the user knows. A message is stored before the model
sees it, and a reply at least once a second while it grows.
"""

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from chatapp.common.foreign import without_surrogates
from chatapp.dialogue.chat import (
    Ask,
    ChatTools,
    Grounding,
    exchange_of,
    exchanges_of,
    until,
    up_to_call,
)
from chatapp.dialogue.events import PARAGRAPH, Calling, ReplyEvent
from chatapp.dialogue.reply import ReplyRecorder, reply_events
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.rows import StoredMessage
from chatapp.dialogue.tool_calls import events_with_calls
from chatapp.dialogue.writers.choosing import writer_for
from chatapp.dialogue.writers.prompt import (
    Exchange,
    MessageTooLong,
    Prompt,
    Writer,
    seeded,
    trimmed,
)
from chatapp.engine.backends.remote.completions import RemoteModel
from chatapp.engine.events import Finished, Token
from chatapp.engine.model import ContextOverflow, Generate, LanguageModel, Request, Sampling
from chatapp.passages.sources import Source, texts_in_prompt
from chatapp.prompting.chat_template import Template
from chatapp.prompting.files.documents import DocumentSet
from chatapp.prompting.messages import Role, Segment
from chatapp.tools.mcp_servers import Servers
from chatapp.tools.registry import Registry

__all__ = ["MessageTooLong", "Reading", "Session", "SessionEvent", "Started"]


_ALTERNATIVES = 5
"""To each token, of a model that does not show its inside: as many as every server gives."""


@dataclass(frozen=True, slots=True)
class Started:
    """The first event of a turn: everything is stored, and generation begins.

    message: the reply's row. user_message: the user's, when this turn added one.
    prompt_tokens: the prompt's length. dropped: how many old messages are out of context.
    """

    message: StoredMessage
    user_message: StoredMessage | None
    prompt_tokens: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What the model reads for one reply, and the reply as far as there is one.

    reply: its row; None after a user's message. segments, reply_ids: what follows the prompt of
    it, as a prompt would hold it, left open; its tokens are those that were drawn as long as this
    session remembers them. drawn: those with what a model told of them that
    does not show its inside; empty for others. left_out: old messages that do not fit. outdated:
    whether the reply was generated from another prompt, because the chat's instructions,
    template or prompt file, or the model's window, were others then; False as long as a server
    of its tools has not been asked, without whose tools it is written here.
    """

    prompt: Prompt
    reply: StoredMessage | None
    reply_ids: tuple[int, ...]
    left_out: tuple[StoredMessage, ...]
    outdated: bool = False
    drawn: tuple[Token, ...] = ()
    segments: tuple[Segment, ...] = ()


SessionEvent = Started | ReplyEvent


class Session:
    """A chat between a user and a model, kept in a store.

    Each of `say`, `regenerate`, `branch`, `continue_reply` and `edit` yields one Started, Tokens,
    a Calling and a Called for each call of a tool, and one Finished; their texts together are the
    reply. Setting `cancel` ends the reply within
    one token, closing the iterator ends it at once, and both keep what there was. One turn
    runs at a time.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        template: Template,
        store: Store,
        chat_id: int | None = None,
        sampling: Sampling | None = None,
        system: str | None = None,
        prompt: str = "",
        asked_template: str = "",
        documents: DocumentSet | None = None,
        tools: Sequence[str] = (),
        servers: Servers | None = None,
        generate: Generate | None = None,
    ) -> None:
        """Go on with the chat `chat_id`, or begin one, stored with its first message.

        sampling: how replies are drawn where the chat's prompt file does not say.
        system, prompt, asked_template: a new chat's (see `Basis`); one that exists has its own.
        documents: what a new chat draws on; None is what its prompt file says.
        tools: the names of those that the model may call in a new chat.
        servers: those of the chat that run already; None starts its own.
        generate: what draws its replies; None is the model's own.
        Raises StoreError when there is no such chat.
        """
        chat = None if chat_id is None else store.chat(chat_id)
        self.model = model
        self.template = template
        self.chat_id = chat_id
        self._store = store
        self._generator = generate
        self._sampling = sampling or Sampling()
        self._sampling_is_set = False
        self.asked_sampling: Mapping[str, int | float] = {}
        """What the chat's prompt file asks for, as far as it was read and is heeded."""
        self._system = system if chat is None else chat.system
        self.prompt = prompt if chat is None else chat.prompt
        self.asked_template = asked_template if chat is None else chat.asked_template
        self._documents = documents if chat is None else chat.documents
        self._tools = ChatTools(store, tools if chat is None else chat.tools, servers)
        self._grounding = Grounding(model)
        self._path = [] if chat_id is None else store.path(chat_id)
        self._writer: Writer | None = None
        self._usage: tuple[int, int] | None = None
        self._drawn: dict[int, list[Token]] = {}

    def close(self) -> None:
        """End what the chat has started: the servers of its tools."""
        self._tools.close()

    @property
    def messages(self) -> list[StoredMessage]:
        """The chat's current path, oldest first."""
        return list(self._path)

    @property
    def layout(self) -> str:
        """What its prompts are laid out by: the name of the prompt file, or of the template."""
        return self.prompt or self.template.name

    @property
    def sampling(self) -> Sampling:
        """How replies are drawn. What is set here holds from the next turn on."""
        return self._sampling

    @sampling.setter
    def sampling(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._sampling_is_set = True

    @property
    def system(self) -> str | None:
        """The chat's instructions; None for those of the prompt file or the template."""
        return self._system

    def set_system(self, system: str | None) -> None:
        """Give the chat other instructions, in the store too; None for those of the prompt
        file or the template."""
        if self.chat_id is not None:
            self._store.set_system(self.chat_id, system)
        self._system = system
        self._usage = None

    @property
    def documents(self) -> DocumentSet | None:
        """The chat's own documents; None for those of the prompt file."""
        return self._documents

    def set_documents(self, documents: DocumentSet | None) -> None:
        """Let the chat draw on other documents from the next message on, in the store too."""
        if self.chat_id is not None:
            self._store.set_documents(self.chat_id, documents)
        self._documents = documents

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools that the model may call."""
        return self._tools.names

    def find_tools(self) -> Registry:
        """The tools that there are for the chat."""
        return self._tools.find(self._asked_documents())

    def ask_by(self, ask: Ask) -> None:
        """Have the user asked in this way whether a tool may run. Before, none does that asks."""
        self._tools.ask = ask

    def set_tools(self, names: Sequence[str]) -> None:
        """Let the model call these tools from the next message on, in the store too.

        Raises ToolError for one that there is not, or that the model has no way to call.
        """
        self._tools.choose(names, self._asked_documents(), self._open_writer().calls)
        if self.chat_id is not None:
            self._store.set_tools(self.chat_id, self.tools)

    def say(self, text: str, cancel: threading.Event | None = None) -> Iterator[SessionEvent]:
        """Add a user's message and generate its reply.

        Raises ValueError when there is no text in it, MessageTooLong when it does not fit;
        then nothing is stored.
        """
        yield from self._answer(self._path, text, cancel)

    def edit(
        self, message_id: int, text: str, cancel: threading.Event | None = None
    ) -> Iterator[SessionEvent]:
        """Say something else in the place of a user's message. Both stay, as siblings."""
        message = self._message(message_id, "user")
        yield from self._answer(self._path_to(message.parent_id), text, cancel)

    def regenerate(
        self, message_id: int, cancel: threading.Event | None = None
    ) -> Iterator[SessionEvent]:
        """Generate another reply beside the reply `message_id`.

        Given a user's message, it generates a reply to it.
        """
        message = self._message(message_id, "user", "assistant")
        user_id = message.id if message.role == "user" else message.parent_id
        yield from self._answer(self._path_to(user_id), None, cancel)

    def branch(
        self, message_id: int, begin: Sequence[int], cancel: threading.Event | None = None
    ) -> Iterator[SessionEvent]:
        """Generate another reply beside the reply `message_id` that begins as one wants.

        begin: its first tokens; when the last is the end-of-text token, they are all of it.
        Raises ValueError when they end within a character, ContextOverflow when they leave
        no room in the window; then nothing is stored.
        """
        message = self._message(message_id, "assistant")
        ids = list(begin)
        if self.model.tokenizer.decode(ids).endswith("\ufffd"):
            raise ValueError("this token is only part of a character; branch before or after it")
        yield from self._answer(
            self._path_to(message.parent_id), None, cancel, ids, up_to_call(message)
        )

    def read(self, message_id: int) -> Reading:
        """What the model reads up to a message: a reply with its prompt, or, given a user's
        message, the prompt for the reply to it.

        Raises MessageTooLong when it does not fit the window.
        """
        message = self._message(message_id, "user", "assistant")
        path = self._path_to(message_id)
        reply = path.pop() if message.role == "assistant" else None
        sources = self._sources(path[-1].text) if reply is None else reply.sources
        prompt = self._write(path, sources=sources)
        sent = self._store.sent_prompt(message_id)
        outdated = sent not in (None, without_surrogates(prompt.text))
        outdated = outdated and self._tools.is_all_told(self._asked_documents())
        ids: list[int] = []
        segments: list[Segment] = []
        writer = self._open_writer()
        if reply is not None and reply.calls:  # all but what follows the last is its prompt
            prompt = self._write([*path, up_to_call(reply)], sources=sources)
            segments = writer.render_rest(exchange_of(reply))
            ids = writer.rest_ids(exchange_of(reply))
        elif reply is not None:
            segments = writer.render_reply(reply.text)
            ids = writer.written_ids(prompt, reply.text, reply.thoughts)
        room = self.model.context - len(prompt.ids)
        return Reading(
            prompt,
            reply,
            tuple(ids[:room]),
            self._left_out(prompt, path),
            outdated=outdated,
            drawn=tuple(self._drawn.get(message_id, ())),
            segments=tuple(segments),
        )

    def draft(self, text: str, instead_of: int | None = None) -> Reading:
        """What the model would read if the user said `text` now. Nothing is stored.

        instead_of: the user's message it would take the place of.
        Raises ValueError as `say` does.
        """
        path = self._path
        if instead_of is not None:
            path = self._path_to(self._message(instead_of, "user").parent_id)
        text = _message_text(text)
        prompt = self._write(path, text, self._sources(text))
        return Reading(prompt, None, (), self._left_out(prompt, path))

    def continue_reply(
        self, message_id: int, cancel: threading.Event | None = None
    ) -> Iterator[SessionEvent]:
        """Go on with a reply where it ended, in the same message.

        Raises ValueError when later messages build on it, ContextOverflow when the window
        is full.
        """
        reply = self._message(message_id, "assistant")
        if self._store.latest_leaf(message_id) != message_id:
            raise ValueError("only the last reply of a chat can be continued")
        self._tools.check(self._asked_documents(), cancel)
        path = self._path_to(message_id)
        prompt = self._write(path, sources=reply.sources)
        self._path = path
        self._store.set_leaf(reply.chat_id, message_id)
        self._store.update_message(message_id, reply.text, "partial")
        yield from self._generate(prompt, reply, None, cancel)

    def usage(self) -> tuple[int, int]:
        """(tokens of the current prompt with its reply so far, the model's window)."""
        return self._measure()[0], self.model.context

    def dropped(self) -> int:
        """How many messages of the current path are out of context."""
        return self._measure()[1]

    def _answer(
        self,
        path: list[StoredMessage],
        text: str | None,
        cancel: threading.Event | None,
        begin: Sequence[int] = (),
        beside: StoredMessage | None = None,
    ) -> Iterator[SessionEvent]:
        """Generate a reply to `text`, or to the last message of `path` when it is None.

        beside: a reply whose calls, and what was said up to them, this one has as well.
        """
        if text is not None:
            text = _message_text(text)
        self._tools.check(self._asked_documents(), cancel)
        sources = self._sources(path[-1].text if text is None else text, cancel)
        kept = beside if beside is not None and beside.calls else None
        prompt = self._write([*path, kept] if kept else path, text, sources)
        if len(prompt.ids) + len(begin) >= self.model.context:
            raise ContextOverflow(
                f"the reply would begin with {len(begin)} tokens and fill the model's window of "
                f"{self.model.context}"
            )
        if begin:
            prompt = replace(prompt, messages=())  # only a text can go on
        user, reply = self._store_messages(path[-1].id if path else None, text, sources)
        if kept is not None:
            reply = replace(reply, text=kept.text, calls=kept.calls)
        self._path = [*path, *([user] if user else []), reply]
        yield from self._generate(prompt, reply, user, cancel, begin)

    def _store_messages(
        self, parent_id: int | None, text: str | None, sources: Sequence[Source]
    ) -> tuple[StoredMessage | None, StoredMessage]:
        """The rows of a user's message, where there is a text, and of the reply to it: both are
        stored, with the chat itself if it is new, or neither."""
        user: StoredMessage | None = None
        with self._store.transaction():
            chat_id = self.chat_id
            if chat_id is None:
                chat_id = self._store.create_chat(
                    system=self._system,
                    template=self.template.name,
                    model=self.model.name,
                    prompt=self.prompt,
                    asked_template=self.asked_template,
                    documents=self._documents,
                )
                self._store.set_tools(chat_id, self.tools)
            if text is not None:
                user = self._store.add_message(chat_id, parent_id, "user", text)
                parent_id = user.id
            reply = self._store.add_message(
                chat_id, parent_id, "assistant", "", status="partial", sources=sources
            )
        self.chat_id = chat_id
        return user, reply

    def _generate(
        self,
        prompt: Prompt,
        reply: StoredMessage,
        user: StoredMessage | None,
        cancel: threading.Event | None,
        begin: Sequence[int] = (),
    ) -> Iterator[SessionEvent]:
        """Stream the model's reply into the message `reply`, which may hold its beginning.

        begin: tokens that come before those the model draws.
        """
        writer, sampling = self._open_writer(), seeded(self.sampling)
        if prompt.messages:  # a server begins anew what was cut off in the middle of a thought
            reply = replace(reply, thoughts="", thought_tokens=0)
        recorder = ReplyRecorder(self._store, reply)
        drawn = writer.reply_ids(reply.text)
        dropped = self._messages_in(prompt.dropped, self._path)
        used = len(prompt.ids)
        self._usage = (used, dropped)
        try:
            recorder.begin(self.model.name, writer.name, prompt.text, sampling)
            yield Started(replace(reply, status="partial"), user, len(prompt.ids), dropped)
            # Of a model on a server, what it tells now is all there will ever be.
            top = _ALTERNATIVES if isinstance(self.model, RemoteModel) else 0
            request = Request(prompt.ids, sampling, writer.stop, cancel, top, begin)
            events = self._reply_events(prompt, request, recorder)
            held = PARAGRAPH if reply.text and reply.calls and not exchange_of(reply).rest else ""
            # Whatever happens here, a model on a server learns at once that it is over.
            with closing(events):
                for event in trimmed(events, begun=bool(reply.text), held=held):
                    recorder.add(event)
                    if isinstance(event, Finished):
                        continue
                    used = self._used_after(event, used, recorder.reply)
                    self._usage = (used, dropped)
                    if isinstance(event, Token):
                        self._note_drawn(event, reply.id, drawn, with_alternatives=top > 0)
                    yield event
        except Exception:
            recorder.fail()
            raise
        finally:
            self._path = [*self._path[:-1], recorder.reply]
            self._usage = None  # the kept reply may be shorter than what was drawn
            recorder.end()
            if not recorder.reply.calls:
                writer.remember(recorder.reply.text, drawn)
        if recorder.finished is not None:
            yield recorder.finished

    def _note_drawn(
        self, token: Token, reply_id: int, drawn: list[int], *, with_alternatives: bool
    ) -> None:
        """Keep a token of a reply. drawn: the ids of its text, as it was drawn."""
        if token.thought is None and token.id != self.model.tokenizer.end_id:
            drawn.append(token.id)
        if with_alternatives:
            self._drawn.setdefault(reply_id, []).append(token)

    def _used_after(self, event: ReplyEvent, used: int, reply: StoredMessage) -> int:
        """The tokens in use once an event of a reply has come, given those before it."""
        if isinstance(event, Token):
            return used + 1
        if isinstance(event, Calling):  # what follows the call is told of anew
            self._drawn.pop(reply.id, None)
            return used
        return self._measure_path([*self._path[:-1], reply])[0]

    def _reply_events(
        self, prompt: Prompt, request: Request, recorder: ReplyRecorder
    ) -> Generator[ReplyEvent]:
        """What the model says, and the tools that it calls where the chat has some."""
        writer, path, sources = self._open_writer(), self._path[:-1], prompt.sources
        if not self.tools:
            return reply_events(self.model, prompt, request, self._generator)

        def go_on() -> Prompt:
            again = self._write([*path, recorder.reply], sources=sources)
            recorder.begin(self.model.name, writer.name, again.text, request.sampling)
            return again

        return events_with_calls(
            self.model,
            prompt,
            request,
            self._generator,
            toolbox=self._tools.toolbox(self._asked_documents(), recorder.reply.chat_id),
            pattern=writer.calls,
            go_on=go_on,
        )

    def _asked_documents(self) -> DocumentSet | None:
        return self._documents or self._open_writer().documents

    def _sources(self, message: str, cancel: threading.Event | None = None) -> tuple[Source, ...]:
        """The passages of the chat's documents for a message; see `Grounding.sources`."""
        writer = self._open_writer()
        asked = self._asked_documents()
        if asked is None:
            return ()
        return self._grounding.sources(
            asked,
            writer,
            self._system,
            message,
            max_tokens=self.sampling.max_tokens,
            progress=until(cancel),
        )

    def _write(
        self, path: list[StoredMessage], text: str | None = None, sources: Sequence[Source] = ()
    ) -> Prompt:
        """The prompt for a reply to `text`, or else for what comes after `path`."""
        exchanges = exchanges_of(path)
        if text is not None:
            exchanges.append(Exchange(text))
        exchanges[-1] = replace(exchanges[-1], passages=texts_in_prompt(sources))
        writer = self._open_writer()  # which may change the sampling
        writer.use_tools(self._tools.told(self._asked_documents()))
        prompt = writer.write(self._system, exchanges, max_tokens=self.sampling.max_tokens)
        return replace(prompt, sources=tuple(sources))

    def _open_writer(self) -> Writer:
        """What writes the chat's prompts. The first call reads the chat's prompt file, and
        draws as that says unless something else was set.

        Raises PromptError as long as the file is no good.
        """
        if self._writer is None and self.prompt:
            from chatapp.dialogue.writers.fewshot import FewShotWriter

            writer = FewShotWriter.open(self.model, self.prompt, self.template)
            if not self._sampling_is_set:
                self._sampling = writer.sampling(self._sampling)
                self.asked_sampling = writer.prompt.generate
            self._writer = writer
        elif self._writer is None:
            self._writer = writer_for(self.model, self.template)
        return self._writer

    def _measure(self) -> tuple[int, int]:
        """Tokens in use and messages out of context, kept up to date while a reply grows."""
        usage = self._usage  # read once: another thread may generate meanwhile
        if usage is None:
            usage = self._usage = self._measure_path(self._path)
        return usage

    def _measure_path(self, path: Sequence[StoredMessage]) -> tuple[int, int]:
        if not path:
            return len(self._open_writer().instruction_ids(self._system)), 0
        last, reply = path[-1], path[-1] if path[-1].role == "assistant" else None
        before = list(path if reply is None else path[:-1])
        if reply is not None and reply.calls:
            before.append(up_to_call(reply))
        try:
            prompt = self._write(before, sources=last.sources)
        except (MessageTooLong, ContextOverflow):  # written with a model that had a longer window
            return self.model.context, len(path)
        writer = self._open_writer()
        used = len(prompt.ids)
        if reply is not None and reply.calls:
            used += len(writer.rest_ids(exchange_of(reply)))
        elif reply is not None:
            used += len(writer.reply_ids(reply.text))
        return min(used, self.model.context), self._messages_in(prompt.dropped, path)

    def _left_out(self, prompt: Prompt, path: Sequence[StoredMessage]) -> tuple[StoredMessage, ...]:
        return tuple(path[: self._messages_in(prompt.dropped, path)])

    def _messages_in(self, exchanges: int, path: Sequence[StoredMessage]) -> int:
        """How many messages of a path its oldest `exchanges` hold."""
        starts = [place for place, message in enumerate(path) if message.role == "user"]
        return [*starts, len(path)][exchanges]

    def _message(self, message_id: int, *roles: Role) -> StoredMessage:
        """A message of this chat, from one of `roles`."""
        message = self._store.message(message_id)
        if message.chat_id != self.chat_id:
            raise ValueError(f"message {message_id} is not in this chat")
        if message.role not in roles:
            raise ValueError(f"message {message_id} is from the {message.role}")
        return message

    def _path_to(self, message_id: int | None) -> list[StoredMessage]:
        if message_id is None or self.chat_id is None:
            return []
        return self._store.path(self.chat_id, message_id)


def _message_text(text: str) -> str:
    """A user's text as a message. Raises ValueError when there is nothing in it."""
    if not text.strip():
        raise ValueError("the message is empty")
    return without_surrogates(text)
