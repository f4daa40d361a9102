"""GPT-NeoX (Black et al. 2022), the architecture of Pythia.

Differences from GPT-2: some of the components of queries and keys are rotated by their position, so
no position is added to the embeddings; attention and MLP read the same states, unless the config
disables it; the output matrix is not tied.

    x⁰ = E[ids]
    x  = x + attention(norm₁(x)) + mlp(norm₂(x))              in each block
    mlp(x) = gelu(x U + b) D + c
    logits = norm(x) Oᵀ
"""

from typing import TYPE_CHECKING

from chatapp.engine.decoder.families.architecture import (
    ACTIVATIONS,
    Architecture,
    BlockAttention,
    Checkpoint,
    Family,
    WeightPart,
)
from chatapp.engine.decoder.families.config_fields import ConfigFields
from chatapp.engine.decoder.families.gguf_row import (
    BASE,
    SIZES,
    Config,
    GGUFRow,
    Keys,
    TensorChange,
)
from chatapp.engine.decoder.families.rotary import read_rotary

if TYPE_CHECKING:
    from torch import Tensor

_DEFAULTS = {
    "vocab_size": 50432,
    "hidden_size": 6144,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "intermediate_size": 24576,
    "hidden_act": "gelu",
    "rotary_pct": 0.25,
    "rotary_emb_base": 10_000,
    "max_position_embeddings": 2048,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "use_parallel_residual": True,
    "attention_bias": True,
}

_TENSORS = {
    "embed": "gpt_neox.embed_in",
    "blocks.{n}.norm_1": "gpt_neox.layers.{n}.input_layernorm",
    "blocks.{n}.attention.query_key_value": "gpt_neox.layers.{n}.attention.query_key_value",
    "blocks.{n}.attention.projection": "gpt_neox.layers.{n}.attention.dense",
    "blocks.{n}.norm_2": "gpt_neox.layers.{n}.post_attention_layernorm",
    "blocks.{n}.mlp.expand": "gpt_neox.layers.{n}.mlp.dense_h_to_4h",
    "blocks.{n}.mlp.contract": "gpt_neox.layers.{n}.mlp.dense_4h_to_h",
    "norm": "gpt_neox.final_layer_norm",
    "head": "embed_out",
}


def _read(fields: ConfigFields) -> Architecture:
    width, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    if width % heads:
        raise fields.refused("hidden_size", f"expected a multiple of the {heads} heads")
    head_size, context = width // heads, fields.size("max_position_embeddings")
    rotary = read_rotary(
        fields,
        "rope_scaling" if fields.is_set("rope_scaling") else "rope_parameters",
        head_size,
        base=fields.positive("rotary_emb_base"),
        context=context,
        share=fields.positive("rotary_pct"),
    )
    has_bias = fields.flag("attention_bias")
    return Architecture(
        width=width,
        heads=heads,
        key_value_heads=heads,
        head_size=head_size,
        inner=fields.size("intermediate_size"),
        vocabulary=fields.size("vocab_size"),
        context=context,
        attentions=(BlockAttention(head_size**-0.5, rotary),) * fields.size("num_hidden_layers"),
        norm="LayerNorm",
        epsilon=fields.fraction("layer_norm_eps"),
        activation=fields.choice("hidden_act", ACTIVATIONS),
        is_gated=False,
        is_tied=fields.flag("tie_word_embeddings"),
        has_attention_bias=has_bias,
        has_projection_bias=has_bias,
        has_mlp_bias=True,
        is_parallel=fields.flag("use_parallel_residual"),
    )


def _arrange(architecture: Architecture, part: WeightPart, tensor: "Tensor") -> "Tensor":
    """Queries of all heads, then keys, then values; checkpoints have the three head by head."""
    if ".query_key_value." not in part.name:
        return tensor
    heads, size = architecture.heads, architecture.head_size
    return tensor.view(heads, 3, size, -1).transpose(0, 1).reshape(tensor.shape)


def _read_gguf(keys: Keys, config: Config) -> None:
    width = config["hidden_size"] // config["num_attention_heads"]
    config["rotary_pct"] = config.pop("rotary_dimensions") / width
    config["rotary_emb_base"] = config.pop("rope_theta", BASE)


def _spell_out(config: Config) -> None:
    del config["head_dim"]  # it rotates a part of each head, so its files contain no head size


def _change(config: Config, tensor: str) -> TensorChange:
    """A file has all queries first, then keys, then values; checkpoints have them head by head."""
    if "attn_qkv." not in tensor:
        return TensorChange()
    return TensorChange(rows=(config["num_attention_heads"], 3, -1), swapped=(0, 1))


GPT_NEOX = Family(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    GGUFRow(
        "gptneox",
        {
            **SIZES,
            "rope.dimension_count": "rotary_dimensions",
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "use_parallel_residual": "use_parallel_residual",
        },
        {"rope.freq_base": "rope_theta"},
        {"hidden_act": "gelu"},
        read=_read_gguf,
        spell_out=_spell_out,
        change=_change,
    ),
    Checkpoint(_DEFAULTS, _read, "gpt_neox.", _TENSORS, arrange=_arrange),
)
