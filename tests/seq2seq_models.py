"""Tiny models of an encoder and a decoder with random weights, and the tokenizers they come with.

Invariant: each has special tokens where the real ones have them, T5 one after a text and BART one
on both sides.
"""

from pathlib import Path
from typing import Any

import torch
import transformers
from random_models import SENTENCES, randomize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

# With dropout, whether so small a model learns to copy depends on the processor's rounding.
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 2, "dropout_rate": 0.0}
_BART = {"d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40, "encoder_layers": 2}
_BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 2, "decoder_layers": 3}

SEQ2SEQ: dict[str, Any] = {
    "t5": transformers.T5Config(**_T5, decoder_start_token_id=0, n_positions=200),
    "t5, gated, untied, deeper decoder": transformers.T5Config(
        **_T5, num_decoder_layers=3, feed_forward_proj="gated-gelu", tie_word_embeddings=False
    ),
    "bart": transformers.BartConfig(**_BART, max_position_embeddings=200),
    "bart, forced beginning": transformers.BartConfig(**_BART, forced_bos_token_id=0),
}


def t5_tokenizer() -> Any:
    """SentencePiece-like: words begin with U+2581; `</s>` follows a text."""
    text = " ".join(SENTENCES)
    words = {f"\u2581{word}": -6.0 for word in text.split()}
    letters = dict.fromkeys((*text.replace(" ", ""), "▁"), -4.0)
    pieces = sorted((letters | words).items())  # training one would give another each time
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    tokenizer = Tokenizer(models.Unigram([*special, *pieces], unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="</s>"
    )


def bart_tokenizer() -> Any:
    """Bytes; `<s>` before a text and `</s>` after it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def write_seq2seq(shape: str, folder: Path) -> Any:
    """Write a model of a shape with its tokenizer; returns transformers' model."""
    tokenizer = t5_tokenizer() if shape.startswith("t5") else bart_tokenizer()
    config = SEQ2SEQ[shape].to_dict() | {"vocab_size": max(tokenizer.vocab.values()) + 1}
    model = transformers.AutoModelForSeq2SeqLM.from_config(
        transformers.AutoConfig.for_model(**config)
    )
    randomize(model, seed=3)
    with torch.no_grad():  # so that a reply is not one token again and again
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter *= 0.2
            elif "norm" in name:
                parameter += 1
            elif "embed" not in name and "shared" not in name:
                parameter *= 2
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model
