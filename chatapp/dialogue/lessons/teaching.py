"""Models that a lesson makes: `finetune train`, run as in a terminal, in a folder of its own."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from chatapp.common.userfiles import UserError
from chatapp.dialogue.lessons.lesson import Lesson

Say = Callable[[str], None]


def _silent(line: str) -> None:
    """Says nothing."""


class Workshop:
    """The models that a lesson teaches, while it is open."""

    def __init__(self, lesson: Lesson) -> None:
        self._lesson = lesson
        self._folder: TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the training that runs, and delete the models."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            if self._folder is not None:
                self._folder.cleanup()
                self._folder = None

    def has_made(self, name: str) -> bool:
        """Whether a model needs no training any more."""
        made = self._folder is not None and (Path(self._folder.name) / name).is_dir()
        return name not in self._lesson.teach or made

    def folder(self, name: str, say: Say = _silent) -> str:
        """The folder of a model that the lesson teaches, taught now if it is not yet; the name of
        any other model. Takes seconds to a minute. Raises UserError.

        say: gets each line of the training.
        """
        config = self._lesson.teach.get(name)
        if config is None:
            return name
        with self._lock:
            if self._is_closed:
                raise UserError("the lesson has ended")
            if self._folder is None:
                self._folder = TemporaryDirectory(prefix="chatapp-lesson-")
            place = Path(self._folder.name)
            if not (place / name).is_dir():
                self._train(Path(config), place, name, say)
            return str(place / name)

    def _train(self, config: Path, place: Path, name: str, say: Say) -> None:
        """Train into a draft folder, so that an interrupted training leaves no model."""
        draft = place / "draft"
        self._process = subprocess.Popen(
            # -P: no module in the lesson's folder can replace one of ours.
            [sys.executable, "-P", "-m", "finetune", "train", config.name, f"output={draft}"],
            cwd=config.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "COLUMNS": "100", "PYTHONUNBUFFERED": "1"},
        )
        last = ""
        with self._process as process:
            assert process.stderr is not None
            for line in process.stderr:
                last = line.strip() or last
                say(last)
        if process.returncode:
            raise UserError(f"the model {name} could not be taught: {last}")
        draft.rename(place / name)
