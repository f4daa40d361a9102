"""The linear layer of a head on its model: made, saved, loaded, and asked.

Keep: the layer is a child of the model, `task_head`, and is saved beside the model's files and
never in them, so the folder loads as a plain language model too.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from chatapp.engine.errors import ModelError
from chatapp.engine.head import HEAD_WEIGHTS, HeadSpec, HeadTask
from chatapp.engine.model import Tokenizer
from finetune.data.batches import ByLength, Tensors, collate, loader
from finetune.data.formats import Labelled
from finetune.objectives.head_rows import HeadExample, HeadRows, RowEncoder
from finetune.objectives.objective import in_place_of, model_inputs

MODULE = "task_head"
BATCH = 16
"""Rows that are asked at a time."""


def add_head(model: Any, spec: HeadSpec, seed: int) -> None:
    """Put a new head on a model, with the paper's initial weights, N(0, 0.02)."""
    width = model.get_output_embeddings().weight.shape[1]
    model.task_head = nn.Linear(width, spec.outputs)
    draw = torch.Generator().manual_seed(seed)
    nn.init.normal_(model.task_head.weight, std=0.02, generator=draw)
    nn.init.zeros_(model.task_head.bias)


def save_head(model: Any, spec: HeadSpec, folder: Path) -> None:
    """Write the head beside the model's own files."""
    state = {key: value.contiguous().cpu() for key, value in model.task_head.state_dict().items()}
    save_file(state, folder / HEAD_WEIGHTS)
    spec.save(folder)


def load_head(model: Any, folder: Path) -> HeadSpec:
    """Put the head saved in a folder on a model. Raises ModelError."""
    spec = HeadSpec.load(folder)
    add_head(model, spec, seed=0)
    load_head_weights(model, folder)
    return spec


def load_head_weights(model: Any, folder: Path) -> None:
    """Raises ModelError when the file is broken or of another head."""
    path = folder / HEAD_WEIGHTS
    try:
        model.task_head.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        line = str(error).strip().splitlines()[0]
        raise ModelError(f"{path}: not the weights of this head: {line}") from None


def class_logits(
    head: nn.Module, hidden: Tensor, batch: Tensors, task: HeadTask
) -> tuple[Tensor, Tensor]:
    """Logits (examples, classes or choices), and which examples count, (examples,) bool.

    The states at the extract tokens of the two orders of a similar pair are summed before the
    head; of multiple choice each candidate's score is its own logit, absent ones are -inf.
    """
    read = batch["response_mask"].any(1)
    example, states = owners(batch)[read], hidden[batch["response_mask"]].float()
    examples = len(batch["label"])
    counted = torch.zeros(examples, dtype=torch.bool, device=hidden.device)
    counted[example] = True
    if task != "multiple-choice":
        summed = torch.zeros(examples, states.shape[1], device=hidden.device)
        return head(summed.index_add(0, example, states)), counted
    scores = head(states)[:, 0].float()
    sizes = torch.bincount(example, minlength=examples)
    first = sizes.cumsum(0) - sizes
    choice = torch.arange(len(example), device=hidden.device) - first[example]
    logits = torch.full((examples, max(1, int(sizes.max()))), -torch.inf, device=hidden.device)
    return logits.index_put((example, choice), scores), counted


def owners(batch: Tensors) -> Tensor:
    """Which example of the batch each sequence belongs to, (sequences,)."""
    sizes = batch["sequences"]
    return torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)


class Classifier:
    """A trained head with its model: rows to label probabilities, or to numbers."""

    def __init__(
        self, model: Any, spec: HeadSpec, tokenizer: Tokenizer, start: Sequence[int], length: int
    ) -> None:
        self.model, self.spec, self.pad_id = model, spec, tokenizer.end_id
        self.encoder = RowEncoder(spec, tokenizer, start, length, "truncate-prompt")

    def predict(self, rows: Sequence[Labelled]) -> list[list[float]]:
        """Of each row the probabilities in the order of the spec's labels, or of the row's
        choices; of regression the number alone.

        A text too long for the model is cut at its end. A row needs no label.
        """
        examples = []
        for row in rows:
            sequences = self.encoder.sequences(row)
            assert sequences is not None  # they are cut, not dropped
            examples.append(HeadExample(sequences, 0, row.key))
        return self.outputs(examples)

    @torch.inference_mode()
    def outputs(self, examples: Sequence[HeadExample]) -> list[list[float]]:
        """The same of encoded rows, several at a time, those of like length together."""
        self.model.eval()
        rows = HeadRows(examples, self.pad_id)
        order = ByLength(rows.lengths)
        found: list[list[float]] = []
        for batch in loader(rows, order, BATCH, partial(collate, pad_id=self.pad_id)):
            found += self._of_batch(batch)
        by_row = dict(zip(order, found, strict=True))
        return [by_row[index] for index in range(len(examples))]

    def _of_batch(self, batch: Tensors) -> list[list[float]]:
        on_device = {key: value.to(self.model.device) for key, value in batch.items()}
        found: list[list[float]] = []

        def compute(hidden: Tensor) -> Tensor:
            logits, _ = class_logits(self.model.task_head, hidden, on_device, self.spec.task)
            if self.spec.scale:
                mean, deviation = self.spec.scale
                found.extend((logits * deviation + mean).tolist())
            else:
                choices = self.spec.task == "multiple-choice"
                sizes = batch["sequences"].tolist() if choices else [logits.shape[1]] * len(logits)
                rows = zip(logits.softmax(1).tolist(), sizes, strict=True)
                found.extend(row[:size] for row, size in rows)
            return hidden

        with in_place_of(self.model.get_output_embeddings(), compute):
            self.model(**model_inputs(on_device))
        return found
