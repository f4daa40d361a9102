"""transformers' Trainer with an objective of this program.

Invariant: an optimizer step is defined by its rows alone. Gradients do not depend on how the rows
are cut into micro-batches and processes, nor on padding or packing.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

from finetune.config.sections import ConfigError, Steps
from finetune.data.batches import (
    ByLength,
    Collate,
    Loader,
    RowOrder,
    Tensors,
    TrainingRows,
    WithUnlabelled,
    loader,
)
from finetune.data.preparation import HELD_OUT
from finetune.objectives.objective import Objective
from finetune.training.checkpoints import CheckpointingTrainer
from finetune.training.optimizer import WeightAverage, muon_beside_adamw, schedule


class NotFinite(FloatingPointError):
    """The loss or its gradient is no longer finite.

    batches: its micro-batches.
    """

    def __init__(self, message: str, batches: Sequence[Tensors]) -> None:
        super().__init__(message)
        self.batches = batches


_AVERAGE_FILE = "average.pt"


class FiniteTrainer(CheckpointingTrainer):
    """A Trainer that stops before an infinite loss or gradient damages the weights.

    steps: the optimizer and its schedule. average: the decay of an average of the weights, which is
    measured and saved in their place; 0 for none. tokens_seen: training tokens of this process in
    this session, without padding. answer_figures: return held-out figures that no loss gives.
    """

    optimizer: torch.optim.Optimizer | None
    lr_scheduler: LambdaLR | None

    def __init__(self, *, steps: Steps, average: float = 0.0, **trainer: Any) -> None:
        super().__init__(**trainer)
        self.steps = steps
        self.average = WeightAverage(self.model, average) if average else None
        if self.average:
            self.add_callback(self.average)
        self.tokens_seen = 0
        self.answer_figures: Sequence[Callable[[], dict[str, float]]] = ()
        self._step_batches: Sequence[Tensors] = ()

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """AdamW as in Trainer, or Muon with it. Raises ConfigError."""
        if self.optimizer is None and self.steps.optimizer == "muon":
            if self.is_fsdp_enabled:
                raise ConfigError(
                    "train.optimizer: muon needs whole matrices, and FSDP cuts them; use adamw"
                )
            model = self.model if model is None else model
            self.optimizer = muon_beside_adamw(
                model,
                self.get_decay_parameter_names(model),
                weight_decay=self.args.weight_decay,
                lr=self.args.learning_rate,
                betas=(self.args.adam_beta1, self.args.adam_beta2),
                eps=self.args.adam_epsilon,
            )
        made: torch.optim.Optimizer = super().create_optimizer(model)
        return made

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> LambdaLR:
        """See `schedule`."""
        if self.lr_scheduler is None:
            optimizer = optimizer or self.optimizer
            assert optimizer is not None
            warmup = self.args.get_warmup_steps(num_training_steps)
            steps = self.steps
            factor = schedule(steps.schedule, warmup, num_training_steps, steps.min_rate)
            self.lr_scheduler = LambdaLR(optimizer, factor)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def get_batch_samples(
        self, epoch_iterator: Iterator[Tensors], num_batches: int, device: Any
    ) -> tuple[list[Tensors], Any]:
        """The micro-batches of an optimizer step, and transformers' count of labels."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        batches = self.made_of(batches)
        self._step_batches = batches
        self.tokens_seen += sum(map(_real_tokens, batches))
        return batches, items

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The model has the weights that are kept: their average, if there is one."""
        with self.average.in_place() if self.average else nullcontext():
            yield

    def evaluate(self, *arguments: Any, **settings: Any) -> dict[str, float]:
        with self.averaged():
            metrics: dict[str, float] = super().evaluate(*arguments, **settings)
        return metrics

    def evaluation_loop(self, *arguments: Any, **settings: Any) -> Any:
        output = super().evaluation_loop(*arguments, **settings)
        output.metrics.update(self._answers(settings["metric_key_prefix"]))
        return output

    def _answers(self, prefix: str) -> dict[str, float]:
        figures = (figure for answered in self.answer_figures for figure in answered().items())
        return {f"{prefix}_{key}": value for key, value in figures}

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.average:
            self.average.save(Path(output_dir) / _AVERAGE_FILE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint and self.average:
            self.average.load(Path(checkpoint) / _AVERAGE_FILE)

    def load_best(self) -> int:
        """Load the weights of the best step, if that is not the last; return the step."""
        last, best = self.state.global_step, self.state.best_global_step or 0
        if best and best != last:
            sharded = self.model_wrapped if self.is_fsdp_enabled else None
            folder = f"{self.args.output_dir}/checkpoint-{best}"
            self._load_from_checkpoint(folder, sharded)
            if self.average:
                self.average.load(Path(folder) / _AVERAGE_FILE)
        return int(best or last)

    def made_of(self, batches: list[Tensors]) -> list[Tensors]:
        """The micro-batches that a step trains on, by default unchanged."""
        return batches

    def training_step(
        self, model: nn.Module, inputs: Tensors, num_items_in_batch: Any = None
    ) -> Tensor:
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        if not torch.isfinite(loss):
            raise NotFinite(f"the loss is {loss.item()} at step {self._step}", [inputs])
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        # Before the optimizer damages the weights with it.
        grad_norm = super()._get_grad_norm(model, grad_norm)
        if not np.isfinite(float(grad_norm)):
            raise NotFinite(
                f"the gradient is {float(grad_norm)} at step {self._step}", self._step_batches
            )
        return grad_norm

    @property
    def _step(self) -> int:
        return int(self.state.global_step) + 1


def _real_tokens(batch: Tensors) -> int:
    """Tokens of a batch; in rows with example ids, padding has id 0."""
    if "example_ids" in batch:
        return int((batch["example_ids"] > 0).sum())
    return batch["input_ids"].numel()


class Draws(Protocol):
    """Converts batches of prompts to batches of replies; see `Rollouts`."""

    def __call__(
        self, batches: Sequence[Tensors], rows: TrainingRows, step: int | None
    ) -> list[Tensors]: ...
    def save(self, checkpoint: Path, process: int) -> None: ...
    def load(self, checkpoint: Path, process: int) -> None: ...


class ObjectiveTrainer(FiniteTrainer):
    """Trains a causal language model on an objective and evaluates it on held-out rows.

    order: of the training rows. Create it for all rows of an optimizer step together, so that a
    step has the same rows however they are cut. held_out: row sets by name; `HELD_OUT`, else the
    first, selects the best checkpoint. draws: makes replies to prompts, if rows are prompts; else
    None.
    """

    loss_is_scaled_for_ga = True

    def __init__(
        self,
        *,
        objective: Objective,
        rows: TrainingRows,
        order: RowOrder,
        held_out: Mapping[str, TrainingRows],
        collate: Collate,
        **trainer: Any,
    ) -> None:
        super().__init__(
            train_dataset=WithUnlabelled(rows), eval_dataset=dict(held_out) or None, **trainer
        )
        self.objective = objective
        self.order = order
        self.collate = collate
        self.stop_requested = False
        self.draws: Draws | None = None
        self._step_done = 0.0
        self._losses: list[Tensor] = []
        self.add_callback(_StopOnRequest(self))

    @property
    def done(self) -> float:
        """The finished fraction of the run's steps."""
        return self.state.global_step / self.state.max_steps if self.state.max_steps else 0.0

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Continue at the configured rate, which may be lower after a divergence."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint and self.draws:
            self.draws.load(Path(checkpoint), self.args.process_index)
        if checkpoint is None or self.lr_scheduler is None or self.optimizer is None:
            return
        rate = self.args.learning_rate
        self.lr_scheduler.base_lrs = [rate] * len(self.optimizer.param_groups)
        factor = self.lr_scheduler.lr_lambdas[0](self.lr_scheduler.last_epoch)
        for group in self.optimizer.param_groups:
            group["initial_lr"], group["lr"] = rate, rate * factor

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.draws:
            self.draws.save(Path(output_dir), self.args.process_index)

    def save_checkpoint(self) -> None:
        """Save the weights after the last complete step, from which the run can continue."""
        self._save_checkpoint(self.model, trial=None)

    def get_train_dataloader(self) -> Loader:
        return self._loader(self.train_dataset, self.order, self.args.per_device_train_batch_size)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Tensors], num_batches: int, device: Any
    ) -> tuple[list[Tensors], Tensor]:
        """The micro-batches of an optimizer step, and the divisors of its losses."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._step_done = self.done
        return batches, self.summed(self._count(batches, self.model_wrapped))

    def made_of(self, batches: list[Tensors]) -> list[Tensors]:
        if self.draws is None:
            return batches
        return self.draws(batches, self.train_dataset.rows, int(self.state.global_step))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Tensors,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor:
        """The loss of a micro-batch, as its part of the step's."""
        assert num_items_in_batch is not None
        losses = self._objective_losses(model, inputs, num_items_in_batch)
        self._losses.append(losses.detach())
        # Gradients are averaged over the processes, but their sum is needed.
        return losses[0] * float(self.accelerator.num_processes)

    def _count(self, batches: Sequence[Tensors], model: nn.Module) -> Tensor:
        return self.objective.count(batches, model, self.accelerator.unwrap_model(model))

    def _objective_losses(self, model: nn.Module, batch: Tensors, counts: Tensor) -> Tensor:
        whole = self.accelerator.unwrap_model(model)
        return self.objective.losses(model, whole, batch, counts, self.done)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the objective's scalars, means over the steps since the last log."""
        if "loss" in logs and self._losses:
            total = self.summed(torch.stack(self._losses).sum(0).double())
            self._losses = []
            means = (total / self.args.logging_steps).tolist()
            logs |= dict(zip(self.objective.names, means, strict=True))
            logs |= self.objective.settings(self._step_done)
        super().log(logs, start_time)

    def evaluate(
        self,
        eval_dataset: Mapping[str, TrainingRows] | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Exact means over all labels of each held-out set, as if it were one step.

        eval_loss and the objective's other metrics are of `HELD_OUT`, else of the first set; those
        of another end in its name: eval_loss_NAME. Raises NotFinite.
        """
        metrics = self.measure_all(eval_dataset or self.eval_dataset, metric_key_prefix)
        loss = metrics[f"{metric_key_prefix}_loss"]
        if not math.isfinite(loss):  # before these weights become a checkpoint
            raise NotFinite(
                f"the held-out loss is {loss} after step {self.state.global_step}",
                self._step_batches,
            )
        self.log(dict(metrics))
        self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def measure_all(
        self, sets: Mapping[str, TrainingRows], prefix: str = "eval"
    ) -> dict[str, float]:
        """The metrics of `evaluate`, without a log."""
        main = HELD_OUT if HELD_OUT in sets else next(iter(sets))
        metrics = {}
        for name, rows in sets.items():
            ending = "" if name == main else f"_{name}"
            for key, value in self.measure(rows).items():
                metrics[f"{prefix}_{key}{ending}"] = value
        return metrics | self._answers(prefix)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Whether these weights are the best so far, which are then saved at any step."""
        is_best = bool(super()._determine_best_metric(metrics, trial))
        self.control.should_save |= is_best
        return is_best

    @torch.no_grad()
    def measure(self, rows: TrainingRows) -> dict[str, float]:
        """The objective's metrics of a row set."""
        model = self.model_wrapped if self.is_fsdp_enabled else self.model
        model.eval()
        batches: Iterable[Tensors] = self._loader(
            WithUnlabelled(rows), ByLength(rows.lengths), self.args.per_device_eval_batch_size
        )
        if self.draws:
            batches = self.draws(list(batches), rows, None)
        counts = self.summed(torch.stack([self._count([batch], model) for batch in batches]).sum(0))
        names = self.objective.names
        total = torch.zeros(len(names), dtype=torch.float64)
        for batch in batches:
            total += self._objective_losses(model, self._prepare_inputs(batch), counts).cpu()
        means = dict(zip(names, self.summed(total).tolist(), strict=True))
        return self.objective.metrics(means, self.done)

    def summed(self, values: Tensor) -> Tensor:
        """Sum over all processes."""
        if self.accelerator.num_processes == 1:
            return values
        total: Tensor = self.accelerator.reduce(values.to(self.args.device), "sum")
        return total.cpu()

    def _loader(self, rows: Any, order: RowOrder, size: int) -> Loader:
        process, processes = self.args.process_index, self.args.world_size
        return loader(rows, order, size, self.collate, process, processes)

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        """Write the model's own weights in its files, and the objective's module next to them."""
        if added := self.objective.added:
            state = self.model.state_dict() if state_dict is None else state_dict
            state_dict = {k: v for k, v in state.items() if not k.startswith(f"{added}.")}
        with warnings.catch_warnings():
            # A base that is a GGUF file has none; it is read only for a resized vocabulary.
            warnings.filterwarnings("ignore", "Could not find a config file")
            super()._save(output_dir, state_dict)
        folder = Path(output_dir or self.args.output_dir)
        self.objective.save(self.accelerator.unwrap_model(self.model), folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        self.objective.load(self.model, Path(resume_from_checkpoint))


class _StopOnRequest(TrainerCallback):  # type: ignore[misc]
    """Ends and saves after the step in which any process has to stop."""

    def __init__(self, trainer: ObjectiveTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        requests = self.trainer.summed(torch.tensor([float(self.trainer.stop_requested)]))
        if requests.item():
            self.trainer.stop_requested = True
            control.should_save = control.should_training_stop = True
