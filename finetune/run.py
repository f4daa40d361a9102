"""`finetune train` and `finetune resume`: from a configuration to a model one chats with.

Two invariants. A run is resumed only as the run it was: same data, template, objective and
weights, or it is refused in words. And the run folder's own model files are moved in when all
of them are written, so a folder that loads is a finished run.
"""

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from transformers import EarlyStoppingCallback, PrinterCallback, TrainerCallback, TrainingArguments
from transformers.utils import logging as transformers_logging

from chatapp.dialogue.prompt import Exchange, PromptWriter
from chatapp.engine.transformers_model import TransformersModel
from finetune.adapters import trained_parameters
from finetune.callbacks import LOG_KEYS, LogCallback, RunCallback, Sample, peak_memory
from finetune.config import ConfigError, FinetuneConfig, Interrupted, lay_over, validated
from finetune.data.packing import BucketSampler, Rows
from finetune.data.preparation import HELD_OUT, dropped_lines
from finetune.display import duration, memory, one_line
from finetune.export import publish
from finetune.material import Material, RowSets, gather, precision, processes
from finetune.objectives.heads import HeadTrainer
from finetune.objectives.l3 import AuxNorm
from finetune.replies import greedy_reply, questions
from finetune.report import write_report
from finetune.trainer import (
    ByLength,
    MicroBatches,
    NotFinite,
    ObjectiveTrainer,
    Order,
    check_whole,
    last_checkpoint,
)

RECORD_FILE = "run.json"
LOG_FILE = "log.jsonl"
RESULT_FILE = "result.json"
BAD_BATCH_FILE = "bad_batch.jsonl"

# What may be another in a resumed run: none of it changes a step already taken.
FREE_KEYS = ("samples", "train.epochs", "train.save_every", "train.early_stop")


def train(config: FinetuneConfig, console: Console) -> Path:
    """Run a configuration in a new folder; returns the folder.

    Raises ConfigError and ModelError for wrong input, Interrupted, SaveError, NotFinite.
    """
    output = Path(config.output)
    if is_first_process() and output.exists():
        if (output / RECORD_FILE).exists():
            raise ConfigError(
                f"{output} holds a run already; `finetune resume {output}` goes on with it, "
                "another output starts a new one"
            )
        if not output.is_dir() or any(output.iterdir()):
            raise ConfigError(f"{output}: holds other files; name a new or an empty folder")
    return _run(gather(config), console)


def resume(folder: Path, overrides: Sequence[str], console: Console) -> Path:
    """Go on with a run from its last checkpoint; returns the folder.

    overrides: key=value, of `FREE_KEYS` alone. Raises as `train` does, and ConfigError when
    the data, the template, the objective or the model is not what the run began with.
    """
    record = read_record(folder)
    config = validated(FinetuneConfig, record["config"], str(folder / RECORD_FILE))
    wanted = lay_over(config, overrides)
    before, after = (each.model_dump(mode="json") for each in (config, wanted))
    for key, (old, new) in _differences(before, after).items():
        if not key.startswith(FREE_KEYS):
            raise ConfigError(
                f"{folder} was begun with {key} = {old!r}, not {new!r}; start a new run for that"
            )
    # The folder may have been moved.
    wanted = wanted.model_copy(update={"output": str(folder)})
    if (folder / RESULT_FILE).exists() and wanted.train.epochs <= config.train.epochs:
        raise ConfigError(f"{folder}: the run is finished; set train.epochs higher to go on")
    material = gather(wanted)
    check_unchanged(folder, record, material.record)
    return _run(material, console)


def check_unchanged(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises ConfigError that names what of a run's record is another now."""
    if before["template"] != now["template"]:
        old, new = (each["template"] or {} for each in (before, now))
        raise ConfigError(
            f"{folder}: the template changed: the run was begun in {old.get('name')} "
            f"({old.get('fingerprint')}), now it is {new.get('name')} ({new.get('fingerprint')})"
        )
    for name in before["data"].keys() | now["data"].keys():
        if before["data"].get(name) != now["data"].get(name):
            raise ConfigError(f"{folder}: the data changed since the run was begun: {name}")
    if before["weights"] != now["weights"]:
        raise ConfigError(
            f"{folder}: the model {now['config']['model']} has other weights than the run was "
            "begun with"
        )
    if before["precision"] != now["precision"]:
        raise ConfigError(
            f"{folder}: the run was begun with products in {before['precision']}, this machine "
            f"would use {now['precision']}"
        )
    if before["processes"] != now["processes"]:
        raise ConfigError(
            f"{folder}: the run was begun with {before['processes']} processes, now there are "
            f"{now['processes']}; a step would hold other rows"
        )


def timed_steps(material: Material) -> tuple[int, float, int]:
    """Parameters trained, seconds a step, and peak memory in bytes, from three real steps.

    The first step takes the longest rows, which decide the memory, and is not timed. Nothing
    is written; the model has learned a little.
    """
    seconds: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begun = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seconds.append(time.perf_counter() - self.begun)
            control.should_training_stop = state.global_step == 3

    with tempfile.TemporaryDirectory() as folder:
        trainer = build_trainer(material, Path(folder), probe=True)
        trainer.add_callback(Clock())
        trainer.train()
    timed = seconds[1:] or seconds
    return trained_parameters(material.model), sum(timed) / len(timed), peak_memory()


def build_trainer(material: Material, output: Path, *, probe: bool = False) -> ObjectiveTrainer:
    """The trainer of a run. `probe`: for a few steps that leave nothing, longest rows first."""
    config, data = material.config, material.data
    settings, on_gpu = config.train, torch.cuda.is_available()
    step_rows = settings.batch_size * settings.accumulate * processes()
    bucketed = BucketSampler(data.train.lengths, step_rows, config.seed)
    order: Order = _LongestFirst(data.train.lengths, bucketed, step_rows) if probe else bucketed
    measures = bool(data.held_out) and not probe
    save_every = settings.save_every or max(1, steps_per_epoch(config, data) // 2)
    # The run has its own display and its own words.
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    arguments = TrainingArguments(
        output_dir=str(output),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.learning_rate,
        lr_scheduler_type={"constant": "constant_with_warmup"}.get(
            settings.schedule, settings.schedule
        ),
        warmup_steps=settings.warmup,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        bf16=precision(config) == "bfloat16",
        activation_checkpointing=settings.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False},
        use_cpu=not on_gpu,
        ddp_backend="gloo" if processes() > 1 and not on_gpu else None,
        ddp_find_unused_parameters=False,
        logging_steps=1,
        log_level="error",
        eval_strategy="steps" if measures else "no",
        eval_steps=save_every,
        save_strategy="no" if probe else "steps",
        save_steps=save_every,
        save_total_limit=2,
        metric_for_best_model="eval_loss" if measures else None,
        greater_is_better=False if measures else None,
        restore_callback_states_from_checkpoint=True,
        disable_tqdm=True,
        report_to="none" if probe or not _has_tensorboard() else "tensorboard",
        seed=config.seed,
        dataloader_pin_memory=on_gpu,
    )
    # Several GPUs in one process would be DataParallel, which cuts a batch behind our back.
    arguments._n_gpu = min(1, arguments.n_gpu)
    objective = config.objective
    aux_norm: AuxNorm = objective.aux_norm
    common = {
        "model": material.model,
        "args": arguments,
        "rows": data.train,
        "order": order,
        "held_out": data.held_out if measures else {},
        "collate": data.collate,
        "aux_weight": objective.aux_weight,
        "aux_norm": aux_norm,
        "aux_decays": objective.aux_decay == "linear",
    }
    if settings.early_stop and measures:
        common["callbacks"] = [EarlyStoppingCallback(settings.early_stop)]
    if material.head:
        trainer: ObjectiveTrainer = HeadTrainer(spec=material.head, **common)
    else:
        trainer = ObjectiveTrainer(**common)
    trainer.remove_callback(PrinterCallback)
    return trainer


def steps_per_epoch(config: FinetuneConfig, data: RowSets) -> int:
    """Optimizer steps of one pass over the training rows."""
    micro_batches = MicroBatches(
        ByLength([]), len(data.train), config.train.batch_size, 0, processes()
    )
    return -(-len(micro_batches) // config.train.accumulate)


def header(material: Material) -> list[str]:
    """What is about to be trained on what, in a few lines."""
    config, data = material.config, material.data
    objective, settings = config.objective, config.train
    trained = trained_parameters(material.model)
    total = sum(each.numel() for each in material.model.parameters())
    template = f"template {material.template.name}" if material.template else "a linear head"
    packed = f" in {len(data.train):,} rows" if len(data.train) < data.examples else ""
    held_out = ", ".join(
        f"{len(each):,} {'held out' if name == HELD_OUT else f'of cluster {name}'}"
        for name, each in data.held_out.items()
    )
    per_step = data.examples / max(1, steps_per_epoch(config, data))
    lines = [
        f"{config.model}: method {settings.method}, {trained:,} of {total:,} parameters learn, "
        f"{template}",
        f"{data.examples:,} examples{packed}, {sum(data.train.lengths):,} tokens; measured on "
        f"{held_out or 'nothing'}",
    ]
    if data.report:
        lines += data.report.lines()
    else:
        lines += dropped_lines(data.dropped)
    if objective.aux_weight:
        lines.append(
            f"L3 = L2 + {objective.aux_weight:g} · L1; L1 over {data.aux_labels:,} tokens, L2 over "
            f"{data.response_labels:,}: a token of L1 counts {material.prompt_weight:.3g} times "
            "as much as one of L2"
        )
    else:
        lines.append(f"L3 = L2, over {data.response_labels:,} response tokens; λ is 0")
    lines.append(
        f"about {per_step:.0f} examples a step: train.batch_size {settings.batch_size} rows, "
        f"train.accumulate {settings.accumulate}, processes {processes()}; products in "
        f"{precision(config)}"
    )
    return lines


def _run(material: Material, console: Console) -> Path:
    config = material.config
    output = Path(config.output)
    trainer = build_trainer(material, output)
    sample = _sampler(material, trainer)
    if is_first_process():
        (output / RESULT_FILE).unlink(missing_ok=True)
        write_json(output / RECORD_FILE, material.record)
    checkpoint = last_checkpoint(output)
    if checkpoint:
        check_whole(checkpoint)
    for text in [*header(material), *([f"going on from {checkpoint.name}"] if checkpoint else [])]:
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    told = RunCallback(
        console,
        LogCallback(output / LOG_FILE, LOG_KEYS),
        f"{config.model} → {output}",
        lambda: trainer.tokens_seen * processes(),
        sample,
        config.samples.every,
    )
    trainer.add_callback(told)
    begun = time.monotonic()
    try:
        with _stops_on_signal(trainer, console):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except NotFinite as error:
        _write_bad_batch(output / BAD_BATCH_FILE, material, error)
        raise NotFinite(
            f"{error}; the rows of that batch are in {output / BAD_BATCH_FILE}; "
            f"{_how_to_go_on(output)}",
            error.batches,
        ) from None
    except KeyboardInterrupt:
        raise Interrupted(f"stopped at once; {_how_to_go_on(output)}") from None
    finally:
        told.stop()
    if trainer.stop_requested:
        raise Interrupted(f"stopped at step {trainer.state.global_step}; {_how_to_go_on(output)}")
    best = trainer.state.best_global_step
    if best and best != trainer.state.global_step:
        sharded = trainer.model_wrapped if trainer.is_fsdp_enabled else None
        trainer._load_from_checkpoint(str(output / f"checkpoint-{best}"), sharded)
    measured = trainer.measure_all(material.data.held_out) if material.data.held_out else {}
    publish(material, trainer, output)
    if is_first_process():
        result = {
            "steps": trainer.state.global_step,
            "best_step": best or trainer.state.global_step,
            **measured,
            "seconds": round(time.monotonic() - begun, 1),
            "peak_memory_bytes": peak_memory(),
        }
        write_report(output, header(material), material.record, result)
        write_json(output / RESULT_FILE, result)
        console.print(
            f"done: step {result['best_step']} is kept of {result['steps']}, "
            f"{duration(result['seconds'])}, {memory(result['peak_memory_bytes'])}; "
            f"{'finetune eval' if material.head else 'chatapp --model'} {output}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    return output


def _sampler(material: Material, trainer: ObjectiveTrainer) -> Callable[[], list[Sample]] | None:
    """Greedy replies of the model as it is, through the chat's own code; None without prompts.

    A sharded model cannot be asked by one process alone.
    """
    template, settings = material.template, material.config.samples
    if template is None or trainer.is_fsdp_enabled:
        return None
    model = TransformersModel(
        material.model, material.tokenizer, name=material.config.model, start=material.start
    )
    prompts: list[tuple[str, Sequence[int]]] = []
    for text in settings.prompts:
        try:
            written = PromptWriter(model, template).write(
                None, [Exchange(text)], max_tokens=settings.max_tokens
            )
        except ValueError as error:
            raise ConfigError(f"samples.prompts: {one_line(text)[:40]!r}: {error}") from None
        prompts.append((text, written.ids))
    kept = next(iter(material.data.held_out.values()), None)
    if not prompts and isinstance(kept, Rows):
        asked = questions(kept.examples, material.tokenizer, model.context, len(material.start))
        prompts = [(each.text, each.ids) for each in islice(asked, settings.held_out)]

    def take() -> list[Sample]:
        material.model.eval()
        model.forget()
        found = [
            (text, greedy_reply(model, template, ids, settings.max_tokens)) for text, ids in prompts
        ]
        model.forget()
        return found

    return take if prompts else None


@contextmanager
def _stops_on_signal(trainer: ObjectiveTrainer, console: Console) -> Iterator[None]:
    """The first Ctrl+C or SIGTERM ends the run after its step; a second ends it at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        if trainer.stop_requested:
            raise KeyboardInterrupt
        trainer.stop_requested = True
        console.print("stopping after this step; Ctrl+C again stops at once")

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _LongestFirst:
    """One step of the longest rows, then the usual order."""

    def __init__(self, lengths: Sequence[int], order: Order, step_rows: int) -> None:
        self.first = list(ByLength(lengths))[:step_rows]
        self.order = order

    def __iter__(self) -> Iterator[int]:
        first = set(self.first)
        return iter([*self.first, *(row for row in self.order if row not in first)])

    def set_epoch(self, epoch: int) -> None:
        self.order.set_epoch(epoch)


def _write_bad_batch(path: Path, material: Material, error: NotFinite) -> None:
    lines = []
    for batch in error.batches:
        for ids, real in zip(batch["input_ids"], batch["example_ids"] > 0, strict=True):
            text = material.tokenizer.decode(ids[real].tolist())
            lines.append(json.dumps({"text": text, "ids": ids[real].tolist()}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def _how_to_go_on(output: Path) -> str:
    checkpoint = last_checkpoint(output)
    if checkpoint is None:
        return "there is no checkpoint yet"
    return f"{checkpoint.name} is whole: `finetune resume {output}` goes on from it"


def _differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted keys with their two values, where they differ."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found |= {f"{key}.{inner}": pair for inner, pair in _differences(old, new).items()}
        elif old != new:
            found[key] = (old, new)
    return found


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a run. Raises ConfigError."""
    path = folder / RECORD_FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{folder}: there is no {RECORD_FILE}; expected the folder of a run"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    keys = ("config", "template", "data", "weights", "precision", "processes")
    if not isinstance(record, dict) or any(key not in record for key in keys):
        raise ConfigError(f"{path}: expected a run's record with the keys {', '.join(keys)}")
    return record


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write aside and rename, so that the file is whole or the one before."""
    aside = path.with_suffix(".unfinished")
    aside.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    aside.replace(path)


def is_first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _has_tensorboard() -> bool:
    from transformers.integrations import is_tensorboard_available

    return bool(is_tensorboard_available())
