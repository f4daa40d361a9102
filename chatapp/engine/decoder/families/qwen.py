"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases for queries, keys and values.

Qwen3 (Yang et al. 2025): Llama that normalizes each head's queries and keys before their rotation.
"""

from dataclasses import replace

from chatapp.engine.decoder.families import gguf_row, llama
from chatapp.engine.decoder.families.architecture import Architecture, Checkpoint, Family
from chatapp.engine.decoder.families.config_fields import ConfigFields
from chatapp.engine.decoder.families.gguf_row import GGUFRow

DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}


def _read(fields: ConfigFields) -> Architecture:
    return replace(with_windows(llama.read(fields), fields), has_attention_bias=True)


def with_windows(architecture: Architecture, fields: ConfigFields) -> Architecture:
    """The architecture with a window in the blocks that a config selects. Raises ModelError."""
    if not fields.flag("use_sliding_window") or not fields.has("sliding_window"):
        return architecture
    window, layers = fields.size("sliding_window"), architecture.layers
    if fields.has("layer_types"):
        kinds = fields.words("layer_types", layers)
        has_window = [kind == "sliding_attention" for kind in kinds]
    else:
        first = fields.whole("max_window_layers")
        has_window = [layer >= first for layer in range(layers)]
    pairs = zip(architecture.attentions, has_window, strict=True)
    attentions = tuple(replace(part, window=window if has else None) for part, has in pairs)
    return replace(architecture, attentions=attentions)


def _gguf(architecture: str) -> GGUFRow:
    return GGUFRow(
        architecture,
        gguf_row.FIELDS,
        gguf_row.OPTIONAL,
        {"hidden_act": "silu"},
        read=gguf_row.read_rotary,
    )


QWEN2 = Family(
    "qwen2",
    "Qwen2ForCausalLM",
    _gguf("qwen2"),
    Checkpoint(DEFAULTS, _read, "model.", llama.TENSORS),
)


_DEFAULTS = DEFAULTS | {"head_dim": 128, "attention_bias": False}


_TENSORS = llama.TENSORS | {
    "blocks.{n}.attention.query_norm": "model.layers.{n}.self_attn.q_norm",
    "blocks.{n}.attention.key_norm": "model.layers.{n}.self_attn.k_norm",
}


def _read_qwen3(fields: ConfigFields) -> Architecture:
    has_bias = fields.flag("attention_bias")
    return replace(
        with_windows(llama.read(fields), fields),
        has_query_key_norm=True,
        has_attention_bias=has_bias,
        has_projection_bias=has_bias,
    )


QWEN3 = Family(
    "qwen3",
    "Qwen3ForCausalLM",
    _gguf("qwen3"),
    Checkpoint(_DEFAULTS, _read_qwen3, "model.", _TENSORS),
)
