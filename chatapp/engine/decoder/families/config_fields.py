"""Values of a config.json, checked one by one."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from chatapp.engine.errors import ModelError, NoDecoder

Word = TypeVar("Word", bound=str)


class ConfigFields:
    """The values of a model's config.json.

    file: for messages. defaults: of keys that a config may lack.
    """

    def __init__(
        self, file: Path, config: Mapping[str, Any], defaults: Mapping[str, Any], within: str = ""
    ) -> None:
        self._file = file
        self._config = config
        self._defaults = defaults
        self._within = within

    def inside(self, key: str, defaults: Mapping[str, Any]) -> "ConfigFields":
        """The values of a table in the config, which may be absent or null."""
        table = self._value(key)
        table = {} if table is None else table
        if not isinstance(table, dict):
            raise self.refused(key, "expected a table")
        return ConfigFields(self._file, table, defaults, f"{self._within}{key}.")

    def size(self, key: str) -> int:
        """A whole number above 0."""
        value = self._value(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refused(key, "expected a whole number above 0")
        return value

    def whole(self, key: str) -> int:
        """A whole number, 0 or above."""
        value = self._value(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.refused(key, "expected a whole number, 0 or above")
        return value

    def positive(self, key: str) -> float:
        """A number above 0."""
        value = self._value(key)
        if not isinstance(value, float | int) or isinstance(value, bool) or not value > 0:
            raise self.refused(key, "expected a number above 0")
        return float(value)

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self._value(key)
        if not isinstance(value, bool):
            raise self.refused(key, "expected true or false")
        return value

    def fraction(self, key: str) -> float:
        """A number between 0 and 1."""
        value = self._value(key)
        if not isinstance(value, float | int) or not 0 < value < 1:
            raise self.refused(key, "expected a small number")
        return value

    def word(self, key: str) -> str:
        """A string."""
        value = self._value(key)
        if not isinstance(value, str):
            raise self.refused(key, "expected a word")
        return value

    def words(self, key: str, count: int) -> list[str]:
        """This many strings."""
        value = self._value(key)
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self.refused(key, "expected a list of words")
        if len(value) != count:
            raise self.refused(key, f"expected {count} words")
        return value

    def choice(self, key: str, known: Collection[Word]) -> Word:
        """One of the words in `known`."""
        value = self.word(key)
        for word in known:
            if value == word:
                return word
        raise self.unsupported(key)

    def has(self, key: str) -> bool:
        """Whether the key exists with a value other than null."""
        return self._value(key) is not None

    def is_set(self, key: str) -> bool:
        """Whether the key exists with a value other than null, false, 0 or empty."""
        return bool(self._value(key))

    def refused(self, key: str, expected: str) -> ModelError:
        """The error about an invalid value."""
        return ModelError(f"{self._named(key)}; {expected}")

    def unsupported(self, key: str) -> NoDecoder:
        """The error about a value that this decoder does not support."""
        return NoDecoder(f"{self._named(key)}, which this program's own decoder does not compute")

    def _value(self, key: str) -> Any:
        return self._config.get(key, self._defaults.get(key))

    def _named(self, key: str) -> str:
        return f"{self._file}: {self._within}{key} is {self._value(key)!r}"
