"""The row of a reply in the store while it is generated.

Invariant: generated text is stored within half a second, and all of it however the generation ends.
While the disk has no room, the reply continues, and the error at its end contains it.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace

from chatapp.common.foreign import without_surrogates
from chatapp.dialogue.events import Called, Calling, ReplyEvent
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.database import StoreError
from chatapp.dialogue.store.rows import Conditions, Status, StoredMessage
from chatapp.engine.events import Finished, FinishReason, Token
from chatapp.engine.model import Sampling

_STORE_EVERY_SECONDS = 0.5
"""Half of the time that a crash may cost."""

# Every other reason leaves a reply complete.
_STATUS: dict[FinishReason, Status] = {"cancelled": "stopped", "error": "error"}


class ReplyNotStored(StoreError):
    """A reply has ended but could not be stored. store: tries again; raises StoreError."""

    def __init__(self, error: StoreError, store: Callable[[], None]) -> None:
        super().__init__(f"the reply is not saved: {error}")
        self.store = store


class ReplyRecorder:
    """Writes a reply into its row of the store while it grows.

    reply: its final row; stopped, unless `add` or `fail` changes that. tokens: those drawn since
    the last tool call. finished: the generation's end, once known.
    """

    def __init__(self, store: Store, reply: StoredMessage) -> None:
        """reply: the current row; generated text is appended to its text."""
        self.reply = replace(reply, status="stopped")
        self.tokens: list[Token] = []
        self.finished: Finished | None = None
        self._store = store
        self._generation_id: int | None = None
        self._stored_at = time.monotonic()

    def begin(
        self,
        model: str,
        template: str,
        prompt: str,
        sampling: Sampling,
        conditions: Conditions,
        changes: str = "",
    ) -> None:
        """Record the conditions of the reply. changes: inside the model, in words; a reply keeps
        those of its earlier parts."""
        if changes and changes not in self.reply.changes:
            changes = " · ".join(filter(None, (self.reply.changes, changes)))
            self.reply = replace(self.reply, changes=changes)
            self._store.update_changes(self.reply.id, changes)
        self._generation_id = self._store.begin_generation(
            self.reply.id,
            model=model,
            template=template,
            prompt=prompt,
            sampling=asdict(sampling),
            seed=sampling.seed or 0,
            conditions=asdict(conditions),
        )

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

    def fail(self) -> None:
        """Record that an exception ended the generation."""
        self.reply = replace(self.reply, status="error")

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

    def _store_reply(self, status: Status) -> None:
        reply = self.reply
        with self._store.transaction():
            self._store.update_message(reply.id, reply.text, status)
            self._store.update_thoughts(reply.id, reply.thoughts, reply.thought_tokens)
            self._store.update_remark(reply.id, reply.remark)
            if reply.calls:
                self._store.update_calls(reply.id, reply.calls)
