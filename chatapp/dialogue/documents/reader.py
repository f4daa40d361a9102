"""Finds and reads documents in a limited process, so that no file can stop this one."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from chatapp.common.limited_process import LimitedProcess, LimitPassedError, do_nothing
from chatapp.common.userfiles import UserError
from chatapp.dialogue.documents.files import FileListing, SourceFile, list_files
from chatapp.dialogue.documents.passages import Piece, Unreadable, cut, read_blocks, read_bytes
from chatapp.tasks.files.documents import DocumentsError

_SECONDS = 60.0
_LISTING_SECONDS = 20.0
_MOST_MEMORY = 2 * 2**30
_BATCH = 1_000
"""Passages, or names of files, in one message."""

_LIMITS = {
    "time": f"files that take longer than {_SECONDS:.0f} seconds",
    "memory": f"files that take more than {_MOST_MEMORY // 2**30} GiB of memory",
    "end": "files that cannot be read",
}

_UNLISTED = {
    "time": f"cannot be listed within {_LISTING_SECONDS:.0f} seconds",
    "memory": f"cannot be listed in {_MOST_MEMORY // 2**30} GiB of memory",
    "end": "cannot be listed",
}


class DocumentReader:
    """Finds and reads documents, one at a time.

    wait, of each method: called repeatedly during the work; an exception of it ends the work.
    """

    def __init__(self) -> None:
        self._process = LimitedProcess(__name__, "answer", memory=_MOST_MEMORY)

    def list_files(
        self, paths: Sequence[str], wait: Callable[[], None] = do_nothing
    ) -> FileListing:
        """See `files.list_files`. Raises DocumentsError."""
        listing = FileListing()
        try:
            for files, left_out in self._process.stream({"list": paths}, _LISTING_SECONDS, wait):
                listing.files |= {file[0]: SourceFile(*file) for file in files}
                listing.left_out.update(left_out)
        except LimitPassedError as passed:
            raise DocumentsError(
                f"{', '.join(paths)}: the files {_UNLISTED[passed.limit]}; "
                "a .gitignore among them may be the cause"
            ) from None
        except UserError as error:
            raise DocumentsError(str(error)) from None
        return listing

    def read(
        self, path: str, size: int, known: str, wait: Callable[[], None] = do_nothing
    ) -> Iterator[tuple[str, float, list[Piece]]]:
        """The passages of a file in batches: (digest, fraction of the file, passages).

        size: of a passage, in characters. known: the old digest; with an equal one there is no
        batch. Raises Unreadable.
        """
        request = {"read": path, "size": size, "known": known}
        try:
            for digest, share, pieces in self._process.stream(request, _SECONDS, wait):
                yield digest, share, [Piece(*piece) for piece in pieces]
        except LimitPassedError as passed:
            raise Unreadable(_LIMITS[passed.limit]) from None
        except UserError as error:
            raise Unreadable(str(error)) from None

    def close(self) -> None:
        """End the process."""
        self._process.close()


def answer(request: dict[str, Any]) -> Iterator[Any]:
    """Answer requests in the limited process."""
    if "list" in request:
        yield from _list_files(request["list"])
    else:
        try:
            yield from _read(request["read"], request["size"], request["known"])
        except Unreadable as error:
            raise UserError(str(error)) from None


def _list_files(paths: list[str]) -> Iterator[tuple[list[tuple[str, int, int]], dict[str, int]]]:
    listing = list_files(paths)
    files = ((file.path, file.size, file.modified) for file in listing.files.values())
    while batch := list(islice(files, _BATCH)):
        yield batch, {}
    yield [], listing.left_out


def _read(path: str, size: int, known: str) -> Iterator[tuple[str, float, list[tuple[str, ...]]]]:
    data = read_bytes(Path(path))
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    if digest == known:
        return
    blocks = read_blocks(Path(path), data)
    pieces = cut(blocks, size)
    total, sent = sum(len(block.text) for block in blocks), 0
    while batch := list(islice(pieces, _BATCH)):
        sent += sum(len(piece.text) for piece in batch)
        yield digest, sent / total, [(piece.headings, piece.place, piece.text) for piece in batch]
