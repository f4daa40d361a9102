"""Creates the loop of a run, counts and times its steps, shows and logs what it does, and writes
the model that comes out.

Invariant: `finetune check` counts and times the same steps that `finetune train` takes. Only the
first of several processes shows and writes anything.
"""

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from transformers.utils import logging as transformers_logging

from chatapp.common.foreign import one_line
from chatapp.common.userfiles import read_json_object
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ADAPTER_CONFIG
from chatapp.engine.models.resolving import BUNDLED
from finetune.config.sections import ConfigError, Steps
from finetune.data.batches import BucketSampler, ProbeOrder, RowOrder, micro_batches
from finetune.objectives.distillation import Distillation
from finetune.objectives.grpo import Grpo
from finetune.objectives.objective import Objective
from finetune.training.adapters import copy_companions, trained_parameters
from finetune.training.answers import Samples, best_figure, task_figures
from finetune.training.checkpoints import UNFINISHED, save_chat, whole_model
from finetune.training.display import (
    NotebookLive,
    RunView,
    line,
    memory,
    peak_memory,
    render,
)
from finetune.training.draws import OwnReplies, Rollouts
from finetune.training.loop import Draws, Loop, Plan, RunObserver
from finetune.training.record import RunLog, write_json
from finetune.training.setup import RunSetup, processes

_DRAWS: Mapping[type[Objective], Callable[[RunSetup], Draws]] = {
    Grpo: Rollouts,
    Distillation: OwnReplies,
}
"""What draws the replies of objectives with `draws_replies`."""

FEW_STEPS = 20
"""Below this number of steps, a run is warned about."""


def steps_per_epoch(settings: Steps, rows: int) -> int:
    """Optimizer steps of one pass over so many training rows."""
    return -(-micro_batches(rows, settings.batch_size, processes()) // settings.accumulate)


def steps_of_run(settings: Steps, rows: int) -> int:
    """Optimizer steps of the whole run."""
    if settings.max_steps > 0:
        return settings.max_steps
    return math.ceil(steps_per_epoch(settings, rows) * settings.epochs)


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
        loop = build_loop(setup, Path(folder), probe=True)
        loop.observers.append(clock)
        loop.train()
    assert isinstance(loop.order, ProbeOrder)
    # A set of few steps repeats.
    steps = list(zip(clock.seconds, cycle(loop.order.tokens()), strict=False))
    seconds, tokens = map(sum, zip(*(steps[1:] or steps), strict=True))
    lengths = setup.data.train.lengths
    mean_step = sum(lengths) / len(loop.order.tokens())
    return trained_parameters(setup.model), seconds / tokens * mean_step, peak_memory()


class _Clock(RunObserver):
    """Times a few steps, including the preparation of their rows, and ends the run."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def begins(self, loop: Loop) -> None:
        self.begun = time.perf_counter()

    def step_ends(self, loop: Loop) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self.begun)
        self.begun = now
        loop.ends = loop.progress.step == ProbeOrder.steps


def build_loop(setup: RunSetup, output: Path, *, probe: bool = False) -> Loop:
    """The loop of a run. `probe`: for a few steps that leave nothing, see `ProbeOrder`."""
    config, data = setup.config, setup.data
    settings, steps = config.train, steps_of_run(config.train, len(data.train))
    step_rows = settings.batch_size * settings.accumulate * processes()
    order: RowOrder = BucketSampler(data.train.lengths, step_rows, config.seed)
    if probe:
        order = ProbeOrder(data.train.lengths, order, step_rows)
        settings = settings.model_copy(update={"report_to": []})
    measures = bool(data.held_out) and not probe
    check_trackers(settings.report_to)
    quiet_transformers()
    measure_every = settings.eval_every or settings.save_every
    measure_every = measure_every or max(1, steps_per_epoch(settings, len(data.train)) // 2)
    loop = Loop(
        setup.model,
        setup.objective,
        data.train,
        order,
        data.collate,
        settings=settings,
        plan=Plan(
            output=output,
            steps=steps,
            warmup=settings.warmup_steps or math.ceil(settings.warmup * steps),
            device=setup.device,
            precision=setup.precision,
            seed=config.seed,
            measure_every=measure_every if measures else 0,
            save_every=0 if probe else settings.save_every or measure_every,
            metric=settings.metric_for_best_model,
            recomputes=settings.gradient_checkpointing,
        ),
        held_out=data.held_out if measures else {},
        complete=partial(complete, setup),
    )
    if setup.objective.draws_replies:
        if loop.learner.is_sharded:
            raise ConfigError(
                f"objective.kind {config.objective.kind} draws replies from the whole model, and "
                "FSDP cuts it; use data-parallel processes"
            )
        loop.draws = _DRAWS[type(setup.objective)](setup)
    answered = [figures for figures in (best_figure(setup), task_figures(setup)) if figures]
    if answered and loop.learner.is_sharded:
        raise ConfigError(
            f"train.metric_for_best_model {settings.metric_for_best_model} and tasks need the "
            "whole model, and FSDP cuts it; use loss or accuracy, without tasks"
        )
    loop.answers = answered if measures else []
    return loop


def check_trackers(names: Sequence[str]) -> None:
    """Raises ConfigError for one that is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(f"train.report_to: {name} is not installed; pip install {name}")


def quiet_transformers() -> None:
    """A run has its own display and its own messages."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()


def publish(setup: RunSetup, loop: Loop, output: Path) -> None:
    """Write the model; called by all processes, the first one writes the files."""
    is_first = loop.accelerator.is_main_process
    with whole_model(output) if is_first else nullcontext(output / UNFINISHED) as aside:
        loop.accelerator.wait_for_everyone()
        # Training works without the cache; other programs need it.
        setup.model.config.use_cache = True
        loop.learner.save_weights(aside)
        if is_first:
            (aside / "README.md").unlink(missing_ok=True)  # peft's model card, which is blank
            complete(setup, aside)
    loop.accelerator.wait_for_everyone()


def complete(setup: RunSetup, folder: Path) -> None:
    """Add tokenizer and template to the weights in a folder."""
    copy_companions(setup.files, folder)
    if setup.template:
        start = "".join(map(setup.tokenizer.piece, setup.start))
        save_chat(setup.template, folder, start)
    path, base = folder / ADAPTER_CONFIG, setup.config.model
    if path.exists():  # its base is named as the user does, files by their absolute path
        if base != BUNDLED and Path(base).expanduser().exists():
            base = str(setup.files.path.absolute())
        adapter = read_json_object(path, ModelError)
        write_json(path, adapter | {"base_model_name_or_path": base})


LEARNED = {"previous": "previous", "induction": "induction", "last_word": "last word"}
"""What the display shows of `Watch.measure` as curves from 0 to 1, and its names there."""


class RunDisplay(RunObserver):
    """On a terminal a live panel; elsewhere a line at intervals.

    figures, curves: the displayed keys of the log, see `Objective`. sample: makes the sample
    replies; called every `sample_every` steps, or with each evaluation when that is 0.
    """

    def __init__(
        self,
        console: Console,
        log: RunLog,
        title: str,
        figures: Mapping[str, str],
        curves: Sequence[str],
        sample: Callable[[], Samples] | None = None,
        sample_every: int = 0,
        watch: Any = None,
    ) -> None:
        self.console, self.log = console, log
        default_curves = (
            () if any(curve.startswith("eval_") for curve in curves) else ("eval_loss",)
        )
        self.figures = {**figures, **dict.fromkeys(default_curves, "held-out")}
        self.curves = (*curves, *default_curves)
        self.sample, self.sample_every = sample, sample_every
        self.watch = watch
        self.view = RunView(title)
        self.live: Live | NotebookLive | None = None
        self.tokens_per_second = 0.0

    def begins(self, loop: Loop) -> None:
        if not loop.accelerator.is_main_process:
            return
        steps, step = loop.plan.steps, loop.progress.step
        self.view.steps, self.view.step = steps, step
        for row in self.log.begin(step):
            self._remember(row["step"], row)
        self.first_step = self.shown_step = step
        self.watched = self.watch.steps(steps) if self.watch else set[int]()
        self.begun, self.stepping = time.monotonic(), 0.0
        if self.console.is_terminal:
            self.live = Live(console=self.console, auto_refresh=False, transient=False)
        elif self.console.is_jupyter:
            self.live = NotebookLive()
        if self.live is not None:
            self.live.start()
        if step == 0:
            self._measure_learning(0)

    def step_begins(self, loop: Loop) -> None:
        self.step_begun = time.monotonic()

    def step_ends(self, loop: Loop) -> None:
        if not loop.accelerator.is_main_process:
            return
        step = loop.progress.step
        # Evaluations and samples are not steps, but they take time.
        self.stepping += time.monotonic() - self.step_begun
        seconds = time.monotonic() - self.begun
        tokens = loop.tokens_seen * loop.accelerator.num_processes
        self.tokens_per_second = tokens / self.stepping
        self.view.step = step
        self.view.seconds_left = (loop.plan.steps - step) * seconds / (step - self.first_step)
        if self.sample_every and step % self.sample_every == 0:
            self._take_samples(step)
        self._measure_learning(step)

    def logged(self, loop: Loop, row: Mapping[str, float]) -> None:
        if not loop.accelerator.is_main_process:
            return
        row = dict(row)
        if "loss" in row:
            row["tokens_per_second"] = round(self.tokens_per_second, 1)
            row["memory_bytes"] = peak_memory()
        self.log.keep(loop.progress.step, row)
        self._remember(loop.progress.step, row)
        if "loss" in row or "eval_loss" in row:
            self._show(always="eval_loss" in row)

    def measured(self, loop: Loop) -> None:
        if loop.accelerator.is_main_process and not self.sample_every:
            self._take_samples(loop.progress.step)

    def stop(self) -> None:
        """Restore the terminal, with the last display above."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _remember(self, step: int, row: Mapping[str, Any]) -> None:
        for key, name in self.figures.items():
            if key in row:
                self.view.figures[name] = f"{row[key]:.3f}"
                if key in self.curves:
                    self.view.curves.setdefault(name, []).append((step, row[key]))
        if "eval_perplexity" in row:
            self.view.figures["perplexity"] = f"{row['eval_perplexity']:.2f}"
        if "eval_accuracy" in row:
            self.view.figures["accuracy"] = f"{row['eval_accuracy']:.1%}"
        if "in_context" in row:
            self.view.figures["in context"] = f"{row['in_context']:+.2f}"
        for key, name in LEARNED.items():
            if key in row:
                self.view.figures[name] = f"{row[key]:.2f}"
                self.view.learned.setdefault(name, []).append((step, row[key]))
        if "tokens_per_second" in row:
            self.view.figures["tokens/s"] = f"{row['tokens_per_second']:,.0f}"
            self.view.figures["memory"] = memory(row["memory_bytes"])

    def _take_samples(self, step: int) -> None:
        if self.sample is None:
            return
        samples = self.sample()
        rows = [
            {"prompt": prompt, "reply": reply.text}
            | ({"error": reply.error} if reply.error else {})
            | ({} if reply.reward is None else {"reward": reply.reward})
            for prompt, reply in samples
        ]
        self.log.write(step, {"samples": rows})
        self._show_samples(step, [(prompt, str(reply)) for prompt, reply in samples])

    def _measure_learning(self, step: int) -> None:
        if self.watch is None or step not in self.watched:
            return
        row = self.watch.measure(step)
        self.log.write(step, row)
        self._remember(step, row)
        self._show_samples(step, [(s["prompt"], s["reply"]) for s in row["samples"]])
        if self.live is not None:
            self._show(always=True)

    def _show_samples(self, step: int, samples: list[tuple[str, str]]) -> None:
        self.view.samples, self.view.sampled_at = samples, step
        if self.live is None:
            for prompt, reply in self.view.samples:
                text = f"  {one_line(prompt)} → {one_line(reply)}"
                self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _show(self, *, always: bool) -> None:
        if self.live is not None:
            width, height = self.console.size
            self.live.update(render(self.view, min(width, 100), height), refresh=True)
            return
        twentieth_passed = self.view.step - self.shown_step >= max(1, self.view.steps // 20)
        if twentieth_passed:
            self.shown_step = self.view.step
        if always or twentieth_passed:
            self.console.print(line(self.view), markup=False, highlight=False, soft_wrap=True)
