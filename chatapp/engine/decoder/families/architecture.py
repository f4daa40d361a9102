"""The parts and sizes of a decoder, in the same words for every family, and how each family reads
them from its files.

The sizes, in the letters of formulas: width H, inner width I, vocabulary V, context n, and head
size D. Queries have Q = heads · D components, keys and values K = key/value heads · D each.

Invariant: no import of torch. This module has all numbers and parts from a family's config, so that
the decoder, the reader of weights and the descriptions depend on no family.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from chatapp.engine.decoder.families.config_fields import ConfigFields
from chatapp.engine.decoder.families.gguf_row import GGUFRow
from chatapp.engine.decoder.families.rotary import Rotary

if TYPE_CHECKING:
    from torch import Tensor

Activation = Literal["gelu_new", "gelu_pytorch_tanh", "gelu", "relu", "silu"]
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)

Norm = Literal["LayerNorm", "RMSNorm"]


@dataclass(frozen=True, slots=True)
class BlockAttention:
    """The attention of one block.

    scale: factor of the products of queries and keys. rotary: how positions rotate queries and
    keys; None if they are added to the embeddings. window: number of positions that a token sees,
    including its own; None for all.
    """

    scale: float
    rotary: Rotary | None = None
    window: int | None = None


@dataclass(frozen=True, slots=True)
class WeightPart:
    """A tensor of weights, or several that are stacked because they multiply the same input.

    rows: of each stacked tensor. columns: None for a vector.
    """

    name: str
    rows: tuple[int, ...]
    columns: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole: (out, in) for a matrix."""
        return (sum(self.rows),) if self.columns is None else (sum(self.rows), self.columns)

    @property
    def is_product(self) -> bool:
        """Whether each token is multiplied by it; an embedding is only looked up."""
        return self.columns is not None and self.name not in ("embed.weight", "positions.weight")


@dataclass(frozen=True, slots=True)
class Architecture:
    """The numbers and parts of a decoder.

    attentions: one per block. norm_offset: added to the weights of each RMSNorm.
    has_query_key_norm: whether each head's queries and keys are normalized. has_norms_after:
    whether the outputs of attention and MLP are normalized before they are added. is_gated: whether
    the MLP is act(x G) ∘ (x U). is_parallel: whether it reads the same states as attention.
    is_tied: whether the output matrix is the token embedding. logit_cap: see `SoftCap`.
    is_post_norm: whether the sums are normalized instead of what attention and MLP read; such a
    decoder has no final norm. farthest: of relative positions (Dai et al. 2019), the distance from
    which on all are one; None for other positions.
    """

    width: int
    heads: int
    key_value_heads: int
    head_size: int
    inner: int
    vocabulary: int
    context: int
    attentions: tuple[BlockAttention, ...]
    norm: Norm
    epsilon: float
    activation: Activation
    is_gated: bool
    is_tied: bool
    has_attention_bias: bool = False
    has_projection_bias: bool = False
    has_mlp_bias: bool = False
    has_query_key_norm: bool = False
    has_norms_after: bool = False
    is_parallel: bool = False
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    logit_cap: float | None = None
    is_post_norm: bool = False
    farthest: int | None = None
    has_output_bias: bool = False

    @property
    def layers(self) -> int:
        """Number of blocks."""
        return len(self.attentions)

    @property
    def has_learned_positions(self) -> bool:
        """Whether an embedding of each position is added to that of its token."""
        return self.attentions[0].rotary is None and self.farthest is None

    @property
    def memory(self) -> int | None:
        """How many tokens a block sees of a text of any length; None without a memory."""
        return None if self.farthest is None else self.attentions[0].window

    @property
    def matrix_parameters(self) -> int:
        """Weights by which each token is multiplied."""
        block = sum(math.prod(part.shape) for part in self.block_parts(0) if part.is_product)
        return self.layers * block + self.vocabulary * self.width

    def parts(self) -> Iterator[WeightPart]:
        """Every tensor of the decoder, the output matrix last, unless it is the embedding."""
        yield WeightPart("embed.weight", (self.vocabulary,), self.width)
        if self.has_learned_positions:
            yield WeightPart("positions.weight", (self.context,), self.width)
        for layer in range(self.layers):
            yield from self.block_parts(layer)
        if not self.is_post_norm:
            yield from self._norm("norm", self.width)
        if self.has_output_bias:
            yield WeightPart("output.bias", (self.vocabulary,))
        if not self.is_tied:
            yield self.output

    @property
    def output(self) -> WeightPart:
        """The output matrix, if it is not the token embedding."""
        return WeightPart("head.weight", (self.vocabulary,), self.width)

    def block_parts(self, layer: int) -> Iterator[WeightPart]:
        """The tensors of one block."""
        block = f"blocks.{layer}"
        queries, keys = self.heads * self.head_size, self.key_value_heads * self.head_size
        yield from self._norm(f"{block}.norm_1", self.width)
        yield from _linear(
            f"{block}.attention.query_key_value",
            (queries, keys, keys),
            self.width,
            has_bias=self.has_attention_bias,
        )
        if self.has_query_key_norm:
            yield from self._norm(f"{block}.attention.query_norm", self.head_size)
            yield from self._norm(f"{block}.attention.key_norm", self.head_size)
        if self.farthest is not None:
            yield WeightPart(f"{block}.attention.distances.weight", (queries,), self.width)
            # u and v of Dai et al. (2019), by their names in checkpoints, which have no ending.
            for name in ("r_w_bias", "r_r_bias"):
                part = f"{block}.attention.biases.{name}"
                yield WeightPart(part, (self.heads,), self.head_size)
        projection = f"{block}.attention.projection"
        yield from _linear(projection, (self.width,), queries, has_bias=self.has_projection_bias)
        yield from self._norm(f"{block}.norm_2", self.width)
        inner = (self.inner, self.inner) if self.is_gated else (self.inner,)
        biased = self.has_mlp_bias
        yield from _linear(f"{block}.mlp.expand", inner, self.width, has_bias=biased)
        yield from _linear(f"{block}.mlp.contract", (self.width,), self.inner, has_bias=biased)
        if self.has_norms_after:
            yield from self._norm(f"{block}.norm_after_1", self.width)
            yield from self._norm(f"{block}.norm_after_2", self.width)

    def _norm(self, name: str, size: int) -> Iterator[WeightPart]:
        yield WeightPart(f"{name}.weight", (size,))
        if self.norm == "LayerNorm":
            yield WeightPart(f"{name}.bias", (size,))


def _linear(
    name: str, rows: tuple[int, ...], columns: int, *, has_bias: bool
) -> Iterator[WeightPart]:
    yield WeightPart(f"{name}.weight", rows, columns)
    if has_bias:
        yield WeightPart(f"{name}.bias", rows)


Arrange = Callable[[Architecture, WeightPart, "Tensor"], "Tensor"]


def as_stored(architecture: Architecture, part: WeightPart, tensor: "Tensor") -> "Tensor":
    """A tensor in the layout of most checkpoints: matrices (out, in)."""
    return tensor


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How to read a folder in Hugging Face layout into a decoder.

    defaults: transformers' values for keys that a config.json lacks. read: converts a config to an
    architecture. Raises ModelError. prefix: of most names; a checkpoint saved without the output
    matrix's class may lack it. tensors: a checkpoint's names of each part, without ".weight" or
    ".bias": one name, or those of the tensors that the decoder stacks. "{n}" is the number of the
    block. is_transposed: whether a checkpoint's matrices in blocks are (in, out). arrange: reorders
    the rows of a tensor (out, …) for the decoder. has_plain_tokenizer: whether its tokenizer is
    always GPT-2's, whatever the folder claims, with no token before a text.
    """

    defaults: Mapping[str, Any]
    read: Callable[[ConfigFields], Architecture]
    prefix: str
    tensors: Mapping[str, str | tuple[str, ...]]
    is_transposed: bool = False
    arrange: Arrange = as_stored
    has_plain_tokenizer: bool = False

    def stored_names(self, part: str) -> tuple[str, ...]:
        """The checkpoint's names of a tensor of the decoder, or of those stacked in it."""
        name, _, kind = part.rpartition(".")
        number = ""
        if name.startswith("blocks."):
            _, number, inside = name.split(".", 2)
            name = f"blocks.{{n}}.{inside}"
        names = self.tensors[name]
        names = (names,) if isinstance(names, str) else names
        return tuple(f"{stored.format(n=number)}.{kind}" for stored in names)


@dataclass(frozen=True, slots=True)
class Family:
    """One family of models.

    model_type, class_name: its names in transformers. checkpoint: None for a family that
    transformers computes, from a folder and from a GGUF file.
    """

    model_type: str
    class_name: str
    gguf: GGUFRow
    checkpoint: Checkpoint | None = None
