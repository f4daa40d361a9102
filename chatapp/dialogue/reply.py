"""One reply while it is generated: the events it comes in, and its row in the store.

Keep: what has been generated is stored within half a second, and all of it however the
generation ends.
"""

import math
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict, replace

from chatapp.dialogue.prompt import Prompt
from chatapp.dialogue.store import Status, Store, StoredMessage
from chatapp.engine.events import Event, Finished, FinishReason, Token
from chatapp.engine.model import ChatModel, LanguageModel, Sampling

_STORE_EVERY_SECONDS = 0.5
"""Half of what a crash may cost."""

# Every other reason leaves a reply complete.
_STATUS: dict[FinishReason, Status] = {"cancelled": "stopped", "error": "error"}


class ReplyRecorder:
    """Writes a reply into its row of the store while it grows.

    reply: the row as it is to be stored at the end; stopped, unless `add` or `fail` said
    otherwise. finished: the generation's end, once it has come.
    """

    def __init__(self, store: Store, reply: StoredMessage) -> None:
        """reply: the row as it is now; what is generated goes on with its text."""
        self.reply = replace(reply, status="stopped")
        self.finished: Finished | None = None
        self._store = store
        self._generation_id: int | None = None
        self._stored_at = time.monotonic()

    def begin(self, model: str, template: str, prompt: str, sampling: Sampling) -> None:
        """Record what the reply is generated from."""
        self._generation_id = self._store.begin_generation(
            self.reply.id,
            model=model,
            template=template,
            prompt=prompt,
            sampling=asdict(sampling),
            seed=sampling.seed or 0,
        )

    def add(self, event: Event) -> None:
        """Add an event's text, and store it when that was last done long enough ago."""
        self.reply = replace(self.reply, text=self.reply.text + event.text)
        if isinstance(event, Finished):
            self.finished = event
            self.reply = replace(self.reply, status=_STATUS.get(event.reason, "complete"))
        elif time.monotonic() - self._stored_at >= _STORE_EVERY_SECONDS:
            self._store.update_message(self.reply.id, self.reply.text, "partial")
            self._stored_at = time.monotonic()

    def fail(self) -> None:
        """Say that the generation broke off with an exception."""
        self.reply = replace(self.reply, status="error")

    def end(self) -> None:
        """Store all of the reply, and how its generation ended."""
        self._store.update_message(self.reply.id, self.reply.text, self.reply.status)
        if self.finished is not None and self._generation_id is not None:
            self._store.finish_generation(
                self._generation_id,
                reason=self.finished.reason,
                prompt_tokens=self.finished.prompt_tokens,
                reused_tokens=self.finished.reused_tokens,
                reply_tokens=self.finished.reply_tokens,
                time_to_first_token=self.finished.time_to_first_token,
                seconds=self.finished.seconds,
            )


def reply_events(
    model: LanguageModel,
    prompt: Prompt,
    sampling: Sampling,
    *,
    begin: Sequence[int] = (),
    stop: Sequence[str] = (),
    cancel: threading.Event | None = None,
    top: int = 0,
) -> Generator[Event]:
    """A reply to a prompt: chosen among its labels where it has some, else generated.

    A prompt of messages is given to a model as those, unless the reply has a beginning.
    begin: the reply's first tokens, which come as if they had been drawn; when the last is the
        end-of-text token, they are all of it, and nothing is chosen or generated.
    """
    tokenizer, message, started = model.tokenizer, "", time.perf_counter()
    if prompt.choose is not None and not begin and (label := prompt.choose()) is not None:
        begin, message = (*label.ids, tokenizer.end_id), label.remark
    seconds = time.perf_counter() - started
    is_whole = bool(begin) and begin[-1] == tokenizer.end_id
    stream = tokenizer.stream()
    for id in begin[: len(begin) - is_whole]:
        text = stream.push(id)
        yield Token(id, text, text, math.nan)
    if is_whole:
        yield Finished(
            "stop",
            text=stream.flush(),
            prompt_tokens=len(prompt.ids),
            reply_tokens=len(begin) - 1,
            time_to_first_token=seconds,
            seconds=seconds,
            message=message,
        )
        return
    if prompt.messages and not begin and isinstance(model, ChatModel):
        yield from model.converse(prompt.messages_sent, sampling, cancel=cancel, top=top)
        return
    ids = (*prompt.ids, *begin)
    for event in model.generate(ids, sampling, stop=stop, cancel=cancel, top=top):
        if isinstance(event, Finished):
            event = replace(
                event,
                prompt_tokens=event.prompt_tokens - len(begin),
                reply_tokens=event.reply_tokens + len(begin),
            )
        yield event
