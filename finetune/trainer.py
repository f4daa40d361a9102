"""transformers' Trainer with the objective L3, and with checkpoints that are whole or not there.

Two invariants. A folder named checkpoint-N is complete: it is written aside and renamed, so a
killed process or a full disk leaves the last one untouched. And an optimizer step is defined
by its rows alone: gradients do not depend on how the rows are cut into micro-batches and
processes, nor on padding or packing.
"""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from finetune.config import ConfigError
from finetune.data.preparation import HELD_OUT
from finetune.objectives.l3 import AuxNorm, Losses, count_labels, objective, perplexity

Row = dict[str, Tensor]
Collate = Callable[[list[Row]], Row]


class SaveError(OSError):
    """A checkpoint could not be written. The one before it is whole."""


class NotFinite(FloatingPointError):
    """The loss or its gradient is no longer a number.

    batches: the micro-batches it was computed from.
    """

    def __init__(self, message: str, batches: Sequence[Row]) -> None:
        super().__init__(message)
        self.batches = batches


class CheckpointingTrainer(Trainer):  # type: ignore[misc]
    """A Trainer that writes each checkpoint aside, flushes it to the disk and renames it.

    It keeps the last `save_total_limit` checkpoints and the best one.
    """

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        final = Path(self.args.output_dir)
        aside = final / "unfinished"
        is_main = self.is_world_process_zero()
        if is_main:
            shutil.rmtree(aside, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self.args.output_dir = str(aside)
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if is_main:
                for written in list(aside.iterdir()):
                    for file in written.rglob("*"):
                        if file.is_file():
                            flush(file)
                    shutil.rmtree(final / written.name, ignore_errors=True)
                    written.rename(final / written.name)
                flush(final)
                aside.rmdir()
        except Exception as error:  # torch and safetensors have their own for a full disk
            last = last_checkpoint(final)
            raise SaveError(
                f"{final}: the checkpoint of step {self.state.global_step} could not be written: "
                f"{_first_line(error)}; {last.name + ' is whole' if last else 'there is none yet'}"
            ) from error
        finally:
            self.args.output_dir = str(final)
        if is_main:
            kept = f"checkpoint-{self.state.best_global_step}"
            for old in sorted(final.glob("checkpoint-*"), key=_step)[: -self.args.save_total_limit]:
                if old.name != kept:
                    shutil.rmtree(old)
        self.accelerator.wait_for_everyone()


class TrainingRows(Protocol):
    """Rows to learn from, each one example or several."""

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of each row, the longest sequence's of several."""
        ...

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Row: ...


class Order(Protocol):
    """The order of the rows in an epoch."""

    def __iter__(self) -> Iterator[int]: ...
    def set_epoch(self, epoch: int) -> None: ...


class ByLength:
    """Longest first: the least padding, and what does not fit the memory fails at once."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._order = np.argsort(lengths, kind="stable")[::-1].tolist()

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def set_epoch(self, epoch: int) -> None: ...


class MicroBatches(Sampler[list[int]]):
    """The micro-batches of one process: `size` rows of `order` at a time, dealt out in turn.

    All processes get the same number. One that gets no rows in the last turn gets row 0 as -1,
    which counts for nothing.
    """

    def __init__(self, order: Order, rows: int, size: int, process: int, processes: int) -> None:
        self.order, self.rows, self.size = order, rows, size
        self.process, self.processes = process, processes

    def __len__(self) -> int:
        return math.ceil(self.rows / (self.size * self.processes))

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self.order)
        for turn in range(len(self)):
            start = (turn * self.processes + self.process) * self.size
            yield order[start : start + self.size] or [-1]

    def set_epoch(self, epoch: int) -> None:
        self.order.set_epoch(epoch)


class Loader(DataLoader[Row]):
    """A DataLoader whose epoch Trainer can set."""

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


def loader(
    rows: Any, order: Order, size: int, collate: Collate, process: int = 0, processes: int = 1
) -> Loader:
    """The micro-batches of one process as a DataLoader."""
    batches = MicroBatches(order, len(rows), size, process, processes)
    return Loader(rows, batch_sampler=batches, collate_fn=collate)


class _Rows(Dataset[Row]):
    """Rows, and at -1 - i row i without labels."""

    def __init__(self, rows: TrainingRows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        if index >= 0:
            return self.rows[index]
        row = self.rows[-1 - index]
        off = {key: torch.zeros_like(row[key]) for key in ("response_mask", "aux_mask")}
        return {**row, **off}


class ObjectiveTrainer(CheckpointingTrainer):
    """Trains a causal language model on L3 = L2 + λ·L1 and measures it on held-out rows.

    order: of the training rows. Make it for all rows of an optimizer step together, so that
        a step holds the same rows however they are cut.
    held_out: row sets by name; `HELD_OUT`, else the first, is what the best checkpoint is
        chosen by.
    """

    loss_is_scaled_for_ga = True

    def __init__(
        self,
        *,
        rows: TrainingRows,
        order: Order,
        held_out: Mapping[str, TrainingRows],
        collate: Collate,
        aux_weight: float,
        aux_norm: AuxNorm = "token",
        aux_decays: bool = False,
        **trainer: Any,
    ) -> None:
        super().__init__(train_dataset=_Rows(rows), eval_dataset=dict(held_out) or None, **trainer)
        self.order = order
        self.collate = collate
        self.objective_weight = aux_weight
        self.aux_norm = aux_norm
        self.aux_decays = aux_decays
        self.stop_requested = False
        self.tokens_seen = 0
        self._step_batches: list[Row] = []
        self._step_weight = aux_weight
        self._parts: list[Tensor] = []
        self.add_callback(_StopOnRequest(self))

    @property
    def aux_weight(self) -> float:
        """λ at this step: constant, or falling to 0 in a straight line."""
        if not self.aux_decays or not self.state.max_steps:
            return self.objective_weight
        done: float = self.state.global_step / self.state.max_steps
        return self.objective_weight * (1 - done)

    def get_train_dataloader(self) -> Loader:
        return self._loader(self.train_dataset, self.order, self.args.per_device_train_batch_size)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Row], num_batches: int, device: Any
    ) -> tuple[list[Row], Tensor]:
        """The micro-batches of an optimizer step, and what its losses are divided by."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._step_batches, self._step_weight = batches, self.aux_weight
        self.tokens_seen += sum(int((batch["example_ids"] > 0).sum()) for batch in batches)
        return batches, self.summed(self.count(batches))

    def count(self, batches: Sequence[Row]) -> Tensor:
        """What the losses of a step are divided by, as far as this process sees."""
        return count_labels(batches, self.aux_norm)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Row,
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor:
        """L3 of a micro-batch, as its share of the step's."""
        assert num_items_in_batch is not None
        losses = self.losses(model, inputs, num_items_in_batch)
        self._parts.append(torch.stack(losses).detach())
        # Gradients are averaged over the processes; their sum is wanted.
        return losses.l3 * float(self.accelerator.num_processes)

    def losses(self, model: nn.Module, batch: Row, counts: Tensor) -> Losses:
        """The share of a micro-batch in the losses of a step with these counts."""
        head = self.accelerator.unwrap_model(model).get_output_embeddings()
        return model_losses(
            model, head, batch, counts, aux_weight=self.aux_weight, aux_norm=self.aux_norm
        )

    def training_step(
        self, model: nn.Module, inputs: Row, num_items_in_batch: Tensor | None = None
    ) -> Tensor:
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        if not torch.isfinite(loss):
            raise NotFinite(f"the loss is {loss.item()} at step {self._step}", [inputs])
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        # Before the optimizer spoils the weights with it.
        grad_norm = super()._get_grad_norm(model, grad_norm)
        if not np.isfinite(float(grad_norm)):
            raise NotFinite(
                f"the gradient is {float(grad_norm)} at step {self._step}", self._step_batches
            )
        return grad_norm

    @property
    def _step(self) -> int:
        return int(self.state.global_step) + 1

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds L1, L2 and the response accuracy of the steps since the last log, and λ."""
        if "loss" in logs and self._parts:
            total = self.summed(torch.stack(self._parts).sum(0).double())
            _, l2, l1, accuracy = (total / self.args.logging_steps).tolist()
            self._parts = []
            logs |= {"l2": l2, "l1": l1, "accuracy": accuracy, "aux_weight": self._step_weight}
        super().log(logs, start_time)

    def evaluate(
        self,
        eval_dataset: Mapping[str, TrainingRows] | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Exact means over all labels of each held-out set, as if it were one step.

        eval_loss: response loss of `HELD_OUT`, else of the first set, in nats a token;
        eval_l1, eval_accuracy and eval_perplexity likewise. Of another set: eval_loss_NAME.
        Raises NotFinite.
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
        """The metrics of `evaluate`, told to nobody."""
        main = HELD_OUT if HELD_OUT in sets else next(iter(sets))
        metrics = {}
        for name, rows in sets.items():
            ending = "" if name == main else f"_{name}"
            for key, value in self.measure(rows).items():
                metrics[f"{prefix}_{key}{ending}"] = value
        return metrics

    @torch.no_grad()
    def measure(self, rows: TrainingRows) -> dict[str, float]:
        """Mean losses of a row set and the accuracy on its response tokens."""
        model = self.model_wrapped if self.is_fsdp_enabled else self.model
        model.eval()
        batches = self._loader(
            _Rows(rows), ByLength(rows.lengths), self.args.per_device_eval_batch_size
        )
        counts = self.summed(torch.stack([self.count([batch]) for batch in batches]).sum(0))
        total = torch.zeros(4, dtype=torch.float64)
        for batch in batches:
            losses = self.losses(model, self._prepare_inputs(batch), counts)
            total += torch.stack(losses).double().cpu()
        _, l2, l1, accuracy = self.summed(total).tolist()
        found = {"loss": l2, "perplexity": perplexity(l2), "accuracy": accuracy}
        if self.aux_weight:
            found["l1"] = l1
        return found

    def summed(self, values: Tensor) -> Tensor:
        """Summed over all processes."""
        if self.accelerator.num_processes == 1:
            return values
        total: Tensor = self.accelerator.reduce(values.to(self.args.device), "sum")
        return total.cpu()

    def _loader(self, rows: Any, order: Order, size: int) -> Loader:
        process, processes = self.args.process_index, self.args.world_size
        return loader(rows, order, size, self.collate, process, processes)


class _StopOnRequest(TrainerCallback):  # type: ignore[misc]
    """Ends and saves after the step in which any process was asked to stop."""

    def __init__(self, trainer: ObjectiveTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        requests = self.trainer.summed(torch.tensor([float(self.trainer.stop_requested)]))
        if requests.item():
            self.trainer.stop_requested = True
            control.should_save = control.should_training_stop = True


def model_inputs(batch: Row) -> dict[str, Any]:
    """What the model is called with.

    Rows of several examples need their positions, from which transformers makes the
    block-causal mask in each model's own way; this works only without a cache. A row of one
    example needs nothing: padding stands at its right, where causal attention cannot see it.
    """
    inputs = {"input_ids": batch["input_ids"], "use_cache": False}
    if int(batch["example_ids"].max()) > 1:
        inputs["position_ids"] = batch["position_ids"]
    return inputs


def model_losses(
    model: nn.Module,
    head: Any,
    batch: Row,
    counts: Tensor,
    *,
    aux_weight: float,
    aux_norm: AuxNorm = "token",
) -> Losses:
    """The objective, computed inside the model's own forward pass.

    There DDP, FSDP, autocast and adapters have every parameter where it belongs.
    head: the model's language-model head.
    """

    def compute(hidden: Tensor) -> Tensor:
        found = objective(
            hidden,
            head.weight,
            batch,
            counts,
            aux_weight=aux_weight,
            aux_norm=aux_norm,
            bias=head.bias,
        )
        return torch.stack(found)

    with in_place_of(head, compute):
        return Losses(*model(**model_inputs(batch)).logits.unbind())


@contextmanager
def in_place_of(head: nn.Module, compute: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let a language model return `compute(hidden)` where it would return logits."""
    head.forward = compute
    try:
        yield
    finally:
        del head.forward


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint of a run, or None."""
    found = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    return Path(found) if found else None


def check_whole(checkpoint: Path) -> None:
    """Read what a checkpoint consists of. Raises ConfigError that names a damaged file."""
    for file in sorted(checkpoint.iterdir()):
        try:
            match file.suffix:
                case ".json":
                    json.loads(file.read_text(encoding="utf-8"))
                case ".safetensors":
                    with safe_open(file, "pt"):
                        pass
                case ".pt" | ".pth":
                    with ZipFile(file) as archive:
                        if damaged := archive.testzip():
                            raise BadZipFile(f"{damaged} does not match its checksum")
        except (OSError, ValueError, BadZipFile, SafetensorError) as error:
            raise ConfigError(
                f"{file}: is damaged: {_first_line(error)}; remove {checkpoint.name} to go on from "
                "the checkpoint before it"
            ) from None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def flush(path: Path) -> None:
    """Have a file or folder on the disk before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
