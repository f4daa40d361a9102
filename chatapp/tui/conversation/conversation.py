"""The model, the session, and the running turn of the chat screen.

Invariant: the session and its model are used by one thread at a time, which holds the lock, and of
several loads only the newest counts. All threads here are daemons, and nobody waits for them
without a limit: importing the numerical library cannot be interrupted, nor can a model in the
middle of a long prompt, and Textual would join its own thread workers at the end.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from textual.message_pump import MessagePump

from chatapp.common.settings import keep_settings
from chatapp.dialogue.chat import Chat
from chatapp.dialogue.events import interleaved
from chatapp.dialogue.store.database import Gone
from chatapp.dialogue.store.rows import Basis
from chatapp.engine.decoder.interventions import UNCHANGED, Interventions, check_changeable
from chatapp.tui import events
from chatapp.tui.conversation.model_loading import LoadRequest
from chatapp.tui.conversation.turn import NumberedEvent, ReplyTurn, ShownReply
from chatapp.tui.platform.actions import ActionError
from chatapp.tui.platform.runtime import in_words
from chatapp.tui.widgets.approval import ask_on_screen

if TYPE_CHECKING:
    from chatapp.common.parameters import Choices
    from chatapp.common.settings import Settings
    from chatapp.dialogue.events import SessionEvent
    from chatapp.dialogue.session import ReplyNotStored, Session
    from chatapp.dialogue.store import Store
    from chatapp.dialogue.variants import Pair, Variant
    from chatapp.engine.backends.remote.remote_model import RemoteModel
    from chatapp.engine.model import LanguageModel, Sampling


class Conversation:
    """One chat with one model; `listener` gets its events."""

    def __init__(
        self,
        settings: "Settings",
        store: "Store",
        load: "Callable[[], LanguageModel]",
        listener: MessagePump,
    ) -> None:
        self._settings = settings
        self._wanted = LoadRequest(load, settings.precision)
        self._listener = listener
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._works: list[str] = []
        self._not_stored: list[ReplyNotStored] = []
        self._compared: tuple[tuple[str, str], LanguageModel] | None = None
        self._thinking: bool | None = None
        self.precision = settings.precision
        self.device = settings.device
        self._markdown = settings.markdown == "on"
        self.chat = Chat(store, choices=settings.choices({}), markdown=self._markdown)
        self.chat.ask = partial(ask_on_screen, listener)
        self.model: LanguageModel | None = None
        self.session: Session | None = None
        """The chat with the model; None until the model is loaded."""
        self.loading: LoadRequest | None = None
        """The newest request for a model, until it is answered."""
        self.turn: ReplyTurn | None = None
        """The turn that runs, or that waits for the model."""

    # The chat

    def open(self, chat_id: int | None) -> None:
        """Switch to a chat, or with None to a new one, and abandon the running turn.

        Raises StoreError, and changes nothing, when there is no such chat.
        """
        before, self.chat = self.chat, self.chat.go_over_to(chat_id)
        if chat_id is None:
            self.chat.markdown = self._markdown
        if (turn := self.end()) is not None:
            turn.cancel.set()
        if self.chat.id is None or self.chat.id != before.id:
            before.close()
        if self.model is not None and not self.loading:
            self._new_session(self.model)

    def use_basis(self, basis: Basis) -> None:
        """Change the chat's basis, while no turn is running. Raises StoreError."""
        self.chat.use_basis(basis)
        if self.session is not None:
            self._new_session(self.session.model)

    def use_template(self, name: str) -> None:
        """Use another template. Raises UserError, and changes nothing."""
        from chatapp.dialogue.writers.choosing import choose_template

        if self.model is not None:
            choose_template(self.model, name)
        self._settings = replace(self._settings, template=name)
        self.use_basis(replace(self.chat.basis, asked_template=""))

    def set_thinking(self, thinking: bool) -> None:
        """Let the model think before it replies, or not. Raises UserError, and changes nothing,
        when it has no switch for that.
        """
        from chatapp.dialogue.writers.choosing import with_thinking

        if self.session is None:
            raise ActionError("the model is not loaded yet")
        with_thinking(self.session.model, self.session.template, thinking)
        self._thinking = thinking
        self._new_session(self.session.model)

    @property
    def choices(self) -> "Choices":
        """The sampling parameters of the next reply, with their origins."""
        return self.chat.choices if self.session is None else self.session.choices

    def set_sampling(self, sampling: "Sampling", *, for_all: bool = False) -> None:
        """Use other sampling parameters from the next turn on.

        for_all: in all chats, by the settings file. Raises StoreError, and SettingsError or
        ValueError when the file cannot store them.
        """
        if self.session is not None and self.chat.basis.prompt:
            if for_all:
                raise ValueError("this chat uses a prompt file, whose values apply only to it")
            self.session.sampling = sampling  # which ends with the prompt file
            return
        choices = self.chat.choices.changed_to(sampling)
        if for_all:
            choices = choices.for_all_chats()
            keep_settings(choices.by_origin["settings file"])
        self.chat.choose(choices)

    def change_model(self, interventions: Interventions) -> None:
        """Change the model inside from the next reply on. Raises InterventionError for a model that
        cannot be changed, ActionError before one is loaded.
        """
        if self.session is None:
            raise ActionError("the model is not loaded yet")
        is_changeable = getattr(self.session.model, "takes_interventions", False)
        check_changeable(self.session.model.name, interventions, is_changeable=is_changeable)
        self.chat.interventions = interventions

    def measure(self) -> None:
        """Count the chat's tokens in the context window; ends in a UsageCounted."""

        def run(session: "Session") -> None:
            from chatapp.dialogue.reading import usage

            try:
                event: events.UsageCounted | events.UsageUnknown
                event = events.UsageCounted(session, usage(session))
            except BaseException as error:  # a prompt file or a tokenizer that cannot be used
                event = events.UsageUnknown(session, in_words(error))
            self._listener.post_message(event)

        self.in_background(run)

    # The model

    def load(self) -> None:
        """Load the model; ends in a ModelLoaded or a LoadFailed of the request `loading`."""
        self.loading = request = self._wanted
        note = self.chat.store.is_kept
        self.start_thread(lambda: request.run(self._listener, note=note), "loading the model")

    def load_other(self, request: LoadRequest) -> None:
        """Load another model, while no turn is running; messages wait for it.

        When it fails, `recover` returns to the previous model.
        """
        self._wanted = request
        self.session = None
        self.load()

    def attach(self, request: LoadRequest, model: "LanguageModel") -> None:
        """Use the model that was requested. Raises ValueError when it cannot chat."""
        from chatapp.engine.files.model_files import read_generation_config

        self.loading = None
        makers = read_generation_config(model.files)
        self.chat.choices = self.chat.choices.of("model", makers.sampling)
        if model is not self.model:  # it has parts of its own
            self.chat.interventions = UNCHANGED
        self._new_session(model)
        self.model = model
        self.precision = request.precision

    def recover(self) -> bool:
        """Return to the previous model; False when there was none."""
        if self.model is None:
            return False
        model = self.model
        self._wanted = LoadRequest(lambda: model, self.precision)
        self._new_session(model)
        return True

    def _new_session(self, model: "LanguageModel") -> None:
        # Only now, because the first frame does not need it.
        from chatapp.dialogue.session import Session
        from chatapp.dialogue.writers.choosing import choose_template

        template = self._settings.template, self.chat.basis.asked_template, self._thinking
        self.session = Session(self.chat, model, template=choose_template(model, *template))

    def remote(self) -> "RemoteModel | None":
        """The model, when it is on a server."""
        from chatapp.engine.backends.remote.remote_model import RemoteModel

        return self.model if isinstance(self.model, RemoteModel) else None

    def find_models(self, listener: MessagePump | None = None) -> None:
        """Search for models, first on this machine; ends in a complete ModelsFound.

        listener: gets the events, by default the conversation's own.
        """
        listener = listener or self._listener

        def run() -> None:
            from chatapp.engine.models.catalogue import (
                on_servers,
                on_this_machine,
                to_get,
                unfinished,
            )

            models, others = on_this_machine(self.precision, self.device), to_get()
            offered = {model.name for model in others}
            models += [model for model in unfinished() if model.name not in offered]
            listener.post_message(events.ModelsFound(list(models), others, False))
            models += on_servers()
            listener.post_message(events.ModelsFound(models, others, True))

        self.start_thread(run)

    # Turns

    def begin(self, turn: ReplyTurn, pump: MessagePump | None = None) -> bool:
        """Draw and show a turn; False when it has to wait for the model.

        pump: the screen of its displays, by default the conversation's.
        """
        self.turn = turn
        if self.session is None:
            return False
        turn.begin(pump or self._listener, self.end)
        events = self._events(turn.start(self.session, turn.cancel))
        self.start_thread(lambda: turn.run(events))
        return True

    def _events(self, replies: "Sequence[Iterator[SessionEvent]]") -> Iterator[NumberedEvent]:
        """The events of replies that are drawn in turn, while this thread holds the session."""
        from chatapp.dialogue.session import ReplyNotStored

        with self._lock:
            self.store_rest()
            for number, event in interleaved(replies):
                if isinstance(event, ReplyNotStored):
                    self._not_stored.append(event)
                yield number, event

    def end(self) -> ReplyTurn | None:
        """Remove and return the turn that runs or waits."""
        turn, self.turn = self.turn, None
        return turn

    @property
    def unsent(self) -> str:
        """The text of a turn whose message is not in the store yet; "" if none."""
        turn = self.turn
        if turn is None or turn.submitted is None or any(reply.before for reply in turn.replies):
            return ""
        return turn.submitted.text

    @property
    def has_rest(self) -> bool:
        """Whether there are replies that did not fit on the disk."""
        return bool(self._not_stored)

    def store_rest(self) -> None:
        """Store the replies that did not fit on the disk. Raises StoreError while they do not."""
        while self._not_stored:
            with suppress(Gone):  # deleted since
                self._not_stored[0].store()
            del self._not_stored[0]

    def forget_rest(self) -> None:
        """Drop the replies that did not fit on the disk."""
        self._not_stored.clear()

    def variant(self) -> "Variant":
        """The parameters of the next reply, once there is a model."""
        from chatapp.dialogue.variants import Variant

        name = self.model.name if self.model is not None else ""
        return Variant(name, self.precision, self._settings.template, self.choices.sampling)

    def pair(self, message: str | int) -> "Pair":
        """Two replies to a message: a new text, or the id of an existing one."""
        from chatapp.dialogue.variants import Pair

        return Pair(self.chat, message, self._thinking, self._model_to_compare)

    def _model_to_compare(self, name: str, precision: str) -> "LanguageModel":
        """The chat's own model or another, the last of which is kept for the next time."""
        if self.model is not None and (name, precision) == (self.model.name, self.precision):
            return self.model
        if self._compared is None or self._compared[0] != (name, precision):
            from chatapp.engine.models.loading import load_model

            self._compared = None  # before the next one takes its place in memory
            model = load_model(name, precision=precision, device=self.device)
            self._compared = (name, precision), model
        return self._compared[1]

    def in_background(self, work: "Callable[[Session], None]", words: str = "") -> bool:
        """Run a function with the session on a thread, once no other thread uses it.

        work: must handle its own errors. words: see `under_way`. Returns False, and does nothing,
        without a model.
        """
        session = self.session
        if session is None:
            return False

        def run() -> None:
            with self._lock:
                work(session)

        self.start_thread(run, words)
        return True

    def close(self, patience: float) -> None:
        """Stop the running turn and store all replies. Raises StoreError.

        patience: seconds to wait until the turn has stored its own.
        """
        turn = self.end()
        if turn is not None and turn.has_begun:
            turn.cancel.set()
            if not turn.join(patience):
                for reply in turn.replies:
                    self._store_stopped(reply)
        self.store_rest()

    def _store_stopped(self, reply: ShownReply) -> None:
        """Store an unfinished reply in its current state."""
        store, before = self.chat.store, reply.before
        if before is None or reply.has_ended:
            return
        store.update_message(before.id, before.text + reply.text, "stopped")
        tokens = before.thought_tokens + reply.thought_tokens
        store.update_thoughts(before.id, before.thoughts + reply.thoughts, tokens)

    @property
    def has_running_threads(self) -> bool:
        """Whether a thread of this conversation still runs."""
        return any(thread.is_alive() for thread in self._threads)

    def start_thread(self, run: Callable[[], None], words: str = "") -> None:
        """Run a function on a new thread. run: handles its own errors. words: see `under_way`."""

        def run_with_words() -> None:
            with self.under_way(words):
                run()

        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=run_with_words, daemon=True)
        self._threads.append(thread)
        thread.start()

    @contextmanager
    def under_way(self, words: str) -> Iterator[None]:
        """Within the block, quitting abandons what the words name; "" is not worth mentioning."""
        self._works.append(words)
        try:
            yield
        finally:
            self._works.remove(words)

    @property
    def works(self) -> list[str]:
        """What quitting now abandons, in words."""
        turn = [] if self.turn is None else [self.turn.words]
        return turn + [words for words in dict.fromkeys(self._works) if words]
