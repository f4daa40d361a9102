"""The rows of objectives on replies: chats, plain texts and few-shot prompts.

Keep: every row begins with the special tokens that the model is prompted with in a chat.
"""

from functools import partial

import numpy as np

from chatapp.engine.generation import PieceTokenizer
from chatapp.prompting.chat_template import Template
from finetune.config import FinetuneConfig
from finetune.data.batches import collate
from finetune.data.chats import Span
from finetune.data.encoding import Encoded
from finetune.data.packing import Rows, aux_labels, response_labels
from finetune.data.preparation import prepare
from finetune.objective_settings import AuxSpan
from finetune.objectives.objective import RowSets

# Rows of several examples are made this long when no example is longer: attention costs more
# the longer a row, and at this length hardly any of it stays empty.
PACKED_LENGTH = 512


def prepare_chats(
    config: FinetuneConfig,
    template: Template,
    tokenizer: PieceTokenizer,
    window: int,
    start: list[int],
    span: AuxSpan,
) -> RowSets:
    """The chats, texts and few-shot prompts of a configuration as rows. Raises ConfigError.

    window: tokens of the longest example. start: special tokens before every sequence.
    span: the tokens of L1.
    """
    prepared = prepare(config.data, template, tokenizer, window, config.seed, start)
    examples = with_start(prepared.train, start)
    if config.data.packing:
        longest = max(len(each.ids) for each in examples)
        limit = min(PACKED_LENGTH, config.data.max_length or window)
        train = Rows.packed(examples, span, max(longest, limit), config.seed)
    else:
        train = Rows(examples, span)
    return RowSets(
        train=train,
        held_out={
            name: Rows(with_start(kept, start), span) for name, kept in prepared.held_out.items()
        },
        collate=partial(collate, pad_id=tokenizer.end_id),
        examples=len(examples),
        dropped=prepared.report.dropped,
        hashes=prepared.report.hashes,
        response_labels=sum(int(response_labels(each).sum()) for each in examples),
        aux_labels=sum(int(aux_labels(each, span).sum()) for each in examples),
        report=prepared.report,
    )


def with_start(examples: list[Encoded], start: list[int]) -> list[Encoded]:
    """The examples behind the special tokens that the model is prompted with in a chat."""
    if not start:
        return examples
    ids = np.array(start, dtype=np.int32)
    spans = np.full(len(start), Span.TEMPLATE, dtype=np.uint8)
    return [
        Encoded(np.concatenate([ids, e.ids]), np.concatenate([spans, e.spans]), e.key)
        for e in examples
    ]
