"""The configuration in a GGUF file's metadata, in the words of a config.json.

Keep: a value that changes what the model computes is mapped exactly or refused by name, and what
an architecture's keys are called stands in `FAMILIES` alone, for reading and for writing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chatapp.common.userfiles import shown, suggestion
from chatapp.engine.errors import ModelError
from chatapp.engine.files.gguf.reader import GGUFFile

ARCHITECTURE = "general.architecture"

OTHER_ENDS = ("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
"""The keys of tokens that end a reply, besides the end of a text."""

Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models whose configuration and tensors are mapped here.

    model_type, class_name: transformers' names of it. fields: the key of config.json for each of
    the file's keys, which stand below the name of the architecture; all of them are needed.
    optional: keys that need not be there. fixed: what the file does not say because the
    architecture implies it. complete: adds what follows from several keys, or from the tensors.
    """

    model_type: str
    class_name: str
    fields: Mapping[str, str]
    optional: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    complete: Callable[["GGUFFile", Config], None] = lambda file, config: None


_SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
_ROTARY = {**_SIZES, "attention.layer_norm_rms_epsilon": "rms_norm_eps"}
_ROTARY_OPTIONAL = {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
}
_GEMMA = {"hidden_activation": "gelu_pytorch_tanh"}
_WINDOW = {"attention.sliding_window": "sliding_window"}
_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}


def _rotary(file: GGUFFile, config: Config) -> None:
    """Heads of a decoder with rotary positions, and how these are scaled."""
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    config.setdefault("rope_theta", 10000.0)
    kind = _value(file, "rope.scaling.type") or "none"
    factor = _value(file, "rope.scaling.factor")
    if kind == "linear" and factor not in (None, 1.0):
        config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        config["rope_scaling"] = {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": _value(
                file, "rope.scaling.original_context_length"
            ),
        }
    elif kind not in ("none", "linear"):
        raise _refused(file, "rope.scaling.type", "none, linear or yarn")
    if FACTORS in file.names:
        config["rope_scaling"] = _llama3_scaling(file, config)


FACTORS = "rope_freqs.weight"

LLAMA3_SCALING = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""How Llama 3.1 and 3.2 stretch their positions, the largest factor apart. A GGUF file holds what
each frequency is divided by, which follows from these."""


def frequency_factors(largest: float, base: float, width: int) -> NDArray[np.float32]:
    """What Llama 3 divides the (width / 2,) frequencies of its positions by.

    Waves longer than the original window by `low_freq_factor` are stretched by `largest`, those
    shorter than it by `high_freq_factor` are not, and between them it is interpolated.
    """
    lengths = 2 * np.pi * base ** (np.arange(0, width, 2) / width)
    low, high = LLAMA3_SCALING["low_freq_factor"], LLAMA3_SCALING["high_freq_factor"]
    turns = LLAMA3_SCALING["original_max_position_embeddings"] / lengths
    smooth = ((turns - low) / (high - low)).clip(0, 1)
    factors: NDArray[np.float32] = (1 / ((1 - smooth) / largest + smooth)).astype(np.float32)
    return factors


def _llama3_scaling(file: GGUFFile, config: Config) -> Config:
    """The scaling that gives the factors in the file. Raises ModelError when there is none."""
    factors = file.array(FACTORS)
    largest = float(factors.max())
    expected = frequency_factors(largest, config["rope_theta"], config["head_dim"])
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise ModelError(
            f"{file.path}: tensor {FACTORS!r} scales positions in a way that is not known here"
        )
    return {"rope_type": "llama3", "factor": largest, **LLAMA3_SCALING}


def _llama(file: GGUFFile, config: Config) -> None:
    if _value(file, "expert_count"):
        raise _refused(file, "expert_count", "none; a mixture of experts is not read")
    _rotary(file, config)
    config["attention_bias"] = "blk.0.attn_q.bias" in file.names
    config["mlp_bias"] = "blk.0.ffn_up.bias" in file.names


def _gemma2(file: GGUFFile, config: Config) -> None:
    _rotary(file, config)
    config["query_pre_attn_scalar"] = _attention_scale(config, blocks_of_largest=46)
    config.setdefault("sliding_window", 4096)
    config.setdefault("attn_logit_softcapping", 50.0)
    config.setdefault("final_logit_softcapping", 30.0)
    config["layer_types"] = _layer_types(config["num_hidden_layers"], every=2)


def _gemma3(file: GGUFFile, config: Config) -> None:
    _rotary(file, config)
    config["query_pre_attn_scalar"] = _attention_scale(config, blocks_of_largest=62)
    config["layer_types"] = _layer_types(config["num_hidden_layers"], every=6)
    config["rope_local_base_freq"] = _value(file, "rope.freq_base_swa") or 10000.0


def _attention_scale(config: Config, *, blocks_of_largest: int) -> int:
    """Of Gemma: the largest model of a generation divides by its width for a head."""
    if config["num_hidden_layers"] == blocks_of_largest:
        return int(config["hidden_size"] // config["num_attention_heads"])
    return int(config["head_dim"])


def _layer_types(blocks: int, *, every: int) -> list[str]:
    """Of Gemma: one block in so many sees all of the text, the others a window."""
    return [
        "sliding_attention" if (block + 1) % every else "full_attention" for block in range(blocks)
    ]


def _gpt_neox(file: GGUFFile, config: Config) -> None:
    width = config["hidden_size"] // config["num_attention_heads"]
    config["rotary_pct"] = config.pop("rotary_dimensions") / width
    config.setdefault("rope_theta", 10000.0)
    config["rotary_emb_base"] = config.pop("rope_theta")


FAMILIES: Mapping[str, Family] = {
    "gpt2": Family(
        "gpt2",
        "GPT2LMHeadModel",
        {
            "block_count": "n_layer",
            "context_length": "n_positions",
            "embedding_length": "n_embd",
            "feed_forward_length": "n_inner",
            "attention.head_count": "n_head",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        # A file says nothing of dropout, which transformers has a default for.
        fixed={
            "activation_function": "gelu_new",
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        },
    ),
    "llama": Family(
        "llama",
        "LlamaForCausalLM",
        _ROTARY,
        _ROTARY_OPTIONAL,
        {"hidden_act": "silu"},
        _llama,
    ),
    "qwen2": Family(
        "qwen2", "Qwen2ForCausalLM", _ROTARY, _ROTARY_OPTIONAL, {"hidden_act": "silu"}, _rotary
    ),
    "qwen3": Family(
        "qwen3", "Qwen3ForCausalLM", _ROTARY, _ROTARY_OPTIONAL, {"hidden_act": "silu"}, _rotary
    ),
    "gemma": Family("gemma", "GemmaForCausalLM", _ROTARY, _ROTARY_OPTIONAL, _GEMMA, _rotary),
    "gemma2": Family(
        "gemma2",
        "Gemma2ForCausalLM",
        _ROTARY,
        {**_ROTARY_OPTIONAL, **_WINDOW, **_CAPS},
        _GEMMA,
        _gemma2,
    ),
    "gemma3": Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        {**_ROTARY, **_WINDOW},
        {**_ROTARY_OPTIONAL, **_CAPS},
        _GEMMA,
        _gemma3,
    ),
    "gptneox": Family(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        {
            **_SIZES,
            "rope.dimension_count": "rotary_dimensions",
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "use_parallel_residual": "use_parallel_residual",
        },
        {"rope.freq_base": "rope_theta"},
        {"hidden_act": "gelu"},
        _gpt_neox,
    ),
}
"""The architectures that are mapped here, by their names in GGUF files."""


def read_config(file: GGUFFile) -> Config:
    """The configuration of the model in a file, as its config.json would say it.

    Of a file without tensors only the family. Raises ModelError for an architecture that is not
    known, and for keys that are missing or cannot be mapped.
    """
    architecture = file.metadata.get(ARCHITECTURE)
    if not isinstance(architecture, str):
        raise ModelError(
            f"{file.path}: {ARCHITECTURE} is {shown(architecture)}; expected a name such as 'llama'"
        )
    family = FAMILIES.get(architecture)
    if family is None:
        return _config_by_transformers(file, architecture)
    config: Config = {
        "model_type": family.model_type,
        "architectures": [family.class_name],
        **family.fixed,
    }
    if not file.names:
        return config
    for key, name in family.fields.items():
        config[name] = _number(file, key)
    for key, name in family.optional.items():
        if _value(file, key) is not None:
            config[name] = _number(file, key)
    config["vocab_size"] = file.shape("token_embd.weight")[0]
    config["tie_word_embeddings"] = "output.weight" not in file.names
    family.complete(file, config)
    return config | end_tokens(file)


def end_tokens(file: GGUFFile) -> Config:
    """The ids of the tokens that begin and end a text, in the words of a config.json."""
    metadata = file.metadata
    found = [metadata.get(key) for key in ("tokenizer.ggml.eos_token_id", *OTHER_ENDS)]
    ends = list(dict.fromkeys(id for id in found if isinstance(id, int)))
    return {
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }


def is_mapped(config: Config) -> bool:
    """Whether a configuration is of a family whose tensors are mapped here."""
    return any(family.model_type == config["model_type"] for family in FAMILIES.values())


def _config_by_transformers(file: GGUFFile, architecture: str) -> Config:
    """Of an architecture that only transformers maps."""
    from transformers import modeling_gguf_pytorch_utils

    known = {*FAMILIES, *modeling_gguf_pytorch_utils.GGUF_SUPPORTED_ARCHITECTURES}
    known -= {"general", "tokenizer"}
    if architecture not in known:
        raise ModelError(
            f"{file.path}: {ARCHITECTURE} is {architecture!r}, which is not known here"
            f"{suggestion(architecture, sorted(known))}"
        )
    try:
        loaded = modeling_gguf_pytorch_utils.load_gguf_checkpoint(str(file.path))
    except Exception as error:  # transformers lets many kinds through
        raise ModelError(f"{file.path}: its configuration cannot be read: {error}") from None
    config: Config = loaded["config"]
    return config


def _value(file: GGUFFile, key: str) -> Any:
    return file.metadata.get(f"{file.metadata[ARCHITECTURE]}.{key}")


def _number(file: GGUFFile, key: str) -> float | int | bool:
    value = _value(file, key)
    if not isinstance(value, int | float):
        raise _refused(file, key, "a number")
    return value


def _refused(file: GGUFFile, key: str, expected: str) -> ModelError:
    name = f"{file.metadata[ARCHITECTURE]}.{key}"
    value = file.metadata.get(name)
    if value is None:
        return ModelError(f"{file.path}: the key {name} is missing")
    return ModelError(f"{file.path}: {name} is {shown(value)}; expected {expected}")
