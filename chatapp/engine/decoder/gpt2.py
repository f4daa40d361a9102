"""The GPT-2 decoder (Radford et al. 2019), from its formulas.

With token embedding E, position embedding P and L blocks:

    x⁰ = E[ids] + P[positions]
    x  = x + attention(norm₁(x));  x = x + mlp(norm₂(x))      in each block
    logits = norm(x) Eᵀ                                       or an own output matrix

Keep: this file knows tensors only, and in float32 its logits are those of transformers'
GPT2LMHeadModel. States are float32 whatever the matrices are stored as.
"""

from collections.abc import Callable, Mapping, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from chatapp.engine.cache import KeyValueCache
from chatapp.engine.checkpoint.kept_int8 import kept_int8
from chatapp.engine.decoder.blocks import (
    ACTIVATIONS,
    KeyValues,
    LayerNorm,
    Pass,
    attention,
    attention_weights,
)
from chatapp.engine.decoder.gpt2_weights import GPT2Config, read_weights
from chatapp.engine.decoder.observer import Observer
from chatapp.engine.device import device_for
from chatapp.engine.folder import ModelFiles
from chatapp.engine.linear import Layer, linear_layer
from chatapp.engine.precision import is_matrix, precision_for, to_bfloat16, to_int8
from chatapp.engine.step import Step

# Whatever is computed besides the result takes memory as a chunk grows; 512 rows keep the matrix
# products busy and the memory small.
CHUNK = 512


class _Block:
    """One pre-norm block: attention, then the two-layer perceptron."""

    def __init__(self, weights: Mapping[str, Tensor], config: GPT2Config, index: int) -> None:
        def linear(name: str) -> Layer:
            return linear_layer(
                weights, f"h.{index}.{name}.weight", weights[f"h.{index}.{name}.bias"]
            )

        self.layer = index
        self.point = f"blocks.{index}"
        self.attention_point, self.mlp_point = f"{self.point}.attention", f"{self.point}.mlp"
        self.norm_1 = LayerNorm(weights, f"h.{index}.ln_1", config.layer_norm_epsilon)
        self.norm_2 = LayerNorm(weights, f"h.{index}.ln_2", config.layer_norm_epsilon)
        self.query_key_value = linear("attn.c_attn")
        self.projection = linear("attn.c_proj")
        self.expand = linear("mlp.c_fc")
        self.contract = linear("mlp.c_proj")
        self.activation = ACTIVATIONS[config.activation_function]
        self.heads, self.head_size = config.n_head, config.head_size
        self.scale = config.head_size**-0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            self.scale /= index + 1

    def attention(self, x: Tensor, run: Pass) -> Tensor:
        """Attention of all heads, projected: (rows · tokens, n_embd), as x is."""
        # (rows · tokens, 3·n_embd) -> (3, rows, heads, tokens, head size)
        split = self.query_key_value(x).view(run.rows, -1, 3, self.heads, self.head_size)
        split = split.permute(2, 0, 3, 1, 4)
        if run.observe is not None:
            parts = zip(("query", "key", "value"), split, strict=True)
            split = torch.stack([run.observe(f"{self.attention_point}.{n}", t) for n, t in parts])
        query, new = split[0], split[1:]
        key, value = new if run.cache is None else run.cache.extend(self.layer, new)
        mixed = attention(query, key, value, self.scale, run.mask)
        mixed = run.observed_heads(self.attention_point, mixed)
        return self.projection(mixed.transpose(1, 2).reshape(x.shape))

    def mlp(self, x: Tensor) -> Tensor:
        """The two-layer perceptron."""
        return self.contract(self.activation(self.expand(x)))

    def __call__(self, x: Tensor, run: Pass) -> Tensor:
        x = x + run.observed(self.attention_point, self.attention(self.norm_1(x), run))
        x = x + run.observed(self.mlp_point, self.mlp(self.norm_2(x)))
        return run.observed(self.point, x)


class GPT2:
    """The decoder with its weights.

    weights: as `read_weights` gives them; its matrices may be bfloat16, or int8 with a tensor
        of row scales beside each, named with `.scale` added.
    vocabulary: how many rows of the output matrix are real tokens; logits of rows that only
        pad it are never computed. All of them by default.
    matrix_bytes: what each token has to read of the weights.
    """

    def __init__(
        self,
        config: GPT2Config,
        weights: Mapping[str, Tensor],
        *,
        vocabulary: int | None = None,
    ) -> None:
        self.config = config
        self.device = weights["wte.weight"].device
        self.token_embedding = weights["wte.weight"]
        self.position_embedding = weights["wpe.weight"]
        self.blocks = [_Block(weights, config, layer) for layer in range(config.n_layer)]
        self.norm = LayerNorm(weights, "ln_f", config.layer_norm_epsilon)
        name = "lm_head.weight" if "lm_head.weight" in weights else "wte.weight"
        output = {
            key: weights[key][:vocabulary] for key in (name, f"{name}.scale") if key in weights
        }
        self.vocabulary = output[name].shape[0]
        self.precision = str(output[name].dtype).removeprefix("torch.")
        matrices = {key: tensor for key, tensor in weights.items() if is_matrix(key, tensor)}
        matrices[name] = output[name]
        self.matrix_bytes = sum(matrix.nbytes for matrix in matrices.values())
        self.head = linear_layer(output, name)
        self._steps: WeakKeyDictionary[KeyValueCache, Step] = WeakKeyDictionary()

    @classmethod
    def load(
        cls,
        files: ModelFiles,
        *,
        vocabulary: int | None = None,
        precision: str = "float32",
        device: str = "cpu",
    ) -> "GPT2":
        """From a folder in Hugging Face layout. Raises ModelError.

        precision: float32, bfloat16, int8, or auto for what is fastest here.
        device: cpu, cuda, mps, or auto; see `device_for`.
        """
        config = GPT2Config.read(files)

        def read() -> dict[str, Tensor]:
            return read_weights(files.path, config)

        target = device_for(device, precision, config.matrix_parameters)
        chosen = precision_for(precision, config.matrix_parameters, target)
        if chosen == "int8":
            weights = kept_int8(files, lambda: to_int8(read()))
        else:
            weights = to_bfloat16(read()) if chosen == "bfloat16" else read()
        weights = {name: tensor.to(target) for name, tensor in weights.items()}
        return cls(config, weights, vocabulary=vocabulary)

    def new_cache(self, spare: int = 0) -> KeyValueCache:
        """An empty cache as long as the model's window, and `spare` slots longer."""
        c = self.config
        positions = c.n_positions + spare
        return KeyValueCache(c.n_layer, c.n_head, positions, c.head_size, self.device)

    @torch.inference_mode()
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
        Returns (rows, new, n_embd), on the model's device.
        """
        start = 0 if cache is None else len(cache)
        new = len(ids[0])
        run = Pass(len(ids), cache, None if mask is None else mask.to(self.device), observe)
        x = self._through(
            torch.tensor(ids, device=self.device),
            slice(start, start + new) if positions is None else positions.to(self.device),
            run,
            layer=layer,
            raise_if_cancelled=raise_if_cancelled,
        )
        if cache is not None:
            cache.commit(ids[0])
        return x.view(len(ids), new, -1)

    def _through(
        self,
        ids: Tensor,
        positions: Tensor | slice,
        run: Pass,
        *,
        layer: int | None = None,
        raise_if_cancelled: Callable[[], None] | None = None,
    ) -> Tensor:
        """The pass itself, with all on the model's device: (rows · new, n_embd)."""
        x = F.embedding(ids, self.token_embedding) + self.position_embedding[positions]
        # Rows of all sequences alike: what multiplies need not know whose they are.
        x = run.observed("embed", x.view(ids.numel(), -1))
        for block in self.blocks[:layer]:
            if raise_if_cancelled is not None:
                raise_if_cancelled()
            x = block(x, run)
        return run.observed("final", self.norm(x)) if layer is None else x

    @torch.inference_mode()
    def forward(
        self,
        ids: Sequence[int],
        cache: KeyValueCache | None = None,
        *,
        all_positions: bool = False,
        raise_if_cancelled: Callable[[], None] | None = None,
    ) -> Tensor:
        """Logits after `ids`, which follow what the cache holds.

        Returns (vocabulary,) of the last position, or (len(ids), vocabulary) with
        `all_positions`, on the CPU.
        """
        cache = self.new_cache() if cache is None else cache
        if len(ids) == 1 and self.device.type == "cuda":
            after = self._step(ids[0], cache).cpu()
            return after[None] if all_positions else after
        logits = []
        for start in range(0, len(ids), CHUNK):
            chunk = [ids[start : start + CHUNK]]
            x = self.hidden(chunk, cache, raise_if_cancelled=raise_if_cancelled)[0]
            if all_positions or start + CHUNK >= len(ids):
                logits.append(self.head(x if all_positions else x[-1:]).cpu())
        return torch.cat(logits) if all_positions else logits[0][0]

    @torch.inference_mode()
    def unembed(self, states: Tensor) -> Tensor:
        """Logits (…, vocabulary) that the final norm and the output matrix make of states
        (…, n_embd) which a block leaves; on the CPU.
        """
        return self.head(self.norm(states)).cpu()

    @torch.inference_mode()
    def attention_weights(self, layer: int, query: Tensor, key: Tensor) -> Tensor:
        """The weights (…, tokens, keys) that a layer mixes values with.

        query: (…, tokens, head size), each of which sees all of key: (…, keys, head size).
        """
        return attention_weights(query, key, self.blocks[layer].scale)

    def _step(self, id: int, cache: KeyValueCache) -> Tensor:
        """Logits (vocabulary,) after one more token, recorded for each cache."""
        if cache not in self._steps:
            self._steps[cache] = Step(cache)
        logits = self._steps[cache](id, len(cache), self._logits_after)
        cache.commit([id])
        return logits

    def _logits_after(
        self, id: Tensor, position: Tensor, key_values: KeyValues, mask: Tensor
    ) -> Tensor:
        """What a `Step` computes."""
        return self.head(self._through(id, position, Pass(1, key_values, mask)))
