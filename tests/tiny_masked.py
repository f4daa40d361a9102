"""Tiny masked models from transformers' configs, with a WordPiece tokenizer of a few words."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "the capital of france is paris rome a cat dog sat on mat red blue . good bad film".split()
KINDS: dict[str, tuple[Any, Any]] = {
    "bert": (BertConfig, BertForMaskedLM),
    "distilbert": (DistilBertConfig, DistilBertForMaskedLM),
    "roberta": (RobertaConfig, RobertaForMaskedLM),
}


def save(folder: Path, kind: str = "bert") -> Any:
    """Write a model of 2 layers and 2 heads with random weights; return it."""
    torch.manual_seed(0)
    config, network = KINDS[kind]
    model = network(
        config(
            vocab_size=len(SPECIAL) + len(WORDS),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=24,
            max_position_embeddings=40,
            initializer_range=0.3,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            pad_token_id=int(kind == "roberta"),
            **({"hidden_dim": 24, "dropout": 0.0} if kind == "distilbert" else {}),
        )
    )
    model.save_pretrained(folder)
    vocabulary = {word: id for id, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(folder)
    return model.eval()
