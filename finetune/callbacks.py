"""What a run tells while it runs: the terminal's display, a log on disk, sample replies.

Keep: only the first of several processes tells anything.
"""

import json
import math
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback

from finetune.display import View, line, memory, one_line, render

Sample = tuple[str, str]
"""A prompt and its reply."""


class ProgressCallback(TrainerCallback):  # type: ignore[misc]
    """A bar with step, loss, held-out loss, tokens per second and time left, on stderr."""

    def __init__(self, tokens_per_step: int) -> None:
        self.tokens_per_step = tokens_per_step
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[measures]}", markup=False),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.measures: dict[str, str] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.first_step, self.begun = state.global_step, time.monotonic()
        self.progress.start()
        self.task = self.progress.add_task(
            "training", total=state.max_steps, completed=state.global_step, measures=""
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        seconds = time.monotonic() - self.begun
        rate = (state.global_step - self.first_step) * self.tokens_per_step / seconds
        self.measures["speed"] = f"{rate:,.0f} tokens/s"
        self._show(state)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any
    ) -> None:
        for key, name in (("loss", "loss"), ("eval_loss", "held-out")):
            if logs and key in logs:
                self.measures[key] = f"{name} {logs[key]:.3f}"
        self._show(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.progress.stop()

    def _show(self, state: Any) -> None:
        self.progress.update(
            self.task, completed=state.global_step, measures="  ".join(self.measures.values())
        )


class LogCallback(TrainerCallback):  # type: ignore[misc]
    """One JSON line a measurement: step, seconds, and what was logged, in nats a token.

    keys: what to keep of a log. Keys that begin with "eval_" and tell no speed are kept too.
    """

    def __init__(self, path: Path, keys: Sequence[str]) -> None:
        self.path = path
        self.keys = keys

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.begun = time.monotonic()
        # A resumed run repeats the steps after its checkpoint: their old lines go.
        if state.is_world_process_zero and self.path.exists():
            kept = [row for row in read_log(self.path) if row["step"] <= state.global_step]
            self.path.write_text("".join(json.dumps(row) + "\n" for row in kept))

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any
    ) -> None:
        row = {
            key: value
            for key, value in (logs or {}).items()
            if key in self.keys or (key.startswith("eval_") and not key.endswith(_SPEEDS))
        }
        if row and state.is_world_process_zero:
            self.write(state.global_step, row)

    def write(self, step: int, row: dict[str, Any]) -> None:
        seconds = round(time.monotonic() - self.begun, 2)
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, "seconds": seconds, **row}) + "\n")


_SPEEDS = ("_runtime", "_per_second", "_time")


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log. A last line that a killed process left unfinished is left out."""
    rows = []
    for text in path.read_text().splitlines():
        try:
            rows.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return rows


class StopOnNaN(TrainerCallback):  # type: ignore[misc]
    """Ends a run whose loss is no longer a number, before it is saved over a good one."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any
    ) -> None:
        if logs and not math.isfinite(logs.get("loss", 0.0)):
            raise FloatingPointError(f"the loss is {logs['loss']} at step {state.global_step}")


class RunCallback(TrainerCallback):  # type: ignore[misc]
    """The display and the log of a fine-tuning run.

    On a terminal a live panel; elsewhere a line now and then.
    tokens_seen: tokens of all processes read so far in this session, padding not counted.
    sample: makes the sample replies; called every `sample_every` steps, or with each
        measurement when that is 0.
    """

    def __init__(
        self,
        console: Console,
        log: LogCallback,
        title: str,
        tokens_seen: Callable[[], int],
        sample: Callable[[], list[Sample]] | None,
        sample_every: int,
    ) -> None:
        self.console, self.log = console, log
        self.tokens_seen = tokens_seen
        self.sample, self.sample_every = sample, sample_every
        self.view = View(title)
        self.live: Live | None = None
        self.tokens_per_second = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.log.on_train_begin(args, state, control)
        if not state.is_world_process_zero:
            return
        self.view.steps, self.view.step = state.max_steps, state.global_step
        for row in read_log(self.log.path) if self.log.path.exists() else []:
            self._remember(row["step"], row)
        self.first_step, self.begun = state.global_step, time.monotonic()
        self.stepping = 0.0
        if self.console.is_terminal:
            self.live = Live(console=self.console, auto_refresh=False, transient=False)
            self.live.start()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.step_begun = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        # Measurements and samples are no steps, but they take their time.
        self.stepping += time.monotonic() - self.step_begun
        seconds = time.monotonic() - self.begun
        steps = state.global_step - self.first_step
        self.tokens_per_second = self.tokens_seen() / self.stepping
        self.view.step = state.global_step
        self.view.seconds_left = (state.max_steps - state.global_step) * seconds / steps
        if self.sample_every and state.global_step % self.sample_every == 0:
            self._take_samples(state.global_step)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any
    ) -> None:
        if not state.is_world_process_zero or not logs:
            return
        row = dict(logs)
        if "loss" in row:
            row["l3"] = row["loss"]
            row["tokens_per_second"] = round(self.tokens_per_second, 1)
            row["memory_bytes"] = peak_memory()
        self.log.on_log(args, state, control, row)
        self._remember(state.global_step, row)
        if "loss" in row or "eval_loss" in row:
            self._show(always="eval_loss" in row)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero and not self.sample_every:
            self._take_samples(state.global_step)

    def stop(self) -> None:
        """Leave the terminal as it was, the last display above."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _remember(self, step: int, row: dict[str, Any]) -> None:
        for key, name in (("l3", "L3"), ("l2", "L2"), ("l1", "L1"), ("eval_loss", "held-out")):
            # Without λ there is no L1, and L3 is L2.
            if key in row and (row.get("aux_weight", 1) or key not in ("l1", "l3")):
                self.view.figures[name] = f"{row[key]:.3f}"
                if key != "l3":  # a sum is on another scale
                    self.view.curves.setdefault(name, []).append((step, row[key]))
        if "eval_perplexity" in row:
            self.view.figures["perplexity"] = f"{row['eval_perplexity']:.2f}"
        if "eval_accuracy" in row:
            self.view.figures["accuracy"] = f"{row['eval_accuracy']:.1%}"
        if "tokens_per_second" in row:
            self.view.figures["tokens/s"] = f"{row['tokens_per_second']:,.0f}"
            self.view.figures["memory"] = memory(row["memory_bytes"])

    def _take_samples(self, step: int) -> None:
        if self.sample is None:
            return
        self.view.samples, self.view.sampled_at = self.sample(), step
        samples = [{"prompt": prompt, "reply": reply} for prompt, reply in self.view.samples]
        self.log.write(step, {"samples": samples})
        if self.live is None:
            for prompt, reply in self.view.samples:
                shown = f"  {one_line(prompt)} → {one_line(reply)}"
                self.console.print(shown, markup=False, highlight=False, soft_wrap=True)

    def _show(self, *, always: bool) -> None:
        if self.live is not None:
            width, height = self.console.size
            self.live.update(render(self.view, min(width, 100), height), refresh=True)
        elif always or self.view.step % max(1, self.view.steps // 20) == 0:
            self.console.print(line(self.view), markup=False, highlight=False, soft_wrap=True)


LOG_KEYS = (
    "l3",
    "l2",
    "l1",
    "accuracy",
    "aux_weight",
    "learning_rate",
    "grad_norm",
    "tokens_per_second",
    "memory_bytes",
)


def peak_memory() -> int:
    """Most bytes held so far: of the GPU where there is one, else of this process."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
