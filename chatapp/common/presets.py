"""Named sampling parameters of the user, in one JSON file."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from chatapp.common.foreign import without_surrogates
from chatapp.common.parameters import Sampling
from chatapp.common.userfiles import UserError, change_whole, read_json_object, reason, suggestion

_LONGEST = 60


class PresetsError(UserError):
    """One sentence for the user on the presets or on a request to them."""


def read_presets(path: Path) -> dict[str, Sampling]:
    """Read the presets of a file, sorted by name; none when there is no file.

    Raises PresetsError when the file cannot be read or contains anything else.
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
    """Store parameters under a name, replacing a preset of that name. Raises PresetsError."""
    name = without_surrogates(" ".join(name.split()))
    if not 0 < len(name) <= _LONGEST:
        raise PresetsError(f"a preset needs a name of 1 to {_LONGEST} characters")
    _change(path, lambda presets: presets.__setitem__(name, sampling))


def remove_preset(path: Path, name: str) -> None:
    """Remove a preset, if it exists. Raises PresetsError."""
    _change(path, lambda presets: presets.pop(name, None))


def no_preset(name: str, known: list[str]) -> str:
    """The sentence that no preset has this name."""
    return f"there is no preset {name!r}{suggestion(name, known)}"


def _change(path: Path, change: Callable[[dict[str, Sampling]], object]) -> None:
    def changed() -> str:
        presets = read_presets(path)
        change(presets)
        document = {name: asdict(sampling) for name, sampling in presets.items()}
        return json.dumps(document, indent=2) + "\n"

    try:
        change_whole(path, changed)
    except OSError as error:
        raise PresetsError(f"{path}: cannot be written: {reason(error)}") from None
