"""The dialogue loop: what the user says becomes a prompt, what the model says a stored reply.

The one invariant: the store knows at any moment what the user knows. A message is stored
before the model sees it, and a reply at least once a second while it grows.
"""

import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace

from chatapp.dialogue.prompt import (
    Exchange,
    MessageTooLong,
    Prompt,
    PromptWriter,
    Writer,
    seeded,
    trimmed,
)
from chatapp.dialogue.store import Status, Store, StoredMessage
from chatapp.engine.events import Event, Finished, FinishReason, Token
from chatapp.engine.model import ContextOverflow, LanguageModel, Sampling
from chatapp.foreign import without_surrogates
from chatapp.prompting.messages import Role
from chatapp.prompting.segments import Segment
from chatapp.prompting.template import PLAIN, TEMPLATES, DialogueTemplate, load_template, named

__all__ = ["MessageTooLong", "Reading", "Session", "SessionEvent", "Started", "choose_template"]

_STORE_EVERY = 0.5
"""Seconds between two writes of a growing reply: half of what a crash may cost."""


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

    reply: its row; None after a user's message. reply_ids: its tokens, those that were drawn
    as long as this session remembers them. left_out: old messages that do not fit. outdated:
    whether the reply was generated from another prompt, because the chat's instructions,
    template or prompt file, or the model's window, were others then.
    """

    prompt: Prompt
    reply: StoredMessage | None
    reply_ids: tuple[int, ...]
    left_out: tuple[StoredMessage, ...]
    outdated: bool = False


SessionEvent = Started | Token | Finished

# Every other reason leaves a reply complete.
_STATUS: dict[FinishReason, Status] = {"cancelled": "stopped", "error": "error"}


def choose_template(model: LanguageModel, requested: str, asked: str = "") -> DialogueTemplate:
    """The template to chat with `model` in.

    requested: a template's name, or "" for the model's own, or `plain` when it has none.
    asked: what the chat asks for, and gets when the model has none of its own.
    Raises ValueError in one sentence when there is no such template, when the model was
    trained in another one, or when its template file is damaged.
    """
    own = load_template(model.folder) if model.folder else None
    if asked in TEMPLATES and own is None:
        return TEMPLATES[asked]
    if not requested:
        return own or PLAIN
    if own and requested == own.name and requested not in TEMPLATES:
        return own
    template = named(requested)
    if own and own.fingerprint != template.fingerprint:
        raise ValueError(
            f"the model {model.name} was trained in the template {own.name!r} "
            f"({own.fingerprint}) and cannot be chatted with in {template.name!r} "
            f"({template.fingerprint})"
        )
    return template


class Session:
    """A chat between a user and a model, kept in a store.

    Each of `say`, `regenerate`, `branch`, `continue_reply` and `edit` yields one Started, Tokens
    and one Finished; their texts together are the reply. Setting `cancel` ends the reply within
    one token, closing the iterator ends it at once, and both keep what there was. One turn
    runs at a time.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        template: DialogueTemplate,
        store: Store,
        chat_id: int | None = None,
        sampling: Sampling | None = None,
        system: str | None = None,
        prompt: str = "",
        asked_template: str = "",
    ) -> None:
        """Go on with the chat `chat_id`, or begin one, stored with its first message.

        sampling: how replies are drawn where the chat's prompt file does not say.
        system, prompt, asked_template: a new chat's (see `Basis`); one that exists has its own.
        Raises StoreError when there is no such chat.
        """
        chat = None if chat_id is None else store.chat(chat_id)
        self.model = model
        self.template = template
        self.chat_id = chat_id
        self._store = store
        self._sampling = sampling or Sampling()
        self._sampling_is_set = False
        self._system = system if chat is None else chat.system
        self.prompt = prompt if chat is None else chat.prompt
        self.asked_template = asked_template if chat is None else chat.asked_template
        self._path = [] if chat_id is None else store.path(chat_id)
        self._opened_writer: Writer | None = None
        self._usage: tuple[int, int] | None = None

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

    @system.setter
    def system(self, system: str | None) -> None:
        if self.chat_id is not None:
            self._store.set_system(self.chat_id, system)
        self._system = system
        self._usage = None

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
        yield from self._answer(self._path_to(message.parent_id), None, cancel, ids)

    def read(self, message_id: int) -> Reading:
        """What the model reads up to a message: a reply with its prompt, or, given a user's
        message, the prompt for the reply to it.

        Raises MessageTooLong when it does not fit the window.
        """
        message = self._message(message_id, "user", "assistant")
        path = self._path_to(message_id)
        reply = path.pop() if message.role == "assistant" else None
        prompt = self._write(path)
        ids = self._writer.reply_ids(reply.text) if reply else []
        room = self.model.context - len(prompt.ids)
        sent = self._store.sent_prompt(message_id)
        return Reading(
            prompt,
            reply,
            tuple(ids[:room]),
            self._left_out(prompt, path),
            outdated=sent not in (None, without_surrogates(prompt.text)),
        )

    def draft(self, text: str, instead_of: int | None = None) -> Reading:
        """What the model would read if the user said `text` now. Nothing is stored.

        instead_of: the user's message it would take the place of.
        Raises ValueError as `say` does.
        """
        path = self._path
        if instead_of is not None:
            path = self._path_to(self._message(instead_of, "user").parent_id)
        prompt = self._write(path, _said(text))
        return Reading(prompt, None, (), self._left_out(prompt, path))

    def render_reply(self, text: str) -> list[Segment]:
        """A reply as a prompt would hold it, left open."""
        return self._writer.render_reply(text)

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
        path = self._path_to(message_id)
        prompt = self._write(path)
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
    ) -> Iterator[SessionEvent]:
        """Generate a reply to `text`, or to the last message of `path` when it is None."""
        user: StoredMessage | None = None
        if text is not None:
            text = _said(text)
        prompt = self._write(path, text)
        if len(prompt.ids) + len(begin) >= self.model.context:
            raise ContextOverflow(
                f"the reply would begin with {len(begin)} tokens and fill the model's window of "
                f"{self.model.context}"
            )
        if self.chat_id is None:
            self.chat_id = self._store.create_chat(
                system=self._system,
                template=self.template.name,
                model=self.model.name,
                prompt=self.prompt,
                asked_template=self.asked_template,
            )
        parent_id = path[-1].id if path else None
        if text is not None:
            user = self._store.add_message(self.chat_id, parent_id, "user", text)
            path = [*path, user]
            parent_id = user.id
        reply = self._store.add_message(self.chat_id, parent_id, "assistant", "", status="partial")
        self._path = [*path, reply]
        yield from self._generate(prompt, reply, user, cancel, begin)

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
        sampling = seeded(self.sampling)
        turn_id = self._store.begin_turn(
            reply.id,
            model=self.model.name,
            template=self._writer.name,
            prompt=prompt.text,
            sampling=asdict(sampling),
            seed=sampling.seed or 0,
        )
        text = reply.text
        drawn = self._writer.reply_ids(text)
        dropped = self._messages_in(prompt.dropped, self._path)
        used = len(prompt.ids)
        self._usage = (used, dropped)
        stored_at = time.monotonic()
        finished: Finished | None = None
        status: Status = "stopped"  # unless the turn comes to an end of its own
        try:
            yield Started(replace(reply, status="partial"), user, len(prompt.ids), dropped)
            drawing = self._begun(prompt, begin, sampling, cancel)
            # Whatever happens here, a model on a server is told at once that it is over.
            with closing(drawing):
                for event in trimmed(drawing, begun=bool(text)):
                    text += event.text
                    if isinstance(event, Finished):
                        finished = event
                        status = _STATUS.get(event.reason, "complete")
                        continue
                    if event.id != self.model.tokenizer.end_id:
                        drawn.append(event.id)
                    used += 1
                    self._usage = (used, dropped)
                    if time.monotonic() - stored_at >= _STORE_EVERY:
                        self._store.update_message(reply.id, text, "partial")
                        stored_at = time.monotonic()
                    yield event
        except Exception:
            status = "error"
            raise
        finally:
            self._writer.remember(text, drawn)
            self._path = [*self._path[:-1], replace(reply, text=text, status=status)]
            self._usage = None  # the kept reply may be shorter than what was drawn
            self._store.update_message(reply.id, text, status)
        if finished:
            self._store.finish_turn(
                turn_id,
                reason=finished.reason,
                prompt_tokens=finished.prompt_tokens,
                reused_tokens=finished.reused_tokens,
                reply_tokens=finished.reply_tokens,
                time_to_first_token=finished.time_to_first_token,
                seconds=finished.seconds,
            )
            yield finished

    def _begun(
        self,
        prompt: Prompt,
        begin: Sequence[int],
        sampling: Sampling,
        cancel: threading.Event | None,
    ) -> Generator[Event]:
        """The tokens `begin` as if they had been drawn, and what the model adds to them."""
        remark, started = "", time.perf_counter()
        if prompt.choose is not None and not begin and (label := prompt.choose()) is not None:
            begin, remark = (*label.ids, self.model.tokenizer.end_id), label.remark
        seconds = time.perf_counter() - started
        ends = bool(begin) and begin[-1] == self.model.tokenizer.end_id
        stream = self.model.tokenizer.stream()
        for id in begin[: len(begin) - ends]:
            text = stream.push(id)
            yield Token(id, text, text, 0.0)
        if ends:
            yield Finished(
                "stop",
                prompt_tokens=len(prompt.ids),
                reply_tokens=len(begin) - 1,
                time_to_first_token=seconds,
                seconds=seconds,
                message=remark,
            )
            return
        ids = (*prompt.ids, *begin)
        events = self.model.generate(ids, sampling, stop=self._writer.stop, cancel=cancel)
        for event in events:
            if isinstance(event, Finished):
                total = event.reply_tokens + len(begin)
                read = event.prompt_tokens - len(begin)
                event = replace(event, prompt_tokens=read, reply_tokens=total)
            yield event

    def _write(self, path: list[StoredMessage], text: str | None = None) -> Prompt:
        """The prompt for a reply to `text`, or else for what comes after `path`."""
        exchanges = _exchanges(path)
        if text is not None:
            exchanges.append(Exchange(text))
        writer = self._writer  # which may change the sampling
        return writer.write(self._system, exchanges, max_tokens=self.sampling.max_tokens)

    @property
    def _writer(self) -> Writer:
        """What writes the chat's prompts. Raises PromptError as long as its file is no good."""
        if self._opened_writer is None and self.prompt:
            from chatapp.dialogue.fewshot import FewShotWriter

            writer = FewShotWriter.open(self.model, self.prompt)
            if not self._sampling_is_set:
                self._sampling = writer.sampling(self._sampling)
            self._opened_writer = writer
        elif self._opened_writer is None:
            self._opened_writer = PromptWriter(self.model, self.template)
        return self._opened_writer

    def _measure(self) -> tuple[int, int]:
        """Tokens in use and messages out of context, kept up to date while a reply grows."""
        usage = self._usage  # read once: another thread may generate meanwhile
        if usage is None:
            usage = self._usage = self._measure_path()
        return usage

    def _measure_path(self) -> tuple[int, int]:
        if not self._path:
            return len(self._writer.instruction_ids(self._system)), 0
        without_reply = self._path[:-1] if self._path[-1].role == "assistant" else self._path
        try:
            prompt = self._write(without_reply)
        except MessageTooLong:  # written with a model that had a longer window
            return self.model.context, len(self._path)
        reply = self._path[-1].text if without_reply != self._path else ""
        used = len(prompt.ids) + len(self._writer.reply_ids(reply))
        return min(used, self.model.context), self._messages_in(prompt.dropped, self._path)

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


def _said(text: str) -> str:
    """A user's text as a message. Raises ValueError when there is nothing in it."""
    if not text.strip():
        raise ValueError("the message is empty")
    return without_surrogates(text)


def _exchanges(path: list[StoredMessage]) -> list[Exchange]:
    exchanges: list[Exchange] = []
    for message in path:
        if message.role == "user":
            exchanges.append(Exchange(message.text))
        else:
            exchanges[-1] = replace(exchanges[-1], reply=message.text)
    return exchanges
