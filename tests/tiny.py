"""A real GPT-2 of random weights, small enough to be made inside a test."""

import os

# Before tokenizers starts its threads: it warns when a test then starts a process.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from pathlib import Path

END = "<|endoftext|>"


def write_tiny_gpt2(folder: Path, *, context: int = 1024) -> Path:
    """Write a GPT-2 with its tokenizer as transformers does; returns `folder`.

    The words of the templates are one token each, as in a vocabulary made for chats. Bytes
    beyond ASCII have no token, so that what the model draws at random is always text.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = [*map(chr, range(0x21, 0x7F)), "Ġ", "Ċ"]  # the latter are space and newline
    trainer = trainers.BpeTrainer(
        vocab_size=130,
        special_tokens=[END],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(["User:\nAssistant:\n"] * 4, trainer)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=tokenizer.get_vocab_size(),
        n_positions=context,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


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
