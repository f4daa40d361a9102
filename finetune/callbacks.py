"""What a run tells while it runs: a progress bar on the terminal and a loss log on disk."""

import json
import math
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback


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


class LossLogCallback(TrainerCallback):  # type: ignore[misc]
    """One JSON line a measurement: step, seconds, loss in nats a token, learning rate."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.begun = time.monotonic()
        # A resumed run repeats the steps after its checkpoint: their old lines go.
        if self.path.exists():
            rows = (json.loads(line) for line in self.path.read_text().splitlines())
            kept = [json.dumps(row) + "\n" for row in rows if row["step"] <= state.global_step]
            self.path.write_text("".join(kept))

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any
    ) -> None:
        keys = ("loss", "eval_loss", "learning_rate", "grad_norm")
        row = {key: logs[key] for key in keys if logs and key in logs}
        if not row:
            return
        seconds = round(time.monotonic() - self.begun, 2)
        with self.path.open("a") as file:
            file.write(json.dumps({"step": state.global_step, "seconds": seconds, **row}) + "\n")


class StopOnNaN(TrainerCallback):  # type: ignore[misc]
    """Ends a run whose loss is no longer a number, before it is saved over a good one."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any
    ) -> None:
        if logs and not math.isfinite(logs.get("loss", 0.0)):
            raise FloatingPointError(f"the loss is {logs['loss']} at step {state.global_step}")
