"""The architectures of `finetune pretrain`, as configurations of transformers.

Each step from GPT-2 to Llama changes one part: rotary positions, a gated MLP, RMSNorm, grouped
heads. A gated MLP has three matrices, so its inner width is two thirds of the usual one: all shapes
of one size have about 12 · layers · hidden² parameters beside the embeddings.

Invariant: the values of `shape.architecture` are the keys of `ARCHITECTURES`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from transformers import (
    GPT2Config,
    GPTNeoConfig,
    GPTNeoXConfig,
    LlamaConfig,
    OpenAIGPTConfig,
    StableLmConfig,
)

from finetune.config.sections import Shape

# GPT-2's own function, in one operation where "gelu_new" takes eight.
_GELU = "gelu_pytorch_tanh"


def _modern(shape: Shape) -> dict[str, Any]:
    """The sizes by their newer names. Few passes over much text: dropout would only slow it."""
    return {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "max_position_embeddings": shape.positions,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }


def _old(shape: Shape) -> dict[str, Any]:
    """The sizes by the names of GPT and GPT-2, without dropout."""
    return {
        "n_positions": shape.positions,
        "n_embd": shape.hidden,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    }


def _gated(shape: Shape) -> dict[str, Any]:
    inner = 8 * max(1, round(shape.hidden / 3))
    return {"intermediate_size": inner, "hidden_act": "silu"}


def _sparse(shape: Shape) -> GPTNeoConfig:
    """Dense and locally banded layers alternate (Child et al. 2019, as in GPT-3)."""
    kinds = [("global", "local")[layer % 2] for layer in range(shape.layers)]
    return GPTNeoConfig(
        hidden_size=shape.hidden,
        num_layers=shape.layers,
        num_heads=shape.heads,
        max_position_embeddings=shape.positions,
        attention_types=[[[kind], 1] for kind in kinds],
        window_size=max(1, shape.positions // 8),
        activation_function=_GELU,
    )


def _llama(shape: Shape, key_value_heads: int) -> LlamaConfig:
    return LlamaConfig(**_modern(shape), **_gated(shape), num_key_value_heads=key_value_heads)


def _groups(shape: Shape) -> int:
    """Heads of keys and values: a half of the heads, or the largest smaller divisor."""
    return max(n for n in range(1, shape.heads // 2 + 1) if shape.heads % n == 0)


ARCHITECTURES: Mapping[str, Callable[[Shape], Any]] = {
    "gpt2": lambda shape: GPT2Config(**_old(shape), activation_function=_GELU),
    "gpt": lambda shape: OpenAIGPTConfig(**_old(shape), afn="gelu"),
    "sparse": _sparse,
    "rotary": lambda shape: GPTNeoXConfig(
        **_modern(shape),
        intermediate_size=4 * shape.hidden,
        hidden_act=_GELU,
        use_parallel_residual=False,
        rotary_pct=1.0,
        tie_word_embeddings=True,
    ),
    "gated": lambda shape: StableLmConfig(
        **_modern(shape),
        **_gated(shape),
        num_key_value_heads=shape.heads,
        partial_rotary_factor=1.0,
        tie_word_embeddings=True,
    ),
    "rmsnorm": lambda shape: _llama(shape, shape.heads),
    "llama": lambda shape: _llama(shape, _groups(shape)),
}


def network_config(shape: Shape, vocabulary: int, end: int) -> Any:
    """A configuration of transformers. vocabulary: tokens; end: the id of end-of-text."""
    config = ARCHITECTURES[shape.architecture](shape)
    config.vocab_size, config.tie_word_embeddings = vocabulary, True
    config.bos_token_id = config.eos_token_id = end
    return config
