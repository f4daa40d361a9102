"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama whose queries, keys and values have a bias.

Keep: free of torch; a config.json that transformers reads in another way is refused.
"""

from dataclasses import replace

from chatapp.engine.decoder.architecture import Architecture
from chatapp.engine.decoder.config_fields import ConfigFields
from chatapp.engine.decoder.families import llama
from chatapp.engine.decoder.families.family import Family

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
    """The architecture with a window in those blocks that a config gives one. Raises ModelError."""
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
    attentions = tuple(replace(each, window=window if has else None) for each, has in pairs)
    return replace(architecture, attentions=attentions)


QWEN2 = Family(DEFAULTS, _read, "model.", llama.TENSORS)
