"""What attention heads do: scores on random tokens, on natural text, and of their weights.

A[i, j] is a head's weight of token i on token j, and each score is a mean of such weights;
`entropy`, `distance` and `spread` have other units. Scores on random tokens and on text disagree;
both are computed.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chatapp.common.userfiles import Progress, UserError, no_progress, read_required
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.decoder.decoder import Decoder
from chatapp.engine.decoder.parts import LayerNorm, RMSNorm
from chatapp.engine.kernels.linear import Layer, Linear
from chatapp.engine.model import LanguageModel
from chatapp.engine.models.running import model_here

SAMPLE = Path(__file__).parent / "sample.txt"
"""Short texts of our own, with an empty line after each."""


def check_same_shape(model: LanguageModel, other: LanguageModel) -> None:
    """Raises UserError for models whose heads cannot be compared."""
    one, two = own_decoder(model), own_decoder(other)
    shapes = [it.decoder.architecture for it in (one, two)]
    if len({(shape.layers, shape.heads) for shape in shapes}) > 1:
        words = [f"{shape.layers} layers of {shape.heads} heads" for shape in shapes]
        raise UserError(
            f"{one.name} has {words[0]}, {two.name} has {words[1]}; heads are compared where "
            "these are the same"
        )


def head_measures(
    model: LanguageModel,
    texts: Sequence[str] = (),
    *,
    length: int = 50,
    draws: int = 4,
    seed: int = 0,
    among: Collection[int] = (),
    progress: Progress = no_progress,
) -> dict[str, NDArray[np.float64]]:
    """All measures of all heads, (layers, heads) each. `views.head_views.MEASURES` says what they
    are.

    texts: natural text, the bundled sample by default. length: the number of random tokens,
    which come twice in a row. draws: how often they are drawn, with this seed. among: the tokens
    that they are drawn from, by default all. Raises UserError for a model that is not computed by
    this program's decoder, and for texts of one token.
    """
    model = own_decoder(model)
    decoder, start = model.decoder, list(model.start)
    rows = [[*start, *ids] for ids in texts_as_ids(model, texts or sample_texts()) if len(ids) > 1]
    if not rows:
        raise UserError("there is no text of at least two tokens to score heads on")
    length = min(length, model.context // 2)
    repeated = [[*start, *ids] for ids in random_repeats(model, length, draws, seed, among)]
    sums = Sums(decoder)
    total = len(rows) + draws + 1
    for done, row in enumerate([*repeated, *rows]):
        progress(done, total)
        with model.lock:
            add = add_random if done < draws else add_text
            add(sums, decoder, row, len(start))
    progress(total - 1, total)
    with model.lock:
        return sums.means() | {"copying": copying_scores(decoder)}


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


def texts_of_head(
    model: LanguageModel,
    layer: int,
    head: int,
    texts: Sequence[str] = (),
    top: int = 5,
    progress: Progress = no_progress,
) -> tuple[HeadText, ...]:
    """The texts where a head is strongest, that first where it is most so. A weight on the first
    token, which takes what a head has no use for, and on the token itself does not count.

    texts: the bundled sample by default. Raises UserError for a model that is not computed by this
    program's decoder, for a head that it does not have, and for texts that are too short: a token
    needs two before it.
    """
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
        progress(done, len(given))
        seen: list[Tensor] = []

        def take(at: int, weights: Tensor, seen: list[Tensor] = seen) -> None:
            if at == layer:
                seen.append(weights[head, start:, start:].cpu())

        with model.lock:
            look_at_weights(model.decoder, [*model.start, *ids], take)
        rows.append(_seen(seen[0], tuple(map(model.piece, ids))))
    return tuple(sorted(rows, key=lambda row: -row.strength)[:top])


def _seen(weights: Tensor, texts: tuple[str, ...]) -> HeadText:
    """weights: (tokens, tokens)."""
    earlier = weights.tril(-1)
    earlier[:, 0] = 0
    best, targets = earlier[2:].max(1)
    order = torch.argsort(best, descending=True, stable=True)[:3].tolist()
    links = tuple(Link(at + 2, int(targets[at]), float(best[at])) for at in order)
    row = weights[links[0].source, : links[0].source + 1]
    return HeadText(texts, float(best.mean()), links, tuple(row.tolist()))


def own_decoder(model: LanguageModel) -> LocalModel:
    """The model itself. Raises UserError unless this program's decoder computes it."""
    model = model_here(model)
    if not isinstance(model, LocalModel):
        raise UserError(
            f"{model.name}: only models that chatapp computes with its own decoder show this"
        )
    return model


def sample_texts(path: Path = SAMPLE) -> list[str]:
    """The texts of a file, which empty lines divide. Raises UserError for one without text."""
    texts = [part.strip() for part in read_required(path).split("\n\n") if part.strip()]
    if not texts:
        raise UserError(f"{path}: there is no text in this file")
    return texts


def texts_as_ids(model: LocalModel, texts: Sequence[str]) -> list[list[int]]:
    """The tokens of texts, as many as the model's window holds."""
    return [model.tokenizer.encode(text)[: model.context] for text in texts]


def random_repeats(
    model: LocalModel, length: int, draws: int, seed: int, among: Collection[int] = ()
) -> list[list[int]]:
    """Rows of random tokens, of those in `among` if any are, that come twice; none is special."""
    special = set(model.tokenizer.special.values()) | {model.tokenizer.end_id}
    size = min(model.tokenizer.size, model.vocabulary)
    known = [id for id in range(size) if id not in special]
    choice = torch.tensor([id for id in known if id in among] or known)
    generator = torch.Generator().manual_seed(seed)
    drawn = choice[torch.randint(len(choice), (draws, length), generator=generator)]
    return [row * 2 for row in drawn.tolist()]


Take = Callable[[int, Tensor], None]


def look_at_weights(decoder: Decoder, row: Sequence[int], take: Take) -> None:
    """Give each layer's attention weights (heads, tokens, tokens) of one row to `take`."""
    queries: list[Tensor] = []

    def observe(point: str, value: Tensor) -> Tensor:
        if point.endswith(".attention.query"):
            queries[:] = [value[0]]
        elif point.endswith(".attention.key"):
            layer = int(point.split(".")[1])
            take(layer, decoder.attention_weights(layer, queries[0], value[0]))
            if layer == decoder.architecture.layers - 1:
                raise _Enough
        return value

    with suppress(_Enough):
        decoder.hidden([row], observe=observe)


class _Enough(Exception):
    """All weights were seen; what the last block makes of them is not needed."""


def add_random(sums: "Sums", decoder: Decoder, row: Sequence[int], start: int) -> None:
    """Add `previous`, `duplicate` and `induction` of a row whose tokens after the first `start`
    come twice.
    """
    length = (len(row) - start) // 2

    def take(layer: int, weights: Tensor) -> None:
        own = weights[:, start:, start:]
        second = own[:, length:]
        sums.add(
            layer,
            previous=own.diagonal(-1, 1, 2),
            duplicate=second.diagonal(0, 1, 2),
            induction=second.diagonal(1, 1, 2),
        )

    look_at_weights(decoder, row, take)


def add_text(sums: "Sums", decoder: Decoder, row: Sequence[int], start: int) -> None:
    """Add the measures on natural text."""
    ids = torch.tensor(row[start:], device=decoder.device)
    at = torch.arange(len(ids), device=decoder.device)
    distances = (at[:, None] - at).float()
    # (i, j+1) where token j, before the one before i, is token i.
    after_same = ((ids[:, None] == ids) & (at < at[:, None] - 1)).roll(1, 1)
    repeats, squares = after_same.any(1), distances[1:] ** 2

    def take(layer: int, weights: Tensor) -> None:
        own = weights[:, start:, start:]
        later = own[:, 1:]
        distance = (later * distances[1:]).sum(2)
        sums.add(
            layer,
            self=own.diagonal(0, 1, 2)[:, 1:],
            previous_text=own.diagonal(-1, 1, 2),
            induction_text=(own[:, repeats] * after_same[repeats]).sum(2),
            entropy=torch.special.entr(later).sum(2) / np.log(2),
            distance=distance,
            spread=(later * squares).sum(2) - distance**2,
        )

    look_at_weights(decoder, row, take)


class Sums:
    """Means over the tokens of all rows."""

    def __init__(self, decoder: Decoder) -> None:
        shape = decoder.architecture
        self._shape = (shape.layers, shape.heads)
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, layer: int, /, **values: Tensor) -> None:
        """values: (heads, tokens) of each name."""
        of_heads = torch.stack([value.sum(1) for value in values.values()]).double().cpu()
        for (name, value), added in zip(values.items(), of_heads, strict=True):
            if name not in self._sums:
                self._sums[name] = torch.zeros(self._shape, dtype=torch.float64)
                self._counts[name] = 0
            self._sums[name][layer] += added
            self._counts[name] += value.shape[1] * (layer == 0)

    def means(self) -> dict[str, NDArray[np.float64]]:
        """(layers, heads) of each name; 0 where no token counted."""
        return {name: (s / max(1, self._counts[name])).numpy() for name, s in self._sums.items()}


def matrix_of(layer: Layer, inputs: int, device: torch.device) -> Tensor:
    """The weights (out, in) of a linear layer, in float32 whatever they are stored as."""
    if isinstance(layer, Linear):
        return layer.weight
    columns: Tensor = layer(torch.eye(inputs, device=device))
    return (columns - layer(torch.zeros(1, inputs, device=device))).T


@torch.inference_mode()
def copying_scores(decoder: Decoder) -> NDArray[np.float64]:
    """Σ Re λ / Σ |λ| of the full OV circuit of each head: (layers, heads), from −1 to 1.

    The eigenvalues λ of W_U W_O W_V W_E, (vocabulary, vocabulary), are those of the product in
    another order, (head size, head size): W_V (W_E W_U) W_O. The weights of the norms before
    attention, after it and before the output are part of it, and so is the centring of a
    LayerNorm; what a norm divides by is not (Elhage et al. 2021).
    """
    shape = decoder.architecture
    embedding = decoder.token_embedding[: decoder.vocabulary].float()
    output = matrix_of(decoder.uncapped_head, shape.width, decoder.device) * decoder.norm.weight
    both = embedding.T @ _centred(decoder.norm, output, 1)  # (read width, written width)
    products: list[Tensor] = []
    for block in decoder.blocks:
        size, shared = shape.head_size, shape.heads // shape.key_value_heads
        read = matrix_of(block.attention.query_key_value, shape.width, decoder.device)
        values = read[-shape.key_value_heads * size :].view(-1, size, shape.width)
        write = matrix_of(block.attention.projection, shape.heads * size, decoder.device)
        if (after := block.norm_after_1) is not None:
            write = after.weight[:, None] * _centred(after, write, 0)
        writes = write.view(shape.width, shape.heads, size).unbind(1)
        circuit = block.norm_1.weight[:, None] * _centred(block.norm_1, both, 0)
        for head, write in enumerate(writes):
            products.append(values[head // shared] @ circuit @ write)
    eigenvalues = torch.linalg.eigvals(torch.stack(products).double().cpu())
    totals = eigenvalues.abs().sum(1)
    scores = (eigenvalues.real.sum(1) / totals).where(totals > 0, 0.0)
    array: NDArray[np.float64] = scores.view(shape.layers, shape.heads).numpy()
    return array


def _centred(norm: LayerNorm | RMSNorm, x: Tensor, dimension: int) -> Tensor:
    """Without its mean over a dimension, where the norm takes that off."""
    return x - x.mean(dimension, keepdim=True) if isinstance(norm, LayerNorm) else x
