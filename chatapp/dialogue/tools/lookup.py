"""Searching as a tool: the documents of a chat, and this program's own documentation."""

import threading
from collections.abc import Iterable
from pathlib import Path

from chatapp.dialogue.documents.index import Passage
from chatapp.dialogue.documents.search import Documents
from chatapp.dialogue.documents.sources import fitting
from chatapp.dialogue.tools.tool import Stopped, ToolError
from chatapp.tasks.files.documents import DocumentsError, DocumentSet

_MANUAL = DocumentSet((), limit=3)


def search(documents: Documents, query: str, cancel: threading.Event) -> str:
    """The passages nearest to a query, in the form of prompts. Raises ToolError, Stopped."""

    def go_on(done: int, of: int) -> None:
        if cancel.is_set():
            raise Stopped

    try:
        return _in_prompt(documents.search(query, go_on))
    except DocumentsError as error:
        raise ToolError(str(error)) from None


def search_manual(query: str, cancel: threading.Event) -> str:
    """Passages of this program's documentation. Raises ToolError, Stopped."""
    files = tuple(str(path) for path in _manual())
    manual = DocumentSet(files, _MANUAL.method, _MANUAL.limit, _MANUAL.size)
    return search(Documents(manual), query, cancel)


def _in_prompt(passages: Iterable[Passage]) -> str:
    sources = fitting(passages, 1, lambda text: 0)
    return "".join(source.in_prompt for source in sources).strip() or "nothing was found"


def _manual() -> list[Path]:
    """The files of the documentation: the guides, and the one of the finetune package."""
    package = Path(__file__).parents[2]
    return [*sorted((package / "docs").glob("*.md")), package.parent / "finetune" / "README.md"]
