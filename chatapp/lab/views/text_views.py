"""Views of a text: as the model gets it, token by token, and what may come next."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from chatapp.common.shading import percent, visible
from chatapp.lab.drawing.blocks import Bar, Block, Cell, Note, Number, Pieces, Shaded, Share, Table
from chatapp.lab.view import NoOptions, Subject, Top, View, candidates_json, named_token

if TYPE_CHECKING:
    from chatapp.engine.events import Token
    from chatapp.engine.model import Sampling, Tokenizer
    from chatapp.lab.predictions import Candidate, Cut, Limit, Prediction, Stepper
    from chatapp.lab.traces import Trace
    from chatapp.prompting.messages import Segment

_MOST_NUMBERS = 300
"""Tokens of a prompt whose numbers are listed."""


@dataclass(frozen=True, slots=True)
class PromptText(View):
    """The text that the model reads, part by part. kinds: where each part comes from. ids, tokens:
    what the model gets instead of it."""

    name: ClassVar[str] = "prompt"
    title: ClassVar[str] = "Prompt"
    summary: ClassVar[str] = "Show the exact text that the model reads, part by part."
    formula: ClassVar[str] = (
        "The text that the model reads, part by part, as the template or prompt file renders it."
    )
    Options: ClassVar[type[Any]] = NoOptions

    texts: tuple[str, ...]
    kinds: tuple[str, ...]
    ids: tuple[int, ...] = ()
    tokens: tuple[str, ...] = ()

    @classmethod
    def look(cls, subject: Subject, options: Any) -> "PromptText":
        from chatapp.prompting.messages import Segment

        tokenizer = subject.model.tokenizer
        segments = subject.segments or [Segment("user", tokenizer.decode(subject.ids))]
        pieces = tuple(tokenizer.decode([id]) for id in subject.ids)
        return cls.of(segments, subject.ids, pieces)

    @classmethod
    def of(
        cls, segments: "Sequence[Segment]", ids: Sequence[int] = (), tokens: Sequence[str] = ()
    ) -> Self:
        """segments: of the prompt and of the reply."""
        shown = [segment for segment in segments if segment.text]
        kinds = tuple(segment.name or segment.kind for segment in shown)
        return cls(tuple(segment.text for segment in shown), kinds, tuple(ids), tuple(tokens))

    @property
    def reading(self) -> str:
        size, kinds = sum(map(len, self.texts)), ", ".join(dict.fromkeys(self.kinds))
        words = f"The model reads {size:,} characters in {len(self.texts):,} parts: {kinds}"
        return visible(words + (f"; they are {len(self.ids):,} tokens" if self.ids else ""))

    def to_json(self) -> list[dict[str, str]]:
        pairs = zip(self.kinds, self.texts, strict=True)
        return [{"part": kind, "text": text} for kind, text in pairs]

    def blocks(self) -> Sequence[Block]:
        kinds = list(dict.fromkeys(self.kinds))
        shares = [(kinds.index(kind) + 1) / (len(kinds) + 1) for kind in self.kinds]
        return [Shaded(self.texts, shares, self.kinds), *self.lists()]

    def lists(self) -> list[Block]:
        """A row a part, and the tokens of a short text with their numbers."""
        most = max(map(len, self.texts), default=1)
        rows: list[list[Cell]] = [
            [kind, Number(len(text), ",d"), Bar(len(text) / most), f"│{text}│"]
            for kind, text in zip(self.kinds, self.texts, strict=True)
        ]
        blocks: list[Block] = [Table(["part", ">characters", "", "text"], rows)]
        if 0 < len(self.ids) <= _MOST_NUMBERS:
            pairs = zip(self.ids, self.tokens, strict=True)
            numbers = "  ".join(f"{id} │{visible(text)}│" for id, text in pairs)
            blocks.append(Note(f"What the model gets, the numbers of the tokens:  {numbers}"))
        return blocks


@dataclass(frozen=True, slots=True)
class Tokens(View):
    """The tokens of a text, with the prediction at each position.

    expected: the prediction from the tokens before, with the token itself as its `actual`; None if
    nothing predicts it, as for the first, or if it is unknown. limits: what a constraint did at
    each, None where it did nothing; empty without one. Predictions are those without it.
    """

    name: ClassVar[str] = "tokens"
    title: ClassVar[str] = "Tokens"
    summary: ClassVar[str] = "Show the tokens and how probable each was."
    formula: ClassVar[str] = (
        "p = softmax(logits) of all tokens before; entropy = -sum p log2 p in bits, over the whole "
        "vocabulary; Shannon 1948."
    )
    reads_masks: ClassVar[bool] = True
    Options: ClassVar[type[Any]] = Top

    ids: tuple[int, ...]
    texts: tuple[str, ...]
    expected: "tuple[Prediction | None, ...]"
    limits: "tuple[Limit | None, ...]" = ()

    @classmethod
    def look(cls, subject: Subject, options: Top) -> "Tokens":
        if subject.masked is not None:
            from chatapp.lab.masks import masked_predictions

            expected = masked_predictions(subject.masked, subject.ids, options.top)
            return cls(subject.ids, tuple(map(subject.masked.piece, subject.ids)), expected)
        return cls.of(subject.trace, options.top)

    @classmethod
    def of(cls, trace: "Trace", top: int = 10, limits: "tuple[Limit | None, ...]" = ()) -> Self:
        """top: how many alternatives each token has."""
        unknown = [None] * (1 + trace.first)
        return cls(trace.ids, trace.texts, (*unknown, *trace.predictions(top)[:-1]), limits)

    @classmethod
    def of_served(
        cls, ids: Sequence[int], start: int, drawn: "Sequence[Token]", tokenizer: "Tokenizer"
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
    def reading(self) -> str:
        words = f"{len(self.ids):,} tokens"
        known = [place for place in range(len(self.ids)) if self.actual(place) is not None]
        if known:
            least = min(known, key=self._probability)
            share = percent(self._probability(least)).strip()
            words += f"; {named_token(self.texts, least)} surprised the model most ({share})"
        limits = [limit for limit in self.limits if limit is not None]
        if not limits:
            return words
        removed = sum(limit.forbidden for limit in limits) / len(limits)
        return (
            f"{words}; a constraint forced {sum(limit.forced for limit in limits)} of the last "
            f"{len(limits)} and removed {percent(removed).strip()} of the probability on average"
        )

    def _probability(self, position: int) -> float:
        actual = self.actual(position)
        return 1.0 if actual is None else actual.probability

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

    def blocks(self) -> Sequence[Block]:
        shares: list[float | None] = []
        notes: list[str] = []
        rows: list[list[Cell]] = []
        for position, (id, text) in enumerate(zip(self.ids, self.texts, strict=True)):
            expected, actual = self.expected[position], self.actual(position)
            measures: list[Cell] = ["", "", "", "", ""]
            note = f"token {position}, id {id}"
            if expected is not None and actual is not None:
                entropy = "" if expected.entropy is None else Number(expected.entropy, ".1f")
                rank = "" if actual.rank is None else f"{actual.rank:,}"
                share = actual.probability
                measures = [Bar(share, is_dim=True), Share(share), rank, entropy]
                measures.append(pieces(expected.candidates))
                note += f": p {share:.6g}, rank {rank}"
            shares.append(actual.probability if actual is not None else None)
            notes.append(note)
            rows.append([str(position), str(id), Pieces.of(text), *measures])
        columns = [">#", ">id", "token", "", ">p", ">rank", ">bits", "expected"]
        return [
            Note("Orange was unlikely, blue likely."),
            Shaded(self.texts, shares, notes, is_likelihood=True),
            Table(columns, rows),
        ]


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
class NextToken(View):
    """The possible next tokens, before and after the cuts by the sampling parameters."""

    name: ClassVar[str] = "next"
    title: ClassVar[str] = "Next token"
    summary: ClassVar[str] = (
        "Show the next token's distribution. It is that before and after top-k, top-p and min-p."
    )
    formula: ClassVar[str] = (
        "p = softmax(logits / temperature), cut by top-k, top-p (Holtzman et al. 2020, arXiv "
        "1904.09751) and min-p (arXiv 2407.01082), then divided by its sum."
    )
    samples: ClassVar[bool] = True
    reads_masks: ClassVar[bool] = True
    Options: ClassVar[type[Any]] = Top

    sampling: "Sampling"
    cut: "Cut"

    @classmethod
    def look(cls, subject: Subject, options: Top) -> View:
        if subject.masked is not None:
            return MaskFilling.look(subject, options)
        assert subject.sampling is not None
        start = len(subject.ids) if subject.start is None else subject.start
        stepper = subject.opened.stepper(
            subject.ids[:start], subject.sampling, subject.interventions, subject.ids[start:]
        )
        return cls.of(stepper, options.top)

    @classmethod
    def of(cls, stepper: "Stepper", top: int = 10) -> Self:
        """top: how many candidates."""
        return cls(stepper.sampling, stepper.look(top))

    @property
    def reading(self) -> str:
        cut, best = self.cut, self.cut.before.candidates[0]
        words = (
            f"The likeliest next token is │{visible(best.text)}│ "
            f"({percent(best.probability).strip()}); {cut.before.entropy:.2f} bits before the cut, "
            f"{cut.entropy:.2f} after; {cut.kept:,} token{'s' * (cut.kept > 1)} left, of which "
            f"those shown have {percent(sum(cut.drawn)).strip()}"
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

    def blocks(self) -> Sequence[Block]:
        cut, sampling = self.cut, self.sampling
        rows: list[list[Cell]] = [
            [
                str(candidate.rank),
                str(candidate.id),
                Pieces.of(candidate.text),
                Share(candidate.probability),
                Bar(candidate.probability, is_dim=True),
                Share(drawn or None, "cut"),
                Bar(drawn),
            ]
            for candidate, drawn in zip(cut.before.candidates, cut.drawn, strict=True)
        ]
        parameters = (
            f"Temperature {sampling.temperature:g}, top-k {sampling.top_k}, "
            f"top-p {sampling.top_p:g}, min-p {sampling.min_p:g}"
        )
        columns = [">", ">id", "token", ">softmax", "", ">drawn", ""]
        return [Note(parameters), Table(columns, rows)]


@dataclass(frozen=True, slots=True)
class MaskFilling(View):
    """The candidates for a masked token: what `next` shows of a masked model.

    texts: of the whole text. position: of the mask.
    """

    name: ClassVar[str] = "mask"
    title: ClassVar[str] = "Mask"
    summary: ClassVar[str] = "Show what a masked model fills in."
    formula: ClassVar[str] = "p = softmax(logits) at the mask; Devlin et al. 2019."
    Options: ClassVar[type[Any]] = Top

    texts: tuple[str, ...]
    position: int
    prediction: "Prediction"

    @classmethod
    def look(cls, subject: Subject, options: Top) -> "MaskFilling":
        from chatapp.lab.masks import MaskedTrace

        trace, position = subject.trace, subject.position
        assert isinstance(trace, MaskedTrace)
        return cls(trace.texts, position, trace.predicted(position, options.top))

    @property
    def reading(self) -> str:
        best, actual = self.prediction.candidates[0], self.prediction.actual
        words = (
            f"The model fills in │{visible(best.text)}│ ({percent(best.probability).strip()}) for "
            f"{named_token(self.texts, self.position)}, {self.prediction.entropy or 0.0:.2f} bits"
        )
        if actual is None:
            return words
        share = percent(actual.probability).strip()
        return f"{words}; │{visible(actual.text)}│ was there, rank {actual.rank:,}, {share}"

    def to_json(self) -> dict[str, Any]:
        actual = self.prediction.actual
        return {
            "position": self.position,
            "entropy": self.prediction.entropy,
            "candidates": candidates_json(self.prediction),
            "actual": asdict(actual) if actual else None,
        }

    def blocks(self) -> Sequence[Block]:
        rows: list[list[Cell]] = [
            [
                f"{candidate.rank:,}",
                str(candidate.id),
                Pieces.of(candidate.text),
                Share(candidate.probability),
                Bar(candidate.probability),
            ]
            for candidate in self.prediction.candidates
        ]
        return [Table([">", ">id", "token", ">softmax", ""], rows)]


def pieces(candidates: "Sequence[Candidate]") -> Pieces:
    """Tokens with their probabilities."""
    return Pieces([(candidate.text, candidate.probability) for candidate in candidates])
