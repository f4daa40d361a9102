"""The trace of a model of transformers, as far as the model can give it.

Keep: a model that lacks something raises `ModelError` when it is asked for it, and no other
computation of the model sees what is switched here.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chatapp.engine.errors import ModelError, first_line
from chatapp.engine.transformers_model import TransformersModel
from chatapp.lab.traces import Trace

# What transformers' models call the norm after their last block.
_FINAL_NORMS = ("ln_f", "norm", "final_layernorm", "final_layer_norm", "norm_f")


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
        norm = next((getattr(inside, n) for n in _FINAL_NORMS if hasattr(inside, n)), None)
        if norm is None:
            raise self._missing("layers' predictions")
        # transformers' last hidden state has been through the norm already.
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
            raise self._missing("attention weights one position by another")
        own: NDArray[np.float32] = rows[:, :, self._start :].float().cpu().numpy()
        return own

    def _last_attention(self, tokens: Tensor) -> Any:
        """The model's output with the attention weights of the last of the tokens."""
        options: dict[str, Any] = {"use_cache": False}
        if self._model.can_cache and tokens.shape[1] > 1:
            # Only the last row is asked for, so that its memory is linear in the positions.
            past = self._run(tokens[:, :-1], use_cache=True).past_key_values
            tokens, options = tokens[:, -1:], {"past_key_values": past, "use_cache": True}
        with _eager(self._model.network):
            return self._run(tokens, output_attentions=True, **options)

    def _run(self, tokens: Tensor, **options: Any) -> Any:
        try:
            return self._model.network(input_ids=tokens, **options)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ModelError(
                f"{self._model.name}: this model cannot be looked into: {first_line(error)}"
            ) from None

    def _missing(self, what: str) -> ModelError:
        return ModelError(f"{self._model.name}: this kind of model does not show its {what}")

    def _head(self, states: Tensor) -> Tensor:
        """Logits of states that have been through the final norm."""
        logits: Tensor = self._model.network.get_output_embeddings()(states)
        return logits[..., : self._model.vocabulary].float().cpu()


@contextmanager
def _eager(network: Any) -> Iterator[None]:
    """Let a model of transformers compute the attention that shows its weights.

    For whoever holds the model's lock: it is switched for all that the model computes.
    """
    before = network.config._attn_implementation
    network.set_attn_implementation("eager")
    try:
        yield
    finally:
        network.set_attn_implementation(before)
