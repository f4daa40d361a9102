"""A real GPT-2 of random weights, small enough to be made inside a test."""

import json
import os
import shutil

# Before tokenizers starts its threads: it warns when a test then starts a process.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from pathlib import Path

END = "<|endoftext|>"
SPREAD = 0.24
"""Of the weights: twelve times that of GPT-2, with which all logits are nearly the same."""


def write_tiny_gpt2(folder: Path, *, context: int = 1024) -> Path:
    """Write a GPT-2 with its tokenizer, as transformers writes them; returns `folder`.

    The words of the templates are one token each, as in a vocabulary made for chats. Bytes
    beyond ASCII have no token, so that what the model draws at random is always text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = [*map(chr, range(0x21, 0x7F)), "Ġ", "Ċ"]  # the latter are space and newline
    trainer = trainers.BpeTrainer(
        vocab_size=130, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["User:\nAssistant:\n"] * 4, trainer)
    _write_weights(folder, tokenizer.get_vocab_size(), context)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def changed(folder: str | Path, target: Path) -> str:
    """A copy of such a model in `target` whose first attention is another one; returns its path."""
    from safetensors.numpy import load_file, save_file

    shutil.copytree(folder, target, dirs_exist_ok=True)
    weights = load_file(target / "model.safetensors")
    (name,) = (name for name in weights if name.endswith("h.0.attn.c_attn.weight"))
    weights[name] = weights[name][::-1].copy() * 3
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    return str(target)


def _write_weights(folder: Path, vocabulary: int, context: int) -> None:
    """The files that `save_pretrained` writes, without the seconds that transformers' import takes.

    The matrices that add to the residual stream are smaller by the root of their number, as in
    `GPT2LMHeadModel`.
    """
    from numpy import float32, ones, zeros
    from numpy.random import default_rng
    from safetensors.numpy import save_file

    width, layers = 16, 2
    draw = default_rng(1)
    matrices = {"wte": (vocabulary, width), "wpe": (context, width)}
    biases, norms = {}, ["ln_f"]
    for layer in (f"h.{number}" for number in range(layers)):
        parts = {"attn.c_attn": 3, "attn.c_proj": 1, "mlp.c_fc": 4}
        matrices |= {f"{layer}.{name}": (width, size * width) for name, size in parts.items()}
        matrices[f"{layer}.mlp.c_proj"] = (4 * width, width)
        biases |= {f"{layer}.{name}": size * width for name, size in parts.items()}
        biases[f"{layer}.mlp.c_proj"] = width
        norms += [f"{layer}.ln_1", f"{layer}.ln_2"]
    weights = {f"{name}.bias": zeros(size, float32) for name, size in biases.items()}
    weights |= {f"{name}.bias": zeros(width, float32) for name in norms}
    weights |= {f"{name}.weight": ones(width, float32) for name in norms}
    for name, shape in matrices.items():
        scale = SPREAD / (2 * layers) ** 0.5 if name.endswith("c_proj") else SPREAD
        weights[f"{name}.weight"] = draw.normal(0, scale, shape).astype(float32)
    folder.mkdir(parents=True, exist_ok=True)
    named = {f"transformer.{name}": weight for name, weight in weights.items()}
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "dtype": "float32",
        "initializer_range": SPREAD,
        "layer_norm_epsilon": 1e-5,
        "n_embd": width,
        "n_head": 2,
        "n_layer": layers,
        "n_positions": context,
        "tie_word_embeddings": True,
        "vocab_size": vocabulary,
        **ends,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps(ends))


def write_tiny_reward_model(folder: Path, *, context: int = 1024) -> Path:
    """Write a reward model as finetune does, of random weights, for chats in the template `chat`;
    returns `folder`."""
    import torch
    from safetensors.torch import save_file

    from chatapp.engine.backends.head import HEAD_WEIGHTS, HeadSpec
    from chatapp.prompting.template import CHAT, save_template

    write_tiny_gpt2(folder, context=context)
    save_template(CHAT, folder)
    HeadSpec("reward", (), "").save(folder)
    layer = {"weight": torch.randn(1, 16), "bias": torch.zeros(1)}
    save_file(layer, folder / HEAD_WEIGHTS)
    return folder
