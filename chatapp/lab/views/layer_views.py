"""Views of what happens from layer to layer: the logit lens, and the residual stream's norm."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from chatapp.common.shading import percent, visible
from chatapp.lab.drawing.blocks import Bar, Block, Cell, Number, Table
from chatapp.lab.view import AtToken, Subject, Top, View, candidates_json, named_token, state_name
from chatapp.lab.views.attention_views import check_in_full
from chatapp.lab.views.text_views import pieces

if TYPE_CHECKING:
    from chatapp.lab.predictions import Candidate, Prediction
    from chatapp.lab.traces import Trace


@dataclass(frozen=True, kw_only=True)
class LayersOptions(AtToken, Top):
    """A token, and how many alternatives."""


@dataclass(frozen=True, slots=True)
class Layers(View):
    """Each layer's prediction after a token, by the logit lens; see `Trace.layer_logits`.

    texts: of the tokens up to it. predictions: of each layer, from the embeddings on. is_of_mask:
    whether they are of the token itself, which is masked.
    """

    name: ClassVar[str] = "layers"
    title: ClassVar[str] = "Layers"
    summary: ClassVar[str] = "Show what each layer would predict after a token."
    formula: ClassVar[str] = (
        "Logit lens: softmax(W_U norm(h)) of the hidden state h after each layer (nostalgebraist "
        "2020). The last row is the model's own prediction."
    )
    reads_masks: ClassVar[bool] = True
    Options: ClassVar[type[Any]] = LayersOptions

    texts: tuple[str, ...]
    predictions: "tuple[Prediction, ...]"
    is_of_mask: bool = False

    @classmethod
    def look(cls, subject: Subject, options: LayersOptions) -> "Layers":
        return cls.of(subject.trace, subject.position, options.top)

    @classmethod
    def whole(cls, subject: Subject, options: LayersOptions) -> Any:
        check_in_full(len(subject.ids))
        places = range(len(subject.ids))
        by_token = [cls.of(subject.trace, at, options.top).to_json() for at in places]
        return list(zip(*by_token, strict=True))

    @classmethod
    def of(cls, trace: "Trace", position: int, top: int = 5) -> Self:
        """top: the number of candidates per layer."""
        texts = trace.texts[: position + 1]
        return cls(texts, tuple(trace.lens(position, top)), trace.sees_all)

    @property
    def actual(self) -> "Candidate | None":
        """The token that followed; None after the last one."""
        return self.predictions[0].actual

    @property
    def settled(self) -> int:
        """The first of the states from which on all predict what the last one does."""
        best = [guess.candidates[0].id for guess in self.predictions]
        place = len(best) - 1
        while place and best[place - 1] == best[-1]:
            place -= 1
        return place

    @property
    def reading(self) -> str:
        place = "In place of" if self.is_of_mask else "After"
        last, settled = self.predictions[-1].candidates[0], self.settled
        since = "from the embeddings on" if settled == 0 else f"from layer {settled - 1} on"
        if settled == len(self.predictions) - 1:
            since = "in the last layer alone"
        words = (
            f"{place} {named_token(self.texts, len(self.texts) - 1)}, the model predicts "
            f"│{visible(last.text)}│ ({percent(last.probability).strip()}) {since}"
        )
        if self.actual is None:
            return words
        verb = "was there" if self.is_of_mask else "followed"
        return f"{words}; │{visible(self.actual.text)}│ {verb}"

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "layer": state_name(index),
                "entropy": prediction.entropy,
                "alternatives": candidates_json(prediction),
            }
            for index, prediction in enumerate(self.predictions)
        ]

    def blocks(self) -> Sequence[Block]:
        ranks = [">rank"] if self.actual else []
        rows: list[list[Cell]] = []
        for index, guess in enumerate(self.predictions):
            rank = [f"{guess.actual.rank:,}"] if guess.actual else []
            entropy = Number(guess.entropy or 0.0, ".1f")
            rows.append([state_name(index), entropy, *rank, pieces(guess.candidates)])
        return [Table([">layer", ">bits", *ranks, "logit lens"], rows)]


@dataclass(frozen=True, slots=True)
class Norms(View):
    """How long the residual stream is, and what each block adds to it, at one token.

    stream: of each state, from the embeddings on. others: the mean over the other tokens except the
    first, whose norm is often far larger. attention, mlp: of what each block adds.
    """

    name: ClassVar[str] = "norms"
    title: ClassVar[str] = "Norms"
    summary: ClassVar[str] = "Show the residual stream's norm by layer."
    formula: ClassVar[str] = (
        "The Euclidean norm of the residual stream after each layer, and of what attention and "
        "MLP add to it."
    )
    key: ClassVar[str] = "r"

    position: int
    text: str
    stream: tuple[float, ...]
    others: tuple[float | None, ...]
    attention: tuple[float, ...]
    mlp: tuple[float, ...]

    @classmethod
    def look(cls, subject: Subject, options: AtToken) -> "Norms":
        from chatapp.lab.heads import own_decoder
        from chatapp.lab.traces import seen_at

        own, ids, position = own_decoder(subject.model), subject.ids_up_to_token, subject.position
        own.check_text(ids)
        blocks = [f"blocks.{layer}" for layer in range(own.decoder.architecture.layers)]
        points = ["embed", *blocks]
        updates = [[f"{block}.{name}" for block in blocks] for name in ("attention", "mlp")]
        seen = seen_at(own, ids, [*points, *updates[0], *updates[1]], subject.changes)
        at = len(own.start) + position
        rest = [n for n in range(len(own.start) + len(ids)) if n not in (0, at)]
        return cls(
            position,
            own.piece(ids[position]),
            tuple(float(seen[point][at].norm()) for point in points),
            tuple(float(seen[p][rest].norm(dim=1).mean()) if rest else None for p in points),
            *(tuple(float(seen[point][at].norm()) for point in row) for row in updates),
        )

    @property
    def reading(self) -> str:
        pairs = [
            (added, f"the {name} of layer {layer}")
            for name, row in (("attention", self.attention), ("MLP", self.mlp))
            for layer, added in enumerate(row)
        ]
        most, part = max(pairs)
        return (
            f"The residual stream at token {self.position} │{visible(self.text)}│ goes from "
            f"{self.stream[0]:.1f} to {self.stream[-1]:.1f}; {part} adds most, {most:.1f}"
        )

    def blocks(self) -> Sequence[Block]:
        most = max(self.stream) or 1.0
        rows: list[list[Cell]] = []
        for index, (norm, other) in enumerate(zip(self.stream, self.others, strict=True)):
            added: list[Cell] = ["", ""]
            if index:
                added = [Number(of[index - 1], ".2f") for of in (self.attention, self.mlp)]
            mean: Cell = "" if other is None else Number(other, ".2f")
            rows.append([state_name(index), *added, Number(norm, ".2f"), mean, Bar(norm / most)])
        return [Table([">layer", ">attention", ">MLP", ">stream", ">others", ""], rows)]
