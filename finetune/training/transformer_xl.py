"""Transformer-XL (Dai et al. 2019), trained segment by segment.

A window of text is a segment. Each layer attends to the segment and to its own input in the segment
before, the memory; the text continues from step to step in each row of the batch. Each token sees
`mem_len` tokens, the last of which is itself. The formulas are those of the decoder that chats with
such a model, see `chatapp.engine.decoder.relative`; the names of weights and configuration are
those of its files, transformers' before 5.

Invariant: no gradient flows into a memory, and none is used where the model is measured, except for
the loss with memory.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, SequentialSampler
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from chatapp.engine.decoder.relative import sinusoids
from finetune.data.batches import Tensors, Windows
from finetune.data.corpus import in_lanes
from finetune.training.trainer import FiniteTrainer

Memory = list[Tensor]
"""The input of each layer for the last tokens, (rows, tokens, width)."""

_MEMORY_FILE = "memory.pt"
_SEGMENTS = 8
"""Segments that each row of a batch has at least, where the loss with memory is measured."""


class TransfoXLConfig(PreTrainedConfig):  # type: ignore[misc]
    """The keys of config.json, see `chatapp.engine.decoder.families.transfo_xl`."""

    model_type = "transfo-xl"


class TransfoXLLMHeadModel(PreTrainedModel):  # type: ignore[misc]
    """The whole model. Its class is named in config.json."""

    config_class = TransfoXLConfig
    accepts_loss_kwargs = False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        embedding = nn.Embedding(config.vocab_size, config.d_model)
        blocks = nn.ModuleList(_Block(config) for _ in range(config.n_layer))
        embeddings = nn.ModuleDict({"emb_layers": nn.ModuleDict({"0": embedding})})
        self.transformer = nn.ModuleDict({"word_emb": embeddings, "layers": blocks})
        output = nn.ParameterDict({"bias": nn.Parameter(torch.zeros(config.vocab_size))})
        self.crit = nn.ModuleDict({"out_layers": nn.ModuleDict({"0": output})})
        self.post_init()

    def get_input_embeddings(self) -> Any:
        return self.get_submodule("transformer.word_emb.emb_layers.0")

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, memory: Memory | None = None
    ) -> Any:
        """input_ids: (rows, tokens), at most `mem_len` tokens. labels: the same, for the loss.

        memory: of the segments before, if any. Returns logits (rows, tokens, vocabulary), the
        memory of the next segment, and with labels the mean loss of each token given those before.
        """
        config, weight = self.config, self.get_input_embeddings().weight
        x = functional.embedding(input_ids, weight) * config.d_model**0.5
        before = memory or [x[:, :0]] * config.n_layer
        farthest_first = sinusoids(config.mem_len, config.d_model, x.device).flip(0)
        after = []
        for block, states in zip(self.get_submodule("transformer.layers"), before, strict=True):
            both = torch.cat([states, x], 1)
            after.append(both[:, -config.mem_len :].detach())
            x = block(x, both, farthest_first)
        logits = functional.linear(x, weight, self.get_submodule("crit.out_layers.0")["bias"])
        loss = None
        if labels is not None:
            predicted = logits[:, :-1].flatten(0, 1).float()
            loss = functional.cross_entropy(predicted, labels[:, 1:].flatten())
        return ModelOutput(loss=loss, logits=logits, memory=after)


class _Block(nn.Module):
    """Attention and an MLP, each followed by its norm."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.dec_attn = _Attention(config)
        self.pos_ff = _Mlp(config)

    def forward(self, x: Tensor, both: Tensor, distances: Tensor) -> Tensor:
        attended: Tensor = self.dec_attn(x, both, distances)
        mixed: Tensor = self.pos_ff(attended)
        return mixed


class _Mlp(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        width, inner = config.d_model, config.d_inner
        # The place of the second matrix leaves room for the dropout of the original.
        self.CoreNet = nn.Sequential(
            nn.Linear(width, inner), nn.ReLU(), nn.Identity(), nn.Linear(inner, width)
        )
        self.layer_norm = nn.LayerNorm(width, config.layer_norm_epsilon)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.layer_norm(x + self.CoreNet(x))
        return normed


class _Attention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        width, self.heads, self.size = config.d_model, config.n_head, config.d_head
        inside = self.heads * self.size
        self.qkv_net = nn.Linear(width, 3 * inside, bias=False)
        self.r_net = nn.Linear(width, inside, bias=False)
        self.o_net = nn.Linear(inside, width, bias=False)
        self.r_w_bias, self.r_r_bias = (
            nn.Parameter(torch.zeros(self.heads, self.size)) for _ in range(2)
        )
        self.layer_norm = nn.LayerNorm(width, config.layer_norm_epsilon)

    def forward(self, x: Tensor, both: Tensor, distances: Tensor) -> Tensor:
        """x: (rows, tokens, width). both: the same after its memory. distances: (window, width),
        their sinusoids from the farthest on.
        """
        inside = self.heads * self.size
        to_query, to_others = torch.split(self.qkv_net.weight, [inside, 2 * inside])
        query = self._by_head(functional.linear(x, to_query))
        key, value = map(self._by_head, functional.linear(both, to_others).chunk(2, -1))
        far = self.r_net(distances).view(-1, self.heads, self.size).permute(1, 2, 0)
        content = (query + self.r_w_bias[:, None]) @ key.transpose(-2, -1)
        by_distance = (query + self.r_r_bias[:, None]) @ far
        scores = content + by_key(by_distance, both.shape[1] - x.shape[1])
        shares = (scores * self.size**-0.5).softmax(-1).to(value.dtype)
        attended = (shares @ value).transpose(1, 2).flatten(2)
        normed: Tensor = self.layer_norm(x + self.o_net(attended))
        return normed

    def _by_head(self, states: Tensor) -> Tensor:
        """(rows, tokens, heads · size) -> (rows, heads, tokens, size)."""
        return states.view(*states.shape[:-1], self.heads, self.size).transpose(1, 2)


def by_key(scores: Tensor, known: int) -> Tensor:
    """Scores of each distance as scores of each key; those of later and too far keys are -inf.

    scores: (…, tokens, window), of the distances window - 1 to 0. known: keys before the tokens, at
    most a window. Returns (…, tokens, known + tokens).
    """
    tokens, window = scores.shape[-2:]
    keys = window + tokens
    # Each row is one longer than there are keys, so cut in rows of `keys` each moves by one.
    padded = functional.pad(scores, (1, tokens), value=-torch.inf).flatten(-2)
    rows = padded[..., : tokens * keys].reshape(*scores.shape[:-2], tokens, keys)
    return rows[..., window - known :]


class SegmentTrainer(FiniteTrainer):
    """Trains a Transformer-XL on windows in the order of `in_lanes`, each with its memory.

    memory: of the last micro-batch; it is part of a checkpoint.
    """

    def __init__(self, **trainer: Any) -> None:
        super().__init__(**trainer)
        self.memory: Memory | None = None

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return SequentialSampler(self.train_dataset)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Tensors,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        outputs = model(**inputs, memory=self.memory if model.training else None)
        if model.training:
            self.memory = outputs.memory
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def evaluation_loop(self, *loop: Any, metric_key_prefix: str = "eval", **settings: Any) -> Any:
        """The loss of each window alone, and the loss with memory."""
        output = super().evaluation_loop(*loop, metric_key_prefix=metric_key_prefix, **settings)
        output.metrics[f"{metric_key_prefix}_memory_loss"] = self._loss_with_memory()
        return output

    @torch.no_grad()
    def _loss_with_memory(self) -> float:
        """The mean loss over the held-out windows, in nats a token."""
        ids = self.eval_dataset.ids
        rows = max(1, min(self.args.per_device_eval_batch_size, len(ids) // _SEGMENTS))
        losses, memory = [], None
        for batch in DataLoader(Windows(in_lanes(ids, rows)), rows):
            with self.compute_loss_context_manager():
                outputs = self.model(**self._prepare_inputs(batch), memory=memory)
            losses.append(float(outputs.loss))
            memory = outputs.memory
        return sum(losses) / len(losses)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        torch.save(self.memory, Path(output_dir) / _MEMORY_FILE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint:
            path = Path(checkpoint) / _MEMORY_FILE
            self.memory = torch.load(path, map_location=self.args.device, weights_only=True)
