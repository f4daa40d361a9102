"""Transformer-XL (Dai et al. 2019), in the layout of transformers before 5.

With token embedding E of width H and L blocks:

    x⁰ = √H · E[ids]
    x  = norm₁(x + attention(x));  x = norm₂(x + mlp(x))      in each block
    mlp(x) = relu(x U + b) D + c
    logits = x Eᵀ + b

Attention has relative positions, see `decoder.relative`. The paper computes a text in segments and
keeps the states of the last `mem_len` tokens as a memory. Where each token sees equally many
(`same_length`), that is a window over the keys and values of a cache, in any segments.

Invariant: no import of torch.
"""

import math

from chatapp.engine.decoder.families.architecture import Architecture, Attention
from chatapp.engine.decoder.families.config_fields import ConfigFields
from chatapp.engine.decoder.families.family import Checkpoint

LONGEST = 4096
"""Tokens of a text in a chat: the model has no limit of its own, but caches do."""

_DEFAULTS = {
    "vocab_size": 267735,
    "d_model": 1024,
    "n_head": 16,
    "d_head": 64,
    "d_inner": 4096,
    "n_layer": 18,
    "mem_len": 1600,
    "clamp_len": 1000,
    "div_val": 4,
    "cutoffs": [20000, 40000, 200000],
    "layer_norm_epsilon": 1e-5,
    "pre_lnorm": False,
    "attn_type": 0,
    "same_length": True,
    "untie_r": True,
    "tie_word_embeddings": True,
}

_BLOCK = "transformer.layers.{n}"

_TENSORS = {
    "embed": "transformer.word_emb.emb_layers.0",
    "biases": "transformer",
    "blocks.{n}.attention.query_key_value": f"{_BLOCK}.dec_attn.qkv_net",
    "blocks.{n}.attention.distances": f"{_BLOCK}.dec_attn.r_net",
    "blocks.{n}.attention.biases": f"{_BLOCK}.dec_attn",
    "blocks.{n}.attention.projection": f"{_BLOCK}.dec_attn.o_net",
    "blocks.{n}.norm_1": f"{_BLOCK}.dec_attn.layer_norm",
    "blocks.{n}.mlp.expand": f"{_BLOCK}.pos_ff.CoreNet.0",
    "blocks.{n}.mlp.contract": f"{_BLOCK}.pos_ff.CoreNet.3",
    "blocks.{n}.norm_2": f"{_BLOCK}.pos_ff.layer_norm",
    "output": "crit.out_layers.0",
    "head": "crit.out_layers.0",
}


def _read(fields: ConfigFields) -> Architecture:
    if fields.is_set("cutoffs"):
        raise fields.refused("cutoffs", "expected [], because no adaptive softmax is computed")
    for key in ("pre_lnorm", "attn_type"):
        if fields.is_set(key):
            raise fields.refused(key, "expected false or 0, as in the paper")
    width, head_size = fields.size("d_model"), fields.size("d_head")
    if fields.has("d_embed") and fields.size("d_embed") != width:
        raise fields.refused("d_embed", f"expected d_model, which is {width}")
    memory, farthest = fields.size("mem_len"), fields.size("clamp_len")
    heads = fields.size("n_head")
    # A token sees itself too, unless it counts among those of the memory.
    window = memory if fields.flag("same_length") else memory + 1
    return Architecture(
        width=width,
        heads=heads,
        key_value_heads=heads,
        head_size=head_size,
        inner=fields.size("d_inner"),
        vocabulary=fields.size("vocab_size"),
        context=LONGEST,
        attentions=(Attention(head_size**-0.5, window=window),) * fields.size("n_layer"),
        norm="LayerNorm",
        epsilon=fields.fraction("layer_norm_epsilon"),
        activation="relu",
        is_gated=False,
        is_tied=fields.flag("tie_word_embeddings"),
        has_mlp_bias=True,
        embedding_scale=math.sqrt(width),
        is_post_norm=True,
        farthest=farthest,
        has_shared_biases=not fields.flag("untie_r"),
        has_output_bias=True,
    )


TRANSFO_XL = Checkpoint(_DEFAULTS, _read, "transformer.", _TENSORS)
