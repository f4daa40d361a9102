"""The folders of models that were made or used on this machine, wherever they lie.

Keep: the record is a convenience; where it cannot be read or written, folders are not
remembered, and nothing else fails.
"""

import json
import os
from contextlib import suppress
from pathlib import Path

from chatapp.paths import used_folders_path
from chatapp.userfiles import write_whole

_MOST = 200


def note_folder(name: str | Path) -> None:
    """Remember a model's folder, if the name is one."""
    path = os.path.expanduser(name)  # unlike Path, takes any text without an error
    if os.path.isdir(path):
        folder = os.path.abspath(path)
        known = [str(each) for each in used_folders()]
        if folder not in known:
            with suppress(OSError, UnicodeError):
                write_whole(used_folders_path(), json.dumps([folder, *known][:_MOST], indent=2))


def used_folders() -> list[Path]:
    """The folders that are still there, the latest first."""
    try:
        names = json.loads(used_folders_path().read_bytes())
        return [Path(name) for name in names if os.path.isdir(name)]
    except (OSError, ValueError, TypeError):
        return []
