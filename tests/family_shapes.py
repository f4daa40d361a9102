"""Tiny models of every family that the decoder computes, in shapes that differ in all that counts.

Keep: each begins with its family's model type, and says after it what is special.
"""

from pathlib import Path
from typing import Any

import torch
import transformers
from random_models import randomize

_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 320,
    "vocab_size": 340,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}

_STRETCHED = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 5000.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 1000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 80,
    },
}

SHAPES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "llama, shared keys, tied": (
        transformers.LlamaConfig,
        {"tie_word_embeddings": True},
    ),
    "llama, all keys, untied, biased, wide heads": (
        transformers.LlamaConfig,
        {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True, "head_dim": 12},
    ),
    "llama, one key": (
        transformers.LlamaConfig,
        {"num_key_value_heads": 1, "num_hidden_layers": 3, "rms_norm_eps": 1e-3},
    ),
    "llama, linear": (transformers.LlamaConfig, {"rope_parameters": _STRETCHED["linear"]}),
    "llama, dynamic": (transformers.LlamaConfig, {"rope_parameters": _STRETCHED["dynamic"]}),
    "llama, llama3": (transformers.LlamaConfig, {"rope_parameters": _STRETCHED["llama3"]}),
    "llama, yarn": (transformers.LlamaConfig, {"rope_parameters": _STRETCHED["yarn"]}),
}


def make_family(shape: str, folder: Path) -> Any:
    """Write a random model of a shape to a folder; returns transformers' model."""
    config, changes = SHAPES[shape]
    model = transformers.AutoModelForCausalLM.from_config(config(**_SIZES | changes))
    randomize(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter += 1
    model.save_pretrained(folder)
    return model
