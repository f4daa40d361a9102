"""Feedback as tokens: both replies of a preference behind one prompt, or a reply with a verdict.

Keep: of a sequence the last reply alone is a response; what was said before it is prompt, and
both sequences of a pair have the same prompt, token for token, however it had to be cut.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chatapp.engine.model import Tokenizer
from chatapp.prompting.chat_template import Template
from finetune.config import TooLong
from finetune.data.chats import Span
from finetune.data.encoding import Encoded, ExampleEncoder
from finetune.data.formats import TrainingExample
from finetune.data.preferences import Judged, Verdict


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPair:
    """A preference as tokens. split_key: of its prompt. is_cut: whether the prompt is shorter."""

    chosen: Encoded
    rejected: Encoded
    key: str
    split_key: str
    margin: float = 0.0
    is_cut: bool = False

    @property
    def content(self) -> bytes:
        return self.chosen.content + self.rejected.content + np.float64(self.margin).tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class EncodedVerdict:
    """A reply that was judged as tokens. split_key: of its prompt."""

    reply: Encoded
    desirable: bool
    key: str
    split_key: str
    is_cut: bool = False

    @property
    def content(self) -> bytes:
        return self.reply.content + bytes([self.desirable])


EncodedJudged = EncodedPair | EncodedVerdict


class PairEncoder:
    """Encodes feedback row by row; see `ExampleEncoder` for what is given and counted."""

    def __init__(
        self,
        template: Template,
        tokenizer: Tokenizer,
        length: int,
        too_long: TooLong,
        start: Sequence[int],
    ) -> None:
        self.length, self.too_long = length, too_long
        self._whole = ExampleEncoder(template, tokenizer, sys.maxsize, "raise", start)
        self._fitting = ExampleEncoder(template, tokenizer, length, too_long, start)

    @property
    def truncated(self) -> Counter[str]:
        return self._fitting.truncated

    @property
    def turns_left_out(self) -> int:
        return self._fitting.turns_left_out

    def encode(self, judged: Judged) -> list[EncodedJudged]:
        """Raises ExampleTooLong, and BadRow when the template refuses the chat."""
        if isinstance(judged, Verdict):
            (reply,), is_cut = self._encode([judged.reply])
            return [EncodedVerdict(reply, judged.desirable, judged.key, judged.prompt_key, is_cut)]
        (chosen, rejected), is_cut = self._encode([judged.chosen, judged.rejected])
        return [
            EncodedPair(
                chosen, rejected, judged.key, judged.prompt_key, judged.margin, is_cut=is_cut
            )
        ]

    def _encode(self, examples: Sequence[TrainingExample]) -> tuple[list[Encoded], bool]:
        """The sequences behind one prompt, and whether that had to be cut for the longest."""
        whole = [_last_reply(self._whole.encode(example)[-1]) for example in examples]
        if max(len(each.ids) for each in whole) <= self.length:
            return whole, False
        replies = [_reply_tokens(each) for each in whole]
        order = np.argsort(replies)[::-1].tolist()  # the longest reply says how it is cut
        cut = dict(enumerate(whole))
        counted = Counter(self.truncated), self.turns_left_out
        for number in order:
            encoded = self._fitting.encode(examples[number], max(replies) - replies[number])
            cut[number] = _last_reply(encoded[-1])
            if number == order[0]:
                counted = Counter(self.truncated), self.turns_left_out
        # What is cut for both is one row.
        self._fitting.truncated, self._fitting.turns_left_out = counted
        return [cut[number] for number in range(len(examples))], True


def as_verdicts(judged: Sequence[EncodedJudged]) -> list[EncodedVerdict]:
    """Verdicts as they are, and each preference as two: its chosen reply good, the other bad."""
    verdicts = []
    for each in judged:
        if isinstance(each, EncodedVerdict):
            verdicts.append(each)
        else:
            for reply, desirable in ((each.chosen, True), (each.rejected, False)):
                verdicts.append(
                    EncodedVerdict(reply, desirable, each.key, each.split_key, each.is_cut)
                )
    return verdicts


def _last_reply(encoded: Encoded) -> Encoded:
    """The same with its earlier replies as prompt."""
    spans = encoded.spans.copy()
    first = len(spans) - _reply_tokens(encoded)
    spans[:first][spans[:first] == Span.RESPONSE] = Span.PROMPT
    return Encoded(encoded.ids, spans, encoded.key)


def _reply_tokens(encoded: Encoded) -> int:
    """Tokens of the last reply, which ends the sequence."""
    others = np.flatnonzero(encoded.spans != Span.RESPONSE)
    return len(encoded.spans) - (int(others[-1]) + 1 if len(others) else 0)
