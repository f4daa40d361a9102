"""The GPT-2 decoder (Radford et al. 2019), from its formulas.

With token embedding E, position embedding P and L blocks:

    x⁰ = E[ids] + P[positions]
    x  = x + attention(norm₁(x));  x = x + mlp(norm₂(x))      in each block
    logits = norm(x) Eᵀ                                       or an own output matrix

Keep: this file knows tensors only, and in float32 its logits are those of transformers'
GPT2LMHeadModel. States are float32 whatever the matrices are stored as.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from chatapp.engine.cache import KeyValueCache
from chatapp.engine.checkpoint import (
    CONFIG,
    ModelError,
    is_buffer,
    open_weights,
    read_json,
    weight_files,
)
from chatapp.engine.device import device_for
from chatapp.engine.linear import Layer, linear_layer
from chatapp.engine.precision import is_matrix, kept_int8, precision_for, to_bfloat16
from chatapp.engine.step import Step

# √(8/π), and from where it pays to compute a gelu in steps.
_GELU = torch.tensor((8 / torch.pi) ** 0.5)
_MANY = 2**16


def _tanh_gelu(x: Tensor) -> Tensor:
    """½x(1 + tanh u) with u = √(2/π)(x + 0.044715x³): the approximation of a gelu.

    On a processor, torch's sigmoid is several times as fast as its tanh, and ½(1 + tanh u)
    is the sigmoid of 2u.
    """
    if x.device.type != "cpu" or x.numel() < _MANY:
        return F.gelu(x, approximate="tanh")
    doubled = torch.addcmul(_GELU, x, x, value=0.044715 * float(_GELU)).mul_(x)
    return doubled.sigmoid_().mul_(x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    "gelu": F.gelu,
    "relu": F.relu,
}

# Whatever is computed besides the result takes memory as a chunk grows; 512 rows keep the matrix
# products busy and the memory small.
CHUNK = 512

# Rows of a chunk whose attention a processor computes at once: each is multiplied by all keys
# up to those of the last one. A GPU would rather have few calls.
_TOGETHER = 128


@dataclass(frozen=True, slots=True)
class GPT2Config:
    """The shape of a GPT-2, in the names of its config.json."""

    n_layer: int
    n_head: int
    n_embd: int
    n_positions: int
    vocab_size: int
    n_inner: int
    layer_norm_epsilon: float = 1e-5
    activation_function: str = "gelu_new"
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    tie_word_embeddings: bool = True

    @classmethod
    def read(cls, folder: Path) -> "GPT2Config":
        """From a folder's config.json. Raises ModelError for what this decoder cannot do."""
        path = folder / CONFIG
        data = read_json(path)

        def size(key: str, default: int) -> int:
            value = data.get(key, default)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ModelError(f"{path}: {key} is {value!r}; expected a whole number above 0")
            return value

        def flag(key: str, default: bool) -> bool:
            value = data.get(key, default)
            if not isinstance(value, bool):
                raise ModelError(f"{path}: {key} is {value!r}; expected true or false")
            return value

        if data.get("model_type") != "gpt2":
            raise ModelError(f"{path}: model_type is {data.get('model_type')!r}; expected 'gpt2'")
        if flag("add_cross_attention", False):
            raise ModelError(f"{path}: add_cross_attention is true; cross-attention is unsupported")
        if data.get("quantization_config"):
            raise ModelError(f"{path}: quantization_config is set; quantized weights are not read")
        activation = data.get("activation_function", "gelu_new")
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            raise ModelError(
                f"{path}: activation_function is {activation!r}; "
                f"expected one of {', '.join(ACTIVATIONS)}"
            )
        epsilon = data.get("layer_norm_epsilon", 1e-5)
        if not isinstance(epsilon, float | int) or not 0 < epsilon < 1:
            raise ModelError(f"{path}: layer_norm_epsilon is {epsilon!r}; expected a small number")
        n_embd, n_head = size("n_embd", 768), size("n_head", 12)
        if n_embd % n_head:
            raise ModelError(f"{path}: n_embd {n_embd} is not a multiple of n_head {n_head}")
        return cls(
            n_layer=size("n_layer", 12),
            n_head=n_head,
            n_embd=n_embd,
            n_positions=size("n_positions", size("n_ctx", 1024)),
            vocab_size=size("vocab_size", 50257),
            n_inner=4 * n_embd if data.get("n_inner") is None else size("n_inner", 4 * n_embd),
            layer_norm_epsilon=epsilon,
            activation_function=activation,
            scale_attn_weights=flag("scale_attn_weights", True),
            scale_attn_by_inverse_layer_idx=flag("scale_attn_by_inverse_layer_idx", False),
            tie_word_embeddings=flag("tie_word_embeddings", True),
        )

    @property
    def head_size(self) -> int:
        """Components of one attention head."""
        return self.n_embd // self.n_head

    @property
    def matrix_parameters(self) -> int:
        """Weights that each token is multiplied by."""
        block = 4 * self.n_embd**2 + 2 * self.n_embd * self.n_inner
        return self.n_layer * block + self.vocab_size * self.n_embd

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor a checkpoint must hold.

        Matrices are (in, out) in GPT-2's checkpoints, the embeddings (rows, n_embd).
        """
        h, inner = self.n_embd, self.n_inner
        shapes: dict[str, tuple[int, ...]] = {
            "wte.weight": (self.vocab_size, h),
            "wpe.weight": (self.n_positions, h),
            "ln_f.weight": (h,),
            "ln_f.bias": (h,),
        }
        for layer in range(self.n_layer):
            for norm in ("ln_1", "ln_2"):
                shapes[f"h.{layer}.{norm}.weight"] = shapes[f"h.{layer}.{norm}.bias"] = (h,)
            for name, rows, columns in (
                ("attn.c_attn", h, 3 * h),
                ("attn.c_proj", h, h),
                ("mlp.c_fc", h, inner),
                ("mlp.c_proj", inner, h),
            ):
                shapes[f"h.{layer}.{name}.weight"] = (rows, columns)
                shapes[f"h.{layer}.{name}.bias"] = (columns,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, h)
        return shapes


def read_weights(folder: Path, config: GPT2Config) -> dict[str, Tensor]:
    """The weights of a checkpoint folder, float32, without the prefix `transformer.`.

    Matrices of linear layers come as (out, in). A checkpoint that ties its output matrix to
    the embedding may hold it all the same: it is kept only when it differs.
    Raises ModelError that names file and tensor when one is missing, unknown or mis-shaped.
    """
    expected = config.tensor_shapes()
    optional = {"lm_head.weight": (config.vocab_size, config.n_embd)}
    weights: dict[str, Tensor] = {}
    files = weight_files(folder)
    for file in files:
        with open_weights(file, "pt") as tensors:
            for stored in tensors.keys():  # noqa: SIM118
                if is_buffer(stored):
                    continue
                name = stored.removeprefix("transformer.")
                shape = expected.get(name, optional.get(name))
                if shape is None:
                    raise ModelError(f"{file}: tensor {stored!r} does not belong to a GPT-2")
                found = tuple(tensors.get_slice(stored).get_shape())
                if found != shape:
                    raise ModelError(
                        f"{file}: tensor {stored!r} has the shape {list(found)}; "
                        f"expected {list(shape)} after {CONFIG}"
                    )
                tensor: Tensor = tensors.get_tensor(stored)
                if not tensor.is_floating_point():
                    raise ModelError(
                        f"{file}: tensor {stored!r} holds {tensor.dtype}; expected a float type"
                    )
                # A copy, because safetensors may map the file itself into memory.
                tensor = tensor.to(torch.float32, copy=True)
                if name.startswith("h.") and tensor.ndim == 2:
                    tensor = tensor.t().contiguous()
                weights[name] = tensor
    for name in expected:
        if name not in weights:
            where = files[0] if len(files) == 1 else folder
            raise ModelError(f"{where}: tensor {name!r} is missing")
    head = weights.get("lm_head.weight")
    if config.tie_word_embeddings and head is not None and head.equal(weights["wte.weight"]):
        del weights["lm_head.weight"]
    return weights


class Room(Protocol):
    """Where keys and values of the tokens so far are."""

    def extend(self, layer: int, new: Tensor) -> tuple[Tensor, Tensor]:
        """See `KeyValueCache.extend`."""
        ...


class _Norm:
    """Layer normalisation over the last dimension."""

    __slots__ = ("bias", "epsilon", "shape", "weight")

    def __init__(self, weights: Mapping[str, Tensor], name: str, epsilon: float) -> None:
        self.weight = weights[f"{name}.weight"]
        self.bias = weights[f"{name}.bias"]
        self.shape = self.weight.shape
        self.epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.shape, self.weight, self.bias, self.epsilon)


def _causal_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Attention of the last positions, each to itself and to all before it.

    query: (batch, heads, new, head size). key, value: (batch, heads, all, head size).
    Returns (batch, heads, new, head size).
    """
    new, every = query.shape[2], key.shape[2]
    rows = min(new, _TOGETHER) if query.device.type == "cpu" else new
    # The columns before those of the rows themselves are seen by each.
    later = torch.full((rows, rows), -torch.inf, device=query.device).triu_(1)
    mask = F.pad(later, (every, 0))
    parts = []
    for start in range(0, new, rows):
        stop = min(start + rows, new)
        seen = every - new + stop
        parts.append(
            F.scaled_dot_product_attention(
                query[:, :, start:stop],
                key[:, :, :seen],
                value[:, :, :seen],
                attn_mask=mask[: stop - start, new - start :][:, :seen],
                scale=scale,
            )
        )
    return torch.cat(parts, 2)


class _Block:
    """One pre-norm block: attention, then the two-layer perceptron."""

    def __init__(self, weights: Mapping[str, Tensor], config: GPT2Config, index: int) -> None:
        def linear(name: str) -> Layer:
            return linear_layer(
                weights, f"h.{index}.{name}.weight", weights[f"h.{index}.{name}.bias"]
            )

        self.layer = index
        self.norm_1 = _Norm(weights, f"h.{index}.ln_1", config.layer_norm_epsilon)
        self.norm_2 = _Norm(weights, f"h.{index}.ln_2", config.layer_norm_epsilon)
        self.query_key_value = linear("attn.c_attn")
        self.projection = linear("attn.c_proj")
        self.expand = linear("mlp.c_fc")
        self.contract = linear("mlp.c_proj")
        self.activation = ACTIVATIONS[config.activation_function]
        self.heads, self.head_size = config.n_head, config.head_size
        self.scale = config.head_size**-0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            self.scale /= index + 1

    def attention(self, x: Tensor, batch: int, cache: Room | None, mask: Tensor | None) -> Tensor:
        """softmax(q kᵀ · scale) v for all heads at once.

        x: (batch · new, n_embd). mask: (new, all), added to the scores; None where each sees
        itself and all before it.
        """
        # (batch · new, 3·n_embd) -> (3, batch, heads, new, head size)
        split = self.query_key_value(x).view(batch, -1, 3, self.heads, self.head_size)
        split = split.permute(2, 0, 3, 1, 4)
        query, new = split[0], split[1:]
        key, value = new if cache is None else cache.extend(self.layer, new)
        if mask is None and query.shape[2] > 1:
            mixed = _causal_attention(query, key, value, self.scale)
        else:
            mixed = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, scale=self.scale
            )
        return self.projection(mixed.transpose(1, 2).reshape(x.shape))

    def __call__(self, x: Tensor, batch: int, cache: Room | None, mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.norm_1(x), batch, cache, mask)
        return x + self.contract(self.activation(self.expand(self.norm_2(x))))


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
        self.norm = _Norm(weights, "ln_f", config.layer_norm_epsilon)
        name = "lm_head.weight" if "lm_head.weight" in weights else "wte.weight"
        output = {
            key: weights[key][:vocabulary] for key in (name, f"{name}.scale") if key in weights
        }
        self.vocabulary = output[name].shape[0]
        self.precision = str(output[name].dtype).removeprefix("torch.")
        matrices = {key: part for key, part in weights.items() if is_matrix(key, part)}
        matrices[name] = output[name]
        self.matrix_bytes = sum(matrix.nbytes for matrix in matrices.values())
        self.head = linear_layer(output, name)
        self._steps: WeakKeyDictionary[KeyValueCache, Step] = WeakKeyDictionary()

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        vocabulary: int | None = None,
        precision: str = "float32",
        device: str = "cpu",
    ) -> "GPT2":
        """From a folder in Hugging Face layout. Raises ModelError.

        precision: float32, bfloat16, int8, or auto for what is fastest here.
        device: cpu, cuda, mps, or auto; see `device_for`.
        """
        config = GPT2Config.read(folder)

        def read() -> dict[str, Tensor]:
            return read_weights(folder, config)

        place = device_for(device, precision, config.matrix_parameters)
        chosen = precision_for(precision, config.matrix_parameters, place)
        if chosen == "int8":
            weights = kept_int8(folder, read)
        else:
            weights = to_bfloat16(read()) if chosen == "bfloat16" else read()
        weights = {name: tensor.to(place) for name, tensor in weights.items()}
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
        check: Callable[[], None] | None = None,
    ) -> Tensor:
        """Hidden states after the final norm, or after fewer blocks.

        ids: rows of one length, padded at the end if at all: causal attention keeps what
            follows a sequence from reaching it. With a cache, there is one row and its ids
            come after those the cache holds.
        positions: (new,) of the ids, where they are not simply the next ones.
        mask: (new, all), added to the attention's scores, where it is not simply causal.
        layer: how many blocks to go through, without the final norm; all of them, and the
            norm, by default. Not with a cache, which every block has to fill.
        check: called before each block; what it raises abandons the pass, and the cache
            stays as it was.
        Returns (rows, new, n_embd), on the model's device.
        """
        start = 0 if cache is None else len(cache)
        new = len(ids[0])
        at = slice(start, start + new) if positions is None else positions.to(self.device)
        x = self._through(
            torch.tensor(ids, device=self.device),
            at,
            cache=cache,
            mask=None if mask is None else mask.to(self.device),
            layer=layer,
            check=check,
        )
        if cache is not None:
            cache.commit(ids[0])
        return x.view(len(ids), new, -1)

    def _through(
        self,
        ids: Tensor,
        positions: Tensor | slice,
        *,
        cache: Room | None,
        mask: Tensor | None,
        layer: int | None = None,
        check: Callable[[], None] | None = None,
    ) -> Tensor:
        """As `hidden`, with all on the model's device: (batch · new, n_embd)."""
        x = F.embedding(ids, self.token_embedding) + self.position_embedding[positions]
        # Rows alone: what multiplies need not know whose they are.
        x = x.view(ids.numel(), -1)
        for block in self.blocks[:layer]:
            if check is not None:
                check()
            x = block(x, len(ids), cache, mask)
        return self.norm(x) if layer is None else x

    @torch.inference_mode()
    def forward(
        self,
        ids: Sequence[int],
        cache: KeyValueCache | None = None,
        *,
        every: bool = False,
        check: Callable[[], None] | None = None,
    ) -> Tensor:
        """Logits after `ids`, which follow what the cache holds.

        Returns (vocabulary,) of the last position, or (len(ids), vocabulary) with `every`,
        wherever the model computes.
        """
        cache = self.new_cache() if cache is None else cache
        if len(ids) == 1 and self.device.type == "cuda":
            after = self._step(ids[0], cache).cpu()
            return after[None] if every else after
        logits = []
        for start in range(0, len(ids), CHUNK):
            x = self.hidden([ids[start : start + CHUNK]], cache, check=check)
            if every or start + CHUNK >= len(ids):
                logits.append(self.head(x[0] if every else x[0, -1:]).cpu())
        return torch.cat(logits) if every else logits[0][0]

    def _step(self, id: int, cache: KeyValueCache) -> Tensor:
        """Logits (vocabulary,) after one more token, recorded for each cache."""
        if cache not in self._steps:
            self._steps[cache] = Step(cache, self._logits_after)
        logits = self._steps[cache](id, len(cache))
        cache.commit([id])
        return logits

    def _logits_after(self, id: Tensor, place: Tensor, room: Room, mask: Tensor) -> Tensor:
        """What a `Step` computes."""
        return self.head(self._through(id, place, cache=room, mask=mask))
