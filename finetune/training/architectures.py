"""The architectures of `finetune pretrain`, most of them as configurations of transformers.

Each step from GPT-2 to Llama changes one part: rotary positions, a gated MLP, RMSNorm, grouped
heads. A gated MLP has three matrices, so its inner width is two thirds of the usual one: all shapes
of one size have about 12 · layers · hidden² parameters beside the embeddings.

Transformer-XL (Dai et al. 2019) is trained segment by segment. A window of text is a segment. Each
layer attends to the segment and to its own input in the segment before, the memory; the text
continues from step to step in each row of the batch. Each token sees `mem_len` tokens, the last of
which is itself. Its formulas are those of `chatapp.engine.decoder.parts`; the names of weights
and configuration are those of its files, transformers' before 5.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    GPT2Config,
    GPTNeoConfig,
    GPTNeoXConfig,
    LlamaConfig,
    OpenAIGPTConfig,
    PreTrainedConfig,
    PreTrainedModel,
    StableLmConfig,
)
from transformers.utils import ModelOutput

from chatapp.engine.decoder.parts import sinusoids
from finetune.config.sections import Shape
from finetune.data.batches import Tensors
from finetune.data.corpus import Ids, in_lanes
from finetune.objectives.l3 import L3

# GPT-2's own function, in one operation where "gelu_new" takes eight.
_GELU = "gelu_pytorch_tanh"


def _modern(shape: Shape) -> dict[str, Any]:
    """The sizes by their newer names. Few passes over much text: dropout would only slow it."""
    return {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "max_position_embeddings": shape.positions,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }


def _old(shape: Shape) -> dict[str, Any]:
    """The sizes by the names of GPT and GPT-2, without dropout."""
    return {
        "n_positions": shape.positions,
        "n_embd": shape.hidden,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    }


def _inner(shape: Shape) -> int:
    """The width inside a gated MLP."""
    return 8 * max(1, round(shape.hidden / 3))


def _gated(shape: Shape) -> dict[str, Any]:
    return {"intermediate_size": _inner(shape), "hidden_act": "silu"}


def _sparse(shape: Shape) -> GPTNeoConfig:
    """Dense and locally banded layers alternate (Child et al. 2019, as in GPT-3)."""
    kinds = [("global", "local")[layer % 2] for layer in range(shape.layers)]
    return GPTNeoConfig(
        hidden_size=shape.hidden,
        num_layers=shape.layers,
        num_heads=shape.heads,
        max_position_embeddings=shape.positions,
        attention_types=[[[kind], 1] for kind in kinds],
        window_size=max(1, shape.positions // 8),
        activation_function=_GELU,
    )


def _llama(shape: Shape, key_value_heads: int) -> LlamaConfig:
    return LlamaConfig(**_modern(shape), **_gated(shape), num_key_value_heads=key_value_heads)


def _transformer_xl(shape: Shape) -> "TransfoXLConfig":
    """Distances have a matrix of their own, for which the MLP is an eighth narrower."""
    return TransfoXLConfig(
        d_model=shape.hidden,
        d_embed=shape.hidden,
        n_head=shape.heads,
        d_head=shape.hidden // shape.heads,
        d_inner=_narrow(shape),
        n_layer=shape.layers,
        mem_len=shape.positions,
        clamp_len=shape.positions,
        same_length=True,
        untie_r=True,
        div_val=1,
        cutoffs=[],
        layer_norm_epsilon=1e-5,
    )


def _narrow(shape: Shape) -> int:
    """The width inside the MLP of a Transformer-XL."""
    return 7 * shape.hidden // 2


def _groups(shape: Shape) -> int:
    """Heads of keys and values: a half of the heads, or the largest smaller divisor."""
    return max(n for n in range(1, shape.heads // 2 + 1) if shape.heads % n == 0)


ARCHITECTURES: Mapping[str, Callable[[Shape], Any]] = {
    "gpt2": lambda shape: GPT2Config(**_old(shape), activation_function=_GELU),
    "gpt": lambda shape: OpenAIGPTConfig(**_old(shape), afn="gelu"),
    "sparse": _sparse,
    "rotary": lambda shape: GPTNeoXConfig(
        **_modern(shape),
        intermediate_size=4 * shape.hidden,
        hidden_act=_GELU,
        use_parallel_residual=False,
        rotary_pct=1.0,
        tie_word_embeddings=True,
    ),
    "gated": lambda shape: StableLmConfig(
        **_modern(shape),
        **_gated(shape),
        num_key_value_heads=shape.heads,
        partial_rotary_factor=1.0,
        tie_word_embeddings=True,
    ),
    "rmsnorm": lambda shape: _llama(shape, shape.heads),
    "llama": lambda shape: _llama(shape, _groups(shape)),
    "transformer-xl": _transformer_xl,
    "bert": lambda shape: BertConfig(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.hidden,
        max_position_embeddings=shape.positions,
        type_vocab_size=1,
        hidden_act=_GELU,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=None,
    ),
}


_FORMULAS: Mapping[str, str] = {
    "gpt2": "V·H + P·H + L·(12·H² + 13·H) + 2·H",
    "gpt": "V·H + P·H + L·(12·H² + 13·H)",
    "sparse": "V·H + P·H + L·(12·H² + 10·H) + 2·H",
    "rotary": "V·H + L·(12·H² + 13·H) + 2·H",
    "gated": "V·H + L·(4·H² + 3·H·I + 4·H) + 2·H",
    "rmsnorm": "V·H + L·(4·H² + 3·H·I + 2·H) + H",
    "llama": "V·H + L·(2·H² + 2·H²·G/A + 3·H·I + 2·H) + H",
    "transformer-xl": "V·H + V + L·(5·H² + 2·H·M + 7·H + M)",
    "bert": "V·H + V + P·H + L·(12·H² + 13·H) + H² + 6·H",
}


def parameter_formula(shape: Shape, vocabulary: int) -> str:
    """The number of parameters as a formula, and the values of its letters.

    V: vocabulary. P: positions. L: layers. H: hidden. A: heads. G: heads of keys and values. I: the
    width inside a gated MLP. M: that of a Transformer-XL. Embeddings are tied.
    """
    formula = _FORMULAS[shape.architecture]
    values = {
        "V": vocabulary,
        "P": shape.positions,
        "L": shape.layers,
        "H": shape.hidden,
        "A": shape.heads,
        "G": _groups(shape),
        "I": _inner(shape),
        "M": _narrow(shape),
    }
    return f"{formula}; " + ", ".join(f"{k} = {v}" for k, v in values.items() if k in formula)


def build_network(shape: Shape, vocabulary: int, end: int) -> Any:
    """A model with random weights. vocabulary: tokens; end: the id of end-of-text."""
    config = ARCHITECTURES[shape.architecture](shape)
    config.vocab_size, config.tie_word_embeddings = vocabulary, True
    config.bos_token_id = config.eos_token_id = end
    if shape.architecture == "transformer-xl":
        return TransfoXLLMHeadModel(config)
    kind = AutoModelForMaskedLM if shape.architecture == "bert" else AutoModelForCausalLM
    return kind.from_config(config)


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


@dataclass(frozen=True)
class Segments(L3):
    """The loss of windows in the order of `in_lanes`, each with the memory of the one before it.

    memory: of the last micro-batch; it is part of a checkpoint.
    """

    memory: Memory = field(default_factory=list)

    def losses(
        self, call: nn.Module, model: Any, batch: Tensors, counts: Tensor, done: float
    ) -> Tensor:
        ids, learns = batch["input_ids"], model.training
        outputs = call(input_ids=ids, labels=ids, memory=self.memory if learns else None)
        if learns:
            self.memory[:] = outputs.memory
        loss = outputs.loss * (ids[:, 1:].numel() / float(counts[0]))
        zero = torch.zeros_like(loss)
        return torch.stack([loss, loss.detach(), zero, zero])

    @torch.no_grad()
    def loss_with_memory(self, model: nn.Module, windows: Ids, rows: int) -> float:
        """The mean loss over held-out windows, in nats a token, at most `rows` at a time."""
        device = next(model.parameters()).device
        rows = max(1, min(rows, len(windows) // _SEGMENTS))
        losses, memory = [], None
        for ids in torch.from_numpy(in_lanes(windows, rows).astype(np.int64)).split(rows):  # type: ignore[no-untyped-call]
            here = ids.to(device)
            outputs = model(input_ids=here, labels=here, memory=memory)
            memory = outputs.memory
            losses.append(float(outputs.loss))
        return sum(losses) / len(losses)

    def save(self, model: Any, folder: Path) -> None:
        """Write the memory into a checkpoint."""
        torch.save(self.memory, folder / _MEMORY_FILE)

    def load(self, model: Any, folder: Path) -> None:
        path = folder / _MEMORY_FILE
        self.memory[:] = torch.load(path, map_location=model.device, weights_only=True)
