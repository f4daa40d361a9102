"""Creates the trainer of a run, and counts and times its steps.

Invariant: `finetune check` counts and times the same steps that `finetune train` takes.
"""

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

from transformers import EarlyStoppingCallback, PrinterCallback, TrainerCallback, TrainingArguments
from transformers.utils import logging as transformers_logging

from finetune.config.sections import ConfigError, FinetuneConfig
from finetune.data.batches import BucketSampler, ProbeOrder, RowOrder, micro_batches
from finetune.objectives.distillation import Distillation
from finetune.objectives.grpo import Grpo
from finetune.objectives.objective import Objective, RowSets
from finetune.training.adapters import trained_parameters
from finetune.training.best_metric import best_figure, task_figures
from finetune.training.display import peak_memory
from finetune.training.export import complete
from finetune.training.own_replies import OwnReplies
from finetune.training.rollouts import Rollouts
from finetune.training.run_setup import RunSetup, processes
from finetune.training.trainer import Draws, ObjectiveTrainer

_DRAWS: Mapping[type[Objective], Callable[[RunSetup], Draws]] = {
    Grpo: Rollouts,
    Distillation: OwnReplies,
}
"""What draws the replies of objectives with `draws_replies`."""

FEW_STEPS = 20
"""Below this number of steps, a run is warned about."""


def steps_per_epoch(config: FinetuneConfig, data: RowSets) -> int:
    """Optimizer steps of one pass over the training rows."""
    batches = micro_batches(len(data.train), config.train.batch_size, processes())
    return -(-batches // config.train.accumulate)


def steps_of_run(config: FinetuneConfig, data: RowSets) -> int:
    """Optimizer steps of the whole run."""
    if config.train.max_steps > 0:
        return config.train.max_steps
    return math.ceil(steps_per_epoch(config, data) * config.train.epochs)


def too_few(steps: int) -> str:
    """A warning when a run has too few steps to learn; else ""."""
    if steps >= FEW_STEPS:
        return ""
    return (
        f"{steps} steps are few to learn from; raise train.epochs, or lower train.batch_size or "
        "train.accumulate"
    )


def timed_steps(setup: RunSetup) -> tuple[int, float, int]:
    """Parameters trained, seconds per step, and peak memory in bytes, from four real steps.

    The first step takes the longest rows, which determine the memory, and is not timed; the others
    are a short, a middle and a long one of the epoch, which give the seconds per token. Nothing is
    written; the model has learned a little.
    """
    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_trainer(setup, Path(folder), probe=True)
        trainer.add_callback(clock)
        trainer.train()
    assert isinstance(trainer.order, ProbeOrder)
    # A set of few steps repeats.
    steps = list(zip(clock.seconds, cycle(trainer.order.tokens()), strict=False))
    seconds, tokens = map(sum, zip(*(steps[1:] or steps), strict=True))
    lengths = setup.data.train.lengths
    mean_step = sum(lengths) / len(trainer.order.tokens())
    return trained_parameters(setup.model), seconds / tokens * mean_step, peak_memory()


class _Clock(TrainerCallback):  # type: ignore[misc]
    """Times a few steps, including the preparation of their rows, and ends the run."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.begun = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self.begun)
        self.begun = now
        control.should_training_stop = state.global_step == ProbeOrder.steps


def build_trainer(setup: RunSetup, output: Path, *, probe: bool = False) -> ObjectiveTrainer:
    """The trainer of a run. `probe`: for a few steps that leave nothing, see `ProbeOrder`."""
    config, data = setup.config, setup.data
    settings = config.train
    step_rows = settings.batch_size * settings.accumulate * processes()
    order: RowOrder = BucketSampler(data.train.lengths, step_rows, config.seed)
    if probe:
        order = ProbeOrder(data.train.lengths, order, step_rows)
    measures = bool(data.held_out) and not probe
    check_trackers(settings.report_to)
    quiet_transformers()
    trainer = ObjectiveTrainer(
        steps=settings,
        objective=setup.objective,
        rows=data.train,
        order=order,
        held_out=data.held_out if measures else {},
        collate=data.collate,
        model=setup.model,
        args=_arguments(setup, output, probe, measures),
        callbacks=(
            [EarlyStoppingCallback(settings.early_stop)]
            if settings.early_stop and measures
            else None
        ),
    )
    trainer.complete = partial(complete, setup)
    if setup.objective.draws_replies:
        if trainer.is_fsdp_enabled:
            raise ConfigError(
                f"objective.kind {config.objective.kind} draws replies from the whole model, and "
                "FSDP cuts it; use data-parallel processes"
            )
        trainer.draws = _DRAWS[type(setup.objective)](setup)
    answered = [figures for figures in (best_figure(setup), task_figures(setup)) if figures]
    if answered and trainer.is_fsdp_enabled:
        raise ConfigError(
            f"train.metric_for_best_model {settings.metric_for_best_model} and tasks need the "
            "whole model, and FSDP cuts it; use loss or accuracy, without tasks"
        )
    trainer.answer_figures = answered if measures else []
    trainer.remove_callback(PrinterCallback)
    return trainer


def check_trackers(names: Sequence[str]) -> None:
    """Raises ConfigError for one that is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(f"train.report_to: {name} is not installed; pip install {name}")


def quiet_transformers() -> None:
    """A run has its own display and its own messages."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()


def _arguments(setup: RunSetup, output: Path, probe: bool, measures: bool) -> TrainingArguments:
    config, data = setup.config, setup.data
    settings, on_gpu = config.train, setup.device != "cpu"
    twice_an_epoch = max(1, steps_per_epoch(config, data) // 2)
    eval_every = settings.eval_every or settings.save_every or twice_an_epoch
    save_every = settings.save_every or eval_every
    arguments = TrainingArguments(
        output_dir=str(output),
        num_train_epochs=settings.epochs,
        max_steps=settings.max_steps if settings.max_steps > 0 else -1,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.learning_rate,
        warmup_steps=settings.warmup_steps or settings.warmup,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        bf16=setup.precision == "bfloat16",
        activation_checkpointing=settings.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False},
        use_cpu=not on_gpu,
        ddp_backend="gloo" if processes() > 1 and not on_gpu else None,
        ddp_find_unused_parameters=False,
        logging_steps=1,
        log_level="error",
        eval_strategy="steps" if measures else "no",
        eval_steps=eval_every,
        save_strategy="no" if probe else "steps",
        save_steps=save_every,
        save_total_limit=2,
        metric_for_best_model=settings.metric_for_best_model if measures else None,
        greater_is_better=settings.metric_for_best_model != "loss" if measures else None,
        restore_callback_states_from_checkpoint=True,
        disable_tqdm=True,
        report_to="none" if probe else settings.report_to,
        seed=config.seed,
        dataloader_pin_memory=setup.device == "cuda",
    )
    # Several GPUs in one process would use DataParallel, which splits a batch without our control.
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments
