"""Pretraining on windows of text by an objective's losses.

Invariant: every token of a window is a label, or may be chosen as one. The masked loss (Devlin et
al. 2019) is that of the chosen tokens, seen from both sides; it compares with no loss of a token
given those before.
"""

from typing import Any

import torch
from torch import nn

from finetune.data.batches import MASKS, Tensors
from finetune.objectives.objective import Objective
from finetune.training.trainer import FiniteTrainer


class WindowTrainer(FiniteTrainer):
    """Trains on windows of equal length, each of which counts the same."""

    loss_is_scaled_for_ga = False

    def __init__(self, *, objective: Objective, **trainer: Any) -> None:
        super().__init__(**trainer)
        self.objective = objective

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Tensors,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        ids = inputs["input_ids"]
        example = torch.ones_like(ids)
        batch = {"input_ids": ids, "example_ids": example} | dict.fromkeys(MASKS, example.bool())
        whole = self.accelerator.unwrap_model(model)
        counts = self.objective.count([batch], model, whole)
        step = float(self.state.global_step)
        loss = self.objective.losses(model, whole, batch, counts, step)[0]
        return (loss, {"loss": loss}) if return_outputs else loss
