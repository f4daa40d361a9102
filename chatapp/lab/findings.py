"""The results to show of a text: one type for each question.

Invariant: a finding has every number that is drawn. The terminal, a written file, the JSON document
and the inspector of the TUI draw findings and compute nothing, so they agree. This module knows no
screen.

To add one: a subclass of `Finding` with its numbers, made by a class method `of`; its row in
`FINDINGS`; its blocks in `lab.figures.drawn`; and how the inspector's tab draws it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from chatapp.common.shading import percent, visible
from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from chatapp.engine.events import Token
    from chatapp.engine.model import Sampling, Tokenizer
    from chatapp.lab.predictions import Candidate, Cut, Limit, Prediction, Stepper
    from chatapp.lab.traces import Trace
    from chatapp.prompting.messages import Segment


class Finding(ABC):
    """The answer to one question about a text.

    name: its key in the JSON document.
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def sentence(self) -> str:
        """Its content in one sentence, safe for a terminal."""

    @abstractmethod
    def to_json(self) -> Any:
        """Its numbers as plain data. Probabilities are those of the plain softmax, entropies in
        bits."""


@dataclass(frozen=True, slots=True)
class PromptText(Finding):
    """The text that the model reads, part by part. kinds: where each part comes from."""

    name: ClassVar[str] = "prompt"

    texts: tuple[str, ...]
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, segments: "Sequence[Segment]") -> Self:
        """segments: of the prompt and of the reply."""
        shown = [segment for segment in segments if segment.text]
        return cls(tuple(s.text for s in shown), tuple(s.name or s.kind for s in shown))

    @property
    def sentence(self) -> str:
        return (
            f"The exact text that the model reads: {sum(map(len, self.texts)):,} characters in "
            f"{len(self.texts):,} parts, each coloured by where it comes from"
        )

    def to_json(self) -> list[dict[str, str]]:
        pairs = zip(self.kinds, self.texts, strict=True)
        return [{"part": kind, "text": text} for kind, text in pairs]


@dataclass(frozen=True, slots=True)
class Tokens(Finding):
    """The tokens of a text, with the prediction at each position.

    expected: the prediction from the tokens before, with the token itself as its `actual`; None if
    nothing predicts it, as for the first, or if it is unknown. limits: what a constraint did at
    each, None where it did nothing; empty without one. Predictions are those without it.
    """

    name: ClassVar[str] = "tokens"

    ids: tuple[int, ...]
    texts: tuple[str, ...]
    expected: "tuple[Prediction | None, ...]"
    limits: "tuple[Limit | None, ...]" = ()

    @classmethod
    def of(cls, trace: "Trace", top: int = 10, limits: "tuple[Limit | None, ...]" = ()) -> Self:
        """top: how many alternatives each token has."""
        unknown = [None] * (1 + trace.first)
        return cls(trace.ids, trace.texts, (*unknown, *trace.predictions(top)[:-1]), limits)

    @classmethod
    def of_served(
        cls,
        ids: Sequence[int],
        start: int,
        drawn: "Sequence[Token]",
        tokenizer: "Tokenizer",
    ) -> Self:
        """For a model on a server, which gives probabilities only with the tokens of a reply.

        ids: of the text; those from `start` on are the reply. drawn: the reply's tokens as
        received; nothing is known if they differ.
        """
        known = tuple(map(_served_prediction, drawn))
        if any(id != token.id for id, token in zip(ids[start:], drawn, strict=False)):
            known = ()
        expected = (*[None] * start, *known, *[None] * len(ids))[: len(ids)]
        return cls(tuple(ids), tuple(tokenizer.decode([id]) for id in ids), expected)

    @property
    def sentence(self) -> str:
        words = (
            f"{len(self.ids):,} tokens, the probability of each and the bits of entropy before it"
        )
        limits = [limit for limit in self.limits if limit is not None]
        if not limits:
            return words
        removed = sum(limit.forbidden for limit in limits) / len(limits)
        return (
            f"{words}; a constraint forced {sum(limit.forced for limit in limits)} of the last "
            f"{len(limits)} and removed {percent(removed).strip()} of the probability on average"
        )

    def actual(self, position: int) -> "Candidate | None":
        """The token at a position with its probability; None if nothing predicts it."""
        expected = self.expected[position]
        return expected.actual if expected else None

    def to_json(self) -> list[dict[str, Any]]:
        rows = []
        for position, (id, text) in enumerate(zip(self.ids, self.texts, strict=True)):
            expected, actual = self.expected[position], self.actual(position)
            limit = self.limits[position] if self.limits else None
            rows.append(
                {
                    "id": id,
                    "text": text,
                    "probability": actual.probability if actual else None,
                    "rank": actual.rank if actual else None,
                    "entropy": expected.entropy if expected else None,
                    "alternatives": candidates_json(expected) if expected else [],
                    **(asdict(limit) if limit else {}),
                }
            )
        return rows


def _served_prediction(token: "Token") -> "Prediction | None":
    """A server's prediction of a token of its reply; the entropy is unknown."""
    from chatapp.lab.predictions import Candidate, Prediction

    if math.isnan(token.logprob):
        return None
    best = tuple(
        Candidate(alternative.id, alternative.text, math.exp(alternative.logprob), rank)
        for rank, alternative in enumerate(token.alternatives, start=1)
    )
    rank = next((candidate.rank for candidate in best if candidate.id == token.id), None)
    actual = Candidate(token.id, token.piece, math.exp(token.logprob), rank)
    return Prediction(None, best, actual)


@dataclass(frozen=True, slots=True)
class NextToken(Finding):
    """The possible next tokens, before and after the cuts by the sampling parameters."""

    name: ClassVar[str] = "next"

    sampling: "Sampling"
    cut: "Cut"

    @classmethod
    def of(cls, stepper: "Stepper", top: int = 10) -> Self:
        """top: how many candidates."""
        return cls(stepper.sampling, stepper.look(top))

    @property
    def sentence(self) -> str:
        cut = self.cut
        words = (
            f"{cut.before.entropy:.2f} bits before the cut, {cut.entropy:.2f} after; "
            f"{cut.kept:,} token{'s' * (cut.kept > 1)} left, of which those shown have "
            f"{percent(sum(cut.drawn)).strip()}"
        )
        return words if cut.limit is None else f"{words}; {cut.limit.words}"

    def to_json(self) -> dict[str, Any]:
        cut = self.cut
        return {
            "sampling": asdict(self.sampling),
            "entropy": cut.before.entropy,
            "entropy_after_cut": cut.entropy,
            "kept": cut.kept,
            **(asdict(cut.limit) if cut.limit else {}),
            "candidates": [
                asdict(candidate) | {"drawn": drawn}
                for candidate, drawn in zip(cut.before.candidates, cut.drawn, strict=True)
            ],
        }


@dataclass(frozen=True, eq=False)
class Attention(Finding):
    """The attention of one token.

    texts: of the tokens that it may attend to. by_head: (layers, heads, tokens), the weights on
    each of them. position: its own. layer, head: the selected ones, from 0; None averages over all.
    encoded: how many of the first tokens an encoder read.
    """

    name: ClassVar[str] = "attention"

    texts: tuple[str, ...]
    by_head: "NDArray[np.float32]"
    position: int
    layer: int | None = None
    head: int | None = None
    encoded: int = 0

    @classmethod
    def of(
        cls, trace: "Trace", position: int, layer: int | None = None, head: int | None = None
    ) -> Self:
        """Raises UserError for a layer or a head that the token's stack does not have."""
        weights = trace.attention(position)
        for kind, place, size in zip(("layer", "head"), (layer, head), weights.shape, strict=False):
            if place is not None and place >= size:
                raise UserError(f"{kind} {place} of {size}, numbered from 0, is none")
        texts = trace.texts[: weights.shape[-1]]
        return cls(texts, weights, position, layer, head, trace.encoded)

    @cached_property
    def weights(self) -> list[float]:
        """The weight on each token, averaged over the layers and heads that are not selected."""
        layers = slice(None) if self.layer is None else [self.layer]
        heads = slice(None) if self.head is None else [self.head]
        weights: list[float] = self.by_head[layers][:, heads].mean(axis=(0, 1)).tolist()
        return weights

    @property
    def shares(self) -> list[float]:
        """The weights relative to the largest, from 0 to 1.

        The first token gets the attention that a head does not need, and would dominate: it does
        not count as the largest.
        """
        brightest = max(self.weights[1:], default=0.0) or 1.0
        return [min(1.0, weight / brightest) for weight in self.weights]

    @property
    def copying_head(self) -> tuple[int, int] | None:
        """Layer and head with the largest weight on what followed the same token before; None
        where the token is new.
        """
        *before, token = self.texts
        if token not in before:
            return None
        after = len(before) - before[::-1].index(token)
        layer, head = divmod(int(self.by_head[:, :, after].argmax()), self.by_head.shape[1])
        return layer, head

    @property
    def order(self) -> list[int]:
        """The positions by falling weight."""
        return sorted(range(len(self.weights)), key=lambda position: -self.weights[position])

    @property
    def target(self) -> int:
        """The position with the largest weight, except the first and the token itself."""
        order = self.order
        others = (position for position in order if position not in (0, self.position))
        return next(others, order[0])

    @property
    def chosen(self) -> str:
        """The selected layers and heads, in words."""
        if self.layer is None and self.head is None:
            return "average of all heads"
        layer = "average of all layers" if self.layer is None else f"layer {self.layer}"
        head = "average of its heads" if self.head is None else f"head {self.head}"
        return f"{layer}, {head}"

    def on(self, target: int) -> list[list[float]]:
        """Each head's weight on the token at `target`: a row per layer, a column per head."""
        rows: list[list[float]] = self.by_head[:, :, target].tolist()
        return rows

    @property
    def sentence(self) -> str:
        cross = sum(self.weights[: self.encoded])
        total = sum(self.weights) - cross * self.is_cross
        rest = (
            ", the rest is on special tokens"
            if min(total, cross if self.is_cross else 1) < 0.9995
            else ""
        )
        words = (
            f"What {named_token(self.texts, self.position)} attends to: {self.chosen}; the weights"
        )
        if self.is_cross:
            words += f" on the prompt (cross-attention) add up to {cross:.4f}, those on the reply"
        return f"{words} add up to {total:.4f}{rest}"

    @property
    def is_cross(self) -> bool:
        """Whether it is a decoder's token, which attends to the encoder's output, too."""
        return 0 < self.encoded <= self.position

    def to_json(self) -> list[list[list[float]]]:
        weights: list[list[list[float]]] = self.by_head.tolist()
        return weights


@dataclass(frozen=True, slots=True)
class Layers(Finding):
    """Each layer's prediction after a token, by the logit lens; see `Trace.layer_logits`.

    texts: of the tokens up to it. predictions: of each layer, from the embeddings on. is_of_mask:
    whether they are of the token itself, which is masked.
    """

    name: ClassVar[str] = "layers"

    texts: tuple[str, ...]
    predictions: "tuple[Prediction, ...]"
    is_of_mask: bool = False

    @classmethod
    def of(cls, trace: "Trace", position: int, top: int = 5) -> Self:
        """top: the number of candidates per layer."""
        return cls(
            trace.texts[: position + 1],
            tuple(trace.lens(position, top)),
            trace.sees_all,
        )

    @property
    def actual(self) -> "Candidate | None":
        """The token that followed; None after the last one."""
        return self.predictions[0].actual

    @property
    def sentence(self) -> str:
        place = "in place of" if self.is_of_mask else "after"
        words = (
            f"What each layer would predict {place} {named_token(self.texts, len(self.texts) - 1)}"
        )
        came = "was there" if self.is_of_mask else "followed"
        return f"{words}; │{visible(self.actual.text)}│ {came}" if self.actual else words

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "layer": state_name(index),
                "entropy": prediction.entropy,
                "alternatives": candidates_json(prediction),
            }
            for index, prediction in enumerate(self.predictions)
        ]


def state_name(index: int) -> str:
    """The name of a state of the residual stream, of those from the embeddings on: `embed`, or the
    layer that it comes from, counted from 0.
    """
    return str(index - 1) if index else "embed"


FINDINGS: tuple[type[Finding], ...] = (Tokens, NextToken, Attention, Layers)
"""In display order."""


def named_token(texts: Sequence[str], position: int) -> str:
    """A token in a sentence, between bars, so that its spaces are visible."""
    return f"token {position} │{visible(texts[position])}│"


def candidates_json(prediction: "Prediction") -> list[dict[str, Any]]:
    """The most likely tokens as plain data."""
    return [asdict(candidate) for candidate in prediction.candidates]
