"""Llama (Touvron et al. 2023) and models of its architecture: SmolLM, TinyLlama, Llama 3.x.

Differences from GPT-2: norms divide by the root mean square without subtracting the mean; queries
and keys are rotated by their position, so no position is added to the embeddings; several heads may
share keys and values; the MLP has a gate; there are no biases.

    x⁰ = E[ids]
    x  = x + attention(norm₁(x));  x = x + mlp(norm₂(x))      in each block
    mlp(x) = (silu(x G) ∘ (x U)) D
    logits = norm(x) Oᵀ                                       where O may be E

Mistral (Jiang et al. 2023) is a Llama in which a token may see only the last tokens.
"""

from dataclasses import replace

from chatapp.engine.decoder.families import gguf_row
from chatapp.engine.decoder.families.architecture import (
    ACTIVATIONS,
    Architecture,
    BlockAttention,
    Checkpoint,
    Family,
)
from chatapp.engine.decoder.families.config_fields import ConfigFields
from chatapp.engine.decoder.families.gguf_row import Config, GGUFRow, Keys, TensorChange
from chatapp.engine.decoder.families.rotary import Rotary, read_rotary

DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}

TENSORS: dict[str, str | tuple[str, ...]] = {
    "embed": "model.embed_tokens",
    "blocks.{n}.norm_1": "model.layers.{n}.input_layernorm",
    "blocks.{n}.attention.query_key_value": (
        "model.layers.{n}.self_attn.q_proj",
        "model.layers.{n}.self_attn.k_proj",
        "model.layers.{n}.self_attn.v_proj",
    ),
    "blocks.{n}.attention.projection": "model.layers.{n}.self_attn.o_proj",
    "blocks.{n}.norm_2": "model.layers.{n}.post_attention_layernorm",
    "blocks.{n}.mlp.expand": ("model.layers.{n}.mlp.gate_proj", "model.layers.{n}.mlp.up_proj"),
    "blocks.{n}.mlp.contract": "model.layers.{n}.mlp.down_proj",
    "norm": "model.norm",
    "head": "lm_head",
}


def read(fields: ConfigFields, activation: str = "hidden_act") -> Architecture:
    """Read the architecture of a config, without biases. Raises ModelError.

    activation: the key of the activation's name.
    """
    width, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    if not fields.has("head_dim") and width % heads:
        raise fields.refused("hidden_size", f"expected a multiple of the {heads} heads")
    head_size = fields.size("head_dim") if fields.has("head_dim") else width // heads
    shared = "num_key_value_heads"
    key_value_heads = fields.size(shared) if fields.has(shared) else heads
    if heads % key_value_heads:
        raise fields.refused(shared, f"expected a divisor of num_attention_heads, {heads}")
    attention = BlockAttention(head_size**-0.5, _rotary(fields, head_size))
    return Architecture(
        width=width,
        heads=heads,
        key_value_heads=key_value_heads,
        head_size=head_size,
        inner=fields.size("intermediate_size"),
        vocabulary=fields.size("vocab_size"),
        context=fields.size("max_position_embeddings"),
        attentions=(attention,) * fields.size("num_hidden_layers"),
        norm="RMSNorm",
        epsilon=fields.fraction("rms_norm_eps"),
        activation=fields.choice(activation, ACTIVATIONS),
        is_gated=True,
        is_tied=fields.flag("tie_word_embeddings"),
    )


def _rotary(fields: ConfigFields, head_size: int) -> Rotary:
    """The rotation of queries and keys; its keys depend on the age of the file."""
    if fields.has("partial_rotary_factor"):
        raise fields.unsupported("partial_rotary_factor")
    table = "rope_scaling" if fields.is_set("rope_scaling") else "rope_parameters"
    base, context = fields.positive("rope_theta"), fields.size("max_position_embeddings")
    return read_rotary(fields, table, head_size, base=base, context=context)


def _read(fields: ConfigFields) -> Architecture:
    has_bias = fields.flag("attention_bias")
    return replace(
        read(fields),
        has_attention_bias=has_bias,
        has_projection_bias=has_bias,
        has_mlp_bias=fields.flag("mlp_bias"),
    )


def _read_gguf(keys: Keys, config: Config) -> None:
    if keys.value("expert_count"):
        raise keys.refused("expert_count", "none; a mixture of experts is not read")
    gguf_row.read_rotary(keys, config)
    config["attention_bias"] = "blk.0.attn_q.bias" in keys.file.names
    config["mlp_bias"] = "blk.0.ffn_up.bias" in keys.file.names


def _change(config: Config, tensor: str) -> TensorChange:
    """Halves of each head's queries and keys, which are rotated together, are neighbours."""
    for part, heads in (("attn_q.", "num_attention_heads"), ("attn_k.", "num_key_value_heads")):
        if part in tensor:
            return TensorChange(rows=(config[heads], 2, -1), swapped=(1, 2))
    return TensorChange()


_GGUF = GGUFRow(
    "llama",
    gguf_row.FIELDS,
    gguf_row.OPTIONAL,
    {"hidden_act": "silu"},
    read=_read_gguf,
    change=_change,
)


LLAMA = Family(
    "llama",
    "LlamaForCausalLM",
    _GGUF,
    Checkpoint(DEFAULTS | {"attention_bias": False, "mlp_bias": False}, _read, "model.", TENSORS),
)


_DEFAULTS = DEFAULTS | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}


def _read_mistral(fields: ConfigFields) -> Architecture:
    architecture = read(fields)
    window = fields.size("sliding_window") if fields.has("sliding_window") else None
    attentions = tuple(replace(attention, window=window) for attention in architecture.attentions)
    return replace(architecture, attentions=attentions)


def _within_window(config: Config) -> None:
    """Within its window it is a Llama, and the file declares it as one."""
    if config["sliding_window"] is not None:
        context = min(config["max_position_embeddings"], config["sliding_window"])
        config["max_position_embeddings"] = context


MISTRAL = Family(
    "mistral",
    "MistralForCausalLM",
    replace(_GGUF, spell_out=_within_window),
    Checkpoint(_DEFAULTS, _read_mistral, "model.", TENSORS),
)
