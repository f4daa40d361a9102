"""Mistral (Jiang et al. 2023): Llama in which a token may see the last tokens alone.

Keep: free of torch; a config.json that transformers reads in another way is refused.
"""

from dataclasses import replace

from chatapp.engine.decoder.architecture import Architecture
from chatapp.engine.decoder.config_fields import ConfigFields
from chatapp.engine.decoder.families import llama
from chatapp.engine.decoder.families.family import Family

_DEFAULTS = llama.DEFAULTS | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}


def _read_mistral(fields: ConfigFields) -> Architecture:
    architecture = llama.read(fields)
    window = fields.size("sliding_window") if fields.has("sliding_window") else None
    attentions = tuple(replace(each, window=window) for each in architecture.attentions)
    return replace(architecture, attentions=attentions)


MISTRAL = Family(_DEFAULTS, _read_mistral, "model.", llama.TENSORS)
