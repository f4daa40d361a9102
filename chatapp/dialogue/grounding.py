"""Passages of documents for a message: looked up, and as many as fit its prompt.

Keep: documents stay open from one message to the next while the same ones are asked for, so that
only what has changed is read again.
"""

import threading

from chatapp.dialogue.prompt import Writer
from chatapp.engine.model import LanguageModel
from chatapp.passages.index import Progress
from chatapp.passages.search import Documents
from chatapp.passages.sources import Source
from chatapp.prompting.documents import DocumentsError, DocumentSet


class Grounding:
    """Looks up what replies of one model are grounded in."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._documents: Documents | None = None

    def sources(
        self,
        asked: DocumentSet,
        writer: Writer,
        system: str | None,
        message: str,
        *,
        max_tokens: int,
        progress: Progress | None = None,
    ) -> tuple[Source, ...]:
        """The passages found for a message, those that fit its prompt numbered.

        writer, system, max_tokens: of the prompt; see `Writer.sources`.
        Raises DocumentsError and ModelError when the documents cannot be searched, and
        MessageTooLong.
        """
        if self._documents is None or self._documents.asked != asked:
            self._documents = Documents(asked, self._model)
        passages = self._documents.search(message, progress)
        return writer.sources(system, message, passages, max_tokens=max_tokens)


def until(cancel: threading.Event | None) -> Progress:
    """Lets reading go on until `cancel` is set; then it raises DocumentsError."""

    def go_on(done: int, of: int) -> None:
        if cancel is not None and cancel.is_set():
            raise DocumentsError("stopped while documents were read; that goes on next time")

    return go_on
