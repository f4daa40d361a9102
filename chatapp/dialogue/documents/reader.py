"""Finds and reads documents (files, folders and patterns, respecting .gitignore) in a limited
process, so that no file can stop this one.
"""

import glob
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec

from chatapp.common.foreign import without_surrogates
from chatapp.common.limited_process import LimitedProcess, LimitPassedError, do_nothing
from chatapp.common.userfiles import UserError, missing_path, open_regular, quoted, reason
from chatapp.dialogue.documents.passages import Piece, Unreadable, cut, read_blocks, read_bytes
from chatapp.tasks.files.documents import DocumentsError

MOST_FILES = 50_000
"""More files are probably a mistake: a whole disk, a cache."""

_IGNORE_FILE = ".gitignore"
_MOST_RULES = 2**20
"""Bytes of a .gitignore that are read."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file with the facts that show a change: size in bytes, modification time in nanoseconds."""

    path: str
    size: int
    modified: int


@dataclass(slots=True)
class FileListing:
    """The files of some paths by name, and the number left out for each reason."""

    files: dict[str, SourceFile] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, path: Path) -> None:
        """Add a file, or count why not. Raises DocumentsError when there are too many."""
        name = str(path)
        try:
            status = path.lstat()
        except OSError as error:
            self.left_out[f"cannot be read ({reason(error)})"] += 1
            return
        if stat.S_ISLNK(status.st_mode):
            self.left_out["links"] += 1
        elif not stat.S_ISREG(status.st_mode):
            self.left_out["no regular files"] += 1
        elif name != without_surrogates(name):
            self.left_out["names that are not valid UTF-8"] += 1
        else:
            self.files[name] = SourceFile(name, status.st_size, status.st_mtime_ns)
        if len(self.files) > MOST_FILES:
            raise DocumentsError(
                f"the documents are more than {MOST_FILES:,} files; name a smaller folder"
            )


def list_files(paths: Sequence[str]) -> FileListing:
    """List the files that paths name.

    A path is a file, a folder with everything below it (except names that begin with a dot and
    those ignored by its .gitignore files), or a pattern with its matches. Raises DocumentsError, in
    a sentence, for a path that does not exist.
    """
    listing = FileListing()
    for name in paths:
        for path in _expanded(name):
            if path.is_dir():
                _walk(path, listing)
            else:
                listing.add(path)
    return listing


def _expanded(name: str) -> list[Path]:
    """The absolute paths, links resolved, that an argument names."""
    path = os.path.expanduser(name)
    if "\0" in path or not path:
        raise DocumentsError(f"{quoted(name)}: is not a valid path")
    if os.path.exists(path):
        return [Path(path).resolve()]
    if glob.has_magic(path):
        matches = sorted(glob.glob(path, recursive=True))
        if not matches:
            raise DocumentsError(f"{name}: no file or folder matches this pattern")
        return [Path(match).resolve() for match in matches]
    sentence = missing_path(name) or f"{name}: there is no such file or folder"
    raise DocumentsError(sentence)


def _walk(top: Path, listing: FileListing) -> None:
    def refuse(error: OSError) -> None:
        listing.left_out[f"folders that cannot be read ({reason(error)})"] += 1

    rules = {top: _rules_above(top)}
    for folder, folders, names in os.walk(top, onerror=refuse):
        here = Path(folder)
        own = [*rules.pop(here), *_rules_of(here)]
        entered = []
        for name in sorted(folders):
            path = here / name
            if name.startswith(".") or _is_ignored(f"{path}/", own):
                continue
            if path.is_symlink():
                listing.left_out["links"] += 1
                continue
            entered.append(name)
            rules[path] = own
        folders[:] = entered
        for name in sorted(names):
            if not name.startswith(".") and not _is_ignored(f"{here / name}", own):
                listing.add(here / name)


_Rules = list[tuple[str, GitIgnoreSpec]]
"""The rules of .gitignore files, the outermost first, each with its folder."""


def _rules_above(top: Path) -> _Rules:
    """The rules of the repository around a folder, from above the folder."""
    above = list(top.parents)
    roots = [place for place, folder in enumerate(above) if (folder / ".git").exists()]
    if not roots or (top / ".git").exists():
        return []
    return [rule for folder in reversed(above[: roots[0] + 1]) for rule in _rules_of(folder)]


def _rules_of(folder: Path) -> Iterator[tuple[str, GitIgnoreSpec]]:
    try:
        with open_regular(folder / _IGNORE_FILE) as file:
            lines = file.read(_MOST_RULES).decode("utf-8", "replace").splitlines()
        yield f"{folder}/", GitIgnoreSpec.from_lines(lines)
    except (OSError, ValueError):  # none, or one that git would not understand either
        return


def _is_ignored(path: str, rules: _Rules) -> bool:
    """Whether the innermost rule that matches a path ignores it."""
    for folder, spec in reversed(rules):
        decision = spec.check_file(path.removeprefix(folder)).include
        if decision is not None:
            return decision
    return False


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
        """See `list_files`. Raises DocumentsError."""
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
