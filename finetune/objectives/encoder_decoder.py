"""L2 of models with an encoder and a decoder, such as T5: the encoder reads what is before a reply,
and the decoder learns to write the reply.

Invariant: a row has one reply, its last tokens, and both parts read exactly what they read when a
chat generates it.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from finetune.config.sections import ConfigError
from finetune.data.batches import Tensors
from finetune.data.encoding import Encoded, Span

_NO_LABEL = -100


def replies_apart(examples: Sequence[Encoded]) -> list[Encoded]:
    """An example for each reply, which ends in it. Raises ConfigError for a plain text."""
    apart = []
    for example in examples:
        is_reply = example.spans == Span.RESPONSE
        if is_reply[0]:
            raise ConfigError(
                f"{example.location}: an encoder-decoder model learns replies to prompts, and "
                "this is a text without a prompt"
            )
        ends = [at for at, pair in enumerate(pairwise([*is_reply, False]), 1) if pair == (1, 0)]
        for end in ends:
            spans = example.spans[:end].copy()
            start = int(np.flatnonzero(spans != Span.RESPONSE)[-1]) + 1
            spans[:start][spans[:start] == Span.RESPONSE] = Span.PROMPT
            apart.append(replace(example, ids=example.ids[:end], spans=spans))
    return apart


def decoder_losses(
    call: nn.Module, batch: Tensors, opening: Sequence[int], end: Sequence[int], count: float
) -> tuple[Tensor, Tensor]:
    """The negative log-likelihood of the replies and the number of likeliest tokens, over `count`.

    opening: tokens before each reply of the decoder. end: tokens after each text of the encoder.
    """
    device = batch["input_ids"].device
    first, last = (torch.tensor(list(ids), device=device) for ids in (opening, end))
    read, replies = [], []
    for ids, mask in zip(batch["input_ids"], batch["response_mask"], strict=True):
        places = mask.nonzero()[:, 0]
        read.append(torch.cat([ids[: places[0] if len(places) else len(ids)], last]))
        replies.append(ids[mask])
    labels = pad_sequence(replies, batch_first=True, padding_value=_NO_LABEL)
    logits = call(
        input_ids=pad_sequence(read, batch_first=True),
        attention_mask=pad_sequence([torch.ones_like(ids) for ids in read], batch_first=True),
        decoder_input_ids=pad_sequence(
            [torch.cat([first, reply[:-1]]) for reply in replies], batch_first=True
        ),
        use_cache=False,
    ).logits[:, len(opening) - 1 :]
    nll = cross_entropy(logits.float().mT, labels, ignore_index=_NO_LABEL, reduction="sum")
    hits = (logits.argmax(2) == labels).sum()
    return nll / count, hits / count
