"""What a GPT-2's folder must hold: its shape in config.json, and a tensor of each name.

Keep: weights that this decoder would compute wrongly are refused, in one sentence that names
the file and the key or tensor.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chatapp.engine.checkpoint.safetensors import is_buffer, open_weights, weight_files
from chatapp.engine.decoder.blocks import ACTIVATIONS
from chatapp.engine.decoder.config_fields import ConfigFields
from chatapp.engine.errors import ModelError
from chatapp.engine.folder import CONFIG, ModelFiles


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
    def read(cls, files: ModelFiles) -> "GPT2Config":
        """From a model's config.json. Raises ModelError for what this decoder cannot do."""
        fields = ConfigFields(files)
        if files.family != "gpt2":
            raise fields.refused("model_type", "expected 'gpt2'")
        if fields.flag("add_cross_attention", False):
            raise fields.refused("add_cross_attention", "cross-attention is unsupported")
        if fields.is_set("quantization_config"):
            raise ModelError(
                f"{files.config_file}: quantization_config is set; quantized weights are not read"
            )
        n_embd, n_head = fields.size("n_embd", 768), fields.size("n_head", 12)
        if n_embd % n_head:
            raise ModelError(
                f"{files.config_file}: n_embd {n_embd} is not a multiple of n_head {n_head}"
            )
        has_inner = files.config.get("n_inner") is not None
        return cls(
            n_layer=fields.size("n_layer", 12),
            n_head=n_head,
            n_embd=n_embd,
            n_positions=fields.size("n_positions", fields.size("n_ctx", 1024)),
            vocab_size=fields.size("vocab_size", 50257),
            n_inner=fields.size("n_inner", 4 * n_embd) if has_inner else 4 * n_embd,
            layer_norm_epsilon=fields.fraction("layer_norm_epsilon", 1e-5),
            activation_function=fields.choice("activation_function", "gelu_new", ACTIVATIONS),
            scale_attn_weights=fields.flag("scale_attn_weights", True),
            scale_attn_by_inverse_layer_idx=fields.flag("scale_attn_by_inverse_layer_idx", False),
            tie_word_embeddings=fields.flag("tie_word_embeddings", True),
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
    required = config.tensor_shapes()
    known = {"lm_head.weight": (config.vocab_size, config.n_embd), **required}
    weights: dict[str, Tensor] = {}
    files = weight_files(folder)
    for file in files:
        with open_weights(file, "pt") as tensors:
            for stored in tensors.keys():  # noqa: SIM118
                if is_buffer(stored):
                    continue
                name = stored.removeprefix("transformer.")
                if name not in known:
                    raise ModelError(f"{file}: tensor {stored!r} does not belong to a GPT-2")
                tensor = _read_tensor(file, tensors, stored, known[name])
                if name.startswith("h.") and tensor.ndim == 2:
                    tensor = tensor.t().contiguous()
                weights[name] = tensor
    for name in required:
        if name not in weights:
            where = files[0] if len(files) == 1 else folder
            raise ModelError(f"{where}: tensor {name!r} is missing")
    head = weights.get("lm_head.weight")
    if config.tie_word_embeddings and head is not None and head.equal(weights["wte.weight"]):
        del weights["lm_head.weight"]
    return weights


def _read_tensor(file: Path, tensors: Any, name: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor of an open file in float32. Raises ModelError when it has another shape or type."""
    stored_shape = tuple(tensors.get_slice(name).get_shape())
    if stored_shape != shape:
        raise ModelError(
            f"{file}: tensor {name!r} has the shape {list(stored_shape)}; "
            f"expected {list(shape)} after {CONFIG}"
        )
    tensor: Tensor = tensors.get_tensor(name)
    if not tensor.is_floating_point():
        raise ModelError(f"{file}: tensor {name!r} holds {tensor.dtype}; expected a float type")
    # A copy, because safetensors may map the file itself into memory.
    return tensor.to(torch.float32, copy=True)
