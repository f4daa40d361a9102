"""A GPT-2 of 124 million random weights; a small one where benchmarks are only tried."""

from pathlib import Path

from scale import sized

SHAPE = sized({}, {"n_layer": 1, "n_embd": 16, "n_head": 2})


def gpt2_124m(folder: Path) -> Path:
    """A GPT-2 of random weights with its full vocabulary, of which only bytes are in text."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*alphabet, *(f"unused{number}" for number in range(50256 - 256)), "<|endoftext|>"]
    tokenizer = Tokenizer(models.BPE(vocab={name: id for id, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(names[-1:])
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(**SHAPE)).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
