"""One block of a decoder: attention and MLP, in torch and for the native kernels."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from chatapp.engine.decoder.attention import Attention
from chatapp.engine.decoder.families.architecture import Architecture
from chatapp.engine.decoder.families.rotary import Rotary
from chatapp.engine.decoder.parts import MLP, Pass, Rotation, make_norm
from chatapp.engine.decoder.relative import RelativeAttention
from chatapp.engine.kernels import native
from chatapp.engine.kernels.linear import Linear
from chatapp.engine.kernels.native_layers import KINDS, NO_NORM, NativeBlocks, NativeLinear
from chatapp.engine.kernels.precision import has_kernels


class Block:
    """Attention, then the MLP; each adds to the states that it has read."""

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        architecture: Architecture,
        layer: int,
        rotations: Mapping[Rotary, Rotation],
    ) -> None:
        self.point = name = f"blocks.{layer}"
        self.norm_1 = make_norm(weights, f"{name}.norm_1", architecture)
        self.norm_2 = make_norm(weights, f"{name}.norm_2", architecture)
        self.norm_after_1 = self.norm_after_2 = None
        if architecture.has_norms_after:
            self.norm_after_1 = make_norm(weights, f"{name}.norm_after_1", architecture)
            self.norm_after_2 = make_norm(weights, f"{name}.norm_after_2", architecture)
        kind = Attention if architecture.farthest is None else RelativeAttention
        self.attention = kind(weights, architecture, layer, rotations)
        self.mlp = MLP(weights, f"{name}.mlp", architecture)

    def __call__(self, x: Tensor, run: Pass) -> Tensor:
        """The states (rows · tokens, width) after the block."""
        return run.observed(self.point, self.updated(x, run))

    def updated(self, x: Tensor, run: Pass) -> Tensor:
        """The states plus the updates of both parts."""
        x = x + self.attention_update(x, run)
        return x + self.mlp_update(x, run)

    def attention_update(self, x: Tensor, run: Pass) -> Tensor:
        """The update of the states by attention."""
        added = self.attention(self.norm_1(x), run)
        if self.norm_after_1 is not None:
            added = self.norm_after_1(added)
        return run.observed(self.attention.point, added)

    def mlp_update(self, x: Tensor, run: Pass) -> Tensor:
        """The update of the states by the MLP."""
        added = self.mlp(self.norm_2(x), run)
        if self.norm_after_2 is not None:
            added = self.norm_after_2(added)
        return run.observed(self.mlp.point, added)


class ParallelBlock(Block):
    """Attention and MLP side by side: both read the same states."""

    def updated(self, x: Tensor, run: Pass) -> Tensor:
        return x + self.attention_update(x, run) + self.mlp_update(x, run)


class PostNormBlock(Block):
    """The sum of states and update is normalized, as in GPT and Transformer-XL."""

    def updated(self, x: Tensor, run: Pass) -> Tensor:
        x = self.norm_1(x + run.observed(self.attention.point, self.attention(x, run)))
        return self.norm_2(x + run.observed(self.mlp.point, self.mlp(x, run)))


def make_block(
    weights: Mapping[str, Tensor],
    architecture: Architecture,
    layer: int,
    rotations: Mapping[Rotary, Rotation],
) -> Block:
    """The block of a layer, of the architecture's kind."""
    kind = ParallelBlock if architecture.is_parallel else Block
    kind = PostNormBlock if architecture.is_post_norm else kind
    return kind(weights, architecture, layer, rotations)


def native_blocks(
    blocks: Sequence[Block], architecture: Architecture, rotations: Sequence[Rotation]
) -> NativeBlocks | None:
    """The blocks for the native kernels; None if there are none, or they lack a part of one."""
    if architecture.is_post_norm or architecture.farthest is not None:
        return None
    is_on_cpu = blocks[0].norm_1.weight.device.type == "cpu"
    structs = [_struct(block, architecture, rotations) for block in blocks]
    if not has_kernels() or not is_on_cpu or None in structs:
        return None
    return NativeBlocks([struct for struct in structs if struct is not None])


def _struct(
    block: Block, architecture: Architecture, rotations: Sequence[Rotation]
) -> native.Block | None:
    attention, mlp = block.attention, block.mlp
    products = (attention.query_key_value, attention.projection, mlp.expand, mlp.contract)
    structs = [part.struct for part in products if isinstance(part, Linear | NativeLinear)]
    if len(structs) < len(products):
        return None
    rotation = attention.rotation
    query, key = attention.norm.structs if attention.norm is not None else (NO_NORM, NO_NORM)
    after = [NO_NORM if n is None else n.struct for n in (block.norm_after_1, block.norm_after_2)]
    heads = native.Attention(
        heads=attention.heads,
        key_value_heads=attention.key_value_heads,
        head_size=attention.head_size,
        window=attention.window or 0,
        scale=attention.scale,
    )
    return native.Block(
        *(block.norm_1.struct, block.norm_2.struct, *after, query, key, *structs, heads),
        width=architecture.width,
        inner=architecture.inner,
        activation=KINDS[architecture.activation],
        is_gated=mlp.is_gated,
        is_parallel=architecture.is_parallel,
        turned=0 if rotation is None else rotation.size,
        rotation=0 if rotation is None else rotations.index(rotation),
    )
