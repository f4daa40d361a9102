"""Replies of the student in place of those of the rows, for distillation on its own samples.

Invariant: whether an example's reply is replaced, and by which, depends only on the current
weights, the seed, the step and the example, not on how the step is cut, so a continued run draws
the same.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast
from zlib import crc32

import numpy as np

from chatapp.engine.model import Request, Sampling
from finetune.data.batches import Tensors, TrainingRows
from finetune.data.encoding import Encoded, Span, last_response
from finetune.data.packing import Rows
from finetune.objectives.distillation import Distillation
from finetune.training.rollouts import drawn_replies, packed_bins
from finetune.training.run_setup import RunSetup


class OwnReplies:
    """Replaces a share of the last replies of a step; see `Draws`."""

    def __init__(self, setup: RunSetup) -> None:
        self.setup, self.objective = setup, cast(Distillation, setup.objective)

    def __call__(
        self, batches: Sequence[Tensors], rows: TrainingRows, step: int | None
    ) -> list[Tensors]:
        """Batches with the student's replies in them; to evaluate, with step None, the same ones.

        A text without a prompt, and a prompt that fills the window, keep the reply of the row.
        Raises ModelError when a reply cannot be drawn.
        """
        if step is None:
            return list(batches)
        sets = [list(_examples(batch)) for batch in batches]
        requests = [self._request(example, step) for examples in sets for example in examples]
        self.setup.model.eval()
        replies = drawn_replies(self.setup, [request for request in requests if request])
        planned = iter(requests)
        return [
            self._batch(
                [
                    _with_reply(example, next(replies).ids) if next(planned) else example
                    for example in examples
                ],
                batch,
            )
            for examples, batch in zip(sets, batches, strict=True)
        ]

    def _request(self, example: Encoded, step: int) -> Request | None:
        """What to draw for an example; None where the row's own reply stays."""
        config, skip = self.objective.config, len(self.setup.start)
        prompt = example.ids[skip : last_response(example.spans).start].tolist()
        room = min(config.max_tokens, self.objective.window - len(prompt))
        draw = np.random.default_rng([self.setup.config.seed, step, crc32(example.ids.tobytes())])
        # A first token is never a label, so a text without a prompt seems to have one of one token.
        if len(prompt) < 2 or room < 1 or draw.random() >= config.own_replies:
            return None
        sampling = Sampling(
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            max_tokens=room,
            max_repeats=0,
            seed=int(draw.integers(2**32)),
        )
        return Request(prompt, sampling, self.setup.stops)

    def _batch(self, examples: Sequence[Encoded], batch: Tensors) -> Tensors:
        """Examples as a micro-batch, packed if configured; without any, the batch as it was."""
        if not examples:
            return batch
        rows = Rows(examples, "prompt", packed_bins(examples, self.setup))
        return self.setup.data.collate([rows[index] for index in range(len(rows))])

    def save(self, checkpoint: Path, process: int) -> None:
        """Every step draws anew; there is nothing to store."""

    def load(self, checkpoint: Path, process: int) -> None:
        """See `save`."""


def _examples(batch: Tensors) -> Iterator[Encoded]:
    """The examples of a batch that have labels, in their order."""
    for ids, members, labels in zip(
        batch["input_ids"], batch["example_ids"], batch["response_mask"], strict=True
    ):
        for number in range(1, int(members.max()) + 1):
            here = members == number
            if labels[here].any():
                spans = np.where(labels[here].numpy(), Span.RESPONSE, Span.PROMPT)
                yield Encoded(ids[here].numpy().astype(np.int32), spans.astype(np.uint8), "")


def _with_reply(example: Encoded, reply: Sequence[int]) -> Encoded:
    begin = last_response(example.spans).start
    ids = np.concatenate([example.ids[:begin], np.array(reply, np.int32)])
    spans = np.full(len(ids), Span.RESPONSE, np.uint8)
    spans[:begin] = example.spans[:begin]
    return Encoded(ids, spans, example.key)
