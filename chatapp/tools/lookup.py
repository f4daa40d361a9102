"""Searching as a tool: the documents of a chat, and this program's own documentation.

Keep: what is found is told with its file and its place.
"""

import threading
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from chatapp.common.paths import cache_dir
from chatapp.common.userfiles import read_text, reason, write_whole
from chatapp.passages.index import Passage
from chatapp.passages.search import Documents
from chatapp.passages.sources import fitting
from chatapp.prompting.files.documents import DocumentsError, DocumentSet
from chatapp.tools.tool import Stopped, ToolError

_MANUAL = DocumentSet((), limit=3)


def search(documents: Documents, query: str, cancel: threading.Event) -> str:
    """The passages nearest to a query, as they stand in prompts. Raises ToolError, Stopped."""

    def go_on(done: int, of: int) -> None:
        if cancel.is_set():
            raise Stopped

    try:
        return _told(documents.search(query, go_on))
    except DocumentsError as error:
        raise ToolError(str(error)) from None


def search_manual(query: str, cancel: threading.Event) -> str:
    """Passages of this program's documentation. Raises ToolError, Stopped."""
    files = tuple(str(path) for path in _manual())
    asked = DocumentSet(files, _MANUAL.method, _MANUAL.limit, _MANUAL.size)
    return search(Documents(asked), query, cancel)


def _told(passages: Iterable[Passage]) -> str:
    sources = fitting(passages, 1, lambda text: 0)
    return "".join(source.in_prompt for source in sources).strip() or "nothing was found"


def _manual() -> list[Path]:
    """The files of the documentation: the tour, and the read-me file beside the package or, of an
    installed one, what the package's record holds of it."""
    package = Path(__file__).parent.parent
    readme = package.parent / "README.md"
    if not (package.parent / "pyproject.toml").is_file():
        readme = _recorded()
    return [package / "docs" / "tour.md", readme]


def _recorded() -> Path:
    """The read-me file of the installed package, kept where documents are read from."""
    path = cache_dir() / "README.md"
    try:
        text = str(metadata("chatapp").json.get("description", ""))
        if not path.is_file() or read_text(path) != text:
            write_whole(path, text)
    except (PackageNotFoundError, OSError) as error:
        raise ToolError(f"the documentation cannot be read: {reason(error)}") from None
    return path
