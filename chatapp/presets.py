"""Sampling parameters that the user has given a name, in one JSON file.

The one invariant: a file that cannot be read is never written to, and a write replaces the
whole file at once, so that no preset is ever lost but by its own removal.
"""

import difflib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from chatapp.engine.model import Sampling
from chatapp.foreign import without_surrogates
from chatapp.settings import checked_sampling
from chatapp.userfiles import UserError

_LONGEST = 60


class PresetsError(UserError):
    """What is wrong with the presets or a request to them, in one sentence for the user."""


def read_presets(path: Path) -> dict[str, Sampling]:
    """The presets of a file by name, in the order of names; none when there is no file.

    Raises PresetsError when the file cannot be read or holds anything else.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        data = json.loads(text)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise PresetsError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise PresetsError(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise PresetsError(f"{path}: expected an object of presets by name")
    presets = {}
    for name, values in sorted(data.items()):
        where = f"{path}: preset {name!r}"
        if not isinstance(values, dict):
            raise PresetsError(f"{where}: expected an object of parameters")
        try:
            presets[name] = checked_sampling(values)
        except ValueError as error:
            raise PresetsError(f"{where}: {error}") from None
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
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"there is no preset {name!r}; did you mean {near[0]!r}?"
    return f"there is no preset {name!r}; there are {', '.join(known) or 'none yet'}"


def _change(path: Path, change: Callable[[dict[str, Sampling]], object]) -> None:
    presets = read_presets(path)
    change(presets)
    text = json.dumps({name: asdict(each) for name, each in presets.items()}, indent=2)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new.write_text(text + "\n", encoding="utf-8")
        os.replace(new, path)
    except OSError as error:
        raise PresetsError(f"{path}: cannot be written: {error.strerror}") from None
