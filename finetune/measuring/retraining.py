"""A finished run trained again from its record, without some of its rows.

Invariant: each training takes the run's own steps, with the same rows in the same batches. A row
that is left out stays in its place and has no labels, so nothing but its lesson is missing.
"""

import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch.nn import Parameter
from transformers import TrainerCallback

from chatapp.common.userfiles import read_json_object
from chatapp.prompting.messages import Message
from finetune.config.objectives import L3Settings
from finetune.config.sections import ConfigError
from finetune.data.batches import MASKS, Tensors
from finetune.data.encoding import Encoded, ExampleEncoder
from finetune.data.formats import chat_example
from finetune.data.packing import Rows
from finetune.data.preparation import length_of
from finetune.objectives.l3 import L3
from finetune.objectives.rows import with_start
from finetune.training.record import (
    RESULT_FILE,
    begun_on,
    check_unchanged,
    configuration_of,
    read_record,
)
from finetune.training.run_setup import RunSetup, set_up_run
from finetune.training.trainer_factory import build_trainer

AtStep = Callable[[torch.optim.Optimizer, float], None]
"""Called before a step with the optimizer and the learning rate of that step."""

_NEVER = 10**9


class RowsWithout:
    """Rows in which the examples of some keys have no labels."""

    def __init__(self, rows: Rows, keys: Collection[str]) -> None:
        self.rows, self.keys, self.lengths = rows, keys, rows.lengths

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensors:
        row = self.rows[index]
        for number, example in enumerate(self.rows.bins[index], 1):
            if self.rows.examples[example].key in self.keys:
                for mask in MASKS:
                    row[mask][row["example_ids"] == number] = False
        return row


class Retraining:
    """A run that can be trained again; `setup.model` is the model at hand.

    seconds: of the run up to the step whose weights it kept, `steps`. Raises ConfigError for a run
    that is not finished, has other data or another base now, or learns otherwise than from replies.
    """

    def __init__(self, run: Path, device: str = "auto") -> None:
        record = read_record(run)
        config = configuration_of(run, record)
        if config.head or not isinstance(config.objective, L3Settings):
            raise ConfigError(f"{run}: expected a run that learned replies, objective.kind l3")
        try:
            result = read_json_object(run / RESULT_FILE, ConfigError)
        except FileNotFoundError:
            raise ConfigError(
                f"{run}: the run is not finished; `finetune resume {run}` ends it"
            ) from None
        once = {"save_every": _NEVER, "eval_every": _NEVER, "early_stop": 0, "report_to": []}
        kept = {**once, "metric_for_best_model": "loss", "precision": record["precision"]}
        config = config.model_copy(update={"train": config.train.model_copy(update=kept)})
        setup = set_up_run(config, device, begun_on(record))
        check_unchanged(run, record, setup.record)
        self.setup: RunSetup = replace(setup, data=replace(setup.data, held_out={}))
        self.steps = int(result["best_step"])
        self.seconds = float(result["seconds"]) * self.steps / max(1, int(result["steps"]))
        self.setup.model.to(self.setup.device)
        self._first = [weight.detach().clone() for weight in self.parameters]

    @property
    def rows(self) -> Rows:
        return cast(Rows, self.setup.data.train)

    @cached_property
    def parameters(self) -> list[Parameter]:
        """The trained ones."""
        return [weight for weight in self.setup.model.parameters() if weight.requires_grad]

    def restart(self) -> None:
        """Put the first weights back."""
        with torch.no_grad():
            for weight, first in zip(self.parameters, self._first, strict=True):
                weight.copy_(first)

    def train(
        self, without: Collection[str] = (), at: Collection[int] = (), call: AtStep | None = None
    ) -> None:
        """Train anew up to the kept step, without the rows of some keys.

        call: called before each of the steps `at`, counted from 0.
        """
        self.restart()
        rows = RowsWithout(self.rows, without) if without else self.rows
        setup = replace(self.setup, data=replace(self.setup.data, train=rows))
        with tempfile.TemporaryDirectory() as folder:
            trainer = build_trainer(setup, Path(folder))
            trainer.add_callback(_Until(self.steps, at, call))
            if self.steps:
                trainer.train()
            trainer.accelerator.unwrap_model(self.setup.model, keep_fp32_wrapper=False)

    # --- single examples ---

    def encode_reply(self, prompt: str, reply: str) -> Tensors:
        """A prompt with a reply as a row. Raises ConfigError for one that does not fit."""
        text = self.setup.text
        length = length_of(self.setup.config.data, text.window)
        encoder = ExampleEncoder(text.chat_template, text.tokenizer, length, start=text.start)
        chat = chat_example("the reply", [Message("user", prompt), Message("assistant", reply)])
        return self.row_of(with_start(encoder.encode(chat), text.start)[-1])

    def row_of(self, example: Encoded) -> Tensors:
        """A single example as a row."""
        return Rows([example], self.rows.aux_span)[0]

    def loss(self, row: Tensors) -> torch.Tensor:
        """The run's loss of a row by itself."""
        return self._losses(cast(L3, self.setup.objective), row)[0]

    def gradients(self, row: Tensors) -> Sequence[torch.Tensor]:
        """Those of `loss`, for each of `parameters`."""
        return torch.autograd.grad(self.loss(row), self.parameters, materialize_grads=True)

    @torch.no_grad()
    def log_probability(self, row: Tensors) -> float:
        """Nats of the reply in a row, with its end."""
        bare = replace(cast(L3, self.setup.objective), aux_weight=0.0)
        return -float(self._losses(bare, row)[0]) * int(row["response_mask"].sum())

    def _losses(self, objective: L3, row: Tensors) -> torch.Tensor:
        model: Any = self.setup.model
        model.eval()  # no dropout
        batch = self.setup.data.collate([row])
        batch = {key: value.to(self.setup.device) for key, value in batch.items()}
        return objective.losses(model, model, batch, objective.count([batch], model, model), 0.0)


@dataclass
class _Until(TrainerCallback):  # type: ignore[misc]
    """Ends a training after some steps."""

    steps: int
    at: Collection[int]
    call: AtStep | None

    def on_step_begin(
        self, args: Any, state: Any, control: Any, *, optimizer: Any, lr_scheduler: Any, **_: Any
    ) -> None:
        if self.call is not None and state.global_step in self.at:
            self.call(optimizer, float(lr_scheduler.get_last_lr()[0]))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step >= self.steps:
            control.should_training_stop, control.should_save = True, False
