"""Transformer-XL (Dai et al. 2019), as `finetune pretrain` writes it.

With token embedding E of width H and L blocks:

    x⁰ = √H · E[ids]
    x  = norm₁(x + attention(x));  x = norm₂(x + mlp(x))      in each block
    mlp(x) = relu(x U + b) D + c
    logits = x Eᵀ + b

For attention with relative positions see `parts`. The paper computes a text in segments and
keeps the states of the last `mem_len` tokens as a memory. Each token sees equally many, so that is
a window over the keys and values of a cache, in any segments. Files of other programs, with
adaptive softmax, shared biases or a growing window, are refused.
"""

import math

from chatapp.engine.decoder.families.architecture import Architecture, BlockAttention, Checkpoint
from chatapp.engine.decoder.families.config_fields import ConfigFields

LONGEST = 4096
"""Tokens of a text in a chat: the model has no limit of its own, but caches do."""

_DEFAULTS = {
    "layer_norm_epsilon": 1e-5,
    "same_length": True,
    "untie_r": True,
    "tie_word_embeddings": True,
}

_BLOCK = "transformer.layers.{n}"

_TENSORS = {
    "embed": "transformer.word_emb.emb_layers.0",
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
    for key in ("cutoffs", "pre_lnorm", "attn_type"):
        if fields.is_set(key):
            raise fields.refused(key, "expected none, as a model trained here has it")
    for key in ("same_length", "untie_r", "tie_word_embeddings"):
        if not fields.flag(key):
            raise fields.refused(key, "expected true, as a model trained here has it")
    width, head_size = fields.size("d_model"), fields.size("d_head")
    window, farthest = fields.size("mem_len"), fields.size("clamp_len")
    heads = fields.size("n_head")
    return Architecture(
        width=width,
        heads=heads,
        key_value_heads=heads,
        head_size=head_size,
        inner=fields.size("d_inner"),
        vocabulary=fields.size("vocab_size"),
        context=LONGEST,
        attentions=(BlockAttention(head_size**-0.5, window=window),) * fields.size("n_layer"),
        norm="LayerNorm",
        epsilon=fields.fraction("layer_norm_epsilon"),
        activation="relu",
        is_gated=False,
        is_tied=True,
        has_mlp_bias=True,
        embedding_scale=math.sqrt(width),
        is_post_norm=True,
        farthest=farthest,
        has_output_bias=True,
    )


TRANSFO_XL = Checkpoint(_DEFAULTS, _read, "transformer.", _TENSORS)
