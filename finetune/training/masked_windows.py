"""Masked pretraining (Devlin et al. 2019) on windows of text; see `finetune.objectives.masked`.

Invariant: a loss is that of the chosen tokens, seen from both sides. It compares with no loss of a
token given those before.
"""

from typing import Any

import torch
from torch import nn

from finetune.data.batches import Tensors
from finetune.objectives.masked import Masked
from finetune.training.trainer import FiniteTrainer


class MaskedTrainer(FiniteTrainer):
    """Trains a masked model on windows; other tokens are chosen in each step."""

    loss_is_scaled_for_ga = False

    def __init__(self, *, objective: Masked, **trainer: Any) -> None:
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
        everything = torch.ones_like(ids)
        batch = {"input_ids": ids, "aux_mask": everything.bool(), "example_ids": everything}
        whole = self.accelerator.unwrap_model(model)
        counts = self.objective.count([batch], model, whole)
        step = float(self.state.global_step)
        loss = self.objective.losses(model, whole, batch, counts, step)[0]
        return (loss, {"loss": loss}) if return_outputs else loss
