"""Files that users write, and sentences on their faults."""

import difflib
import errno
import io
import os
import re
import shutil
import stat
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

from chatapp.common.foreign import parse_json, printable

if TYPE_CHECKING:
    from filelock import FileLock

Location = tuple[str | int, ...]
"""A place in a TOML or JSON file: keys, and list indices from 0."""

_BOM = b"\xef\xbb\xbf"

_BINARY = getattr(os, "O_BINARY", 0)
"""Without it, Windows would translate line ends."""

_PIECE = 2**24
_MOST = 2**30
"""Bytes of a file that is read whole; a pipe may never end."""


class UserError(Exception):
    """A fault that the user can correct: one sentence on one printable line; exit status 2."""

    def __init__(self, sentence: str) -> None:
        super().__init__(printable(" ".join(sentence.splitlines())))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence on an unknown word: the nearest known word, or ""."""
    close = difflib.get_close_matches(word[:100], list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def is_path(name: str) -> bool:
    """Whether a name is meant as a path, although something else may have that name."""
    return os.path.isabs(name) or name in (".", "..") or name.startswith(("./", "../", "~", ".\\"))


def is_file(text: str) -> bool:
    """Whether a text is the path of a file."""
    try:
        return Path(text).expanduser().is_file()
    except (OSError, ValueError, RuntimeError):  # not a valid path, or nobody's home
        return False


def missing_path(name: str, what: str = "file or folder") -> str:
    """A sentence on a path that does not exist, so that no hub is asked for it; otherwise "".

    A hub id looks like a relative path. It is taken for a path if its first part is a folder here.
    """
    path = os.path.expanduser(name)
    folder, last = os.path.split(path)
    if "\0" in path or os.path.exists(path):
        return ""
    if not (os.path.isabs(path) or name.startswith(".") or (folder and os.path.isdir(folder))):
        return ""
    beside = os.listdir(folder) if os.path.isdir(folder) else []
    return f"{name}: there is no such {what}{did_you_mean(last, beside)}"


def suggestion(word: str, known: Collection[str]) -> str:
    """The end of a sentence on an unknown word: the nearest known word, or all of them."""
    return did_you_mean(word, known) or f"; there are {', '.join(known) or 'none yet'}"


def line_of(source: str, location: Location) -> int | None:
    """The line on which a TOML source sets a key, from 1; None when unknown.

    tomllib returns no positions, and this parser covers only part of TOML: three quotes within a
    comment or a one-line string can move or hide the line, nothing more.
    """
    blanked = re.sub(
        r'("""|\'\'\').*?\1', lambda match: "\n" * match[0].count("\n"), source, flags=re.DOTALL
    )
    table: Location = ()
    lengths: dict[Location, int] = {}
    for number, line in enumerate(blanked.split("\n"), 1):
        header = re.match(r"\s*(\[\[?)([^\[\]]+)\]", line)
        assignment = re.match(r"([^=#]+)=", line)
        if header and (keys := _dotted(header[2])):
            table = _table_of(keys, header[1] == "[[", lengths)
            if location in (table, keys):
                return number
        elif assignment and (keys := _dotted(assignment[1])):
            key = (*table, *keys)
            if location[: len(key)] == key:  # includes values of inline tables
                return number
    return None


def _table_of(keys: tuple[str, ...], is_item: bool, lengths: dict[Location, int]) -> Location:
    """The location that a table's header names, with its index in each list of tables.

    lengths: of the lists so far; updated.
    """
    table: Location = ()
    for depth, key in enumerate(keys, 1):
        table = (*table, key)
        if depth == len(keys) and is_item:
            lengths[table] = lengths.get(table, 0) + 1
        if table in lengths:
            table = (*table, lengths[table] - 1)
    return table


def _dotted(text: str) -> tuple[str, ...]:
    """The parts of a dotted TOML key; empty when the text is not a key."""
    try:
        value: Any = tomllib.loads(f"{text} = 0")
    except ValueError:
        return ()
    keys: list[str] = []
    while isinstance(value, dict):
        key, value = next(iter(value.items()))
        keys.append(key)
    return tuple(keys)


def dotted_key(location: Location) -> str:
    """A location as a sentence names it, such as trips[2].city, with indices from 1."""
    parts = (f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def quoted(text: str, limit: int = 60) -> str:
    """A user's text for a sentence: quoted, escaped and shortened."""
    return repr(text) if len(text) <= limit else repr(text[:limit]) + "…"


def shown(value: object) -> str:
    """A value of a TOML or JSON file for a sentence, with its type."""
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


class _Whole(io.BufferedReader):
    """A file without waiting: some of /proc look regular, and have nothing to read as yet."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if data is None:
            raise BlockingIOError(errno.EAGAIN, "it has nothing to read now")
        return data


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file that the user did not name, for reading. Raises OSError.

    A pipe or a device is refused without waiting, because it may be endless.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _BINARY)
    file = _Whole(io.FileIO(descriptor))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def read_regular(path: Path) -> bytes:
    """The bytes of a file that the user did not name: this program's own, or one beside another.

    Raises OSError, also for a pipe or a device, and for more than 1 GiB.
    """
    with open_regular(path) as file:
        return read_whole(file, path)


def read_whole(file: IO[bytes], path: Path) -> bytes:
    """The bytes of an open file, counted as they are decoded. Raises OSError, also for over 1 GiB
    and for a file that has nothing yet.
    """
    pieces, size = [], 0
    while piece := file.read(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > _MOST:
            raise OSError(errno.EFBIG, f"it is larger than {_MOST // 2**30} GiB", str(path))
    if piece is None:
        raise OSError(errno.EAGAIN, "it has nothing to read yet", str(path))
    return b"".join(pieces)


def open_own(path: Path, mode: str = "ab") -> BinaryIO:
    """Open a file of this program for writing; it and missing folders are made for this user alone.

    Raises OSError, also for a pipe or a device, which is not waited for.
    """
    make_private(path.parent)
    new = os.O_TRUNC if mode == "wb" else os.O_APPEND
    flags = os.O_RDWR | os.O_CREAT | new | getattr(os, "O_NONBLOCK", 0) | _BINARY
    file = cast(BinaryIO, os.fdopen(os.open(path, flags, 0o600), mode))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def make_private(folder: Path) -> None:
    """Make a folder of this program and those above it, for this user alone. Raises OSError."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def open_named(path: Path) -> BinaryIO:
    """Open a file that the user named, or a pipe, for reading. Raises OSError, also for a device,
    which may be endless.
    """
    file = path.open("rb")
    try:
        _refuse_device(file.fileno(), path)
    except OSError:
        file.close()
        raise
    return file


def _refuse_device(descriptor: int, path: Path) -> None:
    """Raise OSError for an open device, unless it is a terminal or the empty one."""
    status = os.fstat(descriptor)
    is_device = stat.S_ISBLK(status.st_mode) or (
        stat.S_ISCHR(status.st_mode)
        and not os.isatty(descriptor)
        and status.st_rdev != os.stat(os.devnull).st_rdev
    )
    if is_device:
        raise OSError(errno.ENODEV, "it is a device", str(path))


def read_text(path: Path, error: type[UserError] = UserError, *, is_named: bool = True) -> str:
    """Read a UTF-8 file, without its byte order mark. is_named: by the user, who may name a pipe.

    Raises FileNotFoundError when the file is missing, for callers that can do without it, and
    `error` when it is unreadable or not UTF-8, naming the line.
    """
    try:
        data = _read_bounded(path) if is_named else read_regular(path)
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise error(f"{path}: cannot be read: {reason(problem)}") from None
    except ValueError:  # a NUL character, or one that the file system rejects
        raise error(f"{quoted(str(path))}: is not a valid path") from None
    try:
        return data.removeprefix(_BOM).decode()
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise error(f"{path}, line {line}: is not valid UTF-8 {encoding_hint(data)}") from None


def _read_bounded(path: Path) -> bytes:
    """The bytes of a file that the user named, which may be a pipe. Raises OSError.

    An endless pipe ends at a bound, devices are refused, and what claims to be a regular file and
    has nothing yet, such as /proc/kmsg, is not waited for.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _BINARY)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        _refuse_device(descriptor, path)
        if hasattr(os, "O_NONBLOCK") and not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.set_blocking(descriptor, True)
        return read_whole(cast(IO[bytes], file), path)


def read_required(path: Path, error: type[UserError] = UserError) -> str:
    """Read a required file like `read_text`; a missing one raises `error`, too."""
    try:
        return read_text(path, error)
    except FileNotFoundError as problem:
        raise error(f"{path}: cannot be read: {reason(problem)}") from None


def encoding_hint(data: bytes) -> str:
    """The end of a sentence on bytes that are not UTF-8: their probable encoding, and the
    remedy."""
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    guess, name = ("UTF-16", "utf-16") if wide else ("Latin-1 or Windows-1252", "windows-1252")
    command = f"iconv -f {name} -t utf-8 OLD > NEW"
    return f"(perhaps {guess}); save the file as UTF-8, such as by {command}"


def read_toml(path: Path, error: type[UserError] = UserError) -> dict[str, Any]:
    """Read a TOML file. Raises as `read_text` does, and `error` for invalid TOML."""
    return parse_toml(read_text(path, error), path, error)


def parse_toml(text: str, path: Path, error: type[UserError] = UserError) -> dict[str, Any]:
    """Parse the text of a TOML file. Raises `error` for invalid TOML."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise error(f"{path}: is nested too deeply") from None
    except ValueError as problem:
        # tomllib puts the position last.
        match = re.fullmatch(r"(.*) \(at (line \d+, column \d+|end of document)\)", str(problem))
        what, place = match.groups() if match else (str(problem), "")
        if place == "end of document":
            last = text.rstrip().count("\n") + 1
            place = f"line {last}"
        where = f"{path}, {place}" if place else f"{path}"
        raise error(f"{where}: is not valid TOML: {what.split(';')[0]}") from None


def read_json_object(path: Path, error: type[UserError] = UserError) -> dict[str, Any]:
    """Read a JSON file that contains an object: this program's own, or one beside another. Raises
    as `read_text` does, and `error` otherwise."""
    return parse_json_object(read_text(path, error, is_named=False), str(path), error)


def parse_json_object(text: str, origin: str, error: type[UserError] = UserError) -> dict[str, Any]:
    """Parse a text that is one JSON object. origin: its file, for the sentence. Raises `error`."""
    try:
        data = parse_json(text)
    except ValueError as problem:
        raise error(f"{origin}: is not valid JSON: {problem}") from None
    if not isinstance(data, dict):
        raise error(f"{origin}: expected a JSON object, found {shown(data)}")
    return data


def write_whole(path: Path, content: str | bytes, *, is_secret: bool = False) -> None:
    """Replace a file atomically; see `whole_file`. Raises OSError."""
    with whole_file(path, is_secret=is_secret) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


def write_named(path: Path, text: str | bytes, *, replace: bool = False) -> None:
    """Replace a file that the user named atomically, within an existing folder.

    replace: whether the file may exist already. Raises OSError, including FileExistsError, and
    ValueError for an impossible file name.
    """
    if not replace and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    write_whole(path, text)


@contextmanager
def whole_file(path: Path, *, is_secret: bool = False) -> Iterator[Path]:
    """A draft next to `path` that replaces it when the block has ended.

    The draft gets the permissions of the old file, a secret one those of this user alone; missing
    folders are made, for this user only. A link stays a link, and a device or a pipe is written
    directly. Raises OSError; after an error the old file is unchanged.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        yield path
        return
    make_private(path.parent)
    # A long name is cut, so that it still fits with the suffix.
    draft = path.with_name(f".{path.name[:40]}.{os.getpid()}.{os.urandom(4).hex()}.new")
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL, 0o600 if is_secret else 0o666))
    try:
        yield draft
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        if path.exists() and not is_secret:
            shutil.copymode(path, draft)
        os.replace(draft, path)
    except OSError as error:
        if error.errno:  # one of a write names no file
            error.filename = error.filename or str(path)
        raise
    finally:
        draft.unlink(missing_ok=True)


def hold(lock: Path, seconds: float = 0.0) -> "FileLock":
    """Take a lock, which is held until its `release` or the end of the process. What is read,
    changed and written, several processes would lose to each other without one.

    seconds: to wait for it. Raises TimeoutError when another process holds it, and OSError.
    """
    from filelock import FileLock

    make_private(lock.parent)
    held = FileLock(lock, timeout=seconds)
    try:
        held.acquire()
    except TimeoutError:  # filelock's own is one
        words = "another process is writing it"
        raise TimeoutError(errno.ETIMEDOUT, words, str(lock)) from None
    return held


@contextmanager
def locked(lock: Path, seconds: float = 5.0) -> Iterator[None]:
    """Hold a lock for a block; see `hold`. Its file is gone afterwards."""
    held = hold(lock, seconds)
    try:
        yield
    finally:
        with suppress(OSError):  # while it is held: a moment later it may be another process's
            os.unlink(held.lock_file)
        held.release()


def change_whole(path: Path, change: Callable[[], str]) -> None:
    """Write what `change` makes of a file, while no other process does. Raises OSError."""
    with locked(lock_of(path)):
        write_whole(path, change())


def lock_of(path: Path) -> Path:
    """The lock of a file that is read and changed: a hidden one beside it."""
    return path.with_name(f".{path.name}.lock")


DISK_FULL = "the disk is full"
_PLAIN = {errno.ENOSPC: DISK_FULL, errno.EDQUOT: DISK_FULL, errno.EROFS: "the disk is read-only"}


def invalid_path(problem: BaseException) -> str | None:
    """A sentence on a path that is too long for the system; None for any other error."""
    if isinstance(problem, OSError) and problem.errno == errno.ENAMETOOLONG:
        return f"{quoted(str(problem.filename))}: is not a valid path: it is too long"
    return None


def system_error(problem: BaseException) -> OSError | None:
    """What the system said, also where a library puts it in words of its own: safetensors and
    tokenizers with its number, numpy for a write that was cut off. None for any other error.
    """
    if " requested and " in str(problem):
        return OSError(errno.ENOSPC, DISK_FULL)
    if match := re.search(r"\(os error (\d+)\)", str(problem)):
        return OSError(int(match[1]), os.strerror(int(match[1])))
    return problem if isinstance(problem, OSError) else None


def reason(problem: Exception) -> str:
    """Why the system refused, in short words: its own, where they are plain."""
    problem = system_error(problem) or problem
    if isinstance(problem, OSError) and problem.errno in _PLAIN:
        return _PLAIN[problem.errno]
    return getattr(problem, "strerror", None) or str(problem) or type(problem).__name__


Progress = Callable[[int, int], None]
"""Called with the amount of finished work, and the total, in steps, rows, texts or bytes. What it
raises ends the work.
"""


def no_progress(done: int, total: int) -> None:
    """Nobody is waiting."""


_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size_in_words(count: int) -> str:
    """A number of bytes in words: 40.0 kB, 98.4 MB, 1.5 GB.

    Powers of ten, as in file managers and on hubs.
    """
    unit, name = next((it for it in _UNITS if count >= it[0]), _UNITS[-1])
    return f"{count / unit:,.1f} {name}"
