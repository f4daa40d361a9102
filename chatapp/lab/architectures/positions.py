"""What a model does with the order of words: positions as they are, switched off, and shuffled.

A model adds an embedding p_i of position i to each token (GPT-2), or rotates queries and keys by an
angle i · θ_k (Su et al. 2021, arXiv 2104.09864). Off: the embeddings are zeros, or each token is
rotated as at position 0. Shuffled: each token gets the position of another one. Causal attention
stays, so that some order is left: a token sees only those before it.

Similarity at distance d: the mean over i of cos(p_i, p_{i+d}), or the mean over k of cos(d · θ_k),
which is the share of q · k that equal queries and keys keep at this distance.

Invariant: the weights are unchanged, and both texts get the same positions.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from chatapp.common.userfiles import UserError
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.decoder.decoder import Decoder
from chatapp.engine.decoder.interventions import UNCHANGED, Change, Interventions
from chatapp.engine.model import LanguageModel
from chatapp.lab.findings import Finding
from chatapp.lab.heads import own_decoder
from chatapp.lab.predictions import Candidate, predictions

OFF = Interventions((Change("positions", "positions"),))
"""Embeddings of positions replaced by zeros."""

DISTANCES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Ordered:
    """Predictions with one kind of positions.

    first, second: the likeliest tokens after both texts. change: KL(as they are ‖ so) after the
    first text. apart: KL(first ‖ second) with these positions. Both in nats.
    """

    positions: str
    first: tuple[Candidate, ...]
    second: tuple[Candidate, ...]
    change: float
    apart: float


@dataclass(frozen=True, slots=True)
class Positions(Finding):
    """Two texts under each kind of positions. similarity: of positions by their distance."""

    name: ClassVar[str] = "positions"

    kind: str
    similarity: dict[int, float]
    rows: tuple[Ordered, ...]

    @classmethod
    def of(
        cls, model: LanguageModel, text: Sequence[int], other: Sequence[int], top: int = 5
    ) -> Self:
        """text, other: tokens, as many in both. Raises UserError for others, and for a model
        without positions."""
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
        off = None if kind == "embeddings" else torch.zeros(size, dtype=torch.long)
        ways = (
            ("as they are", None, UNCHANGED),
            ("off", off, OFF if off is None else UNCHANGED),
            ("shuffled", order, UNCHANGED),
        )
        plain: Tensor | None = None
        rows = []
        for name, positions, changes in ways:
            both = torch.stack([_logits(own, ids, positions, changes) for ids in (text, other)])
            first, second = both.log_softmax(-1)
            plain = first if plain is None else plain
            shown = predictions(both, [None, None], top=top, piece=own.piece)
            rows.append(
                Ordered(
                    name,
                    shown[0].candidates,
                    shown[1].candidates,
                    _kl(plain, first),
                    _kl(first, second),
                )
            )
        return cls(kind, similarity_by_distance(decoder), tuple(rows))

    @property
    def sentence(self) -> str:
        apart = ", ".join(f"{row.apart:.3f} {row.positions}" for row in self.rows)
        return (
            f"How far apart the predictions after both texts are, with positions ({self.kind}): "
            f"KL(first ‖ second) {apart}, in nats"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@torch.inference_mode()
def similarity_by_distance(decoder: Decoder) -> dict[int, float]:
    """How alike positions are, by the distances of `DISTANCES` that the model has."""
    table = decoder.position_embedding
    distances = [d for d in DISTANCES if d < decoder.architecture.context]
    if table is not None:
        unit = torch.nn.functional.normalize(table.float(), dim=-1)
        return {d: float((unit[:-d] * unit[d:]).sum(-1).mean()) for d in distances}
    if not decoder.rotations:
        return {}
    cosines, _ = decoder.rotations[0].turns(torch.tensor([0, *distances], device=decoder.device))
    zero, *rest = cosines.mean((-1, -2)).tolist()
    return dict(zip(distances, (cosine / zero for cosine in rest), strict=True))


@torch.inference_mode()
def _logits(
    model: LocalModel, ids: Sequence[int], positions: Tensor | None, changes: Interventions
) -> Tensor:
    """Logits (vocabulary,) after the last token."""
    decoder = model.decoder
    with model.lock:
        states = decoder.hidden([[*model.start, *ids]], positions=positions, changes=changes)
        return decoder.head(states[0, -1:])[0].float().cpu()


def _kl(before: Tensor, after: Tensor) -> float:
    return float((before.exp() * (before - after)).sum())
