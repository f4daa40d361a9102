"""The output of a run while it trains: the terminal's display, the log, sample replies.

Invariant: only the first of several processes shows and writes anything.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from transformers import TrainerCallback

from finetune.training.display import View, line, memory, one_line, peak_memory, render
from finetune.training.record import RunLog
from finetune.training.sample_replies import Samples

HELD_OUT_FIGURE = "held-out"


class CountsTokens(Protocol):
    """A trainer that counts the training tokens of this process in this session."""

    tokens_seen: int


class Watches(Protocol):
    """Measures what a model has learned; see `finetune.measuring.learning.Watch`."""

    def steps(self, last: int) -> set[int]: ...
    def measure(self, step: int) -> dict[str, Any]: ...


LEARNED = {"previous": "previous", "induction": "induction", "last_word": "last word"}
"""What the display shows of `Watches.measure` as curves from 0 to 1, and its names there."""


class RunCallback(TrainerCallback):  # type: ignore[misc]
    """On a terminal a live panel; elsewhere a line at intervals.

    figures, curves: the displayed keys of the log, see `Objective`. sample: makes the sample
    replies; called every `sample_every` steps, or with each evaluation when that is 0.
    """

    def __init__(
        self,
        console: Console,
        log: RunLog,
        title: str,
        trainer: CountsTokens,
        figures: Mapping[str, str],
        curves: Sequence[str],
        sample: Callable[[], Samples] | None = None,
        sample_every: int = 0,
        watch: Watches | None = None,
    ) -> None:
        self.console, self.log, self.trainer = console, log, trainer
        default_curves = (
            () if any(curve.startswith("eval_") for curve in curves) else ("eval_loss",)
        )
        self.figures = {**figures, **dict.fromkeys(default_curves, HELD_OUT_FIGURE)}
        self.curves = (*curves, *default_curves)
        self.sample, self.sample_every = sample, sample_every
        self.watch = watch
        self.view = View(title)
        self.live: Live | None = None
        self.tokens_per_second = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        self.view.steps, self.view.step = state.max_steps, state.global_step
        for row in self.log.begin(state.global_step):
            self._remember(row["step"], row)
        self.first_step = self.shown_step = state.global_step
        self.watched = self.watch.steps(state.max_steps) if self.watch else set[int]()
        self.begun, self.stepping = time.monotonic(), 0.0
        if self.console.is_terminal:
            self.live = Live(console=self.console, auto_refresh=False, transient=False)
            self.live.start()
        if state.global_step == 0:
            self._measure_learning(0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.step_begun = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        # Evaluations and samples are no steps, but they take time.
        self.stepping += time.monotonic() - self.step_begun
        seconds = time.monotonic() - self.begun
        steps = state.global_step - self.first_step
        self.tokens_per_second = self.trainer.tokens_seen * args.world_size / self.stepping
        self.view.step = state.global_step
        self.view.seconds_left = (state.max_steps - state.global_step) * seconds / steps
        if self.sample_every and state.global_step % self.sample_every == 0:
            self._take_samples(state.global_step)
        self._measure_learning(state.global_step)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any
    ) -> None:
        if not state.is_world_process_zero or not logs:
            return
        row = dict(logs)
        if "loss" in row:
            row["tokens_per_second"] = round(self.tokens_per_second, 1)
            row["memory_bytes"] = peak_memory()
        self.log.keep(state.global_step, row)
        self._remember(state.global_step, row)
        if "loss" in row or "eval_loss" in row:
            self._show(always="eval_loss" in row)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero and not self.sample_every:
            self._take_samples(state.global_step)

    def stop(self) -> None:
        """Restore the terminal, with the last display above."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _remember(self, step: int, row: dict[str, Any]) -> None:
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
