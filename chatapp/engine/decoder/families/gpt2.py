"""GPT-2 (Radford et al. 2019).

With token embedding E, position embedding P and L blocks:

    x⁰ = E[ids] + P[positions]
    x  = x + attention(norm₁(x));  x = x + mlp(norm₂(x))      in each block
    mlp(x) = gelu(x U + b) D + c
    logits = norm(x) Eᵀ                                       or an own output matrix
"""

from chatapp.engine.decoder.families.architecture import (
    ACTIVATIONS,
    Architecture,
    BlockAttention,
    Checkpoint,
    Family,
)
from chatapp.engine.decoder.families.config_fields import ConfigFields
from chatapp.engine.decoder.families.gguf_row import Config, GGUFRow, TensorChange

_DEFAULTS = {
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "n_ctx": 1024,
    "vocab_size": 50257,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}

_TENSORS = {
    "embed": "transformer.wte",
    "positions": "transformer.wpe",
    "blocks.{n}.norm_1": "transformer.h.{n}.ln_1",
    "blocks.{n}.attention.query_key_value": "transformer.h.{n}.attn.c_attn",
    "blocks.{n}.attention.projection": "transformer.h.{n}.attn.c_proj",
    "blocks.{n}.norm_2": "transformer.h.{n}.ln_2",
    "blocks.{n}.mlp.expand": "transformer.h.{n}.mlp.c_fc",
    "blocks.{n}.mlp.contract": "transformer.h.{n}.mlp.c_proj",
    "norm": "transformer.ln_f",
    "head": "lm_head",
}


def _read(fields: ConfigFields) -> Architecture:
    if fields.flag("add_cross_attention"):
        raise fields.unsupported("add_cross_attention")
    width, heads = fields.size("n_embd"), fields.size("n_head")
    if width % heads:
        raise fields.refused("n_embd", f"expected a multiple of n_head, which is {heads}")
    head_size = width // heads
    scale = head_size**-0.5 if fields.flag("scale_attn_weights") else 1.0
    by_layer = fields.flag("scale_attn_by_inverse_layer_idx")
    layers = range(fields.size("n_layer"))
    return Architecture(
        width=width,
        heads=heads,
        key_value_heads=heads,
        head_size=head_size,
        inner=fields.size("n_inner") if fields.has("n_inner") else 4 * width,
        vocabulary=fields.size("vocab_size"),
        context=fields.size("n_positions" if fields.has("n_positions") else "n_ctx"),
        attentions=tuple(BlockAttention(scale / (n + 1) if by_layer else scale) for n in layers),
        norm="LayerNorm",
        epsilon=fields.fraction("layer_norm_epsilon"),
        activation=fields.choice("activation_function", ACTIVATIONS),
        is_gated=False,
        is_tied=fields.flag("tie_word_embeddings"),
        has_attention_bias=True,
        has_projection_bias=True,
        has_mlp_bias=True,
    )


def _spell_out(config: Config) -> None:
    if config["n_inner"] is None:
        config["n_inner"] = 4 * config["n_embd"]


_MATRICES = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")


def _change(config: Config, tensor: str) -> TensorChange:
    return TensorChange(is_transposed=tensor.endswith(_MATRICES))


GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    GGUFRow(
        "gpt2",
        {
            "block_count": "n_layer",
            "context_length": "n_positions",
            "embedding_length": "n_embd",
            "feed_forward_length": "n_inner",
            "attention.head_count": "n_head",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        # A file contains no dropout, for which transformers has a default.
        fixed={
            "activation_function": "gelu_new",
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        },
        spell_out=_spell_out,
        change=_change,
    ),
    Checkpoint(
        _DEFAULTS, _read, "transformer.", _TENSORS, is_transposed=True, has_plain_tokenizer=True
    ),
)
