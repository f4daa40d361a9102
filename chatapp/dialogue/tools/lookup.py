"""Searching as a tool: the documents of a chat, and this program's own documentation."""

import threading
from pathlib import Path

from chatapp.dialogue.documents.search import Documents
from chatapp.dialogue.documents.sources import fitting
from chatapp.dialogue.tools.tool import ToolError, stopped_by
from chatapp.tasks.files.documents import DocumentsError, DocumentSet


def search(documents: Documents, query: str, cancel: threading.Event) -> str:
    """The passages nearest to a query, in the form of prompts. Raises ToolError, Stopped."""
    go_on = stopped_by(cancel)
    try:
        passages = documents.search(query, lambda done, of: go_on())
    except DocumentsError as error:
        raise ToolError(str(error)) from None
    sources = fitting(passages, 1, lambda text: 0)
    return "".join(source.in_prompt for source in sources).strip() or "nothing was found"


def search_manual(query: str, cancel: threading.Event) -> str:
    """Passages of this program's documentation. Raises ToolError, Stopped."""
    package = Path(__file__).parents[2]
    guides = [*sorted((package / "docs").glob("*.md")), package.parent / "finetune" / "README.md"]
    return search(Documents(DocumentSet(tuple(map(str, guides)), limit=3)), query, cancel)
