"""Sampling parameters that the user has given a name, in one JSON file.

Keep: a file that cannot be read is never written to, and a write replaces the whole file at
once, so that no preset is ever lost but by its own removal.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from chatapp.common.foreign import without_surrogates
from chatapp.common.parameters import Sampling
from chatapp.common.userfiles import UserError, read_json_object, reason, suggestion, write_whole

_LONGEST = 60


class PresetsError(UserError):
    """What is wrong with the presets or a request to them, in one sentence for the user."""


def read_presets(path: Path) -> dict[str, Sampling]:
    """The presets of a file by name, in the order of names; none when there is no file.

    Raises PresetsError when the file cannot be read or holds anything else.
    """
    try:
        data = read_json_object(path, PresetsError)
    except FileNotFoundError:
        return {}
    presets = {}
    for name, values in sorted(data.items()):
        if not isinstance(values, dict):
            raise PresetsError(f"{path}: preset {name!r}: expected an object of parameters")
        try:
            presets[name] = Sampling.of(values)
        except ValueError as error:
            raise PresetsError(f"{path}: preset {name!r}: {error}") from None
    return presets


def save_preset(path: Path, name: str, sampling: Sampling) -> None:
    """Keep parameters under a name, in place of those it stood for. Raises PresetsError."""
    name = without_surrogates(" ".join(name.split()))
    if not 0 < len(name) <= _LONGEST:
        raise PresetsError(f"a preset needs a name of 1 to {_LONGEST} characters")
    _change(path, lambda presets: presets.__setitem__(name, sampling))


def remove_preset(path: Path, name: str) -> None:
    """Forget a preset; nothing to do when there is none. Raises PresetsError."""
    _change(path, lambda presets: presets.pop(name, None))


def no_preset(name: str, known: list[str]) -> str:
    """That there is no preset of this name, in words."""
    return f"there is no preset {name!r}{suggestion(name, known)}"


def _change(path: Path, change: Callable[[dict[str, Sampling]], object]) -> None:
    presets = read_presets(path)
    change(presets)
    document = {name: asdict(sampling) for name, sampling in presets.items()}
    try:
        write_whole(path, json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise PresetsError(f"{path}: cannot be written: {reason(error)}") from None
