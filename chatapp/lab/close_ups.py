"""Close-ups: neighbours of a token or of a hidden state, one attention weight step by step, the
norm of the residual stream, and the neurons of an MLP that count.

Invariant: each sum is shown with the number that it has to equal.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from chatapp.common.shading import visible
from chatapp.common.userfiles import UserError
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.decoder.decoder import Decoder
from chatapp.engine.decoder.interventions import UNCHANGED, Interventions, Part
from chatapp.engine.model import LanguageModel
from chatapp.lab.attribution import normed_parts, runner_up
from chatapp.lab.findings import Finding
from chatapp.lab.heads import matrix_of, own_decoder
from chatapp.lab.reruns import Contrast
from chatapp.lab.traces import Recorder


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A token near to something. cosine: from −1 to 1."""

    id: int
    text: str
    cosine: float


@dataclass(frozen=True, slots=True)
class Neighbours(Finding):
    """The tokens whose vectors point in the same direction as one vector.

    of: what it is, in words. embedding, output: by W_E and by W_U; the second is empty where both
    are one matrix.
    """

    name: ClassVar[str] = "neighbours"

    of: str
    embedding: tuple[Neighbour, ...]
    output: tuple[Neighbour, ...]

    @classmethod
    def of_token(cls, model: LanguageModel, id: int, top: int = 10) -> Self:
        """Those of a token's rows: cos(W[id] − mean, W[j] − mean), the mean being over all tokens,
        because embeddings share a direction (Mu and Viswanath 2018, arXiv 1702.01417).
        """
        return cls._near(own_decoder(model), f"│{visible(_piece(model, id))}│", id, None, top)

    @classmethod
    @torch.inference_mode()
    def _near(
        cls, model: LocalModel, of: str, id: int | None, vector: Tensor | None, top: int
    ) -> Self:
        decoder = model.decoder
        tables = [decoder.token_embedding[: decoder.vocabulary].float()]
        if not decoder.architecture.is_tied:
            width = decoder.architecture.width
            tables.append(matrix_of(decoder.uncapped_head, width, decoder.device))
        nearest: list[tuple[Neighbour, ...]] = []
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
    def sentence(self) -> str:
        tables = "by the embedding and by the output matrix" if self.output else "by the embedding"
        return f"Nearest tokens to {self.of}, {tables}, by cosine after the mean is taken off"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class StateNeighbours(Neighbours):
    """The tokens nearest to a hidden state."""

    name: ClassVar[str] = "state"

    @classmethod
    def of_state(
        cls,
        model: LanguageModel,
        ids: Sequence[int],
        state: str,
        position: int,
        top: int = 10,
        changes: Interventions = UNCHANGED,
    ) -> Self:
        """Those of a hidden state h: cos(h, W[j] − mean).

        state: `embed`, or the layer that it comes from. Raises UserError for another.
        """
        own = own_decoder(model)
        layers = own.decoder.architecture.layers
        points = {"embed": "embed"} | {str(layer): f"blocks.{layer}" for layer in range(layers)}
        if state not in points:
            raise UserError(
                f"--state is {state!r}; the model has embed and the layers 0 to {layers - 1}"
            )
        own.check_text(ids)
        point = points[state]
        hidden = _seen(own, ids, [point], changes)[point][len(own.start) + position]
        words = f"state {state} at token {position} │{visible(own.piece(ids[position]))}│"
        return cls._near(own, words, None, hidden, top)


@dataclass(frozen=True, slots=True)
class Key:
    """One key that a query meets. product: q · k. score: q · k times the scale. weight: its share
    after the softmax. size: the length of weight · v, what it adds to the mixture."""

    position: int
    text: str
    product: float
    score: float
    weight: float
    size: float


@dataclass(frozen=True, slots=True)
class WeightSteps(Finding):
    """How one head computes its weights at one position: q · k, scale, softmax, mixed values.

    keys: those that are seen. mixed: the length of Σ weight · v. error: the largest difference of
    that sum from what the model's head gave.
    """

    name: ClassVar[str] = "weight"

    part: str
    position: int
    text: str
    scale: float
    keys: tuple[Key, ...]
    mixed: float
    error: float

    @classmethod
    def of(
        cls,
        model: LanguageModel,
        ids: Sequence[int],
        part: Part,
        position: int,
        changes: Interventions = UNCHANGED,
    ) -> Self:
        """part: a head. Raises UserError for another part."""
        if part.head is None:
            raise UserError(f"{part}: expected a head, such as 3.5")
        own = own_decoder(model)
        own.check_text(ids)
        shape, kind = own.decoder.architecture, own.decoder.architecture.attentions[part.layer]
        block = f"blocks.{part.layer}.attention"
        points = [f"{block}.{name}" for name in ("query", "key", "value", f"head.{part.head}")]
        seen = _seen(own, ids, points, changes)
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
                Key(first + n - start, texts[first + n], *numbers) for n, numbers in enumerate(rows)
            ),
            float(mixed.norm()),
            float((mixed - seen[points[3]][at]).abs().max()),
        )

    @property
    def sentence(self) -> str:
        total = sum(key.weight for key in self.keys)
        return (
            f"How head {self.part} weighs what token {self.position} │{visible(self.text)}│ sees: "
            f"q·k times {self.scale:.4g}, softmax; the weights add up to {total:.4f}, and the "
            f"mixed values differ from the model's by {self.error:.0e}"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Norms(Finding):
    """How long the residual stream is, and what each block adds to it, at one token.

    stream: of each state, from the embeddings on. others: the mean over the other tokens except the
    first, whose norm is often far larger. attention, mlp: of what each block adds.
    """

    name: ClassVar[str] = "norms"

    position: int
    text: str
    stream: tuple[float, ...]
    others: tuple[float | None, ...]
    attention: tuple[float, ...]
    mlp: tuple[float, ...]

    @classmethod
    def of(
        cls,
        model: LanguageModel,
        ids: Sequence[int],
        position: int,
        changes: Interventions = UNCHANGED,
    ) -> Self:
        """Euclidean norms ‖x‖ of the states at a position."""
        own = own_decoder(model)
        own.check_text(ids)
        blocks = [f"blocks.{layer}" for layer in range(own.decoder.architecture.layers)]
        points = ["embed", *blocks]
        updates = [[f"{block}.{name}" for block in blocks] for name in ("attention", "mlp")]
        seen = _seen(own, ids, [*points, *updates[0], *updates[1]], changes)
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
    def sentence(self) -> str:
        return (
            f"The residual stream's norm at token {self.position} │{visible(self.text)}│ goes from "
            f"{self.stream[0]:.1f} to {self.stream[-1]:.1f} over the layers"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Neuron:
    """A neuron, such as 4.mlp.812. activation: what it gives. effect: on the difference of the two
    logits. promotes: the tokens whose logits it raises most."""

    name: str
    activation: float
    effect: float
    promotes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Neurons(Finding):
    """The neurons of an MLP with the largest direct effects.

    token, against: the two that are compared. total: of all neurons and the bias. share: of the
    whole MLP, computed without taking it apart.
    """

    name: ClassVar[str] = "neurons"

    part: str
    token: str
    against: str
    neurons: tuple[Neuron, ...]
    total: float
    share: float

    @classmethod
    def of(
        cls,
        model: LanguageModel,
        ids: Sequence[int],
        part: Part,
        token: int | None = None,
        against: int | None = None,
        top: int = 10,
        changes: Interventions = UNCHANGED,
    ) -> Self:
        """At the last token. A neuron adds activation · W_out[:, n] to the residual stream; its
        effect is what the final norm, with its scale held, and the output matrix make of that
        (Geva et al. 2021, arXiv 2012.14913; 2203.14680).

        token, against: the likeliest and the runner-up by default. Raises UserError unless `part`
        is an MLP.
        """
        if not part.is_mlp or part.neuron is not None:
            raise UserError(f"{part}: expected an MLP, such as 4.mlp")
        own = own_decoder(model)
        own.check_text(ids)
        decoder = own.decoder
        last = f"blocks.{decoder.architecture.layers - 1}"
        points = [f"blocks.{part.layer}.mlp.neurons", f"blocks.{part.layer}.mlp", last]
        seen = _seen(own, ids, points, changes)
        activations, added, state = (seen[point][-1] for point in points)
        with torch.inference_mode():
            logits = decoder.uncapped_head(decoder.normed(state[None]))[0]
            best = int(logits.argmax()) if token is None else token
            other = runner_up(logits, best) if against is None else against
            contrast = Contrast(best, other)
            normed = normed_parts(decoder.norm, _updates(decoder, part.layer, activations), state)
            direction = contrast.of(decoder.uncapped_head(torch.eye(len(state), device=own.device)))
            effects = normed @ direction
            share = normed_parts(decoder.norm, added[None], state)[0] @ direction
            order = effects[:-1].abs().topk(min(top, len(activations))).indices.tolist()
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
    def sentence(self) -> str:
        return (
            f"The neurons of {self.part} with the largest effect on │{visible(self.token)}│ "
            f"against │{visible(self.against)}│; all of them add {self.total:+.3f}, the MLP "
            f"{self.share:+.3f}"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _updates(decoder: Decoder, layer: int, activations: Tensor) -> Tensor:
    """What each neuron, and then the bias, adds to the residual stream: (neurons + 1, width)."""
    block, inner = decoder.blocks[layer], len(activations)
    directions = matrix_of(block.mlp.contract, inner, decoder.device).T
    bias = block.mlp.contract(torch.zeros(1, inner, device=decoder.device))
    parts = torch.cat([activations[:, None] * directions, bias])
    if block.norm_after_2 is not None:
        parts = normed_parts(block.norm_after_2, parts, parts.sum(0))
    return parts


def _piece(model: LanguageModel, id: int) -> str:
    return own_decoder(model).piece(id)


def _seen(
    model: LocalModel, ids: Sequence[int], points: Sequence[str], changes: Interventions
) -> dict[str, Tensor]:
    """The values at points of the forward pass, without the batch dimension."""
    recorder = Recorder(points)
    changes = changes.shifted(len(model.start))
    with model.lock:
        model.decoder.hidden([[*model.start, *ids]], observe=recorder, changes=changes)
    return {point: value[0] for point, value in recorder.values.items()}
