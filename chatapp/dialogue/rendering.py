"""The parts of a chat's prompts: stored messages as exchanges, and passages of documents.

Invariant: they depend only on stored data; a reply becomes the same part of every prompt. Documents
stay open between messages while the same ones are used, so that only changes are read again.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

from chatapp.common.progress import Progress
from chatapp.dialogue.documents.search import Documents
from chatapp.dialogue.documents.sources import Source
from chatapp.dialogue.store.rows import StoredMessage
from chatapp.dialogue.writers.prompt import Exchange, Writer
from chatapp.engine.model import LanguageModel
from chatapp.tasks.files.documents import DocumentsError, DocumentSet


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


class Grounding:
    """Finds the passages for replies of one model."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._documents: Documents | None = None

    def sources(
        self,
        documents: DocumentSet,
        writer: Writer,
        system: str | None,
        message: str,
        *,
        max_tokens: int,
        progress: Progress | None = None,
    ) -> tuple[Source, ...]:
        """Find the passages for a message; those that fit its prompt are numbered.

        writer, system, max_tokens: of the prompt; see `Writer.sources`. Raises DocumentsError and
        ModelError when the documents cannot be searched, and MessageTooLong.
        """
        if self._documents is None or self._documents.document_set != documents:
            self._documents = Documents(documents, self._model)
        passages = self._documents.search(message, progress)
        return writer.sources(system, message, passages, max_tokens=max_tokens)


def until(cancel: threading.Event | None) -> Progress:
    """A callback that raises DocumentsError once `cancel` is set."""

    def go_on(done: int, of: int) -> None:
        if cancel is not None and cancel.is_set():
            raise DocumentsError("stopped while reading documents; the next message continues")

    return go_on
