"""The view of a prompt's parts: what in it mattered for an answer."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from chatapp.common.shading import visible
from chatapp.common.userfiles import Progress, UserError, no_progress
from chatapp.lab.drawing.blocks import Bar, Block, Cell, Heading, Note, Number, Shaded, Table
from chatapp.lab.view import Compared, Subject, View
from chatapp.lab.views.part_views import MEAN

if TYPE_CHECKING:
    from chatapp.engine.decoder.interventions import Interventions
    from chatapp.engine.model import LanguageModel
    from chatapp.lab.prompt_parts import PartEffect, PartSpan


@dataclass(frozen=True, slots=True)
class PromptParts(View):
    """What in a prompt mattered.

    texts: of its tokens. answer, against: the two that are compared, as text. difference: F.
    parts: in their order. gradient: of each token. occlusion: of each token; empty where it was
    measured by part alone.
    """

    name: ClassVar[str] = "parts"
    title: ClassVar[str] = "Parts of the prompt"
    summary: ClassVar[str] = (
        "Show what in the text mattered for what comes next, by token and by part: what empty "
        "lines divide, or else each line. Answers may be several tokens."
    )
    formula: ClassVar[str] = (
        "F = log p of the next token - log p of another. gradient = e · dF/de of the embeddings e "
        "(Simonyan et al. 2013, arXiv 1312.6034); occlusion = F - F with the keys hidden (Zeiler "
        "and Fergus 2014, arXiv 1311.2901); summed per part of the prompt."
    )
    key: ClassVar[str] = "p"
    Options: ClassVar[type[Any]] = Compared

    texts: tuple[str, ...]
    answer: str
    against: str
    difference: float
    parts: "tuple[PartEffect, ...]"
    gradient: tuple[float, ...]
    occlusion: tuple[float, ...] = ()

    @classmethod
    def look(cls, subject: Subject, options: Compared) -> "PromptParts":
        from chatapp.lab.prompt_parts import parts_of_text

        if options.against == MEAN:
            raise UserError("parts compares two answers; --against mean is for the other views")
        if "" in (options.answer, options.against):
            raise UserError("--answer and --against need a text of at least one token")
        tokenizer, before = subject.model.tokenizer, subject.ids_up_to_token
        answer, against = (
            [] if text is None else tokenizer.encode(text, begins=False)
            for text in (options.answer, options.against)
        )
        if options.answer is None and subject.following is not None:
            answer = [subject.following]
        if subject.segments:
            spans = _spans_of_chat(subject)
        else:
            spans = parts_of_text(tokenizer.decode(before), before, tokenizer)
        return attribute_prompt(
            subject.model,
            before,
            spans,
            answer,
            against,
            changes=subject.changes,
            progress=subject.progress,
        )

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's, of both measures: by token where there are both, else by part; None where
        all of one are equal."""
        from chatapp.lab.prompt_parts import rank_correlation

        if self.occlusion:
            return rank_correlation(self.gradient, self.occlusion)
        return rank_correlation(
            [part.gradient for part in self.parts], [part.occlusion for part in self.parts]
        )

    @property
    def most_used(self) -> "PartEffect | None":
        """The example whose absence costs the answer most; the part, where there are none."""
        examples = [part for part in self.parts if part.part.startswith("example ")]
        return max(examples or self.parts, key=lambda part: part.occlusion, default=None)

    @property
    def reading(self) -> str:
        answers = f"│{visible(self.answer)}│ and not │{visible(self.against)}│"
        if self.most_used is None:
            return f"The log-probabilities of {answers} differ by {self.difference:.2f}"
        best = self.most_used
        return (
            f"That it answered {answers} is due mostly to {best.part}: hidden, it costs "
            f"{best.occlusion:+.2f} of the {self.difference:.2f} by which the log-probabilities "
            "differ"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "answer": self.answer,
            "against": self.against,
            "difference": self.difference,
            "parts": [asdict(part) for part in self.parts],
            "tokens": [
                {"text": text, "gradient": gradient}
                | ({"occlusion": self.occlusion[place]} if self.occlusion else {})
                for place, (text, gradient) in enumerate(
                    zip(self.texts, self.gradient, strict=True)
                )
            ],
            "rank_correlation": self.rank_correlation,
        }

    def blocks(self) -> Sequence[Block]:
        most = max((abs(part.occlusion) for part in self.parts), default=0.0) or 1.0
        rows: list[list[Cell]] = [
            [
                part.part,
                Number(part.gradient, "+.2f"),
                Number(part.occlusion, "+.2f"),
                Bar(max(0.0, part.occlusion) / most),
                visible(" ".join(part.text.split())),
            ]
            for part in self.parts
        ]
        correlation = self.rank_correlation
        words = "undefined" if correlation is None else f"{correlation:+.2f}"
        values = self.occlusion or self.gradient
        largest = max(map(abs, values), default=0.0) or 1.0
        measure = "occlusion" if self.occlusion else "gradient × input"
        of = "tokens" if self.occlusion else "parts"
        return [
            Table(["part", ">gradient", ">occlusion", "", "text"], rows),
            Note(f"Rank correlation of both measures over the {of}: {words}"),
            Heading("Tokens", f"brighter spoke for the answer, by {measure}"),
            Shaded(
                self.texts,
                [max(0.0, value) / largest for value in values],
                [f"token {n}: {measure} {value:+.6g}" for n, value in enumerate(values)],
            ),
        ]


def _spans_of_chat(subject: Subject) -> "list[PartSpan]":
    """The parts of the tokens up to the chosen one: those of the prompt, and the reply so far."""
    from chatapp.lab.prompt_parts import PartSpan, parts_of_segments

    size = len(subject.ids_up_to_token)
    start = len(subject.ids) if subject.start is None else subject.start
    spans = parts_of_segments(subject.segments, subject.model.tokenizer)
    spans = [*spans, PartSpan("reply", start, size)]
    return [replace(span, stop=min(span.stop, size)) for span in spans if span.start < size]


def attribute_prompt(
    model: "LanguageModel",
    ids: Sequence[int],
    spans: "Sequence[PartSpan]",
    answer: Sequence[int] = (),
    against: Sequence[int] = (),
    *,
    by_token: bool = True,
    changes: "Interventions | None" = None,
    progress: Progress = no_progress,
) -> PromptParts:
    """What in a prompt mattered for an answer. Formulas are in `lab.prompt_parts`.

    ids: of the prompt. spans: its parts. answer, against: tokens of the answers that are compared;
    by default the most likely next token and its runner-up. by_token: hide each token as well,
    which takes a pass for each. changes: inside the model, in every pass. Raises UserError for a
    model that is not computed by this program's decoder, ContextOverflow for a prompt that does not
    fit, ModelError for weights that are not float32.
    """
    from chatapp.lab.heads import own_decoder
    from chatapp.lab.prompt_parts import Explained, PartEffect, PartSpan

    own = own_decoder(model)
    own.check_text(ids)
    with own.lock:
        explained = Explained(own, ids, answer, against, changes)
        gradient = explained.gradient()
        single = [PartSpan(str(at), at, at + 1) for at in range(len(ids))] if by_token else []
        whole, *hidden = explained.without([*spans, *single], progress)
    effects = [whole - value for value in hidden]
    parts = [
        PartEffect(
            span.name,
            own.tokenizer.decode(ids[span.start : span.stop]).strip(),
            sum(gradient[span.start : span.stop]),
            effect,
        )
        for span, effect in zip(spans, effects, strict=False)
    ]

    def in_words(row: Sequence[int]) -> str:
        # A single token may be a part of a character, which shows its bytes.
        return own.piece(row[0]) if len(row) == 1 else own.tokenizer.decode(row)

    return PromptParts(
        tuple(map(own.piece, ids)),
        in_words(explained.answer),
        in_words(explained.against),
        whole,
        tuple(parts),
        tuple(gradient),
        tuple(effects[len(spans) :]),
    )
