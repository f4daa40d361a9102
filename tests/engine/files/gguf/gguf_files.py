"""GGUF files of random weights, written by the gguf package as converters to it write them."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from random_models import END, randomize
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

Keys = Mapping[str, Any]
Tensors = Mapping[str, Tensor]
More = Callable[[GGUFWriter], None]

IDS = [5, 300, 17, 8, 250, 33, 9, 9, 120, 44]

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}"


def write_file(
    path: Path, keys: Keys, tensors: Tensors, kind: str = "F32", *, more: More, of_part: int = 0
) -> Path:
    """A file with these keys and tensors, of which matrices are stored as `kind`.

    keys: `general.architecture` among them. of_part: the most tensors of a part, if in several.
    """
    writer = GGUFWriter(path, keys["general.architecture"], split_max_tensors=of_part)
    for key, value in keys.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif key != "general.architecture":
            writer.add_string(key, value)
    more(writer)
    for name, tensor in tensors.items():
        chosen = GGMLQuantizationType[kind if tensor.ndim > 1 else "F32"]
        stored = gguf.quants.quantize(tensor.detach().contiguous().numpy(), chosen)
        writer.add_tensor(name, stored, raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def vocabulary(tokenizer: Tokenizer, template: str = TEMPLATE) -> More:
    """Adds a byte-level vocabulary that is cut as GPT-2's is, with a chat template."""

    def add(writer: GGUFWriter) -> None:
        tokens = sorted(tokenizer.get_vocab(), key=tokenizer.token_to_id)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types([3 if token == END else 1 for token in tokens])
        merges = json.loads(tokenizer.to_str())["model"]["merges"]
        writer.add_token_merges([" ".join(pair) for pair in merges])
        writer.add_eos_token_id(tokenizer.token_to_id(END))
        writer.add_chat_template(template)

    return add


def stored_as(tensors: Tensors, kind: str) -> dict[str, Tensor]:
    """The weights that a file holds whose matrices were written as `kind`."""
    chosen = GGMLQuantizationType[kind]
    return {
        name: torch.from_numpy(
            gguf.quants.dequantize(
                gguf.quants.quantize(tensor.detach().contiguous().numpy(), chosen), chosen
            )
        )
        if tensor.ndim > 1
        else tensor
        for name, tensor in tensors.items()
    }


GPT2_KEYS = {
    "general.architecture": "gpt2",
    "gpt2.block_count": 2,
    "gpt2.context_length": 64,
    "gpt2.embedding_length": 32,
    "gpt2.feed_forward_length": 128,
    "gpt2.attention.head_count": 4,
    "gpt2.attention.layer_norm_epsilon": 1e-5,
}
GPT2_NAMES = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}

LLAMA_KEYS = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 5000.0,
    "llama.rope.dimension_count": 16,
}
LLAMA_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_gpt2() -> Any:
    config = GPT2Config(n_layer=2, n_head=4, n_embd=32, n_positions=64, vocab_size=340)
    return randomize(GPT2LMHeadModel(config))


def gpt2_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """GPT-2's as converters write them: matrices (out, in), the output matrix left out."""
    state = model.transformer.state_dict()
    yield "token_embd.weight", state["wte.weight"]
    yield "position_embd.weight", state["wpe.weight"]
    for kind in ("weight", "bias"):
        yield f"output_norm.{kind}", state[f"ln_f.{kind}"]
        for block in range(2):
            for name, stored in GPT2_NAMES.items():
                tensor = state[f"h.{block}.{name}.{kind}"]
                yield f"blk.{block}.{stored}.{kind}", tensor.t() if tensor.ndim == 2 else tensor


def tiny_llama() -> Any:
    config = LlamaConfig(
        num_hidden_layers=2,
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        vocab_size=340,
        rms_norm_eps=1e-5,
        rope_theta=5000.0,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return randomize(LlamaForCausalLM(config))


def llama_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Llama's as converters write them: rows of queries and keys that turn together are
    neighbours."""
    state = model.state_dict()
    yield "token_embd.weight", state["model.embed_tokens.weight"]
    yield "output.weight", state["lm_head.weight"]
    yield "output_norm.weight", state["model.norm.weight"]
    for block in range(2):
        for name, stored in LLAMA_NAMES.items():
            tensor = state[f"model.layers.{block}.{name}.weight"]
            heads = {"attn_q": 4, "attn_k": 2}.get(stored)
            if heads is not None:
                rows = np.arange(len(tensor)).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
                tensor = tensor[rows]
            yield f"blk.{block}.{stored}.weight", tensor
