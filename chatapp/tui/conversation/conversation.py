"""What the chat screen talks to: the model, the session, and the turn that is running.

Keep: the session and its model are used by one thread at a time, the one that holds the lock,
and of several loads only the newest counts. All threads here are daemons and nobody waits for
them without a limit: importing the numerical library cannot be interrupted, nor can a model in
the middle of a long prompt, and Textual's own thread workers would be joined at the end.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from textual.message_pump import MessagePump

from chatapp.common.parameters import known_values
from chatapp.common.settings import keep_settings
from chatapp.common.userfiles import UserError
from chatapp.dialogue.events import interleaved
from chatapp.dialogue.store.database import Gone
from chatapp.dialogue.store.rows import Basis
from chatapp.tui import events
from chatapp.tui.conversation.loading import Getting, LoadRequest
from chatapp.tui.conversation.turn import GrowingReply, NumberedEvent, RunningTurn
from chatapp.tui.platform.runtime import in_words
from chatapp.tui.widgets.approval import asked_on

if TYPE_CHECKING:
    from chatapp.common.parameters import Origin
    from chatapp.common.settings import Settings
    from chatapp.dialogue.reply import ReplyNotStored
    from chatapp.dialogue.session import Session, SessionEvent
    from chatapp.dialogue.store import Store
    from chatapp.dialogue.store.rows import StoredMessage
    from chatapp.dialogue.variants import Pair, Variant
    from chatapp.engine.backends.remote.completions import RemoteModel
    from chatapp.engine.model import LanguageModel, Sampling
    from chatapp.prompting.files.documents import DocumentSet
    from chatapp.tools.mcp_servers import Servers
    from chatapp.tools.registry import Registry

_RECENT_CHATS = 30


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A turn that the user asked for.

    start: gives its replies, which are drawn in turn. submitted: what to give back if it fails.
    """

    start: "Callable[[Session, threading.Event], Sequence[Iterator[SessionEvent]]]"
    submitted: events.Submitted | None = None


class Conversation:
    """Holds one chat with one model and tells `listener` what happens."""

    def __init__(
        self,
        settings: "Settings",
        store: "Store",
        load: "Callable[[], LanguageModel]",
        listener: MessagePump,
    ) -> None:
        self._settings = settings
        self._store = store
        self._wanted = LoadRequest(load, settings.precision)
        self._listener = listener
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._not_stored: list[ReplyNotStored] = []
        self._choices = settings.choices({})
        self._compared: tuple[tuple[str, str], LanguageModel] | None = None
        self._thinking: bool | None = None
        self.precision = settings.precision
        self.device = settings.device
        self._chat_id: int | None = None
        self._basis = Basis()
        self._documents: DocumentSet | None = None
        self._tools: tuple[str, ...] = ()
        self._servers: Servers | None = None
        self.reward = ""
        """The name of the reward model that is to score the replies; "" is none."""
        self.model: LanguageModel | None = None
        self.session: Session | None = None
        self.loading: LoadRequest | None = None
        """The newest request for a model, until it is answered."""
        self.turn: RunningTurn | None = None
        self.request: TurnRequest | None = None
        """The turn that runs, or that waits for the model."""

    @property
    def chat_id(self) -> int | None:
        """The chat in the store; None before its first message."""
        return self.session.chat_id if self.session is not None else self._chat_id

    def remote(self) -> "RemoteModel | None":
        """The model, when it is on a server."""
        from chatapp.engine.backends.remote.completions import RemoteModel

        return self.model if isinstance(self.model, RemoteModel) else None

    @property
    def sampling(self) -> "Sampling":
        """How replies are drawn, from the next turn on."""
        return self._choices.sampling if self.session is None else self.session.sampling

    def origins(self) -> "dict[str, Origin]":
        """Whose value each parameter has."""
        choices, session = self._choices, self.session
        if session is not None:
            choices = choices.of("prompt file", session.asked_sampling)
            choices = choices.changed_to(session.sampling)
        return choices.origins

    def set_sampling(self, sampling: "Sampling", *, for_all: bool = False) -> None:
        """Draw replies otherwise, from the next turn on.

        for_all: in all chats, by the settings file. Raises StoreError, and SettingsError or
        ValueError when the file cannot have it.
        """
        # What is set for a prompt file ends with it, and what it asks for begins anew with it.
        if self.session is None or not self.session.prompt:
            choices = self._choices.changed_to(sampling)
            if for_all:
                choices = choices.for_all_chats()
                keep_settings(choices.by_origin["settings file"])
            self._choices = choices
            self.keep_choices()
        elif for_all:
            raise ValueError("this chat is held with a prompt file, whose values are for it alone")
        if self.session is not None:
            self.session.sampling = sampling

    def keep_choices(self) -> None:
        """Store what was chosen for the chat, if that is stored. Raises StoreError."""
        if self.chat_id is not None:
            self.keep_choices_of(self.chat_id)

    def keep_choices_of(self, chat_id: int) -> None:
        """Store the sampling and the reward model that were chosen with a chat of the store.

        Raises StoreError.
        """
        self._store.set_chosen(chat_id, self._choices.by_origin.get("this chat", {}))
        self._store.set_reward(chat_id, self.reward)

    def load(self) -> None:
        """Load the model; ends in a ModelLoaded or a LoadFailed of the request `loading`."""
        self.loading = request = self._wanted
        note = self._store.is_kept
        self.start_thread(lambda: request.run(self._listener, note=note))

    def find_models(self, listener: MessagePump | None = None) -> None:
        """Look for models, first on this machine; ends in a ModelsFound that has all.

        listener: who is told, in place of the conversation's own.
        """
        listener = listener or self._listener

        def run() -> None:
            from chatapp.models.catalogue import on_servers, on_this_machine, to_get, unfinished

            models, others = on_this_machine(self.precision, self.device), to_get()
            offered = {model.name for model in others}
            models += [model for model in unfinished() if model.name not in offered]
            listener.post_message(events.ModelsFound(list(models), others, False))
            models += on_servers()
            listener.post_message(events.ModelsFound(models, others, True))

        self.start_thread(run)

    def get_model(self, getting: Getting) -> None:
        """Bring a model to this machine; ends in a GetEnded."""
        self.start_thread(getting.run)

    def load_other(self, request: LoadRequest) -> None:
        """Load another model to go on with, while no turn is under way; messages wait for it.

        When it fails, `recover` goes back to the model there was.
        """
        self._wanted = request
        self._chat_id, self._basis = self.chat_id, self.basis()
        self.session = None
        self.load()

    def recover(self) -> bool:
        """Go on with the model there was before; False when there was none."""
        if self.model is None:
            return False
        model = self.model
        self._wanted = LoadRequest(lambda: model, self.precision)
        self._new_session(model, self._chat_id)
        return True

    def use_template(self, name: str) -> None:
        """Write the chat in another template. Raises ValueError, and changes nothing."""
        from chatapp.dialogue.writers.choosing import choose_template

        if self.model is not None:
            choose_template(self.model, name)
        self._settings = replace(self._settings, template=name)
        self.hold_with(replace(self.basis(), asked_template=""))

    def set_thinking(self, thinking: bool) -> None:
        """Let the model think before it replies, or not. Raises ValueError, and changes nothing,
        when it has no switch for that."""
        from chatapp.dialogue.writers.choosing import with_thinking

        if self.model is None or self.session is None:
            raise ValueError("the model is not loaded yet")
        with_thinking(self.model, self.session.template, thinking)
        self._thinking = thinking
        self._new_session(self.model, self.chat_id)

    def basis(self) -> Basis:
        """What the chat is held with. Raises StoreError."""
        session = self.session
        if session is not None:
            return Basis(session.system, session.prompt, session.asked_template)
        return self._basis if self.chat_id is None else self._store.chat(self.chat_id).basis

    def hold_with(self, basis: Basis) -> None:
        """Hold the chat with something else, while no turn is under way. Raises StoreError."""
        chat_id = self.chat_id
        if chat_id is not None:
            self._store.set_basis(chat_id, basis)
        self._chat_id, self._basis = chat_id, basis
        if self.model is not None and self.session is not None:
            self._new_session(self.model, chat_id)

    def system(self) -> str | None:
        """The chat's instructions; None for those of the template or the prompt file.

        Raises StoreError.
        """
        return self.basis().system

    def set_system(self, system: str | None) -> None:
        """Give the chat other instructions. Raises StoreError."""
        if self.session is not None:
            self.session.set_system(system)
        elif self.chat_id is not None:
            self._store.set_system(self.chat_id, system)
        self._basis = replace(self._basis, system=system)

    def documents(self) -> "DocumentSet | None":
        """What the chat draws on, beside what its prompt file says. Raises StoreError."""
        if self.session is not None:
            return self.session.documents
        return self._documents if self.chat_id is None else self._store.chat(self.chat_id).documents

    def set_documents(self, documents: "DocumentSet | None") -> None:
        """Let the chat draw on documents, which are read on a thread, or on none; ends in a
        DocumentsRead. Raises StoreError."""
        if self.session is not None:
            self.session.set_documents(documents)
        elif self.chat_id is not None:
            self._store.set_documents(self.chat_id, documents)
        self._documents = documents
        if documents is not None:
            self.start_thread(partial(self._read_documents, documents))

    def tools(self) -> tuple[str, ...]:
        """The names of the tools that the model may call."""
        return self._tools if self.session is None else self.session.tools

    def find_tools(self) -> "Registry":
        """The tools that there are for the chat."""
        from chatapp.tools.registry import find_tools

        if self.session is not None:
            return self.session.find_tools()
        return find_tools(self.documents(), self.servers())

    def set_tools(self, names: Sequence[str]) -> None:
        """Let the model call these tools. Raises ValueError or UserError, and changes nothing,
        when it cannot."""
        if self.session is None:
            raise ValueError("the model is not loaded yet")
        self.session.set_tools(names)
        self._tools = self.session.tools

    def servers(self) -> "Servers":
        """Those of the chat's tools, which go on until it is left."""
        from chatapp.tools.mcp_servers import Servers

        self._servers = self._servers or Servers()
        return self._servers

    def end_servers(self) -> None:
        """End the servers of the chat's tools, because it is left."""
        servers, self._servers = self._servers, None
        if servers is not None:
            servers.close()

    def _read_documents(self, documents: "DocumentSet") -> None:
        from chatapp.passages.search import Documents

        try:
            words = f"The next message is answered with {Documents(documents).renew()}."
            event = events.DocumentsRead(documents, words)
        except UserError as error:
            event = events.DocumentsRead(documents, "", str(error))
        self._listener.post_message(event)

    def attach(self, request: LoadRequest, model: "LanguageModel") -> None:
        """Use the model that was asked for. Raises ValueError when it cannot be chatted with."""
        from chatapp.engine.files.model_files import generation_config

        self.loading = None
        self._choices = self._choices.of("model", generation_config(model).sampling)
        self._new_session(model, self._chat_id)
        self.model = model
        self.precision = request.precision

    def open(self, chat_id: int | None) -> "tuple[list[StoredMessage], dict[int, str]]":
        """Go over to a chat, or with None to a new one, and leave the running turn behind.

        Returns the chat's messages from root to leaf, and why replies finished, by message
        id. Raises StoreError, and changes nothing, when there is no such chat.
        """
        path = [] if chat_id is None else self._store.path(chat_id)
        generations = [] if chat_id is None else self._store.generations(chat_id)
        self.stop()
        self.request = self.turn = None
        if chat_id is None or chat_id != self.chat_id:
            self.end_servers()
        self._chat_id, self._basis, self._documents = chat_id, Basis(), None
        self._tools = ()
        if chat_id is not None:  # a new chat goes on with what was chosen in the one before
            chat = self._store.chat(chat_id)
            self._choices = self._choices.of("this chat", known_values(chat.chosen))
            self.reward = chat.reward
        if self.model is not None and not self.loading:
            self._new_session(self.model, chat_id)
        return path, {generation.message_id: generation.reason or "" for generation in generations}

    def keep_markdown(self, markdown: bool) -> None:
        """Store how the chat's replies are shown, if it is stored. Raises StoreError."""
        if self.chat_id is not None:
            self._store.set_markdown(self.chat_id, markdown)

    def title(self) -> str:
        """What the chat is called."""
        return "New chat" if self.chat_id is None else self._store.chat(self.chat_id).title

    def is_deleted(self) -> bool:
        """Whether the chat is in the bin, or no longer in the store. Raises StoreError."""
        try:
            return self.chat_id is not None and self._store.chat(self.chat_id).deleted is not None
        except Gone:
            return True

    def store_anew(self) -> int | None:
        """Store the messages of a deleted chat as a new chat; returns its id. Raises StoreError.

        None, and nothing is done, without a model.
        """
        from chatapp.dialogue.importing import ImportedChat, ImportedMessage, store_chats

        session = self.session
        if session is None:
            return None
        messages = tuple(
            ImportedMessage(
                message.role,
                message.text,
                message.status,
                message.thoughts,
                message.sources,
                message.calls,
            )
            for message in session.messages
        )
        template, model = session.template.name, session.model.name
        with self._store.transaction():
            chat = ImportedChat("", session.system, template, model, messages)
            [chat_id] = store_chats(self._store, [chat])
            self._store.set_basis(chat_id, self.basis())
            self.keep_choices_of(chat_id)
        return chat_id

    def message(self, message_id: int) -> "StoredMessage":
        """A message of the chat, as it is known here: all of it, when the store has less."""
        known = self.session.messages if self.session is not None else []
        same = (message for message in known if message.id == message_id)
        return next(same, None) or self._store.message(message_id)

    @property
    def has_rest(self) -> bool:
        """Whether there are replies for which the store had no room."""
        return bool(self._not_stored)

    def store_rest(self) -> None:
        """Store the replies for which there was no room. Raises StoreError while there is none."""
        while self._not_stored:
            with suppress(Gone):  # deleted since
                self._not_stored[0].store()
            del self._not_stored[0]

    def forget_rest(self) -> None:
        """Give up the replies for which there is no room."""
        self._not_stored.clear()

    def go_to_sibling(self, message: "StoredMessage", step: int) -> "StoredMessage | None":
        """Let the chat go through the version `step` places after a message, if there is one."""
        siblings = self._store.siblings(message.id)
        index = message.sibling - 1 + step
        if not 0 <= index < len(siblings):
            return None
        sibling = siblings[index]
        self._store.set_leaf(sibling.chat_id, self._store.latest_leaf(sibling.id))
        return sibling

    def earlier_inputs(self) -> list[str]:
        """What the user wrote in the chats changed last, oldest first."""
        texts: list[str] = []
        for chat in reversed(self._store.chats(limit=_RECENT_CHATS)):
            for message in self._store.path(chat.id):
                if message.role == "user" and message.text not in texts[-1:]:
                    texts.append(message.text)
        return texts

    def begin(self, request: TurnRequest, listener: MessagePump | None = None) -> bool:
        """Carry out a request; False when it has to wait for the model.

        listener: who is told how it goes, in place of the conversation's own.
        """
        self.request = request
        session = self.session
        if session is None:
            return False

        cancel = threading.Event()
        replies = request.start(session, cancel)
        events, listener = self._events(replies), listener or self._listener
        self.turn = RunningTurn(events, len(replies), cancel, listener, request.submitted)
        self.start_thread(self.turn.run)
        return True

    def _events(self, replies: "Sequence[Iterator[SessionEvent]]") -> Iterator[NumberedEvent]:
        """The events of replies that are drawn in turn, while nobody else uses the session."""
        from chatapp.dialogue.reply import ReplyNotStored

        with self._lock:
            self.store_rest()
            for number, event in interleaved(replies):
                if isinstance(event, ReplyNotStored):
                    self._not_stored.append(event)
                yield number, event

    def end(self) -> TurnRequest | None:
        """The request is done with; returns it."""
        request, self.request, self.turn = self.request, None, None
        return request

    def stop(self) -> None:
        """Ask the running turn to stop."""
        if self.turn is not None:
            self.turn.stop()

    def measure(self) -> None:
        """Count what the chat takes of the context window; ends in a Measured."""
        session = self.session
        if session is None:
            return

        def run() -> None:
            try:
                with self._lock:
                    used, limit = session.usage()
                    dropped = session.dropped()
            except ValueError as error:  # of a prompt file that cannot be used
                self._listener.post_message(events.Unmeasured(session, in_words(error)))
            else:
                self._listener.post_message(events.Measured(session, used, limit, dropped))

        self.start_thread(run)

    def variant(self, session: "Session") -> "Variant":
        """What the session's next reply is drawn with."""
        from chatapp.dialogue.variants import Variant

        name, template = session.model.name, self._settings.template
        return Variant(name, self.precision, template, session.sampling)

    def pair(self, session: "Session", message: str | int) -> "Pair":
        """Two replies to a message: a text to say next, or the id of one said already."""
        from chatapp.dialogue.variants import Pair

        return Pair(self._store, session, message, self._model_to_compare)

    def _model_to_compare(self, name: str, precision: str) -> "LanguageModel":
        """The chat's own model or another, of which the last is kept for the next time."""
        if self.model is not None and (name, precision) == (self.model.name, self.precision):
            return self.model
        if self._compared is None or self._compared[0] != (name, precision):
            from chatapp.models.loading import load_model

            self._compared = None  # before the next takes its place in memory
            model = load_model(name, precision=precision, device=self.device)
            self._compared = (name, precision), model
        return self._compared[1]

    def in_background(self, work: "Callable[[Session], None]") -> bool:
        """Do something with the session on a thread of its own, as soon as no other uses it.

        work: has to see to its own errors. False, and nothing is done, without a model.
        """
        session = self.session
        if session is None:
            return False

        def run() -> None:
            with self._lock:
                work(session)

        self.start_thread(run)
        return True

    def close(self, patience: float) -> None:
        """Stop the running turn and see to it that all replies are stored. Raises StoreError.

        patience: how many seconds to wait for the turn to do that itself.
        """
        turn, self.turn = self.turn, None
        if turn is not None:
            turn.stop()
        if turn is not None and not turn.join(patience):
            for reply in turn.replies:
                if reply.message is not None and not reply.has_ended:
                    self._store_stopped(reply, reply.message)
        self.store_rest()

    def _store_stopped(self, reply: GrowingReply, before: "StoredMessage") -> None:
        """Store a reply as far as it has come. before: its row as it was before the turn."""
        self._store.update_message(before.id, before.text + reply.text, "stopped")
        tokens = before.thought_tokens + reply.thought_tokens
        self._store.update_thoughts(before.id, before.thoughts + reply.thoughts, tokens)

    @property
    def has_running_threads(self) -> bool:
        """Whether a thread of this conversation has not come to its end."""
        return any(thread.is_alive() for thread in self._threads)

    def start_thread(self, run: Callable[[], None]) -> None:
        """Do something on a thread of its own. run: has to see to its own errors."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _new_session(self, model: "LanguageModel", chat_id: int | None) -> None:
        # Only now, because the first frame needs none of it.
        from chatapp.dialogue.session import Session
        from chatapp.dialogue.writers.choosing import choose_template, with_thinking

        basis = self._basis if chat_id is None else self._store.chat(chat_id).basis
        template = choose_template(model, self._settings.template, basis.asked_template)
        if self._thinking is not None:
            with suppress(ValueError):  # of a model that has no such switch
                template = with_thinking(model, template, self._thinking)
        self.session = Session(
            model,
            template=template,
            store=self._store,
            chat_id=chat_id,
            sampling=self._choices.sampling,
            system=basis.system,
            prompt=basis.prompt,
            asked_template=basis.asked_template,
            documents=self._documents,
            tools=self._tools,
            servers=self.servers(),
        )
        self.session.ask_by(partial(asked_on, self._listener))
