"""Unsent drafts, in one file for each running program.

Invariant: a draft is on disk as soon as it is typed, independent of the store and of an orderly
exit, so it survives any end of the program. A thread writes it, because each call of the system
would make a key wait for a model that is computing. A draft of a running program is left alone.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path

from chatapp.common.userfiles import make_private, read_regular


class Drafts:
    """The drafts in a folder. folder: None stores nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._kept = self._wanted = ""
        self._lock = threading.Lock()
        self._writer: threading.Thread | None = None

    def keep(self, text: str) -> None:
        """Store `text` as the draft of this program, soon; "" removes it. A full disk keeps the
        previous draft.
        """
        with self._lock:
            if self._folder is None or text == self._wanted:
                return
            self._wanted = text
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_newest, daemon=True)
                self._writer.start()

    def finish(self, patience: float) -> None:
        """Wait until the newest draft is stored, at most this many seconds."""
        if (writer := self._writer) is not None:
            writer.join(patience)

    def _write_newest(self) -> None:
        while True:
            text = self._wanted
            self._write(text)
            with self._lock:
                if text == self._wanted:
                    self._writer = None
                    return

    def _write(self, text: str) -> None:
        if self._folder is None or text == self._kept:
            return
        path = self._folder / f"{os.getpid()}.txt"
        with suppress(OSError):
            if text:
                make_private(self._folder)
                new = path.with_suffix(".new")
                descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
                    file.write(text)
                os.replace(new, path)
            else:
                path.unlink(missing_ok=True)
            self._kept = text

    def take_left(self) -> str:
        """Take over the drafts of programs that no longer run."""
        if self._folder is None:
            return ""
        left = [path for path in sorted(self._folder.glob("*.txt")) if not _is_written(path)]
        texts = []
        for path in left:
            with suppress(OSError):
                texts.append(read_regular(path).decode("utf-8", "replace"))
        text = "\n".join(texts)
        self._wanted = text
        self._write(text)  # before the files go
        for path in left:
            if text == self._kept and path.stem != str(os.getpid()):
                with suppress(OSError):
                    path.unlink(missing_ok=True)
        return text


def _is_written(path: Path) -> bool:
    """Whether another running program writes this draft."""
    if os.name != "posix" or not path.stem.isdecimal() or path.stem == str(os.getpid()):
        return False
    try:
        os.kill(int(path.stem), 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
