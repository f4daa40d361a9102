"""The texts in which one attention head is strongest.

Invariant: a weight on the first token, which takes what a head has no use for, and on the token
itself does not count.
"""

from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from chatapp.common.progress import Progress, no_progress
from chatapp.common.userfiles import UserError
from chatapp.engine.model import LanguageModel
from chatapp.lab.findings import Finding
from chatapp.lab.heads import (
    look_at_weights,
    own_decoder,
    sample_texts,
    texts_as_ids,
)


@dataclass(frozen=True, slots=True)
class Link:
    """What one token attends to most. source, target: positions."""

    source: int
    target: int
    weight: float


@dataclass(frozen=True, slots=True)
class HeadText:
    """A text as a head sees it.

    texts: of its tokens. strength: the mean over the tokens i of the largest A[i, j], 0 < j < i.
    links: the strongest, one a token. weights: of the token of the first link on those up to it.
    """

    texts: tuple[str, ...]
    strength: float
    links: tuple[Link, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class HeadTexts(Finding):
    """Where one head is strongest, that text first."""

    name: ClassVar[str] = "texts"

    layer: int
    head: int
    rows: tuple[HeadText, ...]

    @property
    def sentence(self) -> str:
        return (
            f"The texts where head {self.layer}.{self.head} is strongest, by the mean of each "
            "token's largest weight on an earlier one, the first apart"
        )

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(row) for row in self.rows]


def strongest_texts(
    model: LanguageModel,
    layer: int,
    head: int,
    texts: Sequence[str] = (),
    *,
    top: int = 5,
    progress: Progress = no_progress,
) -> HeadTexts:
    """Where a head is strongest among texts, the bundled sample by default.

    Raises UserError for a model that is not computed by this program's decoder, for a head that it
    does not have, and for texts that are too short: a token needs two before it.
    """
    steps = strongest_steps(model, layer, head, texts, top=top)
    while True:
        try:
            progress(*next(steps))
        except StopIteration as end:
            texts_of_head: HeadTexts = end.value
            return texts_of_head


def strongest_steps(
    model: LanguageModel, layer: int, head: int, texts: Sequence[str] = (), *, top: int = 5
) -> Generator[tuple[int, int], None, HeadTexts]:
    """`strongest_texts` in steps of one text, for whoever has other work in between."""
    model = own_decoder(model)
    shape = model.decoder.architecture
    if not (0 <= layer < shape.layers and 0 <= head < shape.heads):
        raise UserError(
            f"{layer}.{head}: the model has {shape.layers} layers of {shape.heads} heads, "
            "numbered from 0"
        )
    start, rows = len(model.start), []
    given = [ids for ids in texts_as_ids(model, texts or sample_texts()) if len(ids) > 2]
    if not given:
        raise UserError("there is no text of at least three tokens to show the head on")
    for done, ids in enumerate(given):
        yield done, len(given)
        seen: list[Tensor] = []

        def take(at: int, weights: Tensor, seen: list[Tensor] = seen) -> None:
            if at == layer:
                seen.append(weights[head, start:, start:].cpu())

        with model.lock:
            look_at_weights(model.decoder, [*model.start, *ids], take)
        rows.append(_seen(seen[0], tuple(map(model.piece, ids))))
    rows.sort(key=lambda row: -row.strength)
    return HeadTexts(layer, head, tuple(rows[:top]))


def _seen(weights: Tensor, texts: tuple[str, ...]) -> HeadText:
    """weights: (tokens, tokens)."""
    earlier = weights.tril(-1)
    earlier[:, 0] = 0
    best, targets = earlier[2:].max(1)
    order = torch.argsort(best, descending=True, stable=True)[:3].tolist()
    links = tuple(Link(at + 2, int(targets[at]), float(best[at])) for at in order)
    row = weights[links[0].source, : links[0].source + 1]
    return HeadText(texts, float(best.mean()), links, tuple(row.tolist()))
