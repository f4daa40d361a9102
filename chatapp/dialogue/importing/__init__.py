"""Chats from files: this program's own, OpenAI messages, and the exports of other programs.

A file is one chat, a list of them, or one a line; a folder or a zip archive holds such files. The
forms are described in `forms`.

Invariants: a chat that cannot be read is left out and named, and the rest is read; what is stored
already is not stored again. Of an archive no more is unpacked than `_MOST_UNPACKED`, whatever its
directory claims, nothing is written, and the names in it are only words of sentences.
"""

import hashlib
import itertools
import json
import lzma
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from chatapp.common.foreign import parse_json, without_surrogates
from chatapp.common.userfiles import Progress, no_progress, quoted, read_required, reason, shown
from chatapp.dialogue.importing.forms import (
    ImportedChat,
    ImportingError,
    program_of,
    read_foreign,
    read_own,
)
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.rows import NewMessage

_SUFFIXES = (".json", ".jsonl", ".ndjson")

_MOST_UNPACKED = 2**30
"""Bytes of all texts of an archive together; a few megabytes could be unpacked to terabytes."""

_MOST_ENTRIES = 100_000
_PIECE = 2**20
_BOM = "\ufeff"
_FOREIGN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, ValueError)
"""What the module raises on bytes that are not an archive."""
_TITLE_LENGTH = 200

_PROGRESS_EVERY = 100
_INDEX_EVERY = 5_000
"""Messages."""


@dataclass(frozen=True, slots=True)
class _FileText:
    """A text and where it is. is_named: whether the user named this very file. fault: why it cannot
    be read; its text is then empty.
    """

    place: str
    text: str = ""
    is_named: bool = False
    fault: ImportingError | None = None


def _texts_in(path: Path) -> Iterator[_FileText]:
    """The text of a file, or of each JSON file in a folder (with those in it) or an archive, sorted
    by name.
    """
    if path.is_dir():
        for file in _files_below(path):
            yield _file_text(file)
    elif _is_archive(path):
        yield from _archived(path)
    else:
        yield _file_text(path, is_named=True)


def _files_below(folder: Path) -> Iterator[Path]:
    """The JSON files; a link to a folder is not followed, because it may lead round in a circle."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(root, name)
            if _is_wanted(name) and path.is_file():
                yield path


def _is_wanted(name: str) -> bool:
    return not name.startswith(".") and name.lower().endswith(_SUFFIXES)


def _file_text(path: Path, *, is_named: bool = False) -> _FileText:
    try:
        return _FileText(str(path), read_required(path, ImportingError), is_named)
    except ImportingError as error:
        return _FileText(str(path), fault=error)


def _is_archive(path: Path) -> bool:
    """Whether a file is a zip archive, whatever its name. A pipe is not read to find out."""
    try:
        return stat.S_ISREG(path.stat().st_mode) and zipfile.is_zipfile(path)
    except (OSError, ValueError):  # reading it says what is wrong
        return False


def _archived(path: Path) -> Iterator[_FileText]:
    left, fault = _MOST_UNPACKED, ""
    try:
        with zipfile.ZipFile(path) as archive:
            if len(archive.infolist()) > _MOST_ENTRIES:
                raise ValueError(f"it holds more than {_MOST_ENTRIES:,} files")
            for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
                name = PurePosixPath(entry.filename)
                if _is_wanted(name.name) and name.parts[0] != "__MACOSX" and left >= 0:
                    place = f"{path}, {quoted(entry.filename)}"
                    text, size = _unpacked(archive, entry, place, left)
                    left -= size
                    yield text
    except (*_FOREIGN, NotImplementedError) as error:
        fault = f"cannot be read as an archive: {error}"
    except OSError as error:
        fault = f"cannot be read: {reason(error)}"
    if fault:
        yield _FileText(str(path), fault=ImportingError(f"{path}: {fault}"))


def _unpacked(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, place: str, left: int
) -> tuple[_FileText, int]:
    """The text of an entry, which may claim any size, and the bytes that were unpacked for it.

    left: the bytes that it may have.
    """
    data = bytearray()
    try:
        with archive.open(entry) as file:
            while len(data) <= left and (piece := file.read(_PIECE)):
                data += piece
        if len(data) <= left:
            return _FileText(place, data.decode().removeprefix(_BOM)), len(data)
        limit = f"{_MOST_UNPACKED // 2**20:,} MiB"
        problem = f"with it this archive unpacks to more than {limit}; the rest is left out"
    except UnicodeDecodeError:
        problem = "is not valid UTF-8"
    except RuntimeError as error:
        is_unknown = isinstance(error, NotImplementedError)
        problem = "is packed in an unknown way" if is_unknown else "is encrypted"
    except (*_FOREIGN, OSError):
        problem = "is damaged"
    return _FileText(place, fault=ImportingError(f"{place}: {problem}")), len(data)


@dataclass(frozen=True, slots=True)
class ImportedFiles:
    """The contents of files.

    empty: the number of chats without a message, others: of files without chats; both are left out.
    faults: a sentence on each chat and file that cannot be read.
    """

    chats: tuple[ImportedChat, ...]
    empty: int = 0
    others: int = 0
    faults: tuple[str, ...] = ()


class Placed(NamedTuple):
    """Where a chat is stored. added: its new messages, 0 if it was there with all of them."""

    id: int
    added: int
    is_new: bool


def read_chats(*paths: Path, progress: Progress = no_progress) -> ImportedFiles:
    """The chats in files, folders and archives, at least one. Raises ImportingError for none.

    progress: called with how many chats are read, and of how many so far. What it raises stops
    reading.
    """
    chats, faults = list[ImportedChat](), list[str]()
    others = count = 0
    for text in itertools.chain.from_iterable(map(_texts_in, paths)):
        documents = list(_documents(text))
        if not text.is_named and not any(map(_is_chat, documents)):
            others += 1
            continue
        for number, document in enumerate(documents, count):
            progress(number, count + len(documents))
            try:
                chats.append(_chat(document))
            except ImportingError as error:
                faults.append(str(error))
        count += len(documents)
    filled = tuple(chat for chat in chats if chat.messages)
    if filled:
        return ImportedFiles(filled, len(chats) - len(filled), others, tuple(faults))
    if faults:
        more = f"; and {len(faults) - 1} more faults" if len(faults) > 1 else ""
        raise ImportingError(f"{faults[0]}{more}")
    where = ", ".join(map(str, paths))
    raise ImportingError(f"{where}: {'has no message' if chats else 'contains no chat'}")


class _Document(NamedTuple):
    place: str
    data: Any


def _documents(text: _FileText) -> Iterator[_Document | ImportingError]:
    """Each document of a text; in the place of one that is not JSON, why not."""
    place = text.place
    if text.fault:
        yield text.fault
        return
    try:
        whole = parse_json(text.text)
    except ValueError as error:
        lines = [(n, line) for n, line in enumerate(text.text.split("\n"), 1) if line.strip()]
        if len(lines) < 2 or not lines[0][1].rstrip().endswith("}"):
            yield ImportingError(f"{place}: is not valid JSON: {error}")
            return
        for number, line in lines:
            try:
                yield _Document(f"{place}, line {number}", parse_json(line))
            except ValueError as problem:
                yield ImportingError(f"{place}, line {number}: is not valid JSON: {problem}")
        return
    if not isinstance(whole, list):
        yield _Document(place, whole)
    else:
        for number, data in enumerate(whole, 1):
            name = data.get("title", data.get("name")) if isinstance(data, dict) else None
            title = f" {quoted(name)}" if isinstance(name, str) and name else ""
            yield _Document(f"{place}, chat {number}{title}", data)


def _is_chat(document: _Document | ImportingError) -> bool:
    """Whether a document is meant as a chat; an error is not held back."""
    if isinstance(document, ImportingError):
        return True
    data = document.data
    return isinstance(data, dict) and ("messages" in data or program_of(data) is not None)


def _chat(document: _Document | ImportingError) -> ImportedChat:
    """A chat, without messages if the document has none. Raises ImportingError."""
    if isinstance(document, ImportingError):
        raise document
    place, data = document
    if not isinstance(data, dict):
        raise ImportingError(f"{place}: is {shown(data)}, expected an object")
    program = program_of(data)
    chat = read_foreign(program, data, place) if program else read_own(data, place)
    return replace(chat, title=chat.title[:_TITLE_LENGTH], origin=chat.origin or _content(chat))


def _content(chat: ImportedChat) -> str:
    """A digest of what a chat says, by which one without an id is known again."""
    content = [chat.system, *((message.role, message.text) for message in chat.messages)]
    return "content:" + hashlib.sha256(json.dumps(content).encode()).hexdigest()


def store_chats(
    store: Store, chats: Sequence[ImportedChat], progress: Progress = no_progress
) -> list[Placed]:
    """Store chats, all or none of them. Raises StoreError.

    A chat that came before is continued where it has grown: its messages are followed as far as
    they are stored, and the others are added below, so that nothing that is stored is changed.

    progress: called with how many messages are stored, and of how many. What it raises stops the
    import, and then nothing is stored.
    """
    count, done = sum(len(chat.messages) for chat in chats), itertools.count()
    placed = list[Placed]()

    def counted(messages: Iterable[NewMessage]) -> Iterator[NewMessage]:
        for message in messages:
            if (number := next(done)) % _PROGRESS_EVERY == 0:
                progress(number, count)
            if number % _INDEX_EVERY == 0:
                index()
            yield message

    with store.indexed_together() as index:
        for chat in chats:
            chat_id = store.chat_from(chat.origin)
            is_new, last = chat_id is None, None
            messages: Sequence[NewMessage] = chat.messages
            if chat_id is None:
                chat_id = store.create_chat(
                    title=chat.title,
                    system=chat.system,
                    template=chat.template,
                    model=chat.model,
                    origin=chat.origin,
                )
                store.set_tags(chat_id, chat.tags)
            else:
                messages, last = _further(store, chat_id, messages)
            if messages:
                store.add_messages(chat_id, counted(messages), last)
            placed.append(Placed(chat_id, len(messages), is_new))
    return placed


def _further(
    store: Store, chat_id: int, messages: Sequence[NewMessage]
) -> tuple[Sequence[NewMessage], int | None]:
    """The messages that a stored chat does not have on any branch, and the one to add them to."""
    stored = {}
    for row in reversed(store.tree(chat_id)):
        for text in {row.text, row.text if row.original is None else row.original}:
            stored[row.parent_id, row.role, text] = row.id
    last: int | None = None
    for number, message in enumerate(messages):
        place = stored.get((last, message.role, without_surrogates(message.text)))
        if place is None:
            return messages[number:], last
        last = place
    return (), last
