"""Traces of models of an encoder and a decoder: both stacks, and the attention between them.

The encoder reads the prompt in both directions. The decoder writes the reply; each of its layers
attends to the reply so far (self-attention) and then to the encoder's output (cross-attention;
Vaswani et al. 2017, arXiv 1706.03762). So the tokens of a trace are those of the prompt, which are
the encoder's, and after them those of the reply, which are the decoder's.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chatapp.engine.backends.encoder_decoder import EncoderDecoderModel
from chatapp.engine.backends.transformers_internals import shown_attention
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Token
from chatapp.engine.model import LanguageModel, Request, Sampling
from chatapp.engine.models.running import model_here
from chatapp.lab.traces import Trace, final_norm

LONGEST = 40
"""Tokens of a reply that is written in order to look at it."""


class EncoderDecoderTrace(Trace):
    """The trace of a prompt and a reply. Layers and heads are the decoder's."""

    @torch.inference_mode()
    def __init__(
        self, model: EncoderDecoderModel, prompt: Sequence[int], reply: Sequence[int]
    ) -> None:
        self._network = network = model.network
        tokens = [[*model.start, *prompt, *model.end]], [[*model.opening, *reply]]
        encoder, decoder = (torch.tensor(rows, device=model.device) for rows in tokens)
        with model.lock, shown_attention(network):
            output = network(
                input_ids=encoder,
                decoder_input_ids=decoder,
                output_attentions=True,
                output_hidden_states=True,
                use_cache=False,
            )
        by_kind = (output.encoder_attentions, output.decoder_attentions, output.cross_attentions)
        encoded, self._self, self._cross = (
            torch.stack(weights)[:, 0].float().cpu() for weights in by_kind
        )
        own = slice(len(model.start), len(model.start) + len(prompt))
        self._encoded, self._cross = encoded[:, :, own, own], self._cross[..., own]
        layers, heads = self._self.shape[:2]
        super().__init__([*prompt, *reply], layers=layers, heads=heads, piece=model.piece)
        self.encoded = len(prompt)
        self._opening = len(model.opening)
        self._states = [state[0] for state in output.decoder_hidden_states]
        self._logits = output.logits[0, :, : model.vocabulary].float().cpu()
        self._name = model.name

    def _row(self, position: int) -> int:
        """The decoder's row of a position. Raises ModelError for one of the encoder alone."""
        if position < self.first:
            raise ModelError(
                f"{self._name}: the encoder predicts no tokens; choose a token of the reply, or "
                "the last one before it"
            )
        return position - self.first + self._opening - 1

    def logits(self, start: int, stop: int) -> Tensor:
        logits: Tensor = self._logits[self._row(start) : self._row(stop)]
        return logits

    @torch.inference_mode()
    def layer_logits(self, position: int) -> Tensor:
        row = self._row(position)
        early = torch.stack([state[row] for state in self._states[:-1]])
        norm = final_norm(self._network.get_decoder())
        early = early if norm is None else norm(early)  # BART has none after its last block
        config = self._network.config
        if getattr(config, "scale_decoder_outputs", False):  # T5 with one embedding for both ends
            early = early * config.d_model**-0.5
        bias = getattr(self._network, "final_logits_bias", torch.zeros(1, 1))
        logits = self._network.get_output_embeddings()(early) + bias.to(early.device)
        own = self._logits[row]
        return torch.cat([logits[:, : len(own)].float().cpu(), own[None]])

    def attention(self, position: int) -> NDArray[np.float32]:
        """For a token of the prompt (layers, heads, prompt), in both directions; for one of a reply
        (layers, heads, position + 1): cross-attention to the prompt, which sums to 1, and then
        self-attention to the reply, which sums to 1 again. Less on special tokens.
        """
        if position < self.encoded:
            weights = self._encoded[:, :, position]
        else:
            row = self._row(position)
            own = self._self[:, :, row, self._opening : row + 1]
            weights = torch.cat([self._cross[:, :, row], own], dim=-1)
        array: NDArray[np.float32] = weights.numpy()
        return array

    def attentions(self) -> NDArray[np.float32]:
        """Raises ModelError: both stacks do not fit into one matrix."""
        raise ModelError(
            f"{self._name}: an encoder and a decoder have no single matrix of attention; choose a "
            "token with --token"
        )

    def cross_attention(self) -> NDArray[np.float32]:
        """(layers, heads, reply, prompt): of each token of the reply."""
        weights: NDArray[np.float32] = self._cross[:, :, self._opening :].numpy()
        return weights


def reply_of(model: LanguageModel, prompt: Sequence[int]) -> list[int]:
    """The reply to look at: of an encoder-decoder the most likely next tokens, at most `LONGEST`;
    of other models nothing, whose text is whole.
    """
    if not isinstance(model_here(model), EncoderDecoderModel):
        return []
    request = Request(prompt, Sampling(temperature=0.0, max_tokens=LONGEST))
    return [event.id for event in model.generate(request) if isinstance(event, Token)]
