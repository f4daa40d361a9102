"""Files named with @ in a message: found by a few letters, and read for the message.

A path with spaces stands in quotes: @"my notes.txt". A name that is not a file stays text.
"""

import re
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

from chatapp.common.userfiles import UserError, is_file, open_regular, reason
from chatapp.dialogue.documents.passages import Unreadable
from chatapp.dialogue.documents.reader import DocumentReader
from chatapp.tasks.files.documents import DocumentsError

MOST_BYTES = 2**20
"""The largest file that can be attached: many times what a window holds."""
_MOST_NAMED = 20
_MOST_LISTED = 20_000
_MOST_FOUND = 50

_NAMED = re.compile(r'(?<!\S)@(?:"([^"\n]{1,4096})"|([^\s"]{1,4096}))')
_BEGUN = re.compile(r'(?<!\S)@(?:"([^"\n]{0,200})|([^\s"]{0,200}))\Z')
"""A name at the end of a text."""


def begun_name(text: str) -> tuple[int, str] | None:
    """Where the unfinished name at the end of a text begins, and its letters; None without one."""
    match = _BEGUN.search(text, max(0, len(text) - 202))
    return None if match is None else (match.start(), match[1] or match[2] or "")


def named(path: str) -> str:
    """A path as a message names it."""
    return f'@"{path}"' if re.search(r"\s", path) else f"@{path}"


def list_here() -> list[str]:
    """The files below the current folder, without those that .gitignore leaves out.

    Raises UserError.
    """
    here = Path.cwd().resolve()
    with closing(DocumentReader()) as reader:
        files = reader.list_files(["."]).files
    names = [str(Path(path).relative_to(here)) for path in files]
    return sorted(names, key=lambda name: (name.count("/"), name))[:_MOST_LISTED]


def find_fuzzily(letters: str, names: Iterable[str]) -> list[str]:
    """The names that contain the letters in this order, the nearest first; case does not matter."""
    wanted, matches = letters.lower(), list[tuple[tuple[bool, bool, bool, int], str]]()
    for name in names:
        folded, place = name.lower(), 0
        for letter in wanted:
            place = folded.find(letter, place) + 1
            if not place:
                break
        else:
            last = folded.rpartition("/")[2]
            nearness = (not last.startswith(wanted), wanted not in last, wanted not in folded)
            matches.append(((*nearness, len(name)), name))
    return [name for _, name in sorted(matches)[:_MOST_FOUND]]


def pasted_path(text: str) -> str:
    """The regular file that a pasted text names, as a message names it; "" if it names none."""
    path = text.strip().strip("'\"")
    if path.startswith("file://"):
        path = unquote(urlsplit(path).path)
    is_path = path.startswith(("/", "~/", "./", "../")) and len(path) < 4096 and "\n" not in path
    for candidate in (path, path.replace("\\ ", " ")) if is_path else ():
        if is_file(candidate):
            return named(candidate)
    return ""


def files_in(text: str) -> list[Path]:
    """The files that a message names, each once, without those whose contents it holds: it is
    edited."""
    names = dict.fromkeys(match[1] or match[2] for match in _NAMED.finditer(text))
    paths = [Path(name).expanduser() for name in [*names][:_MOST_NAMED] if is_file(name)]
    return [path for path in paths if _heading(path) not in text]


def _heading(path: Path) -> str:
    """What stands above a file's contents in a message."""
    return f"\n\n{path.name}:\n"


def read_all(text: str) -> str:
    """The contents of the files that a message names, each under its name, to follow the message.

    Raises UserError for a file that cannot be read as text.
    """
    return "".join(f"{_heading(path)}{read_attachment(path)}" for path in files_in(text))


def read_attachment(path: Path) -> str:
    """The text of a file. Raises UserError."""
    if path.suffix.lower() == ".pdf":
        return _pdf_text(path)
    try:
        with open_regular(path) as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UserError(f"{path}: is larger than 1 MiB; /docs searches files of any length")
        return data.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not a text in UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from None


def _pdf_text(path: Path) -> str:
    with closing(DocumentReader()) as reader:
        try:
            pieces = [
                piece.text for _, _, batch in reader.read(str(path), 2_000, "") for piece in batch
            ]
        except (Unreadable, DocumentsError) as error:
            raise UserError(f"{path}: {error}") from None
    return "\n\n".join(pieces)
