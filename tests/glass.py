"""Models one can look into, for tests: a real one of random weights, and a scripted one."""

import math
import os
from collections.abc import Sequence

# Before tokenizers starts its threads: it warns when a test then starts a process.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from fakes import ScriptedModel
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.decoder.decoder import Decoder
from chatapp.engine.decoder.families.architecture import Architecture, BlockAttention
from chatapp.engine.decoder.interventions import UNCHANGED, Interventions
from chatapp.engine.model import Sampling
from chatapp.engine.tokenizers import END_OF_TEXT, BPETokenizer
from chatapp.lab.predictions import Stepper
from chatapp.lab.traces import Trace


def random_gpt2(*, context: int = 512, layers: int = 2, heads: int = 3) -> LocalModel:
    """A GPT-2 of random weights; one token for each byte of text, and a few words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["User: he has it.\nAssistant: he has it.\n"] * 4, trainer)
    architecture = Architecture(
        width=8 * heads,
        heads=heads,
        key_value_heads=heads,
        head_size=8,
        inner=16,
        vocabulary=tokenizer.get_vocab_size(),
        context=context,
        attentions=(BlockAttention(scale=8**-0.5),) * layers,
        norm="LayerNorm",
        epsilon=1e-5,
        activation="gelu_new",
        is_gated=False,
        is_tied=True,
        has_attention_bias=True,
        has_projection_bias=True,
        has_mlp_bias=True,
    )
    generator = torch.Generator().manual_seed(0)
    weights = {
        part.name: torch.randn(part.shape, generator=generator) * 0.3
        for part in architecture.parts()
    }
    decoder = Decoder(architecture, weights)
    return LocalModel(decoder, BPETokenizer(tokenizer, 0), name="random")


class _ScriptedTrace(Trace):
    """Numbers of a formula, so that a picture of them is the same on every machine."""

    def __init__(self, model: "GlassModel", ids: Sequence[int]) -> None:
        super().__init__(ids, layers=model.layers, heads=model.heads, piece=model.tokenizer.piece)
        self._model = model

    def logits(self, start: int, stop: int) -> torch.Tensor:
        rows = [self._model.logits(self.ids[: place + 1]) for place in range(start, stop)]
        return torch.stack(rows)

    def layer_logits(self, position: int) -> torch.Tensor:
        ids = self.ids[: position + 1]
        return torch.stack([self._model.logits(ids, layer) for layer in range(self.layers + 1)])

    def attention(self, position: int) -> NDArray[np.float32]:
        weights = np.array(
            [
                [
                    [1 + (layer * 7 + head * 5 + place * 3) % 11 for place in range(position + 1)]
                    for head in range(self.heads)
                ]
                for layer in range(self.layers)
            ],
            dtype=np.float32,
        )
        weights[:, :, 0] *= 3
        return np.asarray(weights / weights.sum(2, keepdims=True), dtype=np.float32)


class GlassModel(ScriptedModel):
    """A scripted model that shows an inside."""

    layers = 6
    heads = 8

    def logits(self, ids: Sequence[int], layer: int | None = None) -> torch.Tensor:
        """The formula: every token has some chance, and the last layer is the surest."""
        sharp = 1.0 if layer is None else (layer + 1) / (self.layers + 1)
        values = [
            4 * sharp * math.sin(1.7 * id + 0.9 * len(ids) + 0.3 * (layer or self.layers))
            for id in range(self.tokenizer.size)
        ]
        return torch.tensor(values)

    def inspect(
        self,
        ids: Sequence[int],
        interventions: Interventions = UNCHANGED,
        reply: Sequence[int] = (),
    ) -> Trace:
        return _ScriptedTrace(self, [*ids, *reply])

    def stepper(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        interventions: Interventions = UNCHANGED,
        reply: Sequence[int] = (),
        constraint: Constraint | None = None,
    ) -> Stepper:
        piece, ids = self.tokenizer.piece, [*ids, *reply]
        return Stepper(self.logits, piece, ids, sampling, self.context, {self.tokenizer.end_id})
