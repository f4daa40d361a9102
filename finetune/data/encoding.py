"""Examples to token ids with a span a token, through the one renderer of a chat.

Keep: a response is never cut. The ids of an example are those a chat would have
at that point, text never becomes a special token, and an example that does not fit is made to
fit by its prompt or its oldest turns alone, and counted; or not at all.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from chatapp.engine.model import Tokenizer
from chatapp.prompting.messages import Message
from chatapp.prompting.segments import END_OF_TEXT, Segment
from chatapp.prompting.template import DialogueTemplate
from finetune.config import ConfigError, TooLong
from finetune.data.formats import TrainingExample
from finetune.data.split import content_key


class Span(IntEnum):
    """Where a token comes from."""

    TEMPLATE = 0
    """Instruction, markers and delimiters of the template."""
    PROMPT = 1
    """Text of system and user messages."""
    RESPONSE = 2
    """Text of the assistant, and the end-of-text token after it. A plain text is all response;
    of a few-shot prompt the answers are."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """An example as tokens.

    ids: int32, spans: uint8 (see `Span`), equally long. key: that of the row it comes from.
    """

    ids: NDArray[np.int32]
    spans: NDArray[np.uint8]
    key: str


class ExampleTooLong(ConfigError):
    """An example that does not fit and, under the policy chosen, cannot be made to."""


# A prompt cut to less than this tells nothing of what was asked.
_SHORTEST_PROMPT = 8

Piece = tuple[Span, list[int]]


class ExampleEncoder:
    """Encodes examples one by one, and counts what it had to shorten.

    length: the most tokens an example may have.
    truncated: examples made to fit, by how: "prompt", "history", "windows" (of a plain text).
    turns_left_out: messages that "history" took away.
    """

    def __init__(
        self,
        template: DialogueTemplate,
        tokenizer: Tokenizer,
        length: int,
        too_long: TooLong = "raise",
    ) -> None:
        self.template = template
        self.tokenizer = tokenizer
        self.length = length
        self.too_long = too_long
        self.truncated: Counter[str] = Counter()
        self.turns_left_out = 0
        # Markers are the same few texts in every example.
        self._encode_known = lru_cache(maxsize=64)(tokenizer.encode)

    def encode(self, example: TrainingExample) -> list[Encoded]:
        """One example for a chat or few-shot prompt; for a plain text as many windows as it fills.

        Raises ExampleTooLong.
        """
        if example.text:
            return self._windows(example)
        pieces = self._parts(example) if example.parts else self.pieces(example.messages)
        if _count(pieces) > self.length:
            pieces = self._shorten(example, pieces)
        ids = np.fromiter((id for _, ids in pieces for id in ids), np.int32)
        spans = np.array([span for span, _ in pieces], np.uint8)
        return [Encoded(ids, spans.repeat([len(ids) for _, ids in pieces]), example.key)]

    def pieces(self, messages: Sequence[Message]) -> list[Piece]:
        """A chat segment by segment, the last reply closed by the end-of-text token."""
        segments = self.template.render(messages)
        # Even where replies run on to the next marker, the last one of a chat must end.
        if segments[-1].kind != "end":
            segments.append(END_OF_TEXT)
        own_instruction = messages[0].role != "system"
        return [(_span(segment, own_instruction), self._encode(segment)) for segment in segments]

    def _parts(self, example: TrainingExample) -> list[Piece]:
        """A few-shot prompt as it stands, without the template; the last answer is closed."""
        spans = (Span.PROMPT, Span.RESPONSE)
        pieces = [
            (spans[number % 2], self.tokenizer.encode(part))
            for number, part in enumerate(example.parts)
        ]
        return [*pieces, (Span.RESPONSE, [self.tokenizer.end_id])]

    def _encode(self, segment: Segment) -> list[int]:
        if segment.kind == "end":
            return [self.tokenizer.end_id]
        if segment.kind in ("user", "assistant"):
            return self.tokenizer.encode(segment.text)
        return self._encode_known(segment.text)

    def _windows(self, example: TrainingExample) -> list[Encoded]:
        """A plain text in equal windows, so that none is a single token without a label."""
        ids = np.array([*self.tokenizer.encode(example.text), self.tokenizer.end_id], np.int32)
        windows = np.array_split(ids, -(-len(ids) // self.length))
        if len(windows) > 1:
            self.truncated["windows"] += 1
        keys = [example.key, *(content_key([example.key, n]) for n in range(1, len(windows)))]
        return [
            Encoded(window, np.full(len(window), Span.RESPONSE, np.uint8), key)
            for window, key in zip(windows, keys, strict=True)
        ]

    def _shorten(self, example: TrainingExample, pieces: list[Piece]) -> list[Piece]:
        """The example made to fit by the policy. Raises ExampleTooLong."""
        shorter: list[Piece] | None = None
        if self.too_long == "truncate-prompt":
            # A chat begins with its instruction or a marker, which stay whole.
            shorter = _cut_prompts(pieces, self.length, first=1 if example.messages else 0)
            how = "prompt"
        elif self.too_long == "truncate-history" and example.messages:
            shorter = self._cut_history(example.messages)
            how = "history"
        if shorter is None:
            response = [piece for piece in pieces if piece[0] == Span.RESPONSE]
            raise ExampleTooLong(
                f"{example.location}: {_count(pieces):,} tokens with {_count(response):,} of "
                f"response; a row may have {self.length:,}"
            )
        self.truncated[how] += 1
        return shorter

    def _cut_history(self, messages: Sequence[Message]) -> list[Piece] | None:
        """As many of the newest turns as fit, after the system message; at least one pair."""
        first = 1 if messages[0].role == "system" else 0
        system, turns = messages[:first], messages[first:]

        def left(dropped: int) -> list[Piece]:
            return self.pieces([*system, *turns[dropped:]])

        starts = range(2, len(turns), 2)
        fitting = bisect_left(starts, -self.length, key=lambda dropped: -_count(left(dropped)))
        if fitting == len(starts):
            return None
        self.turns_left_out += starts[fitting]
        return left(starts[fitting])


def _span(segment: Segment, own_instruction: bool) -> Span:
    match segment.kind:
        case "assistant" | "end":
            return Span.RESPONSE
        case "user":
            return Span.PROMPT
        case "instruction" if not own_instruction:
            return Span.PROMPT
    return Span.TEMPLATE


def _count(pieces: Sequence[Piece]) -> int:
    """Tokens of an example."""
    return sum(len(ids) for _, ids in pieces)


def _cut_prompts(pieces: Sequence[Piece], length: int, first: int) -> list[Piece] | None:
    """The longest prompts cut to one length, in the middle: a request often stands at the
    beginning of a long text or at its end. None when hardly anything would be left of them.

    first: the piece before which nothing is cut.
    """
    prompts = [i for i, (span, _) in enumerate(pieces) if span == Span.PROMPT and i >= first]
    lengths = [len(pieces[index][1]) for index in prompts]
    budget = length - _count(pieces) + sum(lengths)
    caps = range(max(lengths) + 1)
    cap = bisect_right(caps, budget, key=lambda cap: sum(min(each, cap) for each in lengths)) - 1
    if cap < _SHORTEST_PROMPT:
        return None
    shorter = list(pieces)
    for index in prompts:
        span, ids = pieces[index]
        if len(ids) > cap:
            shorter[index] = (span, ids[: cap - cap // 2] + ids[len(ids) - cap // 2 :])
    return shorter
