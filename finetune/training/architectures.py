"""The architectures of `finetune pretrain`, most of them as configurations of transformers.

Each step from GPT-2 to Llama changes one part: rotary positions, a gated MLP, RMSNorm, grouped
heads. A gated MLP has three matrices, so its inner width is two thirds of the usual one: all shapes
of one size have about 12 · layers · hidden² parameters beside the embeddings.

Invariant: the values of `shape.architecture` are the keys of `ARCHITECTURES`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    GPT2Config,
    GPTNeoConfig,
    GPTNeoXConfig,
    LlamaConfig,
    OpenAIGPTConfig,
    StableLmConfig,
)

from finetune.config.sections import Shape
from finetune.training.transformer_xl import TransfoXLConfig, TransfoXLLMHeadModel

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


def _inner(shape: Shape) -> int:
    """The width inside a gated MLP."""
    return 8 * max(1, round(shape.hidden / 3))


def _gated(shape: Shape) -> dict[str, Any]:
    return {"intermediate_size": _inner(shape), "hidden_act": "silu"}


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


def _transformer_xl(shape: Shape) -> TransfoXLConfig:
    """Distances have a matrix of their own, for which the MLP is an eighth narrower."""
    return TransfoXLConfig(
        d_model=shape.hidden,
        d_embed=shape.hidden,
        n_head=shape.heads,
        d_head=shape.hidden // shape.heads,
        d_inner=_narrow(shape),
        n_layer=shape.layers,
        mem_len=shape.positions,
        clamp_len=shape.positions,
        same_length=True,
        untie_r=True,
        div_val=1,
        cutoffs=[],
        layer_norm_epsilon=1e-5,
    )


def _narrow(shape: Shape) -> int:
    """The width inside the MLP of a Transformer-XL."""
    return 7 * shape.hidden // 2


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
    "transformer-xl": _transformer_xl,
    "bert": lambda shape: BertConfig(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.hidden,
        max_position_embeddings=shape.positions,
        type_vocab_size=1,
        hidden_act=_GELU,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=None,
    ),
}


_FORMULAS: Mapping[str, str] = {
    "gpt2": "V·H + P·H + L·(12·H² + 13·H) + 2·H",
    "gpt": "V·H + P·H + L·(12·H² + 13·H)",
    "sparse": "V·H + P·H + L·(12·H² + 10·H) + 2·H",
    "rotary": "V·H + L·(12·H² + 13·H) + 2·H",
    "gated": "V·H + L·(4·H² + 3·H·I + 4·H) + 2·H",
    "rmsnorm": "V·H + L·(4·H² + 3·H·I + 2·H) + H",
    "llama": "V·H + L·(2·H² + 2·H²·G/A + 3·H·I + 2·H) + H",
    "transformer-xl": "V·H + V + L·(5·H² + 2·H·M + 7·H + M)",
    "bert": "V·H + V + P·H + L·(12·H² + 13·H) + H² + 6·H",
}


def parameter_formula(shape: Shape, vocabulary: int) -> str:
    """The number of parameters as a formula, and the values of its letters.

    V: vocabulary. P: positions. L: layers. H: hidden. A: heads. G: heads of keys and values. I: the
    width inside a gated MLP. M: that of a Transformer-XL. Embeddings are tied.
    """
    formula = _FORMULAS[shape.architecture]
    values = {
        "V": vocabulary,
        "P": shape.positions,
        "L": shape.layers,
        "H": shape.hidden,
        "A": shape.heads,
        "G": _groups(shape),
        "I": _inner(shape),
        "M": _narrow(shape),
    }
    return f"{formula}; " + ", ".join(f"{k} = {v}" for k, v in values.items() if k in formula)


def build_network(shape: Shape, vocabulary: int, end: int) -> Any:
    """A model with random weights. vocabulary: tokens; end: the id of end-of-text."""
    config = ARCHITECTURES[shape.architecture](shape)
    config.vocab_size, config.tie_word_embeddings = vocabulary, True
    config.bos_token_id = config.eos_token_id = end
    if shape.architecture == "transformer-xl":
        return TransfoXLLMHeadModel(config)
    kind = AutoModelForMaskedLM if shape.architecture == "bert" else AutoModelForCausalLM
    return kind.from_config(config)
