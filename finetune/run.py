"""`finetune train` and `finetune resume`: from a configuration to a model one chats with.

Keep: the run folder's own model files are moved in when all of them are written, so a folder
that loads is a finished run.
"""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from types import FrameType

from rich.console import Console

from chatapp.common.paths import RUN_RECORD
from chatapp.common.userfiles import read_json_object, write_whole
from chatapp.engine.errors import ModelError
from chatapp.models.resolving import note_model
from finetune.config.sections import ConfigError, FinetuneConfig, Interrupted, Train, lay_over
from finetune.measuring.report import header, write_report
from finetune.objectives.rewards import RewardError
from finetune.training.callbacks import RunCallback
from finetune.training.checkpoints import check_whole, drop_optimizer_states, last_checkpoint
from finetune.training.display import duration, memory, peak_memory
from finetune.training.export import publish
from finetune.training.record import (
    LOG_FILE,
    RESULT_FILE,
    RunLog,
    begun_on,
    check_unchanged,
    configuration_of,
    differences,
    read_record,
    without_places,
    write_json,
)
from finetune.training.run_setup import RunSetup, keep_reference, set_up_run
from finetune.training.sample_replies import sampler
from finetune.training.trainer import NotFinite, ObjectiveTrainer
from finetune.training.trainer_factory import build_trainer

BAD_BATCH_FILE = "bad_batch.jsonl"

# What may be another in a resumed run: none of it changes a step already taken.
# Where the model and the files lie may be another too: digests tell whether they are the same.
FREE_KEYS = (
    "samples",
    *("train.epochs", "train.max_steps", "train.early_stop", "train.report_to"),
    *("train.eval_every", "train.save_every"),
)
# What a run that diverged may be gone on with more gently.
GENTLER_KEYS = ("train.learning_rate", "train.max_grad_norm")


def train(config: FinetuneConfig, console: Console, device: str = "auto") -> Path:
    """Run a configuration in a new folder; returns the folder.

    device: see `set_up_run`.
    Raises ConfigError and ModelError for wrong input, Interrupted, SaveError, NotFinite,
    RewardError.
    """
    output = Path(config.output)
    if is_first_process() and output.exists():
        if (output / RUN_RECORD).exists():
            raise ConfigError(
                f"{output} holds a run already; `finetune resume {output}` goes on with it, "
                "another output starts a new one"
            )
        if not output.is_dir() or any(output.iterdir()):
            raise ConfigError(f"{output}: holds other files; name a new or an empty folder")
    return _run(set_up_run(config, device), console)


def resume(folder: Path, overrides: Sequence[str], console: Console, device: str = "auto") -> Path:
    """Go on with a run from its last checkpoint; returns the folder.

    overrides: key=value, of `FREE_KEYS`, of `GENTLER_KEYS` after a loss that was no number, or
        where the model or a file lies now.
    device: see `set_up_run`; products stay in the precision that the run began with. Raises as
    `train` does, and ConfigError when the data, the template, the objective or the model is not
    what the run began with.
    """
    record = read_record(folder)
    config = configuration_of(folder, record)
    wanted = lay_over(config, overrides)
    changes = differences(without_places(config), without_places(wanted))
    free = FREE_KEYS + (GENTLER_KEYS if (folder / BAD_BATCH_FILE).exists() else ())
    for key, (old, new) in changes.items():
        if not key.startswith(free):
            raise ConfigError(
                f"{folder} was begun with {key} = {old!r}, not {new!r}; start a new run for that"
            )
    if not _is_longer(folder, wanted.train, config.train):
        key = "max_steps" if config.train.max_steps > 0 else "epochs"
        raise ConfigError(f"{folder}: the run is finished; set train.{key} higher to go on")
    settings = wanted.train.model_copy(update={"precision": record["precision"]})
    # The folder may have been moved.
    wanted = wanted.model_copy(update={"output": str(folder), "train": settings})
    setup = _set_up_again(folder, wanted, device, begun_on(record))
    check_unchanged(folder, record, setup.record)
    return _run(setup, console)


def _is_longer(folder: Path, wanted: Train, before: Train) -> bool:
    """Whether there are steps to take; of a finished run, more than it took."""
    if not (folder / RESULT_FILE).exists():
        return True
    if wanted.max_steps > 0:
        taken = int(read_json_object(folder / RESULT_FILE, ConfigError)["steps"])
        return wanted.max_steps > taken
    return before.max_steps > 0 or wanted.epochs > before.epochs


def _set_up_again(
    folder: Path, config: FinetuneConfig, device: str, begun: date | None
) -> RunSetup:
    """The same, with a hint for files that are gone. Raises ConfigError."""
    try:
        return set_up_run(config, device, begun)
    except ModelError as error:
        raise ConfigError(
            f"{error}; a model that was moved is named by `finetune resume {folder} model=FOLDER`"
        ) from None


def _run(setup: RunSetup, console: Console) -> Path:
    """Train from the start or the last checkpoint to the end, and publish the best weights."""
    output = Path(setup.config.output)
    if setup.objective.needs_reference:
        keep_reference(setup, output, console)
    trainer = build_trainer(setup, output)
    # A sharded model cannot be asked by one process alone.
    sample = None if trainer.is_fsdp_enabled else sampler(setup)
    if is_first_process():
        (output / RESULT_FILE).unlink(missing_ok=True)
        write_json(output / RUN_RECORD, setup.record)
        note_model(output)  # from now on it is among those that the chat lists
    checkpoint = last_checkpoint(output)
    if checkpoint:
        check_whole(checkpoint)
    for text in [*header(setup), *([f"resuming from {checkpoint.name}"] if checkpoint else [])]:
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    objective = setup.objective
    display = RunCallback(
        console,
        RunLog(output / LOG_FILE, (*objective.names, *objective.settings(0.0))),
        f"{setup.config.model} → {output}",
        trainer,
        objective.figures,
        objective.curves,
        sample,
        setup.config.samples.every,
    )
    trainer.add_callback(display)
    _take_steps(trainer, setup, checkpoint, display, console)
    _finish(trainer, setup, display.log, console)
    return output


def _take_steps(
    trainer: ObjectiveTrainer,
    setup: RunSetup,
    checkpoint: Path | None,
    display: RunCallback,
    console: Console,
) -> None:
    """Train to the end. Raises Interrupted and NotFinite, which say how to go on."""
    output = Path(setup.config.output)
    try:
        with _stops_on_signal(trainer, console):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except RewardError as error:
        if trainer.state.global_step:
            trainer.save_checkpoint()
        raise RewardError(f"{error}; {_how_to_go_on(output)}") from None
    except NotFinite as error:
        _write_bad_batch(output / BAD_BATCH_FILE, setup, error)
        raise NotFinite(
            f"{error}; the rows of that batch are in {output / BAD_BATCH_FILE}; "
            f"{_how_to_go_on(output, ' train.learning_rate=RATE', ' at a lower rate')}",
            error.batches,
        ) from None
    except KeyboardInterrupt:
        raise Interrupted(f"stopped at once; {_how_to_go_on(output)}") from None
    finally:
        display.stop()
    if trainer.stop_requested:
        raise Interrupted(f"stopped at step {trainer.state.global_step}; {_how_to_go_on(output)}")


def _finish(trainer: ObjectiveTrainer, setup: RunSetup, log: RunLog, console: Console) -> None:
    """Publish the best weights with what was measured of them."""
    output = Path(setup.config.output)
    best = trainer.state.best_global_step
    if best and best != trainer.state.global_step:
        sharded = trainer.model_wrapped if trainer.is_fsdp_enabled else None
        trainer._load_from_checkpoint(str(output / f"checkpoint-{best}"), sharded)
    measured = trainer.measure_all(setup.data.held_out) if setup.data.held_out else {}
    publish(setup, trainer, output)
    if not is_first_process():
        return
    result = {
        "steps": trainer.state.global_step,
        "best_step": best or trainer.state.global_step,
        **measured,
        "seconds": log.seconds,
        "peak_memory_bytes": peak_memory(),
    }
    write_report(output, header(setup), setup.objective, setup.record, result)
    write_json(output / RESULT_FILE, result)
    drop_optimizer_states(output)
    (output / BAD_BATCH_FILE).unlink(missing_ok=True)
    console.print(
        f"done: step {result['best_step']} is kept of {result['steps']}, "
        f"{duration(result['seconds'])}, {memory(result['peak_memory_bytes'])}; "
        f"{'chatapp --model' if setup.objective.replies else 'finetune eval'} {output}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


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


def _write_bad_batch(path: Path, setup: RunSetup, error: NotFinite) -> None:
    lines = []
    for batch in error.batches:
        for ids, real in zip(batch["input_ids"], batch["example_ids"] > 0, strict=True):
            text = setup.tokenizer.decode(ids[real].tolist())
            lines.append(json.dumps({"text": text, "ids": ids[real].tolist()}) + "\n")
    write_whole(path, "".join(lines))


def _how_to_go_on(output: Path, keys: str = "", how: str = "") -> str:
    checkpoint = last_checkpoint(output)
    if checkpoint is None:
        return "there is no checkpoint yet"
    return f"{checkpoint.name} is whole: `finetune resume {output}{keys}` goes on from it{how}"


def is_first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"
