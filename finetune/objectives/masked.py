"""Masked language modelling (Devlin et al., 2019): hidden tokens are predicted from both sides.

Of each row a share of the tokens is chosen. Of these, 80 % are masked, 10 % replaced by a random
token and 10 % unchanged; the loss is the mean negative log-likelihood of the chosen ones.

Invariant: the choice depends only on the seed, the row and how far the run is, so a resumed run
trains on the same masks, however a step is cut into micro-batches, and a held-out row has the same
masks at every measurement.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor, nn

from chatapp.common.foreign import printable
from chatapp.engine.model import PieceTokenizer
from chatapp.engine.tokenizers import mask_token
from finetune.config.objectives import MaskedSettings
from finetune.config.sections import ConfigError, FinetuneConfig
from finetune.data.batches import Rows, Tensors, TrainingRows, collate
from finetune.data.encoding import Encoded, Span
from finetune.data.preparation import LONGEST
from finetune.objectives.log_probs import LinearCrossEntropy
from finetune.objectives.objective import (
    Evaluator,
    Figures,
    ModelText,
    Objective,
    RowSets,
    Scalar,
    Tell,
    through_head,
)
from finetune.objectives.rows import mean_losses, read_chat_rows, show_lengths

_MASKED, _REPLACED = 0.8, 0.1
_PREVIEWED = 3
_TEMPLATE = np.uint8(Span.TEMPLATE)


@dataclass(frozen=True)
class MaskedEvaluator(Evaluator):
    """Evaluates a masked model on the same masks of each row."""

    def __post_init__(self) -> None:
        if not self.text.files.is_masked:
            raise ConfigError(f"{self.text.name} is not a masked model; the run has one")

    def read_rows(self) -> tuple[list[Encoded], dict[str, list[Encoded]]]:
        sets = _framed_rows(self.config, self.text)
        held_out = {name: list(cast(Rows, r).examples) for name, r in sets.held_out.items()}
        return list(cast(Rows, sets.train).examples), held_out

    @torch.inference_mode()
    def measure(self, model: Any, rows: Sequence[Encoded], tell: Tell) -> Figures:
        objective, _ = Masked.build(self.config, self.text)
        known, end = Rows(rows, "full"), self.text.tokenizer.end_id
        means, _ = mean_losses(objective, model, known, end, "masked loss", tell)
        return Figures(objective.metrics(means, 0.0))


@dataclass(frozen=True)
class Masked(Objective):
    """The masked loss. share: of the tokens to predict. mask_id: the token that hides another.
    special: ids that are never chosen. vocabulary: ids below it may replace a token.
    """

    share: float
    seed: int
    mask_id: int
    special: frozenset[int]
    vocabulary: int

    evaluator = MaskedEvaluator
    replies = False
    dropout = True

    @classmethod
    def build(cls, config: FinetuneConfig, text: ModelText) -> tuple[Objective, RowSets]:
        settings = cast(MaskedSettings, config.objective)
        _, mask_id = mask_token(text.files.tokenizer)
        tokenizer = text.tokenizer
        special = frozenset({mask_id, tokenizer.end_id, *text.start, *tokenizer.special.values()})
        objective = cls(settings.share, config.seed, mask_id, special, tokenizer.text_size)
        return objective, _framed_rows(config, text)

    @property
    def scalars(self) -> Mapping[str, Scalar]:
        return {
            "masked": Scalar("masked loss", curve=True, metric="loss", is_nats=True),
            "accuracy": Scalar(metric="accuracy"),
        }

    def summary(self, data: RowSets) -> str:
        return (
            f"masked loss over {self.share:.0%} of the tokens of each row: {_MASKED:.0%} of them "
            f"masked, {_REPLACED:.0%} replaced, {1 - _MASKED - _REPLACED:.0%} unchanged"
        )

    def _choosable(self, batch: Tensors) -> Tensor:
        """The tokens that may be predicted, (rows, tokens) bool."""
        known = torch.tensor(sorted(self.special), device=batch["input_ids"].device)
        return batch["aux_mask"] & ~torch.isin(batch["input_ids"], known)

    def _sizes(self, choosable: Tensor) -> Tensor:
        """How many tokens of each row are predicted, (rows,): at least one if there is any."""
        counts = choosable.sum(1)
        return (counts * self.share).round().long().clamp(min=1).minimum(counts)

    def hidden_rows(self, batch: Tensors, done: float | None) -> tuple[Tensor, Tensor]:
        """The ids that the model reads and a mask of those that it predicts, (rows, tokens).

        done: how far the run is; None for the masks of a measurement.
        """
        ids = batch["input_ids"].cpu()
        choosable = self._choosable(batch).cpu()
        read, chosen = ids.clone(), torch.zeros_like(choosable)
        for row, size in enumerate(self._sizes(choosable).tolist()):
            real = ids[row][batch["example_ids"][row].cpu() > 0]
            seed = f"{self.seed} {done} ".encode() + real.numpy().tobytes()
            draw = np.random.default_rng(list(hashlib.sha256(seed).digest()))
            places = draw.permutation(choosable[row].nonzero()[:, 0].numpy())[:size]
            kinds = draw.random(size)
            others = draw.integers(0, self.vocabulary, size)
            chosen[row, places] = True
            masked, replaced = kinds < _MASKED, kinds >= 1 - _REPLACED
            read[row, places[masked]] = self.mask_id
            read[row, places[replaced]] = torch.from_numpy(others[replaced])
        device = batch["input_ids"].device
        return read.to(device), chosen.to(device)

    def count(self, batches: Iterable[Tensors], call: nn.Module, model: Any) -> Tensor:
        """The number of predicted tokens, (1,)."""
        sizes = [int(self._sizes(self._choosable(batch)).sum()) for batch in batches]
        return torch.tensor([sum(sizes)], dtype=torch.float64)

    def losses(
        self, call: nn.Module, model: Any, batch: Tensors, counts: Tensor, done: float
    ) -> Tensor:
        read, chosen = self.hidden_rows(batch, done if model.training else None)
        labels = batch["input_ids"][chosen]
        weights = torch.full(labels.shape, 1 / counts.clamp(min=1).item(), device=labels.device)
        head = model.get_output_embeddings()

        def compute(states: Tensor) -> Tensor:
            loss, _, hits = LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
                states[chosen], head.weight, head.bias, labels, weights, torch.is_grad_enabled()
            )
            return torch.stack([loss, (hits * weights).sum()])

        hidden = {**batch, "input_ids": read}
        return through_head(call, model, hidden, compute, sees_all=True)

    def preview(
        self, data: RowSets, tokenizer: PieceTokenizer, marked: bool
    ) -> Mapping[str, Sequence[RenderableType]]:
        rows = cast(Rows, data.train)
        shown = []
        for index in range(min(_PREVIEWED, len(rows))):
            read, _ = self.hidden_rows(collate([rows[index]], 0), 0.0)
            ids = read[0].tolist()
            pieces = ("[MASK]" if id == self.mask_id else tokenizer.piece(id) for id in ids)
            shown.append(Text(printable(" ".join(pieces)), overflow="ellipsis", no_wrap=True))
        return {"Tokens": list(show_lengths(rows.examples)), "Masks": shown}


def _framed_rows(config: FinetuneConfig, text: ModelText) -> RowSets:
    """The rows of a configuration, unpacked, each between the special tokens of its model."""
    window = text.window - 1
    longest = min(config.data.max_length or LONGEST, window)
    data = config.data.model_copy(update={"packing": False, "max_length": longest})
    config = config.model_copy(update={"data": data})
    sets = read_chat_rows(config, replace(text, window=window), "full")
    end = text.tokenizer.end_id

    def with_end(example: Encoded) -> Encoded:
        if example.ids[-1] == end:
            return example
        ids, spans = np.append(example.ids, np.int32(end)), np.append(example.spans, _TEMPLATE)
        return replace(example, ids=ids, spans=spans)

    def closed(rows: TrainingRows) -> Rows:
        return Rows(list(map(with_end, cast(Rows, rows).examples)), "full")

    held_out = {name: closed(rows) for name, rows in sets.held_out.items()}
    return replace(sets, train=closed(sets.train), held_out=held_out)
