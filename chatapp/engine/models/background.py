"""The server of this program that runs on this machine: which models it has, and how it is reached.

It is known by a file that only its user can read, with the address, a token and the models. A
server that has died without removing it is noticed by the first connection.

Invariant: a model is used only if its name, its files and its precision are what would be loaded
here. No import of torch, and none of the modules that read a model's files.
"""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chatapp.common.parameters import Values
from chatapp.common.paths import background_path
from chatapp.common.userfiles import UserError, open_regular, parse_json_object
from chatapp.engine.backends.background import Address, BackgroundModel

if TYPE_CHECKING:
    from filelock import FileLock

    from chatapp.engine.model import LanguageModel

Stamps = Mapping[str, tuple[int, int]]
"""Size and time of change of each file, by its path."""


_MOST = 2**20
"""Bytes of the file that are read."""

_UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, UserError)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model of the server.

    place: its folder or file, if the name is a path. files: what it was loaded from. wanted: the
    precision and device that were requested for it. precision: the one that resulted. sampling: the
    values of the model's authors.
    """

    name: str
    place: str
    files: Stamps
    wanted: tuple[str, str]
    precision: str
    context: int
    start: tuple[int, ...]
    sampling: Values

    def fits(self, name: str, precision: str, device: str) -> bool:
        """Whether this is the model that loading would give."""
        is_same = _place(name) == self.place if self.place else name == self.name
        return (
            is_same
            and precision in (self.wanted[0], self.precision)
            and device == self.wanted[1]
            and self.files == stamps(self.files)
        )


@dataclass(frozen=True, slots=True)
class Background:
    """A running server."""

    pid: int
    address: Address
    models: tuple[ServedModel, ...]


def describe(
    name: str, model: "LanguageModel", wanted: tuple[str, str], sampling: Values
) -> ServedModel:
    """A loaded model for the file. wanted: the requested precision and device."""
    files = model.files
    parts = [] if files is None else [files, *filter(None, [files.base])]
    paths = [path for part in parts for path in _files_in(part.path)]
    return ServedModel(
        name,
        _place(name),
        stamps(map(str, paths)),
        wanted,
        model.precision,
        model.context,
        tuple(model.start),
        sampling,
    )


def claim() -> "FileLock | None":
    """Become the server of this user while the lock is held; None if there is one already.

    A process that is killed releases it.
    """
    from filelock import FileLock

    path = background_path().with_suffix(".lock")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except TimeoutError:  # filelock's own is one
        return None
    return lock


def note(background: Background) -> None:
    """Write the file, for this user only. Raises OSError."""
    path = background_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(asdict(background), file)
    draft.replace(path)


def forget(pid: int) -> None:
    """Remove the file, if it is that of this process."""
    with suppress(*_UNREADABLE):
        if _document()["pid"] == pid:
            background_path().unlink()


def running() -> Background | None:
    """The server that runs, if there is one."""
    try:
        document = _document()
        background = Background(
            document["pid"],
            Address(**document["address"]),
            tuple(_model_of(row) for row in document["models"]),
        )
    except _UNREADABLE:
        return None
    return background if background.address.is_alive() else None


def find(name: str, precision: str, device: str) -> tuple[Address, ServedModel] | None:
    """The model on the server that runs, if it has it as it would be loaded here."""
    if not background_path().exists() or (background := running()) is None:
        return None
    for model in background.models:
        if model.fits(name, precision, device):
            return background.address, model
    return None


def load_served(name: str, precision: str, device: str) -> "LanguageModel | None":
    """The model of the server that runs, as if it were loaded here; None if it has no such model.

    Raises ModelError.
    """
    if (match := find(name, precision, device)) is None:
        return None
    from chatapp.engine.models.loading import load_model, read_tokenizer
    from chatapp.engine.models.resolving import find_local_model

    address, served = match
    return BackgroundModel(
        address,
        find_local_model(name),
        name=served.name,
        context=served.context,
        start=served.start,
        precision=served.precision,
        read_tokenizer=lambda: read_tokenizer(name),
        load=lambda: load_model(name, precision=precision, device=device),
    )


def stamps(paths: Iterable[str]) -> dict[str, tuple[int, int]]:
    """The size and the time of change of files; those that are gone are left out."""
    result = {}
    for path in paths:
        with suppress(OSError):
            status = os.stat(path)
            result[path] = (status.st_size, status.st_mtime_ns)
    return result


def _document() -> dict[str, Any]:
    """What the file holds. Raises one of _UNREADABLE; what is no regular file is not opened."""
    with open_regular(background_path()) as file:
        return parse_json_object(file.read(_MOST).decode(), str(background_path()))


def _model_of(row: dict[str, object]) -> ServedModel:
    """Raises TypeError, KeyError, ValueError for other data."""
    served = ServedModel(**row)  # type: ignore[arg-type]
    files = {path: (size, time) for path, (size, time) in served.files.items()}
    wanted, start = tuple(served.wanted), tuple(served.start)
    return ServedModel(**(row | {"files": files, "wanted": wanted, "start": start}))  # type: ignore[arg-type]


def _place(name: str) -> str:
    """The absolute path of a name that is one; "" for any other name."""
    path = os.path.expanduser(name)
    return os.path.realpath(path) if os.path.exists(path) else ""


def _files_in(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else [path]
