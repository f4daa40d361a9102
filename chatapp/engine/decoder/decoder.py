"""The one forward pass of every family, from its formulas.

With token embedding E and L blocks:

    x⁰ = E[ids], and an embedding of the positions unless they rotate queries and keys
    x  = x + attention(norm₁(x));  x = x + mlp(norm₂(x))      in each block
    logits = norm(x) Eᵀ                                       or an own output matrix

The files in `families` describe what a family adds to this.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from chatapp.engine.cache.key_values import KeyValueCache, RowCache
from chatapp.engine.decoder.families.architecture import Architecture
from chatapp.engine.decoder.families.rotary import Rotary
from chatapp.engine.decoder.interventions import UNCHANGED, Interventions
from chatapp.engine.decoder.parts import (
    MLP,
    Attention,
    Changer,
    KeyValues,
    LayerNorm,
    Observer,
    Pass,
    RelativeAttention,
    RMSNorm,
    Rotation,
    distances_between,
    make_norm,
    together,
    within,
)
from chatapp.engine.errors import ModelError
from chatapp.engine.kernels import native
from chatapp.engine.kernels.linear import Linear, has_kernels, is_matrix, linear_layer
from chatapp.engine.kernels.native_layers import (
    KINDS,
    NO_NORM,
    Ends,
    NativeBlocks,
    NativeLinear,
    TokenRows,
    Written,
)


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
) -> native.BlockStruct | None:
    attention, mlp = block.attention, block.mlp
    products = (attention.query_key_value, attention.projection, mlp.expand, mlp.contract)
    structs = [part.struct for part in products if isinstance(part, Linear | NativeLinear)]
    if len(structs) < len(products):
        return None
    rotation = attention.rotation
    query, key = attention.norm.structs if attention.norm is not None else (NO_NORM, NO_NORM)
    after = [NO_NORM if n is None else n.struct for n in (block.norm_after_1, block.norm_after_2)]
    heads = native.AttentionStruct(
        heads=attention.heads,
        key_value_heads=attention.key_value_heads,
        head_size=attention.head_size,
        window=attention.window or 0,
        scale=attention.scale,
    )
    return native.BlockStruct(
        *(block.norm_1.struct, block.norm_2.struct, *after, query, key, *structs, heads),
        width=architecture.width,
        inner=architecture.inner,
        activation=KINDS[architecture.activation],
        is_gated=mlp.is_gated,
        is_parallel=architecture.is_parallel,
        turned=0 if rotation is None else rotation.size,
        rotation=0 if rotation is None else rotations.index(rotation),
    )


# The memory for intermediate results grows with the chunk; 512 rows keep the matrix products busy
# and the memory small.
CHUNK = 512


class Decoder:
    """A decoder with its weights.

    weights: by the names of `Architecture.parts`; matrices may be bfloat16, or int8 or int4 with a
    tensor of scales each, named with `.scale` added. vocabulary: the number of rows of the output
    matrix that are real tokens; logits of padding rows are never computed. All by default.
    matrix_bytes: bytes of weights that each token reads.
    """

    def __init__(
        self,
        architecture: Architecture,
        weights: Mapping[str, Tensor],
        *,
        vocabulary: int | None = None,
    ) -> None:
        self.architecture = architecture
        self.device = weights["embed.weight"].device
        self.token_embedding = weights["embed.weight"]
        self.position_embedding = weights.get("positions.weight")
        kinds = architecture.attentions
        rotations = {
            rotary: Rotation(rotary, self.device)
            for rotary in dict.fromkeys(kind.rotary for kind in kinds)
            if rotary is not None
        }
        self.rotations = list(rotations.values())
        self.windows = {kind.window for kind in kinds}
        self.blocks = [make_block(weights, architecture, n, rotations) for n in range(len(kinds))]
        self._norm = None
        if not architecture.is_post_norm:
            self._norm = make_norm(weights, "norm", architecture)
        name = "head.weight" if "head.weight" in weights else "embed.weight"
        is_tiled = weights[name].ndim > 2
        output = {
            key: weights[key] if is_tiled else weights[key][:vocabulary]
            for key in (name, f"{name}.scale")
            if key in weights
        }
        if "output.bias" in weights:
            stem = name.removesuffix(".weight")
            output[f"{stem}.bias"] = weights["output.bias"][:vocabulary]
        self.vocabulary = min(vocabulary or architecture.vocabulary, architecture.vocabulary)
        self.precision = str(output[name].dtype).removeprefix("torch.")
        if any(tensor.dtype == torch.uint8 for tensor in weights.values()):
            self.precision = "int4"  # except the output matrix
        matrices = {key: tensor for key, tensor in weights.items() if is_matrix(key, tensor)}
        matrices[name] = output[name]
        self.matrix_bytes = sum(matrix.nbytes for matrix in matrices.values())
        if is_tiled:  # padding rows are no weights
            self.matrix_bytes -= output[name].nbytes - self.vocabulary * architecture.width
        self._output = linear_layer(output, name.removesuffix(".weight"), self.vocabulary)
        self._native = native_blocks(self.blocks, architecture, self.rotations)
        self._most_native_rows = 0 if self._native is None else self._native.most_rows

    @property
    def norm(self) -> LayerNorm | RMSNorm:
        """The norm after the last block. Raises ModelError for blocks that normalize their sums."""
        if self._norm is None:
            raise ModelError("a post-norm model's logits are no sum of what its parts contribute")
        return self._norm

    def normed(self, x: Tensor) -> Tensor:
        """States after the final norm, if there is one."""
        return x if self._norm is None else self._norm(x)

    def new_cache(self, spare: int = 0) -> KeyValueCache:
        """An empty cache as long as the model's window plus `spare` slots."""
        a = self.architecture
        positions = a.context + spare
        return KeyValueCache(a.layers, a.key_value_heads, positions, a.head_size, self.device)

    def hidden(
        self,
        ids: Sequence[Sequence[int]],
        cache: KeyValueCache | None = None,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        layer: int | None = None,
        raise_if_cancelled: Callable[[], None] | None = None,
        observe: Observer | None = None,
        changes: Interventions = UNCHANGED,
        with_gradients: bool = False,
    ) -> Tensor:
        """Hidden states after the final norm, or after fewer blocks.

        ids: rows of one length, padded at the end if at all: causal attention keeps what
            follows a sequence from reaching it. With a cache, there is one row and its ids
            come after those the cache holds.
        positions: (new,) of the ids, where they are not simply the next ones.
        mask: (new, all), added to the attention's scores, where it is not simply causal.
        layer: how many blocks to go through, without the final norm; all of them, and the
            norm, by default. Not with a cache, which each block has to fill.
        raise_if_cancelled: called before each block; what it raises abandons the pass, and
            the cache stays as it was.
        observe: looks at the points of the pass, and may change them.
        changes: what is changed before `observe` sees it; a cache must have been filled with
            the same.
        with_gradients: whether autograd follows the pass.
        Returns (rows, new, width), on the model's device.
        """
        with torch.inference_mode(not with_gradients), torch.set_grad_enabled(with_gradients):
            start = 0 if cache is None else len(cache)
            new = len(ids[0])
            following = torch.arange(start, start + new, dtype=torch.int32, device=self.device)
            at = following if positions is None else positions.to(self.device)
            masks = None if mask is None else self._masks_after(start, mask.to(self.device), at)
            observe = together([Changer(changes, at) if changes else None, observe])
            is_plain = masks is None and positions is None and observe is None
            rows = None
            if cache is not None and is_plain:
                cache.prepare(new)
                rows = self._native_rows(at, start + new, cache)
            turns = self._turns(at) if rows is None else {}
            is_tree = mask is not None or positions is not None
            distances = self._distances(start, at) if is_tree else None
            x = self._through(
                torch.tensor(ids, device=self.device),
                at,
                Pass(len(ids), turns, cache, masks, observe, rows, distances),
                layer=layer,
                raise_if_cancelled=raise_if_cancelled,
            )
            if cache is not None:
                cache.commit(ids[0])
            return x.view(len(ids), new, -1)

    def hidden_with_gradients(
        self,
        ids: Sequence[Sequence[int]],
        observe: Observer,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        changes: Interventions = UNCHANGED,
    ) -> Tensor:
        """`hidden` of a pass that autograd follows from the tensors that `observe` puts in place.

        To have the gradient at a point, return `value.detach().requires_grad_()` there, and keep
        it. Logits come from `head`. Raises ModelError unless the weights are float32.
        """
        if self.precision != "float32":
            raise ModelError(
                f"gradients need float32 weights, and these are {self.precision}; load the model "
                "with --precision float32"
            )
        return self.hidden(
            ids,
            positions=positions,
            mask=mask,
            observe=observe,
            changes=changes,
            with_gradients=True,
        )

    def _through(
        self,
        ids: Tensor,
        positions: Tensor,
        run: Pass,
        *,
        layer: int | None = None,
        raise_if_cancelled: Callable[[], None] | None = None,
    ) -> Tensor:
        """The pass itself, with everything on the model's device: (rows · new, width)."""
        x = self._embed(ids, positions, run)
        # Rows of all sequences are equal to a matrix product.
        x = run.observed("embed", x.view(ids.numel(), -1))
        if self._native is not None and run.native is not None:
            self._native.add_to(x, run.native, raise_if_cancelled)
            return self._native.normed(x, self.norm.struct)
        for block in self.blocks[:layer]:
            if raise_if_cancelled is not None:
                raise_if_cancelled()
            x = block(x, run)
        return run.observed("final", self.normed(x)) if layer is None else x

    def _embed(self, ids: Tensor, positions: Tensor, run: Pass) -> Tensor:
        x = F.embedding(ids, self.token_embedding).float()
        if self.architecture.embedding_scale != 1:
            x = x * self.architecture.embedding_scale
        if self.position_embedding is not None:
            of_positions = F.embedding(positions, self.position_embedding)
            x = x + run.observed("positions", of_positions.expand_as(x))
        return x

    def _native_rows(
        self, at: Tensor, span: int, cache: KeyValueCache | RowCache
    ) -> TokenRows | None:
        """The tokens for the native kernels; None without kernels, or for too many tokens.

        at: (tokens,) their positions, less than `span`.
        """
        if len(at) > self._most_native_rows:
            return None
        turns = [rotation.kept(span) for rotation in self.rotations]
        is_batch = isinstance(cache, RowCache)
        return TokenRows(at.int(), span, turns, cache.layers, is_batch)

    def _turns(self, positions: Tensor) -> dict[Rotation, tuple[Tensor, Tensor]]:
        return {rotation: rotation.turns(positions) for rotation in self.rotations}

    def _masks(self, mask: Tensor, positions: Tensor, keys: Tensor) -> dict[int | None, Tensor]:
        return {window: within(window, mask, positions, keys) for window in self.windows}

    def _distances(self, start: int, at: Tensor) -> Tensor | None:
        """How far tokens are from the queries at `at`, after `start` tokens; None where unused."""
        if self.architecture.farthest is None:
            return None
        keys = torch.cat([torch.arange(start, device=self.device), at])
        return distances_between(at, keys)

    def _masks_after(self, start: int, mask: Tensor, at: Tensor) -> dict[int | None, Tensor]:
        """The masks of tokens at positions `at`, after `start` tokens that a cache holds."""
        keys = torch.cat([torch.arange(start, device=self.device), at])
        return self._masks(mask, at, keys)

    @torch.inference_mode()
    def block_states(
        self,
        states: Tensor,
        layer: int,
        *,
        start: int = 0,
        before: KeyValues | None = None,
        observe: Observer | None = None,
        changes: Interventions = UNCHANGED,
    ) -> Tensor:
        """The states that one block makes of those before it; both (rows, tokens, width).

        start: the position of the first token. before: the keys and values of those before it.
        observe, changes: see `hidden`.
        """
        rows, tokens, width = states.shape
        at = torch.arange(start, start + tokens, device=self.device)
        observe = together([Changer(changes, at) if changes else None, observe])
        run = Pass(rows, self._turns(at), before, observe=observe)
        return self.blocks[layer](states.reshape(-1, width), run).view(states.shape)

    @torch.inference_mode()
    def keys_and_values(self, states: Tensor, layer: int, start: int) -> Tensor:
        """What a block's attention computes of the states (rows, tokens, width) before it.

        start: the position of the first token. Returns keys and values, (2, rows, key/value heads,
        tokens, head size).
        """
        rows, tokens, width = states.shape
        at = torch.arange(start, start + tokens, device=self.device)
        block, run = self.blocks[layer], Pass(rows, self._turns(at))
        return block.attention.split(block.norm_1(states.reshape(-1, width)), run)[1]

    def uncapped_head(self, states: Tensor) -> Tensor:
        """`head` before a cap on logits: a linear map of the states."""
        logits: Tensor = self._output(states)
        return logits

    def head(self, states: Tensor) -> Tensor:
        """Logits (…, vocabulary) of states (…, width) after the final norm."""
        logits, cap = self.uncapped_head(states), self.architecture.logit_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    @torch.inference_mode()
    def forward(
        self,
        ids: Sequence[int],
        cache: KeyValueCache | None = None,
        *,
        all_positions: bool = False,
        raise_if_cancelled: Callable[[], None] | None = None,
        changes: Interventions = UNCHANGED,
    ) -> Tensor:
        """Logits after `ids`, which follow what the cache holds.

        changes: see `hidden`.

        Returns (vocabulary,) of the last position, or (len(ids), vocabulary) with
        `all_positions`, on the CPU.
        """
        cache = self.new_cache() if cache is None else cache
        logits = []
        for start in range(0, len(ids), CHUNK):
            chunk = [ids[start : start + CHUNK]]
            x = self.hidden(chunk, cache, raise_if_cancelled=raise_if_cancelled, changes=changes)[0]
            if all_positions or start + CHUNK >= len(ids):
                logits.append(self.head(x if all_positions else x[-1:]).cpu())
        return torch.cat(logits) if all_positions else logits[0][0]

    @torch.inference_mode()
    def forward_rows(
        self,
        ids: Sequence[int],
        cache: RowCache,
        *,
        raise_if_cancelled: Callable[[], None] | None = None,
    ) -> Tensor:
        """Logits (rows, vocabulary) after one more token of each row of a cache, on the CPU."""
        at, keys = cache.begin()
        native = self._native_rows(at, len(keys), cache)
        masks: dict[int | None, Tensor] = {}
        if native is None:
            hidden = torch.zeros(len(at), len(keys), device=self.device)
            hidden.masked_fill_(keys > at[:, None], -torch.inf)
            # (rows, heads, tokens, keys): each row has its own.
            masks = {w: m[:, None, None] for w, m in self._masks(hidden, at, keys).items()}
        turns = self._turns(at[:, None]) if native is None else {}
        distances = distances_between(at[:, None], keys) if native is None else None
        x = self._through(
            torch.tensor(ids, device=self.device)[:, None],
            at[:, None],
            Pass(len(ids), turns, cache, masks, native=native, distances=distances),
            raise_if_cancelled=raise_if_cancelled,
        )
        cache.commit()
        return self.head(x).cpu()

    @torch.inference_mode()
    def write(
        self,
        last: Sequence[int],
        cache: KeyValueCache | RowCache,
        samplings: Sequence[native.SamplingStruct],
        most: int,
    ) -> list[Written]:
        """Tokens drawn after `last`, one for each sequence of a cache, in one call of the kernels;
        see `NativeBlocks.write`. None are where only the pass itself can compute.
        """
        output, is_capped = self._output, self.architecture.logit_cap is not None
        if self._native is None or is_capped or not isinstance(output, Linear | NativeLinear):
            return []
        if isinstance(cache, RowCache):
            at, _ = cache.begin(most)
        else:
            at = torch.tensor([len(cache)])
            cache.prepare(most)
        rows = self._native_rows(at, int(at.max()) + most, cache)
        if rows is None:
            return []
        embeddings = (
            self.token_embedding,
            self.architecture.embedding_scale,
            self.position_embedding,
        )
        ends = Ends(*embeddings, self.norm.struct, output.struct)
        written = self._native.write(ends, last, rows, samplings, most)
        if isinstance(cache, RowCache):
            cache.commit(len(written[0]))
        else:
            cache.commit([*last, *(id for id, _ in written[0])][: len(written[0])])
        return written

    @torch.inference_mode()
    def unembed(self, states: Tensor) -> Tensor:
        """Apply the final norm and the output matrix to the states (…, width) after a block.

        Returns logits (…, vocabulary) on the CPU.
        """
        return self.head(self.normed(states)).cpu()

    @torch.inference_mode()
    def attention_weights(self, layer: int, query: Tensor, key: Tensor) -> Tensor:
        """The weights that a layer mixes values with; see `Attention.weights`."""
        return self.blocks[layer].attention.weights(query, key)
