"""Views of what only some architectures have: positions and experts.

A model adds an embedding p_i of position i to each token (GPT-2), or rotates queries and keys by an
angle i · θ_k (Su et al. 2021, arXiv 2104.09864). Off: the embeddings are zeros, or each token is
rotated as at position 0. Shuffled: each token gets the position of another one. Causal attention
stays, so that some order is left: a token sees only those before it.

Similarity at distance d: the mean over i of cos(p_i, p_{i+d}), or the mean over k of cos(d · θ_k),
which is the share of q · k that equal queries and keys keep at this distance.

Where MLPs are mixtures of experts, a router scores the experts of a layer for each token. The few
with the largest scores compute, and the MLP's output is the sum of theirs, each times its weight g.
Families differ in how they get the weights: a softmax over all experts or over the chosen ones, or
sigmoids, so that their sum need not be 1.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from chatapp.common.shading import percent
from chatapp.common.userfiles import UserError
from chatapp.lab.drawing.blocks import Block, Cell, Heading, Map, Note, Number, Pieces, Table
from chatapp.lab.view import NoOptions, Subject, Top, View, named_token, option
from chatapp.lab.views.text_views import pieces

if TYPE_CHECKING:
    from torch import Tensor

    from chatapp.engine.backends.local import LocalModel
    from chatapp.engine.backends.transformers_model import TransformersModel
    from chatapp.engine.decoder.decoder import Decoder
    from chatapp.engine.decoder.interventions import Interventions
    from chatapp.engine.model import LanguageModel
    from chatapp.lab.predictions import Candidate

DISTANCES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class PositionsOptions(Top):
    """The second text."""

    other: str | None = option(
        "A text of as many tokens in another order.", flag="--with", metavar="TEXT"
    )


@dataclass(frozen=True, slots=True)
class Ordered:
    """Predictions with one kind of positions.

    first, second: the likeliest tokens after both texts. change: KL(as they are ‖ so) after the
    first text. apart: KL(first ‖ second) with these positions. Both in nats.
    """

    positions: str
    first: "tuple[Candidate, ...]"
    second: "tuple[Candidate, ...]"
    change: float
    apart: float


@dataclass(frozen=True, slots=True)
class Positions(View):
    """Two texts under each kind of positions. similarity: of positions by their distance."""

    name: ClassVar[str] = "positions"
    title: ClassVar[str] = "Positions"
    summary: ClassVar[str] = (
        "Compare a text with one in another order. Positions are as they are, switched off and "
        "shuffled."
    )
    formula: ClassVar[str] = (
        "change = KL(as they are || so) after the first text, apart = KL(first || second), in "
        "nats; Su et al. 2021, arXiv 2104.09864."
    )
    Options: ClassVar[type[Any]] = PositionsOptions

    kind: str
    similarity: dict[int, float]
    rows: tuple[Ordered, ...]

    @classmethod
    def look(cls, subject: Subject, options: PositionsOptions) -> "Positions":
        if not options.other:
            raise UserError("give --with and a text of as many tokens in another order")
        other = subject.model.tokenizer.encode(options.other)
        return cls.of(subject.model, subject.ids, other, options.top)

    @classmethod
    def of(
        cls, model: "LanguageModel", text: Sequence[int], other: Sequence[int], top: int = 5
    ) -> Self:
        """text, other: tokens, as many in both. Raises UserError for others, and for a model
        without positions."""
        import torch

        from chatapp.engine.decoder.interventions import UNCHANGED, Change, Interventions
        from chatapp.lab.heads import own_decoder
        from chatapp.lab.predictions import predictions

        own = own_decoder(model)
        decoder = own.decoder
        kind = "embeddings" if decoder.position_embedding is not None else "rotations"
        if decoder.position_embedding is None and not decoder.rotations:
            raise UserError(f"{own.name}: this model has no positions")
        if len(text) != len(other):
            raise UserError(
                f"the texts have {len(text)} and {len(other)} tokens; with equally many, both get "
                "the same positions"
            )
        own.check_text(text)
        size = len(own.start) + len(text)
        order = torch.randperm(size, generator=torch.Generator().manual_seed(0))
        zeros = Interventions((Change("positions", "positions"),))
        off = None if kind == "embeddings" else torch.zeros(size, dtype=torch.long)
        ways = (
            ("as they are", None, UNCHANGED),
            ("off", off, zeros if off is None else UNCHANGED),
            ("shuffled", order, UNCHANGED),
        )
        plain: Tensor | None = None
        rows = []
        for name, positions, changes in ways:
            both = torch.stack([_logits(own, ids, positions, changes) for ids in (text, other)])
            first, second = both.log_softmax(-1)
            plain = first if plain is None else plain
            shown = predictions(both, [None, None], top=top, piece=own.piece)
            change, apart = _kl(plain, first), _kl(first, second)
            rows.append(Ordered(name, shown[0].candidates, shown[1].candidates, change, apart))
        return cls(kind, similarity_by_distance(decoder), tuple(rows))

    @property
    def reading(self) -> str:
        apart = ", ".join(f"{row.apart:.3f} {row.positions}" for row in self.rows)
        usual, off = self.rows[0].apart, self.rows[1].apart
        verb = "depends little on" if usual < 0.1 else "depends on"
        if usual >= 0.1 and off < usual / 2:
            verb = "depends mostly through positions on"
        return (
            f"What comes next {verb} the order: after both texts the predictions are {apart} nats "
            f"apart, by KL(first ‖ second) with {self.kind} of positions"
        )

    def blocks(self) -> Sequence[Block]:
        alike = "  ".join(
            f"{distance}: {value:+.2f}" for distance, value in self.similarity.items()
        )
        blocks: list[Block] = [Note(f"Similarity by distance  {alike}")]
        for title, texts in (
            ("after the first text", [row.first for row in self.rows]),
            ("after the second", [row.second for row in self.rows]),
        ):
            rows: list[list[Cell]] = [
                [row.positions, Number(row.change, ".3f"), Number(row.apart, ".3f"), pieces(best)]
                for row, best in zip(self.rows, texts, strict=True)
            ]
            blocks.append(Table(["positions", ">change", ">apart", title], rows))
        return blocks


def similarity_by_distance(decoder: "Decoder") -> dict[int, float]:
    """How alike positions are, by the distances of `DISTANCES` that the model has."""
    import torch

    distances = [d for d in DISTANCES if d < decoder.architecture.context]
    with torch.inference_mode():
        if (table := decoder.position_embedding) is not None:
            unit = torch.nn.functional.normalize(table.float(), dim=-1)
            return {d: float((unit[:-d] * unit[d:]).sum(-1).mean()) for d in distances}
        if not decoder.rotations:
            return {}
        places = torch.tensor([0, *distances], device=decoder.device)
        cosines, _ = decoder.rotations[0].turns(places)
        zero, *rest = cosines.mean((-1, -2)).tolist()
    return dict(zip(distances, (cosine / zero for cosine in rest), strict=True))


def _logits(
    model: "LocalModel", ids: Sequence[int], positions: "Tensor | None", changes: "Interventions"
) -> "Tensor":
    """Logits (vocabulary,) after the last token."""
    import torch

    decoder = model.decoder
    with model.lock, torch.inference_mode():
        states = decoder.hidden([[*model.start, *ids]], positions=positions, changes=changes)
        return decoder.head(states[0, -1:])[0].float().cpu()


def _kl(before: "Tensor", after: "Tensor") -> float:
    return float((before.exp() * (before - after)).sum())


@dataclass(frozen=True, slots=True)
class Routes:
    """What the router of a layer chose. experts, weights: of each token, the largest weight first.

    count: how many experts there are to choose from.
    """

    layer: int
    count: int
    experts: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Experts(View):
    """The experts of a text's tokens. texts: of the tokens. layers: those that have experts."""

    name: ClassVar[str] = "experts"
    title: ClassVar[str] = "Experts"
    summary: ClassVar[str] = "Show which experts each token went to."
    formula: ClassVar[str] = (
        "The MLP of a mixture gives the sum of g E(h) over the experts with the largest scores "
        "of the router; Shazeer et al. 2017, arXiv 1701.06538; Fedus et al. 2021, arXiv 2101.03961."
    )
    key: ClassVar[str] = "e"
    Options: ClassVar[type[Any]] = NoOptions

    texts: tuple[str, ...]
    layers: tuple[Routes, ...]

    @classmethod
    def look(cls, subject: Subject, options: Any) -> "Experts":
        from chatapp.engine.backends.transformers_model import TransformersModel
        from chatapp.engine.models.running import model_here

        model, ids = model_here(subject.model), subject.ids_up_to_token
        if not isinstance(model, TransformersModel) or not (modules := _expert_modules(model)):
            raise UserError(
                f"{model.name}: this model has no mixture of experts; each token goes through the "
                "one MLP of each layer"
            )
        model.check_text(ids)
        layers = _run(model, ids, modules)
        if not layers:
            raise UserError(
                f"{model.name}: this kind of model does not hand on which experts it chose"
            )
        return cls(tuple(map(model.piece, ids)), layers)

    @property
    def reading(self) -> str:
        first, count = self.layers[0], len(self.layers)
        layer, place = max(
            ((layer, at) for layer in self.layers for at in range(len(self.texts))),
            key=lambda pair: pair[0].weights[pair[1]][0],
        )
        share = percent(layer.weights[place][0]).strip()
        return (
            f"In {count} layer{'s' * (count > 1)}, {len(first.experts[0])} of {first.count} "
            f"experts compute for each of {len(self.texts):,} tokens; the surest choice is expert "
            f"{layer.experts[place][0]} of layer {layer.layer} for "
            f"{named_token(self.texts, place)}, {share}"
        )

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "layer": layer.layer,
                "experts": layer.count,
                "tokens": [
                    [{"expert": e, "weight": w} for e, w in zip(*pair, strict=True)]
                    for pair in zip(layer.experts, layer.weights, strict=True)
                ],
            }
            for layer in self.layers
        ]

    def blocks(self) -> Sequence[Block]:
        names = [f"{place} │{text}│" for place, text in enumerate(self.texts)]
        columns = [str(layer.layer) for layer in self.layers]
        tokens = range(len(self.texts))
        weights = [[layer.weights[place][0] for layer in self.layers] for place in tokens]
        letters = [[str(layer.experts[place][0]) for layer in self.layers] for place in tokens]
        rows: list[list[Cell]] = [
            [str(layer.layer), Pieces([(str(e), w) for e, w in zip(*chosen, strict=True)])]
            for layer in self.layers
            for chosen in [(layer.experts[-1], layer.weights[-1])]
        ]
        return [
            Note("The number of the expert with the largest weight:"),
            Map(weights, ("token", "layer"), names, columns, letters=letters),
            Heading("All experts", f"of {named_token(self.texts, len(self.texts) - 1)}"),
            Table([">layer", "experts and their weights"], rows),
        ]


def _expert_modules(model: "TransformersModel") -> dict[int, Any]:
    """The modules that are a layer's experts, by layer."""
    modules: dict[int, Any] = {}
    for name, module in model.network.named_modules():
        place = re.search(r"\.(\d+)\.(?:.*\.)?experts$", name)
        if place is not None:
            modules[int(place[1])] = module
    return modules


def _run(
    model: "TransformersModel", ids: Sequence[int], modules: dict[int, Any]
) -> tuple[Routes, ...]:
    """One pass of the model; the routes of the layers whose experts take indices and weights."""
    import torch

    routes: dict[int, Routes] = {}

    def note(layer: int, module: Any, given: tuple[Any, ...], more: dict[str, Any]) -> None:
        tensors = [value for value in (*given, *more.values()) if isinstance(value, torch.Tensor)]
        chosen = next((t for t in tensors if t.dtype == torch.int64), None)
        if chosen is None or tensors[-1].shape != chosen.shape:
            return
        size = chosen.shape[-1]
        indices, weights = (t.reshape(-1, size)[-len(ids) :] for t in (chosen, tensors[-1]))
        weights, order = weights.float().sort(dim=-1, descending=True)
        routes[layer] = Routes(
            layer,
            int(module.num_experts),
            tuple(map(tuple, indices.gather(1, order).tolist())),
            tuple(map(tuple, weights.tolist())),
        )

    with model.lock, torch.inference_mode():
        hooks = [
            module.register_forward_pre_hook(
                lambda module, given, more, layer=layer: note(layer, module, given, more),
                with_kwargs=True,
            )
            for layer, module in modules.items()
        ]
        try:
            tokens = torch.tensor([[*model.start, *ids]], device=model.device)
            model.network(input_ids=tokens, use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
    return tuple(routes[layer] for layer in sorted(routes))
