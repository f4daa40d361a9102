"""Traces: attention weights and layer predictions of a model while it reads a text.

Invariant: the numbers are the model's own, and observing changes nothing. A trace is one pass of
the model's own code, without the cache of replies. A model that lacks something raises `ModelError`
on request, and no other computation of the model sees the switches set here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.backends.transformers_internals import (
    cache_arguments,
    cache_of,
    shown_attention,
)
from chatapp.engine.backends.transformers_model import TransformersModel
from chatapp.engine.decoder.decoder import Decoder
from chatapp.engine.decoder.interventions import UNCHANGED, Interventions
from chatapp.engine.errors import ModelError, first_line
from chatapp.lab.predictions import Prediction, predictions

# Rows of logits computed at once: about 50 MB with GPT-2's 50,257 tokens.
ROWS = 256


class Trace(ABC):
    """The states of a model while it read `ids`.

    Positions count tokens from 0, and so do layers. What layers predict begins with the embeddings.

    encoded: how many of the first tokens an encoder read; 0 for a model of one stack.
    sees_all: whether a token sees the later ones too.
    """

    sees_all: ClassVar[bool] = False

    def __init__(
        self, ids: Sequence[int], *, layers: int, heads: int, piece: Callable[[int], str]
    ) -> None:
        self.ids = tuple(ids)
        self.encoded = 0
        self.layers = layers
        self.heads = heads
        self.texts = tuple(piece(id) for id in ids)
        self._piece = piece

    @property
    def first(self) -> int:
        """The first position after which a token is predicted."""
        return max(0, self.encoded - 1)

    @abstractmethod
    def logits(self, start: int, stop: int) -> Tensor:
        """Logits (stop - start, vocabulary) after each of these positions."""

    @abstractmethod
    def layer_logits(self, position: int) -> Tensor:
        """Logits (layers + 1, vocabulary) from each layer's state at a position.

        The state goes through the final norm and the output matrix as if no block came after it:
        the "logit lens" (nostalgebraist 2020). The first row is that of the embeddings, the last
        are the model's own logits.
        """

    @abstractmethod
    def attention(self, position: int) -> NDArray[np.float32]:
        """Attention weights (layers, heads, position + 1) of one position on those before it and
        itself. Each row sums to 1, except for the weight on special tokens before the text.
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
        """The model's prediction after each position from `first` on, with the token that
        followed."""
        summed_up: list[Prediction] = []
        followers: list[int | None] = [*self.ids[1:], None]
        for start in range(self.first, len(self.ids), ROWS):
            stop = min(start + ROWS, len(self.ids))
            summed_up += predictions(
                self.logits(start, stop), followers[start:stop], top=top, piece=self._piece
            )
        return summed_up

    def lens(self, position: int, top: int = 5) -> list[Prediction]:
        """Each layer's prediction after a position, from the embeddings on."""
        rows = self.layer_logits(position)
        follower = self.ids[position + 1] if position + 1 < len(self.ids) else None
        return predictions(rows, [follower] * len(rows), top=top, piece=self._piece)


class Recorder:
    """An observer that records values at chosen points, and changes nothing."""

    def __init__(self, points: Collection[str]) -> None:
        self._points = frozenset(points)
        self.values: dict[str, Tensor] = {}

    def __call__(self, point: str, value: Tensor) -> Tensor:
        if point in self._points:
            self.values[point] = value
        return value


def seen_at(
    model: LocalModel,
    ids: Sequence[int],
    points: Sequence[str],
    changes: Interventions | None = None,
) -> dict[str, Tensor]:
    """The values at points of the forward pass, without the batch dimension."""
    recorder = Recorder(points)
    changes = (changes or UNCHANGED).shifted(len(model.start))
    with model.lock:
        model.decoder.hidden([[*model.start, *ids]], observe=recorder, changes=changes)
    return {point: value[0] for point, value in recorder.values.items()}


class DecoderTrace(Trace):
    """The trace of a decoder of this program. Tokens before the text have no positions.

    start: those tokens. interventions: changes during the pass. The states after each layer and the
    queries and keys of each head are kept, whose size is linear in the positions.
    """

    def __init__(
        self,
        decoder: Decoder,
        ids: Sequence[int],
        piece: Callable[[int], str],
        start: Sequence[int] = (),
        interventions: Interventions = UNCHANGED,
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
        changes = interventions.shifted(len(start))
        decoder.hidden([[*start, *ids]], observe=seen, changes=changes)
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
            self._decoder.attention_weights(layer, query[:, [place]], key[:, : place + 1])[:, 0]
            for layer, (query, key) in enumerate(queries_and_keys)
        ]
        weights: NDArray[np.float32] = torch.stack(rows)[:, :, self._start :].cpu().numpy()
        return weights


# The name of the norm after the last block in transformers' models.
_FINAL_NORMS = ("ln_f", "norm", "final_layernorm", "final_layer_norm", "norm_f", "layer_norm")


def final_norm(stack: Any) -> Any:
    """The norm after the last block of a stack of transformers; None where it has none."""
    return next((getattr(stack, name) for name in _FINAL_NORMS if hasattr(stack, name)), None)


class TransformersTrace(Trace):
    """The trace of a `TransformersModel`. Special tokens before the text have no positions."""

    @torch.inference_mode()
    def __init__(self, model: TransformersModel, ids: Sequence[int]) -> None:
        text = model.network.config.get_text_config()
        heads = getattr(text, "num_attention_heads", 0)  # a recurrent model has none
        super().__init__(ids, layers=text.num_hidden_layers, heads=heads, piece=model.piece)
        self._model = model
        self._start = len(model.start)
        self._tokens = torch.tensor([[*model.start, *ids]], device=model.device)
        with model.lock:
            output = self._run(self._tokens, output_hidden_states=True, use_cache=False)
        if not getattr(output, "hidden_states", None):
            raise self._missing("hidden states")
        self._states = [state[0, self._start :] for state in output.hidden_states]

    @torch.inference_mode()
    def logits(self, start: int, stop: int) -> Tensor:
        return self._head(self._states[-1][start:stop])

    @torch.inference_mode()
    def layer_logits(self, position: int) -> Tensor:
        inside = self._model.network.base_model
        inside = getattr(inside, "decoder", inside)  # OPT has its blocks one level below
        norm = final_norm(inside)
        if norm is None:
            raise self._missing("layers' predictions")
        # transformers' last hidden state has passed the norm already.
        *early, last = (state[position] for state in self._states)
        return self._head(torch.cat([norm(torch.stack(early)), last[None]]))

    @torch.inference_mode()
    def attention(self, position: int) -> NDArray[np.float32]:
        if not self.heads:
            raise self._missing("attention weights, because it has none")
        size = self._start + position + 1
        with self._model.lock:
            output = self._last_attention(self._tokens[:, :size])
        weights = getattr(output, "attentions", None)
        if not weights or len(weights) != self.layers or any(w is None for w in weights):
            raise self._missing("attention weights")
        rows = torch.stack([w[0, :, -1] for w in weights])
        if rows.shape != (self.layers, self.heads, size):
            raise self._missing("attention weights as a matrix of positions")
        own: NDArray[np.float32] = rows[:, :, self._start :].float().cpu().numpy()
        return own

    def _last_attention(self, tokens: Tensor) -> Any:
        """The model's output with the attention weights of the last token."""
        options: dict[str, Any] = {"use_cache": False}
        if self._model.can_cache and tokens.shape[1] > 1:
            # Only the last row is requested, so its memory is linear in the positions.
            before = self._run(tokens[:, :-1], **cache_arguments(None))
            tokens = tokens[:, -1:]
            options = cache_arguments(cache_of(before, self._model.network))
        with shown_attention(self._model.network):
            return self._run(tokens, output_attentions=True, **options)

    def _run(self, tokens: Tensor, **options: Any) -> Any:
        try:
            return self._model.network(input_ids=tokens, **options)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ModelError(
                f"{self._model.name}: this model cannot be inspected: {first_line(error)}"
            ) from None

    def _missing(self, what: str) -> ModelError:
        return ModelError(f"{self._model.name}: this kind of model does not expose its {what}")

    def _head(self, states: Tensor) -> Tensor:
        """Logits of states after the final norm."""
        logits: Tensor = self._model.network.get_output_embeddings()(states)
        return logits[..., : self._model.vocabulary].float().cpu()
