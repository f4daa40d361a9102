"""The user's settings: defaults, then one TOML file, then CHATAPP_* variables, then flags; and
named sampling parameters, in one JSON file.

Invariant: every value is checked at its origin, and an error is one sentence that names the file
and line, the variable or the flag. The first frame waits for the settings, so nothing here imports
pydantic, which takes a tenth of a second.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from chatapp.common.foreign import without_surrogates
from chatapp.common.parameters import (
    GREEDY,
    PARAMETERS,
    Choices,
    Origin,
    Sampling,
    Values,
    check_choice,
)
from chatapp.common.paths import settings_path
from chatapp.common.userfiles import (
    UserError,
    change_whole,
    line_of,
    parse_toml,
    read_json_object,
    read_text,
    reason,
    suggestion,
)


class SettingsError(UserError):
    """An invalid setting. The message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class KeyChoice:
    """A user's key for an action, both still unchecked.

    keys: one key, or several with commas between. origin: where the user wrote it.
    """

    action: str
    keys: str
    origin: str


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a user.

    model: "bundled", a folder, or a hub id. template: a built-in template's name; empty for the
    model's own. theme: a Textual theme's name. chat_list: the list of chats next to the chat is
    "shown" or "hidden". markdown: the replies of new chats are rendered, "on" or "off".
    mcp_servers: a JSON file with the `mcpServers` block of other programs, or "".
    precision: "auto", or the number format of a GPT-2's matrix products.
    device: "auto", or where models are computed. sampling: the sampling parameters, which the file
    has at its top level (`temperature = 0.7`). keys: the table `[keys]`, key by action. origins:
    where the user set each sampling parameter.
    """

    model: str = "bundled"
    template: str = ""
    theme: str = "chatapp"
    chat_list: str = "shown"
    markdown: str = "on"
    precision: str = "auto"
    device: str = "auto"
    mcp_servers: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    keys: tuple[KeyChoice, ...] = ()
    origins: Mapping[str, Origin] = field(default_factory=dict)

    def choices(self, model: Values) -> Choices:
        """The sampling values that the user chose, above those of a model."""
        by_origin: dict[Origin, dict[str, Any]] = {"model": dict(model)}
        for name, parameter in PARAMETERS.items():
            value = getattr(self.sampling, name)
            if name in self.origins or value != parameter.default:
                by_origin.setdefault(self.origins.get(name, "settings file"), {})[name] = value
        if by_origin.get("flag", {}).get("temperature") == 0:
            by_origin["flag"] = {**GREEDY, **by_origin["flag"]}
        return Choices(by_origin)


_TEXTS = tuple(item.name for item in fields(Settings) if item.type is str)
_NAMES = (*_TEXTS, *PARAMETERS, "keys")


def load_settings(overrides: Mapping[str, object] | None = None) -> Settings:
    """The settings in force.

    overrides: values of command-line flags by setting; None for an absent flag. Raises
    SettingsError for an unknown key, a value of the wrong type or out of range, and an unreadable
    file.
    """
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    sources: tuple[tuple[Origin, Iterator[tuple[str, object, str]]], ...] = (
        ("settings file", _from_file()),
        ("environment", _from_environment()),
        ("flag", _from_flags(overrides or {})),
    )
    for origin, source in sources:
        for name, value, place in source:
            values[name] = _checked(name, value, place)
            if name in PARAMETERS:
                origins[name] = origin
    sampling = {name: values.pop(name) for name in origins}
    return Settings(**values, sampling=Sampling(**sampling), origins=origins)


def keep_settings(values: Mapping[str, str | float | int | None]) -> None:
    """Write settings into the file, by name; the rest of the file stays unchanged.

    values: None removes a setting. Raises SettingsError, and changes nothing, when that fails.
    """
    import tomlkit

    failure = f"{', '.join(values)} cannot be saved"
    path = settings_path()

    def changed() -> str:
        text = _file_text()
        there = parse_toml(text, path, SettingsError)
        document = tomlkit.parse(text)
        new = {}
        for name, value in values.items():
            if value is None:
                document.pop(name, None)
            elif name in there:
                document[name] = value
            else:
                new[name] = value
        # Before the first table, where top-level keys belong.
        return tomlkit.dumps(new) + tomlkit.dumps(document)

    try:
        change_whole(path, changed)
    except SettingsError as error:
        raise SettingsError(f"{failure}: {error}") from None
    except OSError as error:
        raise SettingsError(f"{failure}: {path}: {reason(error)}") from None


def _file_text() -> str:
    """The text of the settings file; "" when there is none. Raises SettingsError."""
    try:
        return read_text(settings_path(), SettingsError)
    except FileNotFoundError:
        return ""


def _from_file() -> Iterator[tuple[str, object, str]]:
    path, text = settings_path(), _file_text()

    def origin(*keys: str) -> str:
        return f"{path}, line {line_of(text, keys) or 1}"

    for name, value in parse_toml(text, path, SettingsError).items():
        if name == "keys" and isinstance(value, dict):
            value = tuple(
                KeyChoice(action, keys, origin("keys", action)) for action, keys in value.items()
            )
        yield name, value, origin(name)


_NO_SETTINGS = ("CHATAPP_HOME", "CHATAPP_DEBUG")


def _from_environment() -> Iterator[tuple[str, object, str]]:
    for variable, text in sorted(os.environ.items()):
        name = variable.removeprefix("CHATAPP_").lower()
        if variable.startswith("CHATAPP_") and variable not in _NO_SETTINGS and text:
            yield name, _number(name, text), f"environment variable {variable}"


def _number(name: str, text: str) -> object:
    """Parse `text` as a number if the setting is one; otherwise return the text."""
    try:
        return PARAMETERS[name].kind(text)
    except (KeyError, ValueError):
        return text


def _from_flags(overrides: Mapping[str, object]) -> Iterator[tuple[str, object, str]]:
    for name, value in overrides.items():
        if value is not None:
            value = _number(name, value) if isinstance(value, str) else value
            yield name, value, f"--{name.replace('_', '-')}"


def _checked(name: str, value: Any, origin: str) -> Any:
    """Convert `value` to the setting's type. Raises SettingsError that names its origin."""
    if name not in _NAMES:
        raise SettingsError(f"{origin}: there is no setting {name!r}{suggestion(name, _NAMES)}")
    if name == "keys":
        _check_keys(value, origin)
    elif name in _TEXTS and not isinstance(value, str):
        raise SettingsError(f"{origin}: {name} is {value!r}; expected text in quotes")
    try:
        if name in PARAMETERS:
            return PARAMETERS[name].checked(value)
        check_choice(name, value)
    except ValueError as error:
        raise SettingsError(f"{origin}: {error}") from None
    return value


def _check_keys(choices: object, origin: str) -> None:
    if not isinstance(choices, tuple):
        raise SettingsError(f"{origin}: keys is {choices!r}; expected a table of key by action")
    for choice in choices:
        if not isinstance(choice.keys, str):
            raise SettingsError(
                f"{choice.origin}: {choice.action} is {choice.keys!r}; expected a key in quotes"
            )


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
