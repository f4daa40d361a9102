"""A record of the models that `models get` downloaded, and their removal.

Invariant: the record names files before they exist, so an interrupted download is known; and only
files in the record are ever deleted.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock, Timeout

from chatapp.common.paths import cache_dir, fetched_path
from chatapp.common.userfiles import read_json_object, reason, write_whole
from chatapp.engine.errors import ModelError
from chatapp.engine.models.known_models import known_models

HUB = "hub"


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model that `models get` has downloaded, or has begun to.

    name: one that `load_model` takes. source: HUB, or the package that contained it. files: paths
    below the folder, with their complete size in bytes. licence: empty when its source names none.
    """

    name: str
    source: str
    folder: Path
    files: dict[str, int]
    licence: str

    @property
    def bytes(self) -> int:
        """Of all its files together."""
        return sum(self.files.values())

    def document(self) -> dict[str, Any]:
        """Its facts as JSON data."""
        return {
            "folder": str(self.folder),
            "bytes": self.bytes,
            "licence": self.licence,
            "source": self.source,
        }

    @property
    def is_whole(self) -> bool:
        """Whether all of its files exist."""
        return all((self.folder / file).is_file() for file in self.files)

    @property
    def has_begun(self) -> bool:
        """Whether any of its files exists."""
        return any((self.folder / file).is_file() for file in self.files)


def fetched_models() -> list[Fetched]:
    """All models in the record. Raises ModelError when it cannot be read."""
    path = fetched_path()
    try:
        table = read_json_object(path, ModelError)
    except FileNotFoundError:
        return []
    try:
        return [_fetched(name, row) for name, row in table.items()]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ModelError(
            f"{path}: is not a record written by `models get`; move it away to continue without it"
        ) from None


def find_fetched(name: str) -> Fetched | None:
    """The model downloaded under a short name or a hub id. Raises ModelError."""
    known = known_models().get(name)
    by_name = {entry.name: entry for entry in fetched_models()}
    return by_name.get(name) or (by_name.get(known.hub) if known else None)


def remember(model: Fetched) -> None:
    """Add a model's files to the record. Raises ModelError when it cannot be written."""
    _write([entry for entry in fetched_models() if entry.name != model.name] + [model])


def forget(model: Fetched) -> None:
    """Remove a model from the record. Raises ModelError when it cannot be written."""
    _write([entry for entry in fetched_models() if entry.name != model.name])


@contextmanager
def only_one() -> Iterator[None]:
    """A lock for downloading or removing models, held by one process at a time.

    Raises ModelError when another one holds it.
    """
    path = cache_dir() / "fetching.lock"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = FileLock(path, timeout=0)
        lock.acquire()
    except Timeout:
        raise ModelError(
            "another `models get` or `models remove` is running; wait for it"
        ) from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be written: {reason(error)}") from None
    try:
        yield
    finally:
        lock.release()


def remove(name: str) -> int:
    """Delete the files that `models get` downloaded under a name; return the number of freed bytes.

    Raises ModelError when there are none, or when a file has changed since.
    """
    with only_one():
        model = find_fetched(name)
        if model is None:
            raise ModelError(f"{name}: `models get` has not downloaded it, so nothing is removed")
        freed = delete_files(model)
        forget(model)
    return freed


def delete_files(model: Fetched) -> int:
    """Delete the files of a model, and folders that are empty afterwards; return the number of
    bytes.

    Raises ModelError, and deletes nothing, when a file has changed since its download.
    """
    files = [model.folder / file for file in model.files if (model.folder / file).exists()]
    in_cache = model.source == HUB
    if model.folder.is_symlink():
        raise ModelError(f"{model.folder}: is a link that `models get` did not create")
    for file in files:
        if file.stat().st_size != model.files[file.relative_to(model.folder).as_posix()] or (
            file.is_symlink() and not in_cache
        ):
            raise ModelError(f"{file}: is not the file that `models get` downloaded")
    try:
        freed = _delete_cached(model.folder, files) if in_cache else _delete(files)
        _delete_empty(model.folder)
    except OSError as error:
        raise ModelError(f"{model.folder}: cannot be deleted: {reason(error)}") from None
    return freed


def _delete(files: list[Path]) -> int:
    freed = 0
    for file in files:
        freed += file.lstat().st_size
        file.unlink()
    return freed


def _delete_cached(snapshot: Path, files: list[Path]) -> int:
    """Delete files of a snapshot in the hub's cache, and the blobs that only they link to.

    The cache holds each content once, in blobs/, and snapshots/COMMIT/ links to it.
    """
    # The client's own deletion (2.4) follows a link to a user's file, deletes files downloaded by
    # other programs, misses a repository with one broken link or a restarted version, and ignores
    # files that it may not delete.
    repository = snapshot.parent.parent
    blobs = (repository / "blobs").resolve()
    links = [file for file in files if file.is_symlink()]
    contents = {link.resolve() for link in links}
    freed = _delete([file for file in files if file not in links])
    _delete(links)
    remaining = [path for path in snapshot.parent.rglob("*") if not path.is_dir()]
    contents -= {path.resolve() for path in remaining}
    freed += _delete([content for content in contents if content.parent == blobs])
    delete_partial(snapshot)
    if repository.is_dir() and not remaining and not any(blobs.glob("*")):
        shutil.rmtree(repository)  # the rest is only the cache's own bookkeeping
        shutil.rmtree(_locks(repository), ignore_errors=True)
    return freed


def delete_partial(snapshot: Path) -> None:
    """Delete partial downloads of a snapshot's contents in the hub's cache.

    A content that another process is downloading is locked, and stays.
    """
    repository = snapshot.parent.parent
    locks = _locks(repository)
    for partial in repository.glob("blobs/*.incomplete"):
        try:
            with FileLock(locks / f"{partial.name.split('.')[0]}.lock", timeout=0):
                partial.unlink(missing_ok=True)
        except (Timeout, OSError):
            continue


def _locks(repository: Path) -> Path:
    """The folder of the hub cache's locks for a repository's contents."""
    return repository.parent / ".locks" / repository.name


def _delete_empty(folder: Path) -> None:
    """Delete empty folders below a folder, and the folder itself if it is empty."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            with suppress(OSError):  # it contains other files
                path.rmdir()
    with suppress(OSError):
        folder.rmdir()


def _fetched(name: str, row: dict[str, Any]) -> Fetched:
    """A row of the record. Raises one of several errors when it is invalid."""
    model = Fetched(
        name=name,
        source=str(row["source"]),
        folder=Path(row["folder"]),
        files={str(file): int(size) for file, size in row["files"].items()},
        licence=str(row["licence"]),
    )
    paths = [PurePosixPath(file) for file in model.files]
    if any(path.is_absolute() or ".." in path.parts for path in paths):
        raise ValueError("a file outside of the folder")
    if model.source == HUB and model.folder.parent.name != "snapshots":
        raise ValueError("a folder outside of the hub's cache")
    return model


def _write(models: list[Fetched]) -> None:
    rows = {model.name: asdict(model) | {"folder": str(model.folder)} for model in models}
    for row in rows.values():
        del row["name"]
    path = fetched_path()
    try:
        write_whole(path, json.dumps(rows, indent=2) + "\n")
    except OSError as error:
        raise ModelError(f"{path}: cannot be written: {reason(error)}") from None
