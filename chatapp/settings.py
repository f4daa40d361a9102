"""The user's settings: defaults, then one TOML file, then CHATAPP_* variables, then flags.

The one invariant: every value is checked where it comes from, so that whatever is wrong is
refused in one sentence that names the file and line, the variable or the flag.
"""

import difflib
import json
import os
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from chatapp.engine.load import DEVICES, PRECISIONS
from chatapp.engine.model import Sampling
from chatapp.paths import settings_path
from chatapp.userfiles import UserError


class SettingsError(UserError):
    """A setting that cannot be used. The message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class KeyChoice:
    """Another key for an action, both still unchecked. keys: one, or some with commas between.

    origin: where the user has written it.
    """

    action: str
    keys: str
    origin: str


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user can choose once and for all.

    model: "bundled", a folder, or a hub id. template: a built-in template's name; empty for
    the model's own. theme: a Textual theme's name. precision: "auto", or what a GPT-2's
    matrices are multiplied as. device: "auto", or where models are computed. sampling: how
    replies are drawn; in the file its fields stand beside the others (`temperature = 0.7`).
    keys: the table `[keys]`, of key by action.
    """

    model: str = "bundled"
    template: str = ""
    theme: str = "textual-dark"
    precision: str = "auto"
    device: str = "auto"
    sampling: Sampling = field(default_factory=Sampling)
    keys: tuple[KeyChoice, ...] = ()


_TEXTS = ("model", "template", "theme", "precision", "device")
_CHOICES = {"precision": PRECISIONS, "device": DEVICES}
_NUMBERS: dict[str, type[int] | type[float]] = {
    each.name: float if each.type is float else int for each in fields(Sampling)
}
_KEYS = (*_TEXTS, *_NUMBERS, "keys")
_THEME = re.compile(
    r"""^[ \t]*["']?theme["']?[ \t]*=[ \t]*("(?:[^"\\\n]|\\.)*"|'[^'\n]*')""", re.MULTILINE
)


def load_settings(overrides: Mapping[str, object] | None = None) -> Settings:
    """The settings in force.

    overrides: values of command-line flags by setting; a None is a flag not given.
    Raises SettingsError for a key that does not exist, a value of the wrong type or out of
    range, and a file that cannot be read.
    """
    values: dict[str, Any] = {}
    for key, value, origin in (*_from_file(), *_from_environment(), *_from_flags(overrides or {})):
        values[key] = _checked(key, value, origin)
    others = {key: values.pop(key) for key in (*_TEXTS, "keys") if key in values}
    return Settings(**others, sampling=Sampling(**values))


def keep_theme(name: str) -> None:
    """Write the theme into the settings file, and leave everything else there as it is.

    Raises SettingsError, and changes nothing, when that cannot be done.
    """
    path = settings_path().resolve()  # a link stays one
    failure = f"{path}: the theme {name!r} cannot be kept"
    try:
        old = path.read_bytes().decode("utf-8-sig") if path.exists() else ""
        kept = False
        line = f"theme = {json.dumps(name, ensure_ascii=False)}"
        # Top-level keys stand before the first table.
        table = re.search(r"^\s*\[", old, re.MULTILINE)
        top, rest = (old[: table.start()], old[table.start() :]) if table else (old, "")
        new_top, found = _THEME.subn(lambda match: line, top, count=1)
        new = (new_top if found else f"{line}\n{top}") + rest
        wanted = tomllib.loads(old) | {"theme": name}
        with suppress(tomllib.TOMLDecodeError):
            kept = tomllib.loads(new) == wanted
        if not kept:
            raise SettingsError(f"{failure}; write {line} there yourself")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}.new")
        draft.write_bytes(new.encode())
        if path.exists():
            shutil.copymode(path, draft)
        os.replace(draft, path)
    except OSError as error:
        raise SettingsError(f"{failure}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{failure}: the file is not valid TOML: {error}") from None


def parameter(name: str, text: str) -> float | int | None:
    """The value of a field of `Sampling` that the user has written; "" is None for the seed.

    Raises ValueError in one sentence when there is no such field or it cannot be that.
    """
    _check_is_parameter(name)
    if not text and name == "seed":
        return None
    kind = _NUMBERS[name]
    try:
        value = kind(text)
    except ValueError:
        expected = "a number" if kind is float else "a whole number"
        raise ValueError(f"{name} is {text!r}; expected {expected}") from None
    Sampling(**{name: value})  # type: ignore[arg-type]  # its own rules
    return value


def checked_sampling(values: Mapping[str, object]) -> Sampling:
    """Sampling of values by name, as a file gave them; the seed may be None.

    Raises ValueError in one sentence for a name that is none, or a value that cannot be.
    """
    for name in values:
        _check_is_parameter(name)
    given = {name: value for name, value in values.items() if (name, value) != ("seed", None)}
    return Sampling(**{name: _checked_number(name, value) for name, value in given.items()})  # type: ignore[arg-type]


def _check_is_parameter(name: str) -> None:
    if name not in _NUMBERS:
        near = difflib.get_close_matches(name, _NUMBERS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_NUMBERS)}"
        raise ValueError(f"there is no parameter {name!r}; {hint}")


def _from_file() -> Iterator[tuple[str, object, str]]:
    path = settings_path()
    try:
        text = path.read_text(encoding="utf-8-sig")
        data = tomllib.loads(text)
    except FileNotFoundError:
        return
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is not valid UTF-8: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: is not valid TOML: {error}") from None
    for key, value in data.items():
        origin, place = _place(path, text, key, 0)
        if key == "keys" and isinstance(value, dict):
            value = tuple(
                KeyChoice(action, keys, _place(path, text, action, place)[0])
                for action, keys in value.items()
            )
        yield key, value, origin


def _place(path: Path, text: str, key: str, start: int) -> tuple[str, int]:
    """Where a key is set, in words and as the place in the text, from `start` on."""
    # tomllib keeps no positions; a key at the start of a line is where it was set.
    pattern = re.compile(rf"^\s*\[?\s*[\"']?{re.escape(key)}\b", re.MULTILINE)
    found = pattern.search(text, start)
    line = text.count("\n", 0, found.end()) + 1 if found else 1
    return f"{path}, line {line}", found.end() if found else 0


def _from_environment() -> Iterator[tuple[str, object, str]]:
    for variable, text in sorted(os.environ.items()):
        key = variable.removeprefix("CHATAPP_").lower()
        if variable.startswith("CHATAPP_") and variable != "CHATAPP_HOME" and text:
            yield key, _number(key, text), f"environment variable {variable}"


def _from_flags(overrides: Mapping[str, object]) -> Iterator[tuple[str, object, str]]:
    for key, value in overrides.items():
        if value is not None:
            yield key, value, f"--{key.replace('_', '-')}"


def _number(key: str, text: str) -> object:
    """The number that `text` stands for when the setting is one; else the text itself."""
    try:
        return _NUMBERS[key](text)
    except (KeyError, ValueError):
        return text


def _checked(key: str, value: Any, origin: str) -> Any:
    """`value` as the setting's type. Raises SettingsError naming `origin`."""
    if key not in _KEYS:
        near = difflib.get_close_matches(key, _KEYS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_KEYS)}"
        raise SettingsError(f"{origin}: there is no setting {key!r}; {hint}")
    if key == "keys":
        if not isinstance(value, tuple):
            raise SettingsError(f"{origin}: keys is {value!r}; expected a table of key by action")
        for choice in value:
            if not isinstance(choice.keys, str):
                raise SettingsError(
                    f"{choice.origin}: {choice.action} is {choice.keys!r}; expected a key in quotes"
                )
        return value
    if key in _TEXTS:
        if not isinstance(value, str):
            raise SettingsError(f"{origin}: {key} is {value!r}; expected text in quotes")
        if value not in (known := _CHOICES.get(key, (value,))):
            raise SettingsError(f"{origin}: {key} is {value!r}; expected one of {', '.join(known)}")
        return value
    try:
        return _checked_number(key, value)
    except ValueError as error:
        raise SettingsError(f"{origin}: {error}") from None


def _checked_number(key: str, value: Any) -> float | int:
    """`value` as the parameter's type. Raises ValueError in one sentence."""
    kind = _NUMBERS[key]
    if isinstance(value, bool) or not isinstance(value, int | kind):
        expected = "a number" if kind is float else "a whole number"
        raise ValueError(f"{key} is {value!r}; expected {expected}")
    try:
        number = kind(value)
    except OverflowError as error:
        raise ValueError(f"{key}: {error}") from None
    Sampling(**{key: number})  # type: ignore[arg-type]  # its own rules, one field at a time
    return number
