"""Checks of a model's files before anything reads them.

A foreign folder can contain a pipe that never answers, a link to an endless device, a JSON file of
gigabytes, and sizes that no memory holds.

Invariant: only regular files of sane sizes reach a library, and every number of a configuration is
compared with the weights before it becomes the size of an allocation.
"""

import os
import re
import stat
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from chatapp.common.paths import CHAT_TEMPLATE, TEMPLATE_FILE
from chatapp.common.userfiles import shown
from chatapp.engine.errors import ModelError

_MOST_BYTES = {
    "*config.json": 16 * 2**20,
    CHAT_TEMPLATE: 2**20,
    TEMPLATE_FILE: 2**20,
    "special_tokens_map.json": 16 * 2**20,
    "added_tokens.json": 16 * 2**20,
    "*.safetensors.index.json": 64 * 2**20,
    "tokenizer*": 256 * 2**20,
    "vocab.*": 256 * 2**20,
    "encoder.json": 256 * 2**20,
    "merges.txt": 256 * 2**20,
    "*.json": 256 * 2**20,
    "*.model": 256 * 2**20,
    "*.safetensors": 2**63,
    "*.gguf": 2**63,
}
"""The largest sizes of a model's files, by name pattern; the first match counts. The largest known
tokenizers have 35 MB.
"""

_LAYERS = re.compile(r"(^|_)layers?$")
_ID = re.compile(r"_ids?$")
"""Token numbers, which are compared with the vocabulary and never become a size."""

_MOST_LAYERS = 10_000
_LARGEST = 10**10
"""The largest number of a configuration; an unlimited window is written as 10⁹ at most."""


def check_files(path: Path) -> None:
    """Raises ModelError for a file of a model's folder, or a GGUF file, that is irregular or too
    large.
    """
    try:
        entries = [path / name for name in os.listdir(path)] if path.is_dir() else [path]
    except OSError:
        return  # reading it reports the fault
    for entry in entries:
        most = next((most for end, most in _MOST_BYTES.items() if fnmatch(entry.name, end)), None)
        if most is None and entry != path:
            continue
        try:
            status = entry.stat()
        except (OSError, ValueError):
            continue  # a broken link counts as a missing file
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise ModelError(f"{entry}: is not a regular file; expected one, or a link to one")
        if most is not None and status.st_size > most:
            raise ModelError(
                f"{entry}: has {status.st_size:,} bytes; expected at most {most:,} of such a file"
            )


def check_numbers(config: Mapping[str, Any], file: Path, within: str = "") -> None:
    """Raises ModelError for a number of a configuration larger than in any real model."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            check_numbers(value, file, f"{within}{key}.")
        elif isinstance(value, int) and not isinstance(value, bool) and not _ID.search(key):
            most = _MOST_LAYERS if _LAYERS.search(key) else _LARGEST
            if abs(value) > most:
                raise ModelError(
                    f"{file}: {within}{key} is {shown(value)[:60]}; expected at most {most:,}"
                )
