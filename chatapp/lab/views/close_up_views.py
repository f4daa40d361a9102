"""Close views of vectors: neighbours of a token or of a hidden state, one attention weight step by
step, and the neurons of an MLP that count.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from chatapp.common.shading import percent, visible
from chatapp.common.userfiles import UserError
from chatapp.lab.drawing.blocks import Bar, Block, Cell, Lines, Note, Number, Pieces, Share, Table
from chatapp.lab.view import AtToken, Subject, Top, View, option, token_of

if TYPE_CHECKING:
    from torch import Tensor

    from chatapp.engine.backends.local import LocalModel
    from chatapp.engine.decoder.decoder import Decoder

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A token near to something. cosine: from −1 to 1."""

    id: int
    text: str
    cosine: float


@dataclass(frozen=True)
class NeighboursOptions(Top):
    """The token whose neighbours are listed."""

    word: str = option('A token, such as " king".', metavar="TOKEN", is_argument=True)


@dataclass(frozen=True, slots=True)
class Neighbours(View):
    """The tokens whose vectors point in the same direction as one vector.

    of: what it is, in words. embedding, output: by W_E and by W_U; the second is empty where both
    are one matrix.
    """

    name: ClassVar[str] = "neighbours"
    title: ClassVar[str] = "Neighbours"
    summary: ClassVar[str] = "Show the tokens nearest to a token."
    formula: ClassVar[str] = (
        "cos(W[token] - mean, W[j] - mean), the mean over all tokens, because embeddings share a "
        "direction; Mu and Viswanath 2018, arXiv 1702.01417."
    )
    key: ClassVar[str] = "n"
    takes_text: ClassVar[Any] = "never"
    Options: ClassVar[type[Any]] = NeighboursOptions

    of: str
    embedding: tuple[Neighbour, ...]
    output: tuple[Neighbour, ...]

    @classmethod
    def here(cls, subject: Subject) -> NeighboursOptions:
        return NeighboursOptions("")

    @classmethod
    def look(cls, subject: Subject, options: NeighboursOptions) -> "Neighbours":
        from chatapp.lab.heads import own_decoder

        own = own_decoder(subject.model)
        if subject.ids:
            id = subject.ids[subject.position]
        else:
            id = token_of(own.tokenizer, options.word, "TOKEN")
        return cls._near(own, f"│{visible(own.piece(id))}│", id, None, options.top)

    @classmethod
    def _near(
        cls, model: "LocalModel", of: str, id: int | None, vector: "Tensor | None", top: int
    ) -> Self:
        import torch

        from chatapp.lab.heads import matrix_of

        decoder = model.decoder
        nearest: list[tuple[Neighbour, ...]] = []
        with torch.inference_mode():
            tables = [decoder.token_embedding[: decoder.vocabulary].float()]
            if not decoder.architecture.is_tied:
                width = decoder.architecture.width
                tables.append(matrix_of(decoder.uncapped_head, width, decoder.device))
            for table in tables:
                centred = table - table.mean(0)
                wanted = centred[id] if vector is None else vector
                cosines = torch.cosine_similarity(centred, wanted[None], dim=1)
                if id is not None:
                    cosines[id] = -2  # itself
                best = cosines.topk(min(top, len(cosines) - 1))
                pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                nearest.append(tuple(Neighbour(i, model.piece(i), value) for i, value in pairs))
        return cls(of, nearest[0], nearest[1] if len(nearest) > 1 else ())

    @property
    def reading(self) -> str:
        best = self.embedding[0]
        words = f"Nearest to {self.of} is │{visible(best.text)}│, cosine {best.cosine:.2f}"
        if not self.output:
            return words
        other = self.output[0]
        return f"{words}; in the output matrix │{visible(other.text)}│, {other.cosine:.2f}"

    def blocks(self) -> Sequence[Block]:
        blocks: list[Block] = []
        for title, near in (("embedding", self.embedding), ("output", self.output)):
            rows: list[list[Cell]] = [
                [Pieces.of(one.text), Number(one.cosine), Bar(one.cosine, is_dim=True)]
                for one in near
            ]
            blocks += [Table([title, ">cosine", ""], rows)] if rows else []
        return blocks


@dataclass(frozen=True)
class StateOptions(AtToken, Top):
    """Which state."""

    state: str = option(
        "embed, or the layer that the state comes from.", metavar="LAYER", is_argument=True
    )


class StateNeighbours(Neighbours):
    """The tokens nearest to a hidden state."""

    name: ClassVar[str] = "state"
    title: ClassVar[str] = "State"
    summary: ClassVar[str] = "Show the tokens nearest to a hidden state."
    formula: ClassVar[str] = (
        "cos(h, W[j] - mean) of the hidden state h after a layer; Mu and Viswanath 2018, arXiv "
        "1702.01417."
    )
    key: ClassVar[str] = "h"
    takes_text: ClassVar[Any] = "always"
    Options: ClassVar[type[Any]] = StateOptions

    @classmethod
    def here(cls, subject: Subject) -> Any:
        layer = subject.trace.layers - 1 if subject.cell is None else subject.cell[0]
        return StateOptions(str(layer))

    @classmethod
    def look(cls, subject: Subject, options: Any) -> "StateNeighbours":
        from chatapp.lab.heads import own_decoder
        from chatapp.lab.traces import seen_at

        own, ids, state = own_decoder(subject.model), subject.ids_up_to_token, options.state
        layers = own.decoder.architecture.layers
        points = {"embed": "embed"} | {str(layer): f"blocks.{layer}" for layer in range(layers)}
        if state not in points:
            raise UserError(
                f"{state!r} is not a state; the model has embed and the layers 0 to {layers - 1}"
            )
        own.check_text(ids)
        point = points[state]
        hidden = seen_at(own, ids, [point], subject.changes)[point][-1]
        words = f"state {state} at token {subject.position} │{visible(own.piece(ids[-1]))}│"
        return cls._near(own, words, None, hidden, options.top)


@dataclass(frozen=True, slots=True)
class AttendedKey:
    """One key that a query meets. product: q · k. score: q · k times the scale. weight: its share
    after the softmax. size: the length of weight · v, what it adds to the mixture."""

    position: int
    text: str
    product: float
    score: float
    weight: float
    size: float


@dataclass(frozen=True)
class WeightOptions(AtToken):
    """Which head."""

    head: str = option("A head, such as 3.5.", is_argument=True)


@dataclass(frozen=True, slots=True)
class WeightSteps(View):
    """How one head computes its weights at one position: q · k, scale, softmax, mixed values.

    keys: those that are seen. mixed: the length of Σ weight · v. error: the largest difference of
    that sum from what the model's head gave.
    """

    name: ClassVar[str] = "weight"
    title: ClassVar[str] = "Weight"
    summary: ClassVar[str] = "Show step by step how a head weighs keys."
    formula: ClassVar[str] = (
        "w = softmax(q · k · scale), the head gives sum of w v; Vaswani et al. 2017, arXiv "
        "1706.03762."
    )
    key: ClassVar[str] = "w"
    Options: ClassVar[type[Any]] = WeightOptions

    part: str
    position: int
    text: str
    scale: float
    keys: tuple[AttendedKey, ...]
    mixed: float
    error: float

    @classmethod
    def here(cls, subject: Subject) -> WeightOptions:
        return WeightOptions(subject.head)

    @classmethod
    def look(cls, subject: Subject, options: WeightOptions) -> "WeightSteps":
        from chatapp.lab.heads import own_decoder
        from chatapp.lab.traces import seen_at

        part, position, ids = subject.part(options.head), subject.position, subject.ids_up_to_token
        if part.head is None:
            raise UserError(f"{part}: expected a head, such as 3.5")
        own = own_decoder(subject.model)
        own.check_text(ids)
        shape, kind = own.decoder.architecture, own.decoder.architecture.attentions[part.layer]
        block = f"blocks.{part.layer}.attention"
        points = [f"{block}.{name}" for name in ("query", "key", "value", f"head.{part.head}")]
        seen = seen_at(own, ids, points, subject.changes)
        at, start = len(own.start) + position, len(own.start)
        shared = part.head // (shape.heads // shape.key_value_heads)
        query, key, value = seen[points[0]][part.head], seen[points[1]], seen[points[2]]
        first = 0 if kind.window is None else max(0, at + 1 - kind.window)
        keys, values = key[shared, first : at + 1], value[shared, first : at + 1]
        products = keys @ query[at]
        scores = products * kind.scale
        weights = scores.softmax(0)
        sizes = (weights[:, None] * values).norm(dim=1)
        mixed = weights @ values
        rows = zip(*(x.tolist() for x in (products, scores, weights, sizes)), strict=True)
        texts = [*map(own.piece, own.start), *map(own.piece, ids)]
        return cls(
            str(part),
            position,
            own.piece(ids[position]),
            kind.scale,
            tuple(
                AttendedKey(first + n - start, texts[first + n], *numbers)
                for n, numbers in enumerate(rows)
            ),
            float(mixed.norm()),
            float((mixed - seen[points[3]][at]).abs().max()),
        )

    @property
    def reading(self) -> str:
        best = max(self.keys, key=lambda key: key.weight)
        total = sum(key.weight for key in self.keys)
        return (
            f"Head {self.part} at token {self.position} │{visible(self.text)}│ gives most weight "
            f"to token {best.position} │{visible(best.text)}│, {percent(best.weight).strip()}: its "
            f"q·k is {best.product:.2f}, the scale {self.scale:.4g}; the weights add up to "
            f"{total:.4f}"
        )

    def blocks(self) -> Sequence[Block]:
        order = sorted(self.keys, key=lambda key: -key.weight)[:_SHOWN]
        rows: list[list[Cell]] = [
            [
                str(key.position),
                Pieces.of(key.text),
                Number(key.product, ".2f"),
                Number(key.score, ".2f"),
                Share(key.weight),
                Number(key.size, ".3f"),
            ]
            for key in order
        ]
        return [
            Table([">#", "key", ">q·k", ">scaled", ">softmax", ">weight·‖v‖"], rows),
            Note(
                f"The mixed values have the norm {self.mixed:.3f}, and differ from the model's by "
                f"{self.error:.0e}."
            ),
            Lines([key.text for key in self.keys], [key.weight for key in self.keys]),
        ]


@dataclass(frozen=True, slots=True)
class Neuron:
    """A neuron, such as 4.mlp.812. activation: what it gives. effect: on the difference of the two
    logits. promotes: the tokens whose logits it raises most."""

    name: str
    activation: float
    effect: float
    promotes: tuple[str, ...]


@dataclass(frozen=True)
class NeuronsOptions(AtToken, Top):
    """Which MLP."""

    mlp: str = option("An MLP, such as 4.mlp.", is_argument=True)


@dataclass(frozen=True, slots=True)
class Neurons(View):
    """The neurons of an MLP with the largest direct effects.

    token, against: the two that are compared. total: of all neurons and the bias. share: of the
    whole MLP, computed without taking it apart.
    """

    name: ClassVar[str] = "neurons"
    title: ClassVar[str] = "Neurons"
    summary: ClassVar[str] = "Show the neurons of an MLP with the largest effect."
    formula: ClassVar[str] = (
        "effect = activation · W_out[:, n] through the final norm, with its scale, and W_U[token] "
        "- W_U[other]; Geva et al. 2022, arXiv 2203.14680."
    )
    key: ClassVar[str] = "u"
    Options: ClassVar[type[Any]] = NeuronsOptions

    part: str
    token: str
    against: str
    neurons: tuple[Neuron, ...]
    total: float
    share: float

    @classmethod
    def here(cls, subject: Subject) -> NeuronsOptions:
        layer = subject.trace.layers - 1 if subject.cell is None else subject.cell[0]
        return NeuronsOptions(f"{layer}.mlp")

    @classmethod
    def look(cls, subject: Subject, options: NeuronsOptions) -> "Neurons":
        import torch

        from chatapp.lab.contributions import normed_parts, runner_up
        from chatapp.lab.heads import own_decoder
        from chatapp.lab.reruns import Contrast
        from chatapp.lab.traces import seen_at

        part, token = subject.part(options.mlp), subject.following
        if not part.is_mlp or part.neuron is not None:
            raise UserError(f"{part}: expected an MLP, such as 4.mlp")
        own = own_decoder(subject.model)
        own.check_text(subject.ids_up_to_token)
        decoder = own.decoder
        last = f"blocks.{decoder.architecture.layers - 1}"
        points = [f"blocks.{part.layer}.mlp.neurons", f"blocks.{part.layer}.mlp", last]
        seen = seen_at(own, subject.ids_up_to_token, points, subject.changes)
        activations, added, state = (seen[point][-1] for point in points)
        with torch.inference_mode():
            logits = decoder.uncapped_head(decoder.normed(state[None]))[0]
            best = int(logits.argmax()) if token is None else token
            other = runner_up(logits, best)
            contrast = Contrast(best, other)
            normed = normed_parts(decoder.norm, _updates(decoder, part.layer, activations), state)
            direction = contrast.of(decoder.uncapped_head(torch.eye(len(state), device=own.device)))
            effects = normed @ direction
            share = normed_parts(decoder.norm, added[None], state)[0] @ direction
            order = effects[:-1].abs().topk(min(options.top, len(activations))).indices.tolist()
            raised = decoder.uncapped_head(normed[order]).topk(5).indices.tolist()
        neurons = tuple(
            Neuron(
                f"{part}.{n}",
                float(activations[n]),
                float(effects[n]),
                tuple(map(own.piece, tokens)),
            )
            for n, tokens in zip(order, raised, strict=True)
        )
        texts = own.piece(best), own.piece(other)
        return cls(str(part), *texts, neurons, float(effects.sum()), float(share))

    @property
    def reading(self) -> str:
        best = self.neurons[0]
        return (
            f"Neuron {best.name} has the largest effect on │{visible(self.token)}│ against "
            f"│{visible(self.against)}│, {best.effect:+.3f}; all neurons add {self.total:+.3f}, "
            f"the MLP {self.share:+.3f}"
        )

    def blocks(self) -> Sequence[Block]:
        rows: list[list[Cell]] = [
            [
                neuron.name,
                Number(neuron.activation),
                Number(neuron.effect),
                Pieces.of(*neuron.promotes),
            ]
            for neuron in self.neurons
        ]
        return [Table(["neuron", ">activation", ">effect", "promotes"], rows)]


def _updates(decoder: "Decoder", layer: int, activations: "Tensor") -> "Tensor":
    """What each neuron, and then the bias, adds to the residual stream: (neurons + 1, width)."""
    import torch

    from chatapp.lab.contributions import normed_parts
    from chatapp.lab.heads import matrix_of

    block, inner = decoder.blocks[layer], len(activations)
    directions = matrix_of(block.mlp.contract, inner, decoder.device).T
    bias = block.mlp.contract(torch.zeros(1, inner, device=decoder.device))
    parts = torch.cat([activations[:, None] * directions, bias])
    if block.norm_after_2 is not None:
        parts = normed_parts(block.norm_after_2, parts, parts.sum(0))
    return parts
