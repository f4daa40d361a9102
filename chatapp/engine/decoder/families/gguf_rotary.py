"""Rotary positions in GGUF files: from their keys to a config.json, and back.

Invariant: a file that is written and read again has the same rotations; a scaling that a file
cannot express is refused.
"""

from typing import TYPE_CHECKING, Any

from chatapp.engine.decoder.families.gguf_row import SIZES, Config, Keys
from chatapp.engine.errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FIELDS = {**SIZES, "attention.layer_norm_rms_epsilon": "rms_norm_eps"}
"""The keys of a decoder with rotary positions."""

OPTIONAL = {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
}

BASE = 10000.0
"""Of the frequencies, if a file names none."""

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
