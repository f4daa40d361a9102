"""The training loop: steps of an objective on rows, measured, logged and saved.

Invariant: an optimizer step is defined by its rows alone. Gradients do not depend on how the rows
are cut into micro-batches and processes, nor on padding or packing. A run continued from a
checkpoint takes the steps that it would have taken.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, set_seed
from torch import Tensor

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
from finetune.training.checkpoints import (
    Learner,
    fits,
    load_random_state,
    save_random_state,
    step_of,
    whole_checkpoint,
)
from finetune.training.optimizer import WeightAverage, make_optimizer, schedule
from finetune.training.record import STATE_FILE, read_written, write_json


class NotFinite(FloatingPointError):
    """The loss or its gradient is no longer finite.

    batches: its micro-batches.
    """

    def __init__(self, message: str, batches: Sequence[Tensors]) -> None:
        super().__init__(message)
        self.batches = batches


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Where and how a run trains, and after how many steps it logs, measures and saves; 0 is never.

    output: its folder. steps: of the whole run; of them `warmup` raise the rate. precision: of the
    products. metric: of the held-out rows, chooses the best weights. figures: what is told of a
    measurement, by default all. average: the decay of an average of the weights, which is measured
    and saved in their place. counts_steps: whether `Loop.done` counts steps, for runs whose length
    may still change.
    """

    output: Path
    steps: int
    warmup: int = 0
    device: str = "cpu"
    precision: str = "float32"
    seed: int = 0
    log_every: int = 1
    measure_every: int = 0
    save_every: int = 0
    metric: str = "loss"
    figures: Sequence[str] = ()
    beta2: float = 0.999
    average: float = 0.0
    recomputes: bool = False
    counts_steps: bool = False


@dataclass(slots=True)
class Progress:
    """How far a run is. without_gain: measurements since the best one."""

    step: int = 0
    best_metric: float | None = None
    best_step: int | None = None
    without_gain: int = 0

    @classmethod
    def read(cls, path: Path) -> "Progress":
        """The progress of a checkpoint; those that transformers' Trainer wrote are read too.

        Raises ConfigError for one of another checkpoint.
        """
        state = read_written(path)
        if not (state["best_global_step"] or 0) <= state["global_step"] == step_of(path.parent):
            raise ConfigError(f"{path}: is not of {path.parent.name}")
        stopping = state.get("stateful_callbacks", {}).get("EarlyStoppingCallback", {})
        older = stopping.get("attributes", {}).get("early_stopping_patience_counter", 0)
        return cls(
            state["global_step"],
            state["best_metric"],
            state["best_global_step"],
            state.get("without_gain", older),
        )

    def write(self, path: Path) -> None:
        """For `read`. Raises OSError."""
        write_json(
            path,
            {
                "global_step": self.step,
                "best_metric": self.best_metric,
                "best_global_step": self.best_step,
                "without_gain": self.without_gain,
            },
        )


class CheckpointPart(Protocol):
    """What a checkpoint keeps beside weights and optimizer. process: the number of this one."""

    def save(self, folder: Path, process: int) -> None: ...
    def load(self, folder: Path, process: int) -> None: ...


class Draws(CheckpointPart, Protocol):
    """Converts batches of prompts to batches of replies; see `Rollouts`."""

    def __call__(
        self, batches: Sequence[Tensors], rows: TrainingRows, step: int | None
    ) -> list[Tensors]: ...


class RunObserver:
    """Is told of a run as it goes; a method that is left as it is does nothing."""

    def begins(self, loop: "Loop") -> None: ...
    def step_begins(self, loop: "Loop") -> None: ...
    def step_ends(self, loop: "Loop") -> None: ...
    def logged(self, loop: "Loop", row: Mapping[str, float]) -> None: ...
    def measured(self, loop: "Loop") -> None: ...


class Loop:
    """Trains a model on an objective and measures it on held-out rows.

    order: of the training rows. Create it for all rows of an optimizer step together, so that a
    step has the same rows however they are cut. held_out: row sets by name; `HELD_OUT`, else the
    first, selects the best checkpoint. complete: adds the files that make a model of weights.
    draws: makes replies to prompts, if rows are prompts. answers: give held-out figures that no
    loss gives. tokens_seen: training tokens of this process
    in this session, without padding. ends: set to end after the step; stop_requested, to save then.
    """

    def __init__(
        self,
        model: Any,
        objective: Objective,
        rows: TrainingRows,
        order: RowOrder,
        collate: Collate,
        *,
        settings: Steps,
        plan: Plan,
        held_out: Mapping[str, TrainingRows] | None = None,
        complete: Callable[[Path], None] = lambda folder: None,
    ) -> None:
        set_seed(plan.seed)
        self.model, self.objective = model, objective
        self.rows, self.order, self.collate = rows, order, collate
        self.settings, self.plan, self.held_out = settings, plan, held_out or {}
        self.complete = complete
        self.accelerator = _accelerator(plan, settings)
        if plan.recomputes:
            model.activation_checkpointing_enable({"use_reentrant": False})
        self.learner = self._prepared()
        self._factor = schedule(settings.schedule, plan.warmup, plan.steps, settings.min_rate)
        self._loader = self._batches(rows, order)
        self.average = WeightAverage(model, plan.average) if plan.average else None
        self.draws: Draws | None = None
        self.answers: Sequence[Callable[[], dict[str, float]]] = ()
        self.observers: list[RunObserver] = []
        self.progress = Progress()
        self.tokens_seen = 0
        self.ends = self.stop_requested = False
        self._losses: list[Tensor] = []
        self._weights: list[Tensor] = []
        self._step_batches: Sequence[Tensors] = ()

    def _prepared(self) -> Learner:
        """The model on its device, with its optimizer."""
        accelerator, model = self.accelerator, self.model
        is_sharded = accelerator.distributed_type == DistributedType.FSDP

        def optimizer(model: Any) -> torch.optim.Optimizer:
            return make_optimizer(model, self.settings, self.plan.beta2, sharded=is_sharded)

        if is_sharded and not accelerator.is_fsdp2:
            called = accelerator.prepare(model)
            made = accelerator.prepare(optimizer(called))
        else:
            called, made = accelerator.prepare(model, optimizer(model))
        return Learner(model, called, made, self.objective, accelerator)

    @property
    def called(self) -> Any:
        """The model as it is called, which may be wrapped for several processes."""
        return self.learner.called

    # --- the steps ---

    def train(self, checkpoint: Path | None = None) -> None:
        """Take the steps that are left, from a checkpoint if there is one.

        Raises NotFinite, SaveError, and what drawing raises.
        """
        if checkpoint:
            self._load(checkpoint)
        if names := self.settings.report_to:
            named = {name: {"name": self.plan.output.name} for name in names}
            named.pop("tensorboard", None)
            self.accelerator.init_trackers("finetune", init_kwargs=named)
        self._tell(lambda observer: observer.begins(self))
        accumulate = self.settings.accumulate
        per_epoch = -(-len(self._loader) // accumulate)
        while self.progress.step < self.plan.steps and not self.ends:
            epoch, taken = divmod(self.progress.step, per_epoch)
            batches = self._epoch(epoch, taken * accumulate, checkpoint)
            checkpoint = None
            while not self.ends and (step := list(islice(batches, accumulate))):
                self._take(step)
                self.ends |= self.progress.step >= self.plan.steps
        for tracker in self.accelerator.trackers:
            tracker.finish()

    def _epoch(self, epoch: int, skipped: int, checkpoint: Path | None) -> Iterator[Tensors]:
        """The micro-batches of an epoch after the first ones, with the random state of then."""
        self._loader.set_epoch(epoch, skipped)
        # A loader draws when its iteration begins: before the state of a checkpoint within the
        # epoch was saved, and after that of one at its end.
        batches: Iterator[Tensors] | None = iter(self._loader) if skipped else None
        if checkpoint:
            with fits(checkpoint):
                load_random_state(checkpoint, self.accelerator)
        return iter(self._loader) if batches is None else batches

    def _take(self, batches: list[Tensors]) -> None:
        """One optimizer step, with what is due after it."""
        done, step, self._step_batches = self.done, self.progress.step + 1, batches
        if self.draws:
            self._step_batches = batches = self.draws(batches, self.rows, self.progress.step)
        self.tokens_seen += sum(int((batch["example_ids"] > 0).sum()) for batch in batches)
        counts = self._summed(self.objective.count(batches, self.called, self.model))
        self._weights.append(self.objective.weights(counts).double())
        self._tell(lambda observer: observer.step_begins(self))
        self.called.train()
        for number, batch in enumerate(batches, 1):
            is_last = number == len(batches)
            with nullcontext() if is_last else self.accelerator.no_sync(self.called):
                losses = self._objective_losses(batch, counts)
                if not torch.isfinite(losses[0]):
                    raise NotFinite(f"the loss is {losses[0].item()} at step {step}", [batch])
                # Gradients are averaged over the processes, but their sum is needed.
                self.accelerator.backward(losses[0] * float(self.accelerator.num_processes))
            self._losses.append(losses.detach() * self._weights[-1].to(losses))
        norm = self.accelerator.clip_grad_norm_(
            self.called.parameters(), self.settings.max_grad_norm
        )
        if not math.isfinite(norm):
            raise NotFinite(f"the gradient is {float(norm)} at step {step}", batches)
        rate = self.settings.learning_rate * self._factor(self.progress.step)
        for group in self.learner.optimizer.param_groups:
            group["lr"] = rate
        self.learner.optimizer.step()
        self.called.zero_grad()
        self.progress.step += 1
        self._finish_step({"grad_norm": float(norm), "learning_rate": rate}, done)

    def _finish_step(self, row: dict[str, float], done: float) -> None:
        """Log, measure and save, if it is time. done: how far the run was before the step."""
        plan, step = self.plan, self.progress.step
        if self.average:
            self.average.update(step)
        self._tell(lambda observer: observer.step_ends(self))
        stops = float(self._summed(torch.tensor([float(self.stop_requested)])))
        self.stop_requested = self.stop_requested or stops > 0
        if step % plan.log_every == 0:
            self._log(self._means() | row | self.objective.settings(done))

        def is_due(every: int) -> bool:
            return every > 0 and (step % every == 0 or step >= plan.steps)

        is_best = bool(self.held_out) and is_due(plan.measure_every) and self._judge()
        self.ends |= self.stop_requested
        if self.stop_requested or is_best or is_due(plan.save_every):
            self.save_checkpoint()

    @property
    def done(self) -> float:
        """The finished fraction of the run's steps, or their number; see `Plan`."""
        if self.plan.counts_steps:
            return float(self.progress.step)
        return self.progress.step / self.plan.steps if self.plan.steps else 0.0

    def _objective_losses(self, batch: Tensors, counts: Tensor) -> Tensor:
        here = {key: value.to(self.accelerator.device) for key, value in batch.items()}
        return self.objective.losses(self.called, self.model, here, counts, self.done)

    def _summed(self, values: Tensor) -> Tensor:
        """Sum over all processes."""
        if self.accelerator.num_processes == 1:
            return values
        total: Tensor = self.accelerator.reduce(values.to(self.accelerator.device), "sum")
        return total.cpu()

    def _batches(self, rows: TrainingRows, order: RowOrder) -> Loader:
        process, processes = self.accelerator.process_index, self.accelerator.num_processes
        size = self.settings.batch_size
        return loader(WithUnlabelled(rows), order, size, self.collate, process, processes)

    # --- what is told ---

    def _tell(self, what: Callable[[RunObserver], None]) -> None:
        for observer in self.observers:
            what(observer)

    def _means(self) -> dict[str, float]:
        """The objective's scalars, means over the steps since the last log."""
        sums = self._summed(torch.stack(self._losses).sum(0).double())
        means = self.objective.means(sums, torch.stack(self._weights).sum(0))
        self._losses, self._weights = [], []
        return {"loss": means[self.objective.names[0]], **means}

    def _log(self, row: dict[str, float]) -> None:
        self._tell(lambda observer: observer.logged(self, row))
        if self.settings.report_to:
            self.accelerator.log(
                {
                    f"eval/{key[5:]}" if key.startswith("eval_") else f"train/{key}": value
                    for key, value in row.items()
                },
                step=self.progress.step,
            )

    # --- measurements ---

    def evaluate(self) -> dict[str, float]:
        """Measure the held-out rows and tell it; see `measure_all`. Raises NotFinite."""
        with self.averaged():
            metrics = self.measure_all(self.held_out)
        loss = metrics["eval_loss"]
        if not math.isfinite(loss):  # before these weights become a checkpoint
            raise NotFinite(
                f"the held-out loss is {loss} after step {self.progress.step}", self._step_batches
            )
        self._log(dict(metrics))
        self._tell(lambda observer: observer.measured(self))
        return metrics

    def _judge(self) -> bool:
        """Measure, and return whether these weights are the best so far, which are then saved."""
        progress = self.progress
        value, best = self.evaluate()[f"eval_{self.plan.metric}"], progress.best_metric
        is_loss = self.plan.metric == "loss"
        is_best = best is None or (value < best if is_loss else value > best)
        if is_best:
            progress.best_metric, progress.best_step = value, progress.step
        progress.without_gain = 0 if is_best else progress.without_gain + 1
        self.ends |= 0 < self.settings.early_stop <= progress.without_gain
        return is_best

    def measure_all(self, sets: Mapping[str, TrainingRows]) -> dict[str, float]:
        """Exact means over all labels of each held-out set, as if it were one step.

        eval_loss and the objective's other metrics are of `HELD_OUT`, else of the first set; those
        of another end in its name: eval_loss_NAME.
        """
        main = HELD_OUT if HELD_OUT in sets else next(iter(sets))
        metrics = {
            f"eval_{key}{'' if name == main else f'_{name}'}": value
            for name, rows in sets.items()
            for key, value in self.measure(rows).items()
        }
        answered = (figure for answer in self.answers for figure in answer().items())
        return metrics | {f"eval_{key}": value for key, value in answered}

    @torch.no_grad()
    def measure(self, rows: TrainingRows) -> dict[str, float]:
        """The objective's metrics of a row set."""
        self.called.eval()
        batches: Iterable[Tensors] = self._batches(rows, ByLength(rows.lengths))
        if self.draws:
            batches = self.draws(list(batches), rows, None)
        counts = [self.objective.count([batch], self.called, self.model) for batch in batches]
        summed = self._summed(torch.stack(counts).sum(0))
        total = torch.zeros(len(self.objective.names), dtype=torch.float64)
        for batch in batches:
            total += self._objective_losses(batch, summed).cpu()
        weights = self.objective.weights(summed).cpu()
        means = self.objective.means(self._summed(total) * weights, weights)
        metrics = self.objective.metrics(means, self.done)
        return {key: metrics[key] for key in self.plan.figures or metrics}

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The model has the weights that are kept: their average, if there is one."""
        with self.average.in_place() if self.average else nullcontext():
            yield

    # --- checkpoints ---

    @property
    def _parts(self) -> list[CheckpointPart]:
        return [part for part in (self.average, self.draws) if part is not None]

    def save_checkpoint(self) -> None:
        """Save the weights after the last complete step, from which the run can continue.

        Raises SaveError.
        """
        progress, process = self.progress, self.accelerator.process_index
        with whole_checkpoint(
            self.plan.output, self.accelerator, progress.step, progress.best_step
        ) as folder:
            self.learner.save_weights(folder)
            self.learner.save_optimizer(folder)
            save_random_state(folder, self.accelerator)
            for part in self._parts:
                part.save(folder, process)
            if self.accelerator.is_main_process:
                progress.write(folder / STATE_FILE)
                self.complete(folder)

    def _load(self, checkpoint: Path) -> None:
        """Continue from a checkpoint, at the configured rate."""
        with fits(checkpoint):
            self.progress = Progress.read(checkpoint / STATE_FILE)
            self.learner.load_weights(checkpoint)
            self.learner.load_optimizer(checkpoint)
            for part in self._parts:
                part.load(checkpoint, self.accelerator.process_index)

    def load_best(self) -> int:
        """Load the weights of the best step, if that is not the last; return the step."""
        last, best = self.progress.step, self.progress.best_step or 0
        if best and best != last:
            folder = self.plan.output / f"checkpoint-{best}"
            with fits(folder):
                self.learner.load_weights(folder)
                if self.average:
                    self.average.load(folder, self.accelerator.process_index)
        return best or last


def _accelerator(plan: Plan, settings: Steps) -> Accelerator:
    """Devices, processes and trackers of a run; those of the run before it are forgotten."""
    AcceleratorState._reset_state(reset_partial_state=True)
    return Accelerator(
        cpu=plan.device == "cpu",
        mixed_precision="bf16" if plan.precision == "bfloat16" else "no",
        log_with=list(settings.report_to) or None,
        project_dir=str(plan.output),
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=False)],
    )
