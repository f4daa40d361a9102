"""What in a prompt mattered for an answer: gradient × input, and occlusion, by token and by part.

F is what is explained: log p(answer) − log p(other answer), each summed over its tokens. For single
tokens it is the difference of their logits.

    gradient × input   a_i = e_i · ∂F/∂e_i, with e_i the embedding of token i before positions are
                       added (Simonyan et al. 2013, arXiv 1312.6034; of logits and not of
                       probabilities: Bastings et al. 2022, 2202.10419)
    occlusion          F − F without a part: its keys are hidden in all layers from what comes after
                       it, so that all positions stay (Zeiler and Fergus 2014, arXiv 1311.2901)

No method is right in general (2402.00794, 2408.11252), so both are shown with their rank
correlation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chatapp.common.userfiles import Progress
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.decoder.interventions import UNCHANGED, Interventions
from chatapp.engine.encoding import segment_ids
from chatapp.engine.model import Tokenizer
from chatapp.prompting.messages import Segment

_TOKENS_AT_ONCE = 4096
"""How many tokens all rows of a pass have together."""


@dataclass(frozen=True, slots=True)
class PartSpan:
    """Tokens of a prompt, from `start` up to `stop`, that belong together.

    name: such as `instruction`, `example 3`, `passage 1`, `turn 2`, `input`.
    """

    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class PartEffect:
    """A part of a prompt and what it does for the answer. text: the part itself."""

    part: str
    text: str
    gradient: float
    occlusion: float


class Explained:
    """F of one prompt, with its gradient, and with parts hidden."""

    def __init__(
        self,
        model: LocalModel,
        ids: Sequence[int],
        answer: Sequence[int],
        against: Sequence[int],
        changes: Interventions | None = None,
    ) -> None:
        self._decoder = model.decoder
        self._start = len(model.start)
        self._prompt = [*model.start, *ids]
        self._changes = (changes or UNCHANGED).shifted(self._start)
        if not answer or not against:
            states = self._decoder.hidden([self._prompt], changes=self._changes)[0, -1:]
            best = self._decoder.head(states)[0].topk(2).indices.tolist()
            answer = answer or best[:1]
            against = against or [id for id in best if [id] != list(answer)][:1]
        self.answer, self.against = list(answer), list(against)

    def _difference(self, states_of: Callable[[list[int]], Tensor]) -> Tensor:
        """F (rows,). states_of: of a row of tokens the final states (rows, tokens, width)."""
        if len(self.answer) == len(self.against) == 1:
            logits = self._decoder.head(states_of(self._prompt)[:, -1])
            return logits[:, self.answer[0]] - logits[:, self.against[0]]
        total = torch.zeros(())
        for answer, sign in ((self.answer, 1.0), (self.against, -1.0)):
            states = states_of([*self._prompt, *answer[:-1]])[:, len(self._prompt) - 1 :]
            logprobs = self._decoder.head(states).log_softmax(-1)
            total = total + sign * logprobs[:, range(len(answer)), answer].sum(1).cpu()
        return total

    def gradient(self) -> list[float]:
        """Gradient × input of each token of the text."""
        embeddings: list[Tensor] = []

        def states_of(row: list[int]) -> Tensor:
            positions = torch.zeros(())

            def observe(point: str, value: Tensor) -> Tensor:
                nonlocal positions
                if point == "positions":
                    positions = value.detach()
                if point != "embed":
                    return value
                embeddings.append((value.detach() - positions).requires_grad_())
                return embeddings[-1] + positions

            return self._decoder.hidden_with_gradients([row], observe, changes=self._changes)

        with torch.inference_mode(False), torch.enable_grad():
            explained = self._difference(states_of).sum()
            gradients = torch.autograd.grad(explained, embeddings)
        total = torch.zeros(len(self._prompt))
        for embedding, gradient in zip(embeddings, gradients, strict=True):
            total += (embedding * gradient).detach().sum(-1)[0, : len(self._prompt)].cpu()
        values: list[float] = total[self._start :].tolist()
        return values

    def without(self, spans: Sequence[PartSpan], progress: Progress) -> list[float]:
        """F of the whole prompt, and with each of the spans hidden."""
        shifted = [
            replace(s, start=s.start + self._start, stop=s.stop + self._start) for s in spans
        ]
        waiting = [PartSpan("", 0, 0), *shifted]
        longest = len(self._prompt) + max(len(self.answer), len(self.against))
        rows = max(1, _TOKENS_AT_ONCE // longest)
        values: list[float] = []
        for first in range(0, len(waiting), rows):
            progress(first, len(waiting))
            hidden = waiting[first : first + rows]
            values += self._difference(lambda row, spans=hidden: self._masked(row, spans)).tolist()  # type: ignore[misc]
        return values

    def _masked(self, row: list[int], spans: Sequence[PartSpan]) -> Tensor:
        """Final states of a row of tokens, once with each span hidden."""
        size, last = len(row), len(self._prompt) - 1
        mask = torch.full((size, size), -torch.inf).triu(1).repeat(len(spans), 1, 1)
        for hidden, span in zip(mask, spans, strict=True):
            hidden[min(span.stop, last) :, span.start : span.stop] = -torch.inf
            hidden.diagonal().zero_()
        rows = [row] * len(spans)
        return self._decoder.hidden(rows, mask=mask[:, None], changes=self._changes)


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rank correlation, with mean ranks for equal values; None where all are equal."""
    if len(one) < 2:
        return None
    first, second = _ranks(one), _ranks(other)
    if not first.std() or not second.std():
        return None
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Sequence[float]) -> "np.ndarray[Any, np.dtype[np.float64]]":
    _, places, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    return (ends - (counts - 1) / 2)[places]


_TURN = {"user", "assistant", "thinking", "tool"}


def parts_of_segments(segments: Sequence[Segment], tokenizer: Tokenizer) -> list[PartSpan]:
    """The parts of a prompt by its segments; a marker belongs to the segment after it.

    An example is an input and an output, or named fields up to its answer. The user's text alone is
    `input`; in a chat, each message with its reply is a turn.
    """
    names = [segment.name for segment in segments if segment.kind == "example"]
    answers = names.count(names[-1]) if names and names[-1] else len(names) // 2
    per_example = len(names) // max(answers, 1)
    turns = sum(segment.kind == "user" for segment in segments)
    counts = dict.fromkeys(("example", "passage", "turn"), 0)
    spans: list[PartSpan] = []
    at = start = 0
    begins = True
    for segment in segments:
        at += len(segment_ids(segment, tokenizer, begins=begins))
        begins = segment.kind in ("special", "end")
        if segment.kind in ("marker", "special", "end"):
            continue
        name: str = segment.kind
        if segment.kind == "example":
            name = f"example {counts['example'] // per_example + 1}"
            counts["example"] += 1
        elif segment.kind == "document":
            counts["passage"] += 1
            name = f"passage {counts['passage']}"
        elif segment.kind in _TURN:
            counts["turn"] += segment.kind == "user"
            name = "input" if turns == 1 or segment.name else f"turn {counts['turn']}"
        if spans and spans[-1].name == name:
            spans[-1] = replace(spans[-1], stop=at)
        else:
            spans.append(PartSpan(name, start, at))
        start = at
    if spans:
        spans[-1] = replace(spans[-1], stop=at)
    return spans


def parts_of_text(text: str, ids: Sequence[int], tokenizer: Tokenizer) -> list[PartSpan]:
    """The parts of a plain text: what empty lines divide, or else its lines."""
    divider = "\n\n" if "\n\n" in text.strip() else "\n"
    ends, at = [], 0
    for part in text.split(divider):
        at += len(part) + len(divider)
        ends.append(at)
    spans: list[PartSpan] = []
    for place in range(len(ids)):
        begun = len(tokenizer.decode(ids[:place]))
        number = next((n for n, end in enumerate(ends, start=1) if begun < end), len(ends))
        name = f"part {number}"
        if spans and spans[-1].name == name:
            spans[-1] = replace(spans[-1], stop=place + 1)
        else:
            spans.append(PartSpan(name, place, place + 1))
    return spans
