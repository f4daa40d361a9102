"""Strings that remember the origin of each character.

A chat template is a program: it strips, splits and joins messages and returns one string, in which
nobody can distinguish the template's own `<|im_end|>` from one that a user typed. `Traced` passes
through such a program like any string and keeps, for each character, the number of the message that
it comes from.

Invariant: a `Traced` equals the plain string of its characters, and every method returns what `str`
would. A character of lost origin counts as a message's, never as the template's own.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count, groupby
from typing import Any, SupportsIndex

TEMPLATE = -1
"""The origin of characters in the template itself."""

# A private-use character never occurs in a template, and one in a message is harmless: only whole
# marks, with the number between, are replaced.
_MARK = "\uf8f0{}\uf8f1"
_MARKED = re.compile("\uf8f0([0-9]+)\uf8f1")


class Traced(str):
    """Text with an origin per character.

    origins: as long as the text; the number of a message, or `TEMPLATE`.
    """

    __slots__ = ("_origins",)  # the underscore hides it from templates
    _origins: "array[int]"

    def __new__(cls, text: str, origin: "int | array[int]" = TEMPLATE) -> "Traced":
        traced = super().__new__(cls, text)
        traced._origins = (
            array("i", [origin]) * len(text) if isinstance(origin, int) else array("i", origin)
        )
        return traced

    def plain(self) -> str:
        """The text as an ordinary string."""
        return "".join(str.__iter__(self))

    # `str()` and the engine's own conversions return the same object, with its origins.
    def __str__(self) -> str:
        return self

    def __format__(self, spec: str) -> str:
        return self if not spec else format(self.plain(), spec)

    def __getitem__(self, key: "SupportsIndex | slice") -> "Traced":
        origins = self._origins[key] if isinstance(key, slice) else array("i", [self._origins[key]])
        return Traced(super().__getitem__(key), origins)

    def __iter__(self) -> Iterator["Traced"]:
        return (self[index] for index in range(len(self)))

    def __add__(self, other: str) -> "Traced":
        return joined((self, other))

    def __radd__(self, other: str) -> "Traced":
        return joined((other, self))

    def __mul__(self, times: SupportsIndex) -> "Traced":
        return Traced(super().__mul__(times), self._origins * int(times))

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> "Traced":
        return through(lambda format, values: format % values, self.plain(), values)

    def __rmod__(self, other: Any) -> "Traced":
        return through(lambda format, values: format % values, other, self)

    def format(self, *args: Any, **kwargs: Any) -> "Traced":
        return through(str.format, self.plain(), *args, **kwargs)

    def join(self, parts: Iterable[str]) -> "Traced":
        return joined(parts, self)

    def lstrip(self, characters: str | None = None) -> "Traced":
        return self[len(self) - len(super().lstrip(characters)) :]

    def rstrip(self, characters: str | None = None) -> "Traced":
        return self[: len(super().rstrip(characters))]

    def strip(self, characters: str | None = None) -> "Traced":
        return self.lstrip(characters).rstrip(characters)

    def removeprefix(self, prefix: str) -> "Traced":
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str) -> "Traced":
        return self[: len(self) - len(suffix)] if suffix and self.endswith(suffix) else self

    def split(self, separator: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._located(super().split(separator, maxsplit), separator)

    def rsplit(self, separator: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._located(super().rsplit(separator, maxsplit), separator)

    def splitlines(self, keepends: bool = False) -> list[str]:
        return self._located(super().splitlines(keepends), None)

    def partition(self, separator: str) -> tuple[str, str, str]:
        return self._cut(self.find(separator), separator, (self, Traced(""), Traced("")))

    def rpartition(self, separator: str) -> tuple[str, str, str]:
        return self._cut(self.rfind(separator), separator, (Traced(""), Traced(""), self))

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> "Traced":
        if not old:  # between all characters
            return Traced(super().replace(old, new, count), self._origin())
        return joined(self.split(old, count), new)

    def lower(self) -> "Traced":
        return self._cased(super().lower())

    def upper(self) -> "Traced":
        return self._cased(super().upper())

    def title(self) -> "Traced":
        return self._cased(super().title())

    def capitalize(self) -> "Traced":
        return self._cased(super().capitalize())

    def _cased(self, text: str) -> "Traced":
        """The same text in another case, where a character may become two (ß, SS)."""
        if len(text) == len(self):
            return Traced(text, self._origins)
        return Traced(text, self._origin())

    def _origin(self) -> int:
        """One origin for a text whose characters can no longer be distinguished: a message's."""
        return max(self._origins, default=TEMPLATE)

    def _located(self, parts: list[str], separator: str | None) -> list[str]:
        """The parts of a split, with the origins of their places."""
        text = self.plain()
        located: list[str] = []
        start = 0
        for part in parts:
            # Explicit separators leave nothing out; otherwise white space is removed, and no part
            # begins with it.
            start = start if separator else text.index(part, start)
            located.append(self[start : start + len(part)])
            start += len(part) + len(separator or "")
        return located

    def _cut(self, at: int, separator: str, whole: tuple[str, str, str]) -> tuple[str, str, str]:
        if at < 0:
            return whole
        end = at + len(separator)
        return self[:at], self[at:end], self[end:]


def joined(parts: Iterable[str], separator: str = "") -> Traced:
    """Join parts to one text, each character with its own origin."""
    texts: list[str] = []
    origins = array("i")
    for part in parts:
        if texts and separator:
            texts.append(separator)
            origins.extend(origins_of(separator))
        texts.append(part)
        origins.extend(origins_of(part))
    return Traced("".join(texts), origins)


def through(function: Callable[..., str], *args: Any, **kwargs: Any) -> Traced:
    """Call a function and restore the origins of the arguments that it inserts whole.

    Traced texts among the arguments, also in lists and dicts, are replaced by marks for the call,
    and restored in the result. A function that changes them sees only the marks.
    """
    return with_marks(lambda text: text, function, *args, **kwargs)


def with_marks(
    put_back: Callable[[Traced], Traced], function: Callable[..., str], *args: Any, **kwargs: Any
) -> Traced:
    """Like `through`. put_back: the function that restores an inserted text in the result."""
    texts: dict[int, Traced] = {}
    numbers = count()

    def marked(value: Any) -> Any:
        if isinstance(value, Traced):
            number = next(numbers)
            texts[number] = value
            return _MARK.format(number)
        if isinstance(value, dict):
            return {marked(key): marked(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(marked(item) for item in value)
        return value

    result = function(*(marked(arg) for arg in args), **marked(kwargs))
    pieces = _MARKED.split(result)
    return joined(
        put_back(texts[int(piece)]) if index % 2 and int(piece) in texts else piece
        for index, piece in enumerate(pieces)
    )


def origins_of(text: str) -> "array[int]":
    """The origin of each character; `TEMPLATE` for all of an ordinary string."""
    if isinstance(text, Traced):
        return text._origins
    return array("i", [TEMPLATE]) * len(text)


def traced_value(value: Any, origin: int) -> Any:
    """Mark the texts in a JSON value as those of a message."""
    if isinstance(value, str):
        return Traced(value, origin)
    if isinstance(value, Mapping):
        return {Traced(name, origin): traced_value(part, origin) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [traced_value(part, origin) for part in value]
    return value


def to_json(value: Any) -> Any:
    """Convert a JSON value with traced texts to plain JSON that `from_json` reads back."""
    match value:
        case Traced():
            runs = [[origin, sum(1 for _ in run)] for origin, run in groupby(value._origins)]
            return {"text": value.plain(), "runs": runs}
        case Mapping():
            return {"items": [[to_json(name), to_json(part)] for name, part in value.items()]}
        case list() | tuple():
            return [to_json(part) for part in value]
    return value


def from_json(value: Any) -> Any:
    """The inverse of `to_json`."""
    match value:
        case {"text": text, "runs": runs}:
            origins = array("i")
            for origin, length in runs:
                origins.extend(array("i", [origin]) * length)
            return Traced(text, origins)
        case {"items": items}:
            return {from_json(name): from_json(part) for name, part in items}
        case list():
            return [from_json(part) for part in value]
    return value
