"""Copies of the file of chats: one a day, at most three, and back again.

They are made by SQLite's own online backup, so that a copy is whole whatever else writes, and only
of a sound file, so that a damaged one never replaces a good copy. What the user deletes for good is
in no copy afterwards.
"""

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

from chatapp.common.userfiles import make_private, reason
from chatapp.dialogue.store.database import CannotWrite, Database, StoreError, is_sound, log_of

KEPT = 3
_SECONDS = 24 * 60 * 60


def backups(path: Path) -> list[Path]:
    """The copies of a file of chats, the newest first, and last those of a clock that was ahead.

    Raises StoreError.
    """
    now = time.time()
    try:
        return sorted(
            _folder(path).glob(f"{path.stem}-*{path.suffix}"),
            key=lambda copy: (copy.stat().st_mtime <= now, copy.name),
            reverse=True,
        )
    except OSError as error:
        raise StoreError(f"{_folder(path)}: cannot be read: {reason(error)}") from None


def back_up(path: Path, *, every: float = _SECONDS) -> Path | None:
    """Copy a file of chats if its newest copy is older than `every` seconds; return the copy.

    Nothing is copied, and no error raised, where there is no room, no permission, or damage: the
    chat itself does not depend on it.
    """
    draft = _folder(path) / f".draft-{os.getpid()}{path.suffix}"
    try:
        known = backups(path)
        ages = [time.time() - copy.stat().st_mtime for copy in known]  # below 0: the clock jumped
        if not path.is_file() or any(0 <= age < every for age in ages):
            return None
        make_private(draft.parent)
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        with closing(source), closing(sqlite3.connect(draft)) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log
        if not is_sound(draft):
            return None
        made = draft.with_name(f"{path.stem}-{time.strftime('%Y-%m-%d-%H%M%S')}{path.suffix}")
        draft.replace(made)
        for old in backups(path)[KEPT:]:
            old.unlink()
        return made
    except (OSError, sqlite3.Error, UnicodeDecodeError, StoreError):
        return None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def forget_backups(path: Path | None) -> None:
    """Delete all copies of a file of chats. Raises StoreError when one cannot be deleted."""
    for copy in backups(path) if path is not None else ():
        try:
            copy.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{copy}: cannot be deleted: {reason(error)}") from None


def restore(path: Path, copy: Path | None = None) -> tuple[Path, Path | None]:
    """Put a copy in the place of a file of chats, and move that file aside.

    copy: default is the newest one. Returns the copy, and where the file is now, None if there was
    none. Raises StoreError where there is no copy, or the copy is damaged or of another program,
    and CannotWrite; the file is then as it was.
    """
    known = backups(path)
    if copy is None and not known:
        raise StoreError(f"{_folder(path)}: has no copy of the chats")
    copy = known[0] if copy is None else copy
    if not copy.is_file() or not is_sound(copy, with_log=False):
        raise StoreError(f"{copy}: is not a sound file of chats")
    fresh = path.with_name(f".restored-{os.getpid()}{path.suffix}")
    aside = path.with_name(f"{path.stem}-replaced-{time.strftime('%Y-%m-%d-%H%M%S')}{path.suffix}")
    try:
        try:
            old = sqlite3.connect(f"{copy.absolute().as_uri()}?immutable=1", uri=True)
            with closing(old), closing(sqlite3.connect(fresh)) as new:
                old.backup(new)
            fresh.chmod(0o600)
            Database(fresh).close()  # it is this program's, and of a format that this version knows
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StoreError(f"{copy}: cannot be copied: {error}") from None
        moved = path.exists()
        for file in (path, log_of(path)) if moved else ():
            if file.exists():
                file.replace(aside if file == path else log_of(aside))
        path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
        fresh.replace(path)
    except OSError as error:
        raise CannotWrite(path, reason(error)) from None
    finally:
        for file in (fresh, log_of(fresh), fresh.with_name(f"{fresh.name}-shm")):
            with suppress(OSError):
                file.unlink(missing_ok=True)
    return copy, aside if moved else None


def _folder(path: Path) -> Path:
    return path.parent / "backups"
