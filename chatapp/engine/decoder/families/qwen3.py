"""Qwen3 (Yang et al. 2025): Llama that norms each head's queries and keys before they are turned.

Keep: free of torch; a config.json that transformers reads in another way is refused.
"""

from dataclasses import replace

from chatapp.engine.decoder.architecture import Architecture
from chatapp.engine.decoder.config_fields import ConfigFields
from chatapp.engine.decoder.families import llama, qwen2
from chatapp.engine.decoder.families.family import Family

_DEFAULTS = qwen2.DEFAULTS | {"head_dim": 128, "attention_bias": False}

_TENSORS = llama.TENSORS | {
    "blocks.{n}.attention.query_norm": "model.layers.{n}.self_attn.q_norm",
    "blocks.{n}.attention.key_norm": "model.layers.{n}.self_attn.k_norm",
}


def _read_qwen3(fields: ConfigFields) -> Architecture:
    has_bias = fields.flag("attention_bias")
    return replace(
        qwen2.with_windows(llama.read(fields), fields),
        has_query_key_norm=True,
        has_attention_bias=has_bias,
        has_projection_bias=has_bias,
    )


QWEN3 = Family(_DEFAULTS, _read_qwen3, "model.", _TENSORS)
