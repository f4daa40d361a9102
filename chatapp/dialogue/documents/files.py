"""Lists the files to search: files, folders and patterns, respecting .gitignore."""

import glob
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pathspec import GitIgnoreSpec

from chatapp.common.foreign import without_surrogates
from chatapp.common.userfiles import missing_path, open_regular, quoted, reason
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
