"""Tiny models of every family that the decoder computes, in shapes that differ in all that counts.

Invariant: each begins with its family's model type, and says after it what is special.
"""

from pathlib import Path
from typing import Any

import transformers
from random_models import add_usual_norms, randomize

_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 320,
    "vocab_size": 340,
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

START = 9
"""A token before each text: part of every pass, and of no prompt."""

SHAPES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "llama, shared keys, tied": (transformers.LlamaConfig, {"tie_word_embeddings": True}),
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
    "mistral, window": (transformers.MistralConfig, {"sliding_window": 11}),
    "mistral, window of one, tied": (
        transformers.MistralConfig,
        {"sliding_window": 1, "tie_word_embeddings": True, "head_dim": 16},
    ),
    "mistral, no window, one key": (
        transformers.MistralConfig,
        {"sliding_window": None, "num_key_value_heads": 1},
    ),
    "qwen2, tied": (transformers.Qwen2Config, {"tie_word_embeddings": True}),
    "qwen2, window in some blocks": (
        transformers.Qwen2Config,
        {
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
        },
    ),
    "qwen2, all keys, yarn": (
        transformers.Qwen2Config,
        {"num_key_value_heads": 4, "rope_parameters": _STRETCHED["yarn"]},
    ),
    "qwen3, tied": (transformers.Qwen3Config, {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3, all keys, biased": (
        transformers.Qwen3Config,
        {"head_dim": 8, "num_key_value_heads": 4, "attention_bias": True},
    ),
    "qwen3, window, one key, linear": (
        transformers.Qwen3Config,
        {
            "head_dim": 24,
            "num_key_value_heads": 1,
            "use_sliding_window": True,
            "sliding_window": 30,
            "max_window_layers": 0,
            "rope_parameters": _STRETCHED["linear"],
        },
    ),
    "gpt_neox, a quarter turned": (
        transformers.GPTNeoXConfig,
        {"num_attention_heads": 2, "intermediate_size": 64},
    ),
    "gpt_neox, one after the other, all turned, tied": (
        transformers.GPTNeoXConfig,
        {
            "use_parallel_residual": False,
            "tie_word_embeddings": True,
            "rope_parameters": _STRETCHED["linear"] | {"partial_rotary_factor": 1.0},
        },
    ),
    "gpt_neox, without biases, other gelu": (
        transformers.GPTNeoXConfig,
        {"attention_bias": False, "hidden_act": "gelu_new", "num_hidden_layers": 3},
    ),
    "gemma3_text, windows": (
        transformers.Gemma3TextConfig,
        {
            "num_hidden_layers": 3,
            "head_dim": 16,
            "sliding_window": 13,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gemma3_text, capped, one key, untied": (
        transformers.Gemma3TextConfig,
        {
            "head_dim": 8,
            "num_key_value_heads": 1,
            "final_logit_softcapping": 3.0,
            "tie_word_embeddings": False,
            "query_pre_attn_scalar": 20,
            "sliding_window": 40,
        },
    ),
    "gemma3_text, stretched, biased": (
        transformers.Gemma3TextConfig,
        {
            "head_dim": 8,
            "num_key_value_heads": 4,
            "attention_bias": True,
            "sliding_window": 25,
            "layer_types": ["full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": _STRETCHED["linear"],
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
}

_GPT2_SIZES = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 320, "vocab_size": 340}
GPT2_SHAPES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "gpt2, tied": (transformers.GPT2Config, {}),
    "gpt2, untied, wide inner layer": (
        transformers.GPT2Config,
        {"n_layer": 3, "n_head": 2, "n_embd": 48, "n_inner": 80, "tie_word_embeddings": False},
    ),
    "gpt2, scaled by layer": (
        transformers.GPT2Config,
        {
            "n_layer": 4,
            "n_head": 8,
            "n_embd": 64,
            "scale_attn_by_inverse_layer_idx": True,
            "activation_function": "gelu_pytorch_tanh",
            "layer_norm_epsilon": 1e-3,
        },
    ),
    "gpt2, unscaled, exact gelu": (
        transformers.GPT2Config,
        {"scale_attn_weights": False, "activation_function": "gelu"},
    ),
}


def make_family(shape: str, folder: Path) -> Any:
    """Write a random model of a shape to a folder; returns transformers' model."""
    config, changes = (SHAPES | GPT2_SHAPES)[shape]
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    sizes = (_SIZES if shape in SHAPES else _GPT2_SIZES) | ends
    model = transformers.AutoModelForCausalLM.from_config(config(**sizes | changes))
    randomize(model)
    add_usual_norms(model)
    model.save_pretrained(folder)
    return model
