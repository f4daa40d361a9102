"""The log of a run on disk: log.jsonl of `train`, losses.jsonl of `pretrain`.

One JSON object a line, in the order of the steps:

- step: optimizer steps taken; seconds: of all sessions of the run up to here.
- of a training step: loss (of `pretrain`), or the objective's scalars (l3, l2, l1, accuracy)
  and its settings (aux_weight), means over the step's labels in nats a token; of feedback the
  losses and rewards a pair or reply, log-probabilities in nats a reply; of grpo the loss a token,
  reward, no_signal (the share of groups with one reward), length in tokens, kl in nats a token and
  clipped (the share of tokens whose ratio is cut), where there are any; learning_rate,
  grad_norm before clipping, tokens_per_second of this session, memory_bytes at most so far.
- of a measurement: eval_loss, eval_l1, eval_perplexity, eval_accuracy of the held-out rows; of
  grpo eval_reward and eval_length of greedy replies, and eval_loss, minus the reward;
  those of another held-out set with its name behind, as in eval_loss_sentiment.
- of sample replies: samples, a list of {prompt, reply}, with an error where a reply failed, and of
  grpo with its reward.

Keep: a step stands in the log once, however often the run was broken off and gone on with.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LOG_FILE = "log.jsonl"

_COSTS = ("learning_rate", "grad_norm", "tokens_per_second", "memory_bytes")
_SPEEDS = ("_runtime", "_per_second", "_time")


class RunLog:
    """Writes a log. losses: the keys of a training step beside what it costs."""

    def __init__(self, path: Path, losses: Sequence[str]) -> None:
        self.path = path
        self._keys = {*losses, *_COSTS}

    def begin(self, step: int) -> list[dict[str, Any]]:
        """Go on from a step: the rows up to it, which stay. Later ones will come again."""
        self._begun = time.monotonic()
        if not self.path.exists():
            return []
        rows = [row for row in read_log(self.path) if row["step"] <= step]
        if rows:
            self._begun -= rows[-1]["seconds"]
        self.path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return rows

    def keep(self, step: int, logs: dict[str, Any]) -> None:
        """Write what belongs into the log of the things that transformers logs."""
        row = {
            key: value
            for key, value in logs.items()
            if key in self._keys or (key.startswith("eval_") and not key.endswith(_SPEEDS))
        }
        if row:
            self.write(step, row)

    @property
    def seconds(self) -> float:
        """That the sessions of the run have taken so far."""
        return round(time.monotonic() - self._begun, 2)

    def write(self, step: int, row: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, "seconds": self.seconds, **row}) + "\n")


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log. A last line that a killed process left unfinished is left out."""
    rows = []
    for text in path.read_text().splitlines():
        try:
            rows.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return rows
