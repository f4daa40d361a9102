"""Rotary positions (Su et al. 2021), and how checkpoints extend them to longer texts.

A pair of components of each query and key is rotated by position · frequency, so that the product
of two of them depends only on the distance of their tokens. The pair n of N has the frequency

    f = base^(-n / N)
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from chatapp.engine.decoder.families.config_fields import ConfigFields


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Position interpolation (Chen et al. 2023): f / factor."""

    factor: float

    @classmethod
    def read(cls, fields: "ConfigFields") -> "LinearScaling":
        """From a config's rotary parameters. Raises ModelError."""
        return cls(fields.positive("factor"))

    def __call__(self, frequencies: "Tensor") -> "Tensor":
        return frequencies / self.factor


@dataclass(frozen=True, slots=True)
class Llama3:
    """Llama 3.1's: pairs that rotate less than `low` times in the first context are stretched.

    Those that rotate more than `high` times stay; pairs between are interpolated.
    """

    factor: float
    low: float
    high: float
    context: float

    @classmethod
    def read(cls, fields: "ConfigFields") -> "Llama3":
        """From a config's rotary parameters. Raises ModelError."""
        return cls(
            fields.positive("factor"),
            fields.positive("low_freq_factor"),
            fields.positive("high_freq_factor"),
            fields.positive("original_max_position_embeddings"),
        )

    def __call__(self, frequencies: "Tensor") -> "Tensor":
        turns = self.context / (2 * math.pi / frequencies)
        stays = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return (1 - stays) * frequencies / self.factor + stays * frequencies


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN (Peng et al. 2023): like `Llama3`, but interpolated from pair to pair in equal steps.

    magnitude: factor of rotated queries and keys.
    """

    base: float
    factor: float
    context: float
    fast: float
    slow: float
    magnitude: float
    is_rounded: bool

    @classmethod
    def read(cls, fields: "ConfigFields", base: float) -> "Yarn":
        """From a config's rotary parameters. Raises ModelError."""
        factor = fields.positive("factor")

        def magnitude(weight: float) -> float:
            return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

        if fields.is_set("attention_factor"):
            attention_factor = fields.positive("attention_factor")
        elif fields.is_set("mscale") and fields.is_set("mscale_all_dim"):
            all_dimensions = magnitude(fields.positive("mscale_all_dim"))
            attention_factor = magnitude(fields.positive("mscale")) / all_dimensions
        else:
            attention_factor = magnitude(1)
        return cls(
            base,
            factor,
            fields.positive("original_max_position_embeddings"),
            fields.positive("beta_fast") if fields.is_set("beta_fast") else 32.0,
            fields.positive("beta_slow") if fields.is_set("beta_slow") else 1.0,
            attention_factor,
            fields.flag("truncate"),
        )

    def __call__(self, frequencies: "Tensor") -> "Tensor":
        pairs = len(frequencies)

        def pair(turns: float) -> float:
            """The pair with this number of rotations in the first context."""
            return pairs * math.log(self.context / (turns * 2 * math.pi)) / math.log(self.base)

        first, last = pair(self.fast), pair(self.slow)
        if self.is_rounded:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        steps = frequencies.new_tensor(range(pairs)) - first
        stretched = (steps / ((last - first) or 0.001)).clamp(0, 1)
        return stretched * frequencies / self.factor + (1 - stretched) * frequencies


@dataclass(frozen=True, slots=True)
class Rotary:
    """How positions rotate queries and keys.

    base: see above. size: number of rotated components of a head, the first ones; the pair n
    consists of the components n and n + size / 2.
    """

    base: float
    size: int
    scaling: LinearScaling | Llama3 | Yarn | None = None

    @property
    def magnitude(self) -> float:
        """The factor of rotated queries and keys."""
        return self.scaling.magnitude if isinstance(self.scaling, Yarn) else 1.0

    @property
    def name(self) -> str:
        """For people."""
        return "rotary" if self.scaling is None else f"rotary, {type(self.scaling).__name__}"


def read_rotary(
    fields: "ConfigFields",
    table: str,
    head_size: int,
    *,
    base: float,
    context: int,
    share: float = 1.0,
) -> Rotary:
    """Read the rotary parameters of a config.

    base, context, share: defaults for missing keys; share is the rotated fraction of a head. Raises
    ModelError, NoDecoder for an unknown scaling.
    """
    defaults = {
        "rope_theta": base,
        "partial_rotary_factor": share,
        "original_max_position_embeddings": context,
        "type": "default",
        "truncate": True,
    }
    parameters = fields.inside(table, defaults)
    base = parameters.positive("rope_theta")
    size = int(head_size * parameters.positive("partial_rotary_factor"))
    if size % 2 or not 0 < size <= head_size:
        raise parameters.refused("partial_rotary_factor", "expected a share of pairs of components")
    key = "rope_type" if parameters.has("rope_type") else "type"
    kind = parameters.word(key)
    # "dynamic" scales only texts longer than the window, and there are none.
    if kind in ("default", "dynamic"):
        return Rotary(base, size)
    if kind == "linear":
        return Rotary(base, size, LinearScaling.read(parameters))
    if kind == "llama3":
        return Rotary(base, size, Llama3.read(parameters))
    if kind == "yarn":
        return Rotary(base, size, Yarn.read(parameters, base))
    raise parameters.unsupported(key)
