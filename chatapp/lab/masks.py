"""What a masked model makes of a text: candidates for a masked token, attention, layers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from chatapp.engine.backends.head import in_place_of
from chatapp.engine.backends.masked import MaskedModel
from chatapp.engine.backends.transformers_internals import shown_attention
from chatapp.lab.predictions import Prediction, predictions
from chatapp.lab.traces import Trace

_ROWS = 16
"""Copies of a text, each with another token masked, in one pass."""


class MaskedTrace(Trace):
    """The trace of a text with the token at `position` masked. `ids` are those that are read.

    Special tokens around the text have no positions.
    """

    sees_all = True

    def __init__(self, model: MaskedModel, ids: Sequence[int], position: int) -> None:
        network = model.network.config
        read = [*ids[:position], model.mask_id, *ids[position + 1 :]]
        super().__init__(
            read,
            layers=network.num_hidden_layers,
            heads=network.num_attention_heads,
            piece=model.piece,
        )
        self._model = model
        self._hidden = None if ids[position] == model.mask_id else ids[position]
        with model.lock, shown_attention(model.network):
            output = model.run([read], output_hidden_states=True, output_attentions=True)
        self._logits, self._states = output.logits[0], output.hidden_states
        weights = torch.stack([layer[0] for layer in output.attentions])
        first, size = len(model.start), len(read)
        own = weights[..., first : first + size, first : first + size]
        self._weights: NDArray[np.float32] = own.float().cpu().numpy()

    def logits(self, start: int, stop: int) -> Tensor:
        return self._own(self._logits)[start:stop]

    @torch.inference_mode()
    def layer_logits(self, position: int) -> Tensor:
        """Each layer's state goes through the head that the last one goes through."""
        model, place = self._model, len(self._model.start) + position
        states = torch.stack([state[0, place] for state in self._states])[None]
        ids = torch.zeros(states.shape[:2], dtype=torch.long, device=states.device)

        def of_states(*_: Any, **__: Any) -> BaseModelOutput:
            return BaseModelOutput(last_hidden_state=states)

        with model.lock, in_place_of(model.network.base_model, of_states):
            logits = model.network(input_ids=ids).logits
        return torch.as_tensor(logits[0, :, : model.vocabulary]).float().cpu()

    def attention(self, position: int) -> NDArray[np.float32]:
        """Attention weights (layers, heads, positions) on the whole text."""
        return self._weights[:, :, position]

    def attentions(self) -> NDArray[np.float32]:
        return self._weights

    def predicted(self, position: int, top: int) -> Prediction:
        """What the model predicts at a position; `actual` is the token that was masked there."""
        rows = self.logits(position, position + 1)
        return predictions(rows, [self._hidden] * len(rows), top=top, piece=self._piece)[0]

    def _own(self, logits: Tensor) -> Tensor:
        return (
            self._model.without_frame(logits, len(self.ids))[:, : self._model.vocabulary]
            .float()
            .cpu()
        )


def masked_predictions(model: MaskedModel, ids: Sequence[int], top: int) -> tuple[Prediction, ...]:
    """What the model predicts of each token when it is the one that is masked.

    The logarithms of the tokens' probabilities add up to the pseudo-log-likelihood of Salazar et
    al. (2020).
    """
    rows = [[*ids[:place], model.mask_id, *ids[place + 1 :]] for place in range(len(ids))]
    expected: list[Prediction] = []
    for start in range(0, len(rows), _ROWS):
        with model.lock:
            logits = model.run(rows[start : start + _ROWS]).logits
        places = range(start, start + len(logits))
        own = model.without_frame(logits, len(ids))[range(len(logits)), places]
        golds = [None if ids[place] == model.mask_id else ids[place] for place in places]
        real = own[:, : model.vocabulary].float().cpu()
        expected += predictions(real, golds, top=top, piece=model.piece)
    return tuple(expected)
