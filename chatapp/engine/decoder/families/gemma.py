"""Gemma 3 (Gemma Team 2025), its text models, and the GGUF form of Gemma 1 to 3.

Differences from Llama: embeddings are scaled by √H; the outputs of attention and MLP are normalized
before they are added; each head's queries and keys are normalized; most blocks see a window of
tokens and rotate faster than the blocks that see all; norms store their weights minus 1; the gate
is a gelu.

    x⁰ = √H E[ids]
    x  = x + norm₃(attention(norm₁(x)));  x = x + norm₄(mlp(norm₂(x)))      in each block
    mlp(x) = (gelu(x G) ∘ (x U)) D
    logits = norm(x) Eᵀ                                       soft-capped, if configured
"""

from dataclasses import replace

from chatapp.engine.decoder.families import gguf_row, llama
from chatapp.engine.decoder.families.architecture import (
    Architecture,
    BlockAttention,
    Checkpoint,
    Family,
)
from chatapp.engine.decoder.families.config_fields import ConfigFields
from chatapp.engine.decoder.families.gguf_row import Config, GGUFRow, Keys, shifted_norms
from chatapp.engine.decoder.families.rotary import read_rotary

# The names in configs of blocks that see a window, and of those that see all.
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


def _attentions(fields: ConfigFields, architecture: Architecture) -> tuple[BlockAttention, ...]:
    """The attention of the blocks that see a window, and of those that see all."""
    size, context = architecture.head_size, architecture.context
    tables = fields.inside("rope_parameters", {})
    # Older files have separate names for the two rotations.
    near, far = fields.positive("rope_local_base_freq"), fields.positive("rope_theta")
    source, table = (fields, "rope_scaling") if fields.is_set("rope_scaling") else (tables, _ALL)
    scale = fields.positive("query_pre_attn_scalar") ** -0.5
    window = fields.size("sliding_window") if fields.has("sliding_window") else None
    kinds = {
        _WINDOW: BlockAttention(
            scale, read_rotary(tables, _WINDOW, size, base=near, context=context), window
        ),
        _ALL: BlockAttention(scale, read_rotary(source, table, size, base=far, context=context)),
    }
    if fields.has("layer_types"):
        names = fields.words("layer_types", architecture.layers)
    else:
        names = _kinds(architecture.layers, fields.size("sliding_window_pattern"))
    if not set(names) <= set(kinds):
        raise fields.unsupported("layer_types")
    return tuple(kinds[name] for name in names)


def _kinds(blocks: int, every: int) -> list[str]:
    """Every nth block sees all of the text, the others a window."""
    return [_WINDOW if (block + 1) % every else _ALL for block in range(blocks)]


_WINDOW_KEY = {"attention.sliding_window": "sliding_window"}
_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_GGUF = GGUFRow(
    "gemma",
    gguf_row.FIELDS,
    gguf_row.OPTIONAL,
    {"hidden_activation": "gelu_pytorch_tanh"},
    read=gguf_row.read_rotary,
    change=shifted_norms,
)


def _read_gemma2(keys: Keys, config: Config) -> None:
    gguf_row.read_rotary(keys, config)
    config["query_pre_attn_scalar"] = _attention_scale(config, blocks_of_largest=46)
    config.setdefault("sliding_window", 4096)
    config.setdefault("attn_logit_softcapping", 50.0)
    config.setdefault("final_logit_softcapping", 30.0)
    config["layer_types"] = _kinds(config["num_hidden_layers"], every=2)


def _read_gemma3(keys: Keys, config: Config) -> None:
    gguf_row.read_rotary(keys, config)
    config["query_pre_attn_scalar"] = _attention_scale(config, blocks_of_largest=62)
    config["layer_types"] = _kinds(config["num_hidden_layers"], every=6)
    config["rope_local_base_freq"] = keys.value("rope.freq_base_swa") or gguf_row.BASE


def _attention_scale(config: Config, *, blocks_of_largest: int) -> int:
    """The largest model of a generation divides by its width per head."""
    if config["num_hidden_layers"] == blocks_of_largest:
        return int(config["hidden_size"] // config["num_attention_heads"])
    return int(config["head_dim"])


GEMMA = Family("gemma", "GemmaForCausalLM", _GGUF)

GEMMA2 = Family(
    "gemma2",
    "Gemma2ForCausalLM",
    replace(
        _GGUF,
        architecture="gemma2",
        optional=gguf_row.OPTIONAL | _WINDOW_KEY | _CAPS,
        read=_read_gemma2,
    ),
)

GEMMA3 = Family(
    "gemma3_text",
    "Gemma3ForCausalLM",
    replace(
        _GGUF,
        architecture="gemma3",
        fields=gguf_row.FIELDS | _WINDOW_KEY,
        optional=gguf_row.OPTIONAL | _CAPS,
        read=_read_gemma3,
    ),
    Checkpoint(_DEFAULTS, _read, "model.", _TENSORS),
)
