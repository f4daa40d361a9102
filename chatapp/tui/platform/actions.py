"""Actions of the screens: each is declared once, at the method that carries it out.

Bindings, slash commands, completion, the palette, F1, the key bar and the keys of the settings are
read from the declarations.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from inspect import isfunction
from typing import Any, ClassVar, TypeVar

from textual.app import App
from textual.binding import Binding
from textual.dom import DOMNode
from textual.keys import Keys, format_key

from chatapp.common.settings import KeyChoice, SettingsError
from chatapp.common.userfiles import UserError, suggestion
from chatapp.tui.platform.textual_internals import key_of, keymap_of

Keymap = Mapping[str, str]

_Method = TypeVar("_Method", bound=Callable[..., Any])

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

COMMAND = re.compile(r"/([A-Za-z]+)(?:\s+|$)", re.ASCII)
"""The beginning of a slash command: a path, or a space before the slash, makes a message."""

_WITH_THE_CHAT = {
    "Chat": {"Writing", "On a message"},
    "Writing": {"Chat"},
    "On a message": {"Chat"},
}
"""Titles of places whose keys are in force at once."""


class ActionError(UserError):
    """Why an action cannot be carried out, in one sentence."""


@dataclass(frozen=True, slots=True)
class Action:
    """What a user can do; as a decorator, it declares the method `action_NAME` that does it.

    words: what it does, for every list. also: other words that somebody may search it by. key: its
    keys, separated by commas; "" for none. label: its words in the key bar; "" if it is not there.
    unless: why the action cannot be used now; "" if it can. group: of keys that have one label
    together. call: how Textual calls the method, with the arguments of this key. name: of the
    method, unless several actions share it.

    command: the name of its slash command; "" for none. The method is then called with what follows
    the name, if `argument` describes that (in brackets if it is optional); it returns the rest that
    takes time, or raises UserError and changes nothing. values: the known values of the argument.
    empty: whether it may be missing. end: follows a completed value. waits: whether the command is
    refused while a reply is being written. rare: whether a bare slash leaves it out.
    """

    words: str
    key: str = ""
    label: str = ""
    unless: Callable[[Any], str] | None = None
    group: Binding.Group | None = None
    priority: bool = False
    call: str = ""
    name: str = ""
    command: str = ""
    argument: str = ""
    values: Callable[[Any], Iterable[str]] = lambda _: ()
    empty: bool = False
    end: str = ""
    waits: bool = False
    rare: bool = False
    also: str = ""

    def __call__(self, method: _Method) -> _Method:
        """Declare a method as this action; one method may be several."""
        name = method.__name__.removeprefix("action_")
        entry = replace(self, name=self.name or name, call=self.call or name)
        vars(method).setdefault("actions", []).insert(0, entry)
        return method

    @property
    def method(self) -> str:
        """The name of its method, without `action_`."""
        return self.call.partition("(")[0]

    @property
    def searched(self) -> str:
        """The words by which it is found beside those that are shown."""
        return f"{self.label} {self.also}".lower()

    @property
    def command_words(self) -> str:
        """What it does, after a slash command."""
        return self.words[0].lower() + self.words[1:]

    def binding(self) -> Binding:
        """Its keys for Textual."""
        return Binding(
            self.key,
            self.call,
            self.label or self.words,
            show=bool(self.label),
            tooltip=self.words,
            group=self.group,
            priority=self.priority,
            id=self.name,
        )

    def keys(self, keymap: Keymap) -> list[str]:
        """Its keys for the user."""
        return keymap.get(self.name, self.key).split(",") if self.key else []


class Acting:
    """A widget, a screen or the app with actions; the first of its bases."""

    ACTIONS: ClassVar[tuple[Action, ...]] = ()
    """All of them, with those of its bases."""
    ALSO: ClassVar[tuple[Action, ...]] = ()
    """Its own actions whose methods are elsewhere, named by `call`."""
    BINDING_GROUP_TITLE: str | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        methods = [member for member in vars(cls).values() if isfunction(member)]
        declared = [entry for method in methods for entry in vars(method).get("actions", ())]
        own = [*declared, *vars(cls).get("ALSO", ())]
        bases = [entry for base in cls.__mro__[1:] for entry in vars(base).get("ACTIONS", ())]
        cls.ACTIONS = tuple({entry.name: entry for entry in [*own, *bases, *own]}.values())
        setattr(cls, "BINDINGS", [entry.binding() for entry in own if entry.key])  # noqa: B010
        super().__init_subclass__(**options)

    def reason_against(self, call: str) -> str:
        """Why a method cannot be used now; empty when it can."""
        reasons = (entry.unless for entry in self.ACTIONS if entry.method == call)
        return next((reason(self) for reason in reasons if reason is not None), "")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not self.reason_against(action)


def places(kind: type[Acting] = Acting) -> list[type[Acting]]:
    """All places with a title of their own, as far as they are imported."""
    below = [sub for one in kind.__subclasses__() for sub in (one, *places(one))]
    return list(dict.fromkeys(one for one in below if vars(one).get("BINDING_GROUP_TITLE")))


def listed_actions(place: type[Acting]) -> list[Action]:
    """The actions of a place, without those of its bases that have a title of their own."""
    bases = [base for base in places() if issubclass(place, base) and base is not place]
    return [one for one in place.ACTIONS if not any(one in base.ACTIONS for base in bases)]


def is_command(text: str) -> bool:
    """Whether a text is a slash command, not a message."""
    return COMMAND.match(text) is not None


def bindings_of(owner: type[DOMNode]) -> Iterator[Binding]:
    """The bindings of one of Textual's own classes, one for each key."""
    return (one for one in Binding.make_bindings(owner.BINDINGS) if not one.system)


def shown_key(app: App[Any], action: str) -> str:
    """The first key of an action as shown, with the settings applied."""
    entries = (entry for place in places() for entry in place.ACTIONS)
    (first, *_) = (entry for entry in entries if entry.name == action and entry.key)
    return written(first.keys(keymap_of(app))[0])


def written(key: str) -> str:
    """A key as printed on a keyboard and in the README: Ctrl+O for ctrl+o."""
    *modifiers, name = key.split("+")
    shown = _WRITTEN.get(name) or format_key(name)
    if modifiers or len(name) > 1:
        shown = shown[0].upper() + shown[1:]
    return "+".join([*map(str.capitalize, modifiers), shown])


def read_keymap(choices: Iterable[KeyChoice]) -> dict[str, str]:
    """The argument of Textual's `App.set_keymap`, from the keys of the settings.

    Raises SettingsError with one sentence for an unknown action or key, for a letter where text is
    written, and for a key that two actions would have.
    """
    owners: dict[str, list[type[Acting]]] = {}
    for place in places():
        for entry in place.ACTIONS:
            if entry.key:
                owners.setdefault(entry.name, []).append(place)
    choices, keymap = list(choices), {}
    for choice in choices:
        if choice.action not in owners:
            hint = suggestion(choice.action, sorted(owners))
            raise SettingsError(f"{choice.origin}: there is no action {choice.action!r}{hint}")
        keys = [_normal(key.strip(), choice) for key in choice.keys.split(",")]
        writes = [key for key in keys if _writes(key)]
        if writes and not all(map(_has_letters, owners[choice.action])):
            raise SettingsError(
                f"{choice.origin}: {choice.action} cannot have the key {writes[0]!r}, which "
                "types a character; expected one such as 'ctrl+t' or 'f9'"
            )
        keymap[choice.action] = ",".join(keys)
    for choice in choices:
        for owner in owners[choice.action]:
            _check_alone(choice, keymap, owner)
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


def _has_letters(place: type[Acting]) -> bool:
    """Whether letters are keys in a place, not text."""
    return any(map(_writes, ",".join(entry.key for entry in place.ACTIONS).split(",")))


def _check_alone(choice: KeyChoice, keymap: Keymap, own: type[Acting]) -> None:
    """Raise SettingsError when another action has the key and both can be used at once."""
    everywhere = (None, "Everywhere", own.BINDING_GROUP_TITLE)
    titles = _WITH_THE_CHAT.get(own.BINDING_GROUP_TITLE or "", ())
    for place in places():
        title = place.BINDING_GROUP_TITLE
        if title not in everywhere and title not in titles and everywhere[2] != "Everywhere":
            continue
        for entry in place.ACTIONS:
            (named,) = [one for one in own.ACTIONS if one.name == choice.action]
            shared = {*keymap[choice.action].split(",")} - {*named.key.split(",")}
            if entry.name != choice.action and (taken := shared & {*entry.keys(keymap)}):
                raise SettingsError(
                    f"{choice.origin}: {choice.action} cannot have the key {taken.pop()!r}, "
                    f"which {entry.name!r} has"
                )
