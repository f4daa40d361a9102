"""The keys of actions: default bindings, and those of the user's settings.

Invariant: an action has one name everywhere, the id of its binding, and the settings never give two
actions of one screen the same key.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from textual.app import App
from textual.binding import Binding
from textual.dom import DOMNode
from textual.keys import Keys, format_key

from chatapp.common.settings import KeyChoice, SettingsError
from chatapp.common.userfiles import suggestion
from chatapp.tui.platform.textual_internals import key_of, keymap_of

Keymap = Mapping[str, str]
Owner = type[DOMNode]
"""A widget, a screen or the app: the owner of bindings."""

HELP = Binding("f1", "app.help", "Search all keys and commands", show=False, id="help")
"""For screens over the chat, which does not receive their keys."""

_KEY = re.compile(r"((?:(?:ctrl|alt|shift|super|hyper|meta)\+)*)(.+)")
_NAMED = {str(key.value) for key in Keys if "+" not in key.value and "<" not in key.value}
_WRITTEN = {
    "backspace": "Backspace",
    "enter": "Enter",
    "pagedown": "PgDn",
    "pageup": "PgUp",
    "space": "Space",
}
"""Keys for which Textual uses a symbol that not everyone knows."""

_ON_A_MESSAGE = "On a message"
_NEVER_AT_ONCE = {_ON_A_MESSAGE, "Writing"}


def bindings_of(owner: Owner, keymap: Keymap) -> Iterator[Binding]:
    """The bindings of an owner for the user, one for each key."""
    done = set()
    for binding in Binding.make_bindings(owner.BINDINGS):
        mapped = keymap.get(binding.id or "")
        if mapped is None:
            if not binding.system:
                yield binding
        elif binding.id not in done:
            done.add(binding.id)
            for key in mapped.split(","):
                yield replace(binding, key=key)


def shown_key(app: App[Any], action: str, default: str) -> str:
    """The key of an action as shown: `default`, unless the settings change it."""
    mapped = keymap_of(app).get(action)
    return default if mapped is None else app.get_key_display(Binding(mapped.split(",")[0], ""))


def written(key: str) -> str:
    """A key as printed on a keyboard and in the README: Ctrl+O for ctrl+o."""
    *modifiers, name = key.split("+")
    shown = _WRITTEN.get(name) or format_key(name)
    if modifiers or len(name) > 1:
        shown = shown[0].upper() + shown[1:]
    return "+".join([*map(str.capitalize, modifiers), shown])


def words_of(binding: Binding) -> str:
    """The description of a binding."""
    return binding.tooltip or binding.description


def read_keymap(choices: Iterable[KeyChoice], owners: Sequence[Owner]) -> dict[str, str]:
    """The argument of Textual's `App.set_keymap`.

    owners: whose bindings can be mapped, those with an id. Raises SettingsError with one sentence
    for an unknown action or key, and for a key that two actions would have.
    """
    owner_of = {binding.id: owner for owner in owners for binding in bindings_of(owner, {})}
    owner_of.pop(None, None)
    keymap = {}
    for choice in choices:
        if choice.action not in owner_of:
            hint = suggestion(choice.action, sorted(filter(None, owner_of)))
            raise SettingsError(f"{choice.origin}: there is no action {choice.action!r}{hint}")
        keys = [_normal(key.strip(), choice) for key in choice.keys.split(",")]
        writes = [key for key in keys if _writes(key)]
        if writes and owner_of[choice.action].BINDING_GROUP_TITLE != _ON_A_MESSAGE:
            raise SettingsError(
                f"{choice.origin}: {choice.action} cannot have the key {writes[0]!r}, which "
                "types a character; expected one such as 'ctrl+t' or 'f9'"
            )
        keymap[choice.action] = ",".join(keys)
    for choice in choices:
        _check_alone(choice, keymap, owner_of, owners)
    return keymap


def _normal(key: str, choice: KeyChoice) -> str:
    """Textual's name of a key. Raises SettingsError."""
    match = _KEY.fullmatch(key)
    name = match[2] if match else ""
    if len(name) == 1 and name.isprintable():
        name = key_of(name)
    elif name not in _NAMED:
        raise SettingsError(
            f"{choice.origin}: {choice.action} is {choice.keys!r}; there is no key {key!r}; "
            "expected one such as 'ctrl+t', 'f9' or 'alt+up'"
        )
    modifiers = sorted(match[1].split("+")[:-1]) if match else []
    return "+".join([*modifiers, name])


def _writes(key: str) -> bool:
    """Whether a key inserts a character into a text."""
    return "+" not in key and (key == "space" or key not in _NAMED)


def _check_alone(
    choice: KeyChoice, keymap: Keymap, owner_of: Mapping[str | None, Owner], owners: Sequence[Owner]
) -> None:
    """Raise SettingsError when another action has the key and both can be used at once."""
    own, keys = owner_of[choice.action], keymap[choice.action].split(",")
    for owner in owners:
        if {own.BINDING_GROUP_TITLE, owner.BINDING_GROUP_TITLE} == _NEVER_AT_ONCE:
            continue
        for binding in bindings_of(owner, keymap):
            if binding.id != choice.action and binding.key in keys:
                raise SettingsError(
                    f"{choice.origin}: {choice.action} cannot have the key {binding.key!r}, "
                    f"which {binding.id or words_of(binding)!r} has"
                )
