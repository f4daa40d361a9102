"""The models that were made or used on this machine, wherever they lie: folders and GGUF files.

Keep: the record is a convenience; where it cannot be read or written, models are not
remembered, and nothing else fails.
"""

import json
import os
from contextlib import suppress
from pathlib import Path

from chatapp.paths import used_models_path
from chatapp.userfiles import write_whole

_MOST = 200


def note_model(name: str | Path) -> None:
    """Remember where a model lies, if the name is a folder or a file."""
    path = os.path.expanduser(name)  # unlike Path, takes any text without an error
    if os.path.exists(path):
        place = os.path.abspath(path)
        known = [str(each) for each in used_models()]
        if place not in known:
            with suppress(OSError, UnicodeError):
                write_whole(used_models_path(), json.dumps([place, *known][:_MOST], indent=2))


def used_models() -> list[Path]:
    """The folders and files that are still there, the latest first."""
    try:
        names = json.loads(used_models_path().read_bytes())
        return [Path(name) for name in names if os.path.exists(name)]
    except (OSError, ValueError, TypeError):
        return []
