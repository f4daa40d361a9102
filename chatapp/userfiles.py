"""Files that users write, and sentences that tell what is wrong with them.

Keep: what cannot be read or written is told in one printable sentence that names the file; a
write puts a whole new file in the place of the old one, or leaves that as it was.
"""

import difflib
import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chatapp.foreign import printable

_BOM = b"\xef\xbb\xbf"


class UserError(Exception):
    """What the user can put right, in one sentence on one printable line; exit status 2."""

    def __init__(self, sentence: str) -> None:
        super().__init__(printable(" ".join(sentence.splitlines())))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence on an unknown word: the known one probably meant, or nothing."""
    close = difflib.get_close_matches(word[:100], list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def quoted(text: str, limit: int = 60) -> str:
    """A user's text for a sentence: in quotes, escaped and short."""
    return repr(text) if len(text) <= limit else repr(text[:limit]) + "…"


def shown(value: object) -> str:
    """A value of a TOML or JSON file for a sentence, saying what type it has."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"the number {value!r}"
        case str():
            return f"the string {quoted(value)}"
        case list():
            return "a list"
        case dict():
            return "a table"
    return f"a {type(value).__name__}"


def read_text(path: Path, error: type[UserError] = UserError) -> str:
    """The text of a UTF-8 file, without a byte order mark.

    Raises FileNotFoundError when there is no such file, for callers that can do without it, and
    `error` for a file that cannot be read or is not UTF-8, naming the line.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise error(f"{path}: cannot be read: {reason(problem)}") from None
    except ValueError:  # a NUL character, or one that the file system cannot write
        raise error(f"{quoted(str(path))}: is no path") from None
    try:
        return data.removeprefix(_BOM).decode()
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise error(f"{path}, line {line}: is not valid UTF-8 {encoding_hint(data)}") from None


def read_required(path: Path, error: type[UserError] = UserError) -> str:
    """As `read_text`, for a file there has to be: raises `error` when it is missing, too."""
    try:
        return read_text(path, error)
    except FileNotFoundError as problem:
        raise error(f"{path}: cannot be read: {reason(problem)}") from None


def encoding_hint(data: bytes) -> str:
    """The end of a sentence on bytes that are no UTF-8: what they may be, and what to do."""
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    guess = "UTF-16" if wide else "Latin-1 or Windows-1252"
    return f"(perhaps {guess}); save the file as UTF-8"


def read_toml(path: Path, error: type[UserError] = UserError) -> dict[str, Any]:
    """The tables of a TOML file. Raises as `read_text` does, and `error` for broken TOML."""
    try:
        return tomllib.loads(read_text(path, error))
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        raise error(f"{path}: is not valid TOML: {problem}") from None


def read_json_object(path: Path, error: type[UserError] = UserError) -> dict[str, Any]:
    """The object in a JSON file. Raises as `read_text` does, and `error` for anything else."""
    try:
        data = json.loads(read_text(path, error))
    except (ValueError, RecursionError) as problem:
        raise error(f"{path}: is not valid JSON: {problem}") from None
    if not isinstance(data, dict):
        raise error(f"{path}: expected a JSON object, found {shown(data)}")
    return data


def write_whole(path: Path, content: str | bytes) -> None:
    """Put a file in its place at once; see `whole_file`. Raises OSError."""
    with whole_file(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A draft beside `path`, to be written, that takes its place when the block has ended.

    It gets the permissions of the file before it; missing folders are made, for this user
    alone. A link stays one. Raises OSError; after an error the file before it is as it was.
    """
    path = path.resolve()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".new")
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def reason(problem: Exception) -> str:
    """Why the system refused, in its own short words."""
    return getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
