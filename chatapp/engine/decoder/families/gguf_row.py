"""The GGUF form of a family: the keys of its configuration, the changes of its tensors.

Invariant: no import of torch or the gguf package. A value that changes the computation is mapped
exactly or refused by name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from chatapp.common.userfiles import shown
from chatapp.engine.errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

ARCHITECTURE = "general.architecture"

Config = dict[str, Any]
"""A configuration with the keys of a config.json."""


class Source(Protocol):
    """An open GGUF file."""

    @property
    def path(self) -> Path: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def names(self) -> Sequence[str]:
        """Of its tensors."""
        ...

    def array(self, name: str) -> "NDArray[np.float32]": ...


class Keys:
    """The keys of a GGUF file below the name of its architecture."""

    def __init__(self, file: Source) -> None:
        self.file = file

    def value(self, key: str) -> Any:
        """The value of a key; None if it is missing."""
        return self.file.metadata.get(self._name(key))

    def number(self, key: str) -> float | int | bool:
        """Raises ModelError when there is none."""
        value = self.value(key)
        if not isinstance(value, int | float):
            raise self.refused(key, "a number")
        return value

    def refused(self, key: str, expected: str) -> ModelError:
        """The error about a key that is missing or invalid."""
        name, value = self._name(key), self.value(key)
        if value is None:
            return ModelError(f"{self.file.path}: the key {name} is missing")
        return ModelError(f"{self.file.path}: {name} is {shown(value)}; expected {expected}")

    def _name(self, key: str) -> str:
        return f"{self.file.metadata[ARCHITECTURE]}.{key}"


@dataclass(frozen=True, slots=True)
class Change:
    """The change that a GGUF file makes to a tensor.

    is_transposed: it holds (out, in) where a checkpoint has (in, out). added: to each weight. rows,
    swapped: the rows (out, …) are reordered: split into these three dimensions, two of which are
    swapped.
    """

    is_transposed: bool = False
    added: float = 0.0
    rows: tuple[int, int, int] | None = None
    swapped: tuple[int, int] = (0, 1)

    def apply(self, tensor: "Tensor") -> "Tensor":
        """Convert a checkpoint's tensor to the file's."""
        if self.is_transposed:
            return tensor.t()
        if self.added:
            return tensor + self.added
        return tensor if self.rows is None else _reordered(tensor, self.rows, self.swapped)

    def undo(self, tensor: "Tensor") -> "Tensor":
        """Convert the file's tensor to a checkpoint's."""
        if self.is_transposed:
            return tensor.t().contiguous()
        return tensor - self.added if self.added else self.undo_rows(tensor)

    def undo_rows(self, tensor: "Tensor") -> "Tensor":
        """Restore only the order of rows of a tensor (out, …)."""
        if self.rows is None:
            return tensor
        one, other = self.swapped
        rows = list(self.rows)
        rows[one], rows[other] = rows[other], rows[one]
        return _reordered(tensor, (rows[0], rows[1], rows[2]), self.swapped)


def _reordered(tensor: "Tensor", rows: tuple[int, int, int], swapped: tuple[int, int]) -> "Tensor":
    split = tensor.reshape(*rows, *tensor.shape[1:])
    return split.transpose(*swapped).reshape(tensor.shape)


def _unchanged(config: Config, tensor: str) -> Change:
    return Change()


def shifted_norms(config: Config, tensor: str) -> Change:
    """The change of families whose norms multiply by 1 + w: a GGUF file holds the sum."""
    return Change(added=1) if tensor.endswith("norm.weight") else Change()


@dataclass(frozen=True, slots=True)
class GGUFRow:
    """The GGUF form of a family.

    architecture: its name there. fields: the key of config.json for each required key of the file.
    optional: keys that may be missing. fixed: values that the architecture implies and the file
    leaves out. read: adds values to a configuration that follow from several keys, or from the
    tensors. Raises ModelError. spell_out: converts a transformers configuration to the keys of
    `fields`, before it is written. change: that a file makes to the tensor with this name there.
    """

    architecture: str
    fields: Mapping[str, str]
    optional: Mapping[str, str] = field(default_factory=dict)
    fixed: Config = field(default_factory=dict)
    read: Callable[[Keys, Config], None] = lambda keys, config: None
    spell_out: Callable[[Config], None] = lambda config: None
    change: Callable[[Config, str], Change] = _unchanged


SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
"""The keys of every family whose config.json has Llama's names."""
