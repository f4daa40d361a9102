"""Gemma 3 (Gemma Team 2025), its models of text alone.

What has changed since Llama: embeddings are scaled by √H; what attention and perceptron give is
normed before it is added; each head's queries and keys are normed; most blocks see a window of
tokens, and turn queries and keys faster than those that see all; the weights of norms are kept as
what is added to 1; the gate is a gelu.

    x⁰ = √H E[ids]
    x  = x + norm₃(attention(norm₁(x)));  x = x + norm₄(mlp(norm₂(x)))      in each block
    mlp(x) = (gelu(x G) ∘ (x U)) D
    logits = norm(x) Eᵀ                                       soft-capped, if the config says so

Keep: free of torch; a config.json that transformers reads in another way is refused.
"""

from dataclasses import replace

from chatapp.engine.decoder.families import llama
from chatapp.engine.decoder.families.architecture import Architecture, Attention
from chatapp.engine.decoder.families.config_fields import ConfigFields
from chatapp.engine.decoder.families.family import Family
from chatapp.engine.decoder.families.rotary import read_rotary

# What configs call blocks that see a window, and those that see all.
_WINDOW, _ALL = "sliding_attention", "full_attention"

_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
}

_TENSORS = llama.TENSORS | {
    "blocks.{n}.attention.query_norm": "model.layers.{n}.self_attn.q_norm",
    "blocks.{n}.attention.key_norm": "model.layers.{n}.self_attn.k_norm",
    "blocks.{n}.norm_after_1": "model.layers.{n}.post_attention_layernorm",
    "blocks.{n}.norm_2": "model.layers.{n}.pre_feedforward_layernorm",
    "blocks.{n}.norm_after_2": "model.layers.{n}.post_feedforward_layernorm",
}


def _read(fields: ConfigFields) -> Architecture:
    for key in ("attn_logit_softcapping", "use_bidirectional_attention"):
        if fields.is_set(key):
            raise fields.unsupported(key)
    architecture = llama.read(fields, "hidden_activation")
    cap, has_bias = "final_logit_softcapping", fields.flag("attention_bias")
    return replace(
        architecture,
        attentions=_attentions(fields, architecture),
        has_attention_bias=has_bias,
        has_projection_bias=has_bias,
        has_query_key_norm=True,
        has_norms_after=True,
        norm_offset=1.0,
        embedding_scale=architecture.width**0.5,
        logit_cap=fields.positive(cap) if fields.has(cap) else None,
    )


def _attentions(fields: ConfigFields, architecture: Architecture) -> tuple[Attention, ...]:
    """Of the blocks that see a window, and of those that see all."""
    size, context = architecture.head_size, architecture.context
    tables = fields.inside("rope_parameters", {})
    # Older files name what turns queries and keys apart from each other.
    near, far = fields.positive("rope_local_base_freq"), fields.positive("rope_theta")
    source, table = (fields, "rope_scaling") if fields.is_set("rope_scaling") else (tables, _ALL)
    scale = fields.positive("query_pre_attn_scalar") ** -0.5
    window = fields.size("sliding_window") if fields.has("sliding_window") else None
    kinds = {
        _WINDOW: Attention(
            scale, read_rotary(tables, _WINDOW, size, base=near, context=context), window
        ),
        _ALL: Attention(scale, read_rotary(source, table, size, base=far, context=context)),
    }
    if fields.has("layer_types"):
        names = fields.words("layer_types", architecture.layers)
    else:
        every = fields.size("sliding_window_pattern")
        names = [_WINDOW if (n + 1) % every else _ALL for n in range(architecture.layers)]
    if not set(names) <= set(kinds):
        raise fields.unsupported("layer_types")
    return tuple(kinds[name] for name in names)


GEMMA3 = Family(_DEFAULTS, _read, "model.", _TENSORS)
