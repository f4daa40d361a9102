"""Values of a config.json, checked one by one.

Keep: a value that is of another kind, or out of range, becomes a `ModelError` of one sentence
that names the file, the key and what was expected.
"""

from collections.abc import Collection

from chatapp.engine.errors import ModelError
from chatapp.engine.folder import ModelFiles


class ConfigFields:
    """The values of a model's config.json; what is absent has a default."""

    def __init__(self, files: ModelFiles) -> None:
        self._file = files.config_file
        self._config = files.config

    def size(self, key: str, default: int) -> int:
        """A whole number above 0."""
        value = self._config.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refused(key, "expected a whole number above 0")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._config.get(key, default)
        if not isinstance(value, bool):
            raise self.refused(key, "expected true or false")
        return value

    def fraction(self, key: str, default: float) -> float:
        """A number between 0 and 1."""
        value = self._config.get(key, default)
        if not isinstance(value, float | int) or not 0 < value < 1:
            raise self.refused(key, "expected a small number")
        return value

    def choice(self, key: str, default: str, known: Collection[str]) -> str:
        """One of the words in `known`."""
        value = self._config.get(key, default)
        if not isinstance(value, str) or value not in known:
            raise self.refused(key, f"expected one of {', '.join(known)}")
        return value

    def is_set(self, key: str) -> bool:
        """Whether there is such a key with a value other than null, false, 0 or nothing."""
        return bool(self._config.get(key))

    def refused(self, key: str, expected: str) -> ModelError:
        """The error about a value."""
        return ModelError(f"{self._file}: {key} is {self._config.get(key)!r}; {expected}")
