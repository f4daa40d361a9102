"""What happened in a model while it read a text: attention weights, what each layer would say.

Keep: the numbers are the model's own, and looking changes nothing. A trace is one pass of the
model's own code, apart from the cache that replies are drawn with.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chatapp.engine.decoder.decoder import Decoder
from chatapp.lab.predictions import Prediction, predictions

# Rows of logits computed at once: some 50 MB with GPT-2's 50,257 tokens.
ROWS = 256


class Trace(ABC):
    """What happened in a model while it read `ids`.

    Positions count tokens from 0. Layer 0 is the embeddings, layer n the output of block n.
    """

    def __init__(
        self, ids: Sequence[int], *, layers: int, heads: int, piece: Callable[[int], str]
    ) -> None:
        self.ids = tuple(ids)
        self.layers = layers
        self.heads = heads
        self.texts = tuple(piece(id) for id in ids)
        self._piece = piece

    @abstractmethod
    def logits(self, start: int, stop: int) -> Tensor:
        """Logits (stop - start, vocabulary) after each of these positions."""

    @abstractmethod
    def layer_logits(self, position: int) -> Tensor:
        """Logits (layers + 1, vocabulary) that each layer's state gives at a position.

        The state goes through the final norm and the output matrix as if no block came after
        it: the "logit lens" (nostalgebraist 2020). The last row are the model's own logits.
        """

    @abstractmethod
    def attention(self, position: int) -> NDArray[np.float32]:
        """Attention weights (layers, heads, position + 1) of one position on those before it
        and itself. Each row sums to 1, but for what goes to special tokens put before the text.
        """

    def attentions(self) -> NDArray[np.float32]:
        """All attention weights (layers, heads, positions, positions); 0 on later positions.

        They take 4 · layers · heads · positions² bytes.
        """
        size = len(self.ids)
        weights = np.zeros((self.layers, self.heads, size, size), dtype=np.float32)
        for position in range(size):
            weights[:, :, position, : position + 1] = self.attention(position)
        return weights

    def predictions(self, top: int = 10) -> list[Prediction]:
        """What the model expected after each position, beside what did come."""
        summed_up: list[Prediction] = []
        followers: list[int | None] = [*self.ids[1:], None]
        for start in range(0, len(self.ids), ROWS):
            stop = min(start + ROWS, len(self.ids))
            summed_up += predictions(
                self.logits(start, stop), followers[start:stop], top=top, piece=self._piece
            )
        return summed_up

    def lens(self, position: int, top: int = 5) -> list[Prediction]:
        """What each layer, from the embeddings on, would predict after a position."""
        follower = self.ids[position + 1] if position + 1 < len(self.ids) else None
        rows = self.layer_logits(position)
        return predictions(rows, [follower] * len(rows), top=top, piece=self._piece)


class Recorder:
    """An observer that keeps what it sees at chosen points, and changes nothing."""

    def __init__(self, points: Collection[str]) -> None:
        self._points = frozenset(points)
        self.values: dict[str, Tensor] = {}

    def __call__(self, point: str, value: Tensor) -> Tensor:
        if point in self._points:
            self.values[point] = value
        return value


class DecoderTrace(Trace):
    """The trace of a decoder of this program. Tokens before the text have no positions.

    start: those tokens. The states after each layer and the queries and keys of each head are
    kept, which is linear in the positions.
    """

    def __init__(
        self,
        decoder: Decoder,
        ids: Sequence[int],
        piece: Callable[[int], str],
        start: Sequence[int] = (),
    ) -> None:
        shape = decoder.architecture
        super().__init__(ids, layers=shape.layers, heads=shape.heads, piece=piece)
        self._decoder = decoder
        self._start = len(start)
        blocks = [f"blocks.{layer}" for layer in range(self.layers)]
        states = ["embed", *blocks]
        queries = [f"{block}.attention.query" for block in blocks]
        keys = [f"{block}.attention.key" for block in blocks]
        seen = Recorder([*states, *queries, *keys])
        decoder.hidden([[*start, *ids]], observe=seen)
        self._states = [seen.values[point][0, self._start :] for point in states]
        self._queries = [seen.values[point][0] for point in queries]
        self._keys = [seen.values[point][0] for point in keys]

    def logits(self, start: int, stop: int) -> Tensor:
        return self._decoder.unembed(self._states[-1][start:stop])

    def layer_logits(self, position: int) -> Tensor:
        return self._decoder.unembed(torch.stack([state[position] for state in self._states]))

    def attention(self, position: int) -> NDArray[np.float32]:
        place = self._start + position
        queries_and_keys = zip(self._queries, self._keys, strict=True)
        rows = [
            self._decoder.attention_weights(layer, query[:, place], key[:, : place + 1])
            for layer, (query, key) in enumerate(queries_and_keys)
        ]
        weights: NDArray[np.float32] = torch.stack(rows)[:, :, self._start :].cpu().numpy()
        return weights
