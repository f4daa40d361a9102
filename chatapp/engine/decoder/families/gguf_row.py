"""The GGUF form of a family: the keys of its configuration, the changes of its tensors."""

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


class OpenGGUF(Protocol):
    """An open GGUF file."""

    @property
    def path(self) -> Path: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def names(self) -> Sequence[str]:
        """The names of its tensors."""
        ...

    def array(self, name: str) -> "NDArray[np.float32]": ...


class Keys:
    """The keys of a GGUF file below the name of its architecture."""

    def __init__(self, file: OpenGGUF) -> None:
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
class TensorChange:
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


def _unchanged(config: Config, tensor: str) -> TensorChange:
    return TensorChange()


def shifted_norms(config: Config, tensor: str) -> TensorChange:
    """The change of families whose norms multiply by 1 + w: a GGUF file holds the sum."""
    return TensorChange(added=1) if tensor.endswith("norm.weight") else TensorChange()


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
    change: Callable[[Config, str], TensorChange] = _unchanged


SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
"""The keys of every family whose config.json has Llama's names."""


FIELDS = {**SIZES, "attention.layer_norm_rms_epsilon": "rms_norm_eps"}
"""The keys of a decoder with rotary positions."""

OPTIONAL = {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
}

BASE = 10000.0
"""The base of the frequencies, if a file names none."""

FACTORS = "rope_freqs.weight"
"""The tensor with the divisor of each frequency of a Llama 3, which follows from its
configuration."""

LLAMA3_SCALING = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""The scaling of positions in Llama 3.1 and 3.2, except the largest factor. It determines
`FACTORS`.
"""


def read_rotary(keys: Keys, config: Config) -> None:
    """Add heads and the scaling of positions to a configuration. Raises ModelError."""
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    config.setdefault("rope_theta", BASE)
    kind, factor = keys.value("rope.scaling.type") or "none", keys.value("rope.scaling.factor")
    if kind == "linear" and factor not in (None, 1.0):
        config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        original = keys.value("rope.scaling.original_context_length")
        config["rope_scaling"] = {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
        }
    elif kind not in ("none", "linear"):
        raise keys.refused("rope.scaling.type", "none, linear or yarn")
    if FACTORS in keys.file.names:
        config["rope_scaling"] = _llama3_scaling(keys, config)


def rotary_metadata(architecture: str, scaling: Config) -> dict[str, Any]:
    """The GGUF keys for the scaling of positions. scaling: `rope_parameters` of a config.json."""
    kind = scaling.get("rope_type")
    if kind not in ("linear", "yarn"):
        return {}
    prefix = f"{architecture}.rope.scaling"
    metadata = {f"{prefix}.type": kind, f"{prefix}.factor": float(scaling["factor"])}
    if kind == "yarn":
        original = int(scaling["original_max_position_embeddings"])
        metadata[f"{prefix}.original_context_length"] = original
    return metadata


def position_factors(values: Config, origin: str) -> "NDArray[np.float32] | None":
    """`FACTORS` of a spelled-out configuration; None for other scalings.

    origin: for messages. Raises ModelError for a scaling that is not Llama 3's.
    """
    scaling = values["rope_parameters"]
    if scaling.get("rope_type") != "llama3":
        return None
    if any(scaling[key] != value for key, value in LLAMA3_SCALING.items()):
        raise ModelError(f"{origin}: rope_scaling is {scaling}; expected that of a Llama 3")
    return _frequency_factors(scaling["factor"], values["rope_theta"], values["head_dim"])


def spell_out_rotary(config: Config, origin: str) -> None:
    """Convert the rotary positions of a transformers configuration to the keys of `OPTIONAL`.

    Raises ModelError for positions that a GGUF file cannot express.
    """
    rotary = dict(config.get("rope_parameters") or {})
    if "full_attention" in rotary:
        rotary = dict(rotary["full_attention"])
    known = ("default", "linear", "yarn", "llama3")
    if rotary.get("rope_type", "default") not in known:
        raise ModelError(
            f"{origin}: rope_type is {rotary['rope_type']!r}; expected one of {', '.join(known)}"
        )
    if rotary:
        width = config["hidden_size"] // config["num_attention_heads"]
        config["rope_theta"] = float(rotary["rope_theta"])
        config["head_dim"] = config.get("head_dim") or width
        config["rotary_dimensions"] = int(width * rotary.get("partial_rotary_factor", 1.0))
    config["rope_parameters"] = rotary


def _llama3_scaling(keys: Keys, config: Config) -> Config:
    """The scaling with the factors in the file. Raises ModelError when there is none."""
    import numpy as np

    factors = keys.file.array(FACTORS)
    largest = float(factors.max())
    expected = _frequency_factors(largest, config["rope_theta"], config["head_dim"])
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise ModelError(
            f"{keys.file.path}: tensor {FACTORS!r} scales positions in a way that is not known here"
        )
    return {"rope_type": "llama3", "factor": largest, **LLAMA3_SCALING}


def _frequency_factors(largest: float, base: float, width: int) -> "NDArray[np.float32]":
    """The divisors of Llama 3 for the (width / 2,) frequencies of its positions.

    Waves longer than the original window by `low_freq_factor` are divided by `largest`, those
    shorter than it by `high_freq_factor` stay, and those between are interpolated.
    """
    import numpy as np

    lengths = 2 * np.pi * base ** (np.arange(0, width, 2) / width)
    low, high = LLAMA3_SCALING["low_freq_factor"], LLAMA3_SCALING["high_freq_factor"]
    turns = LLAMA3_SCALING["original_max_position_embeddings"] / lengths
    smooth = ((turns - low) / (high - low)).clip(0, 1)
    factors: NDArray[np.float32] = (1 / ((1 - smooth) / largest + smooth)).astype(np.float32)
    return factors
