"""`finetune check`, `train` and `resume`: from a configuration to a model for chats; and how a run
of any kind takes its steps.

`_run` lists the steps; `set_up_run` creates their inputs.

Invariant: the run folder's own model files are moved in when all of them are written, so a folder
that loads is a finished run. Every number of a check is of the rows, masks and steps of the run;
only the time is estimated, from real steps.
"""

import json
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from chatapp.common.foreign import printable
from chatapp.common.paths import RUN_RECORD
from chatapp.common.userfiles import UserError, write_whole
from chatapp.engine.errors import ModelError, first_line
from chatapp.engine.models.resolving import find_model, note_model
from finetune.config.sections import ConfigError, FinetuneConfig, Interrupted, Train, lay_over
from finetune.measuring.forgetting import measure_forgetting
from finetune.measuring.run_report import header, write_card, write_report
from finetune.objectives.rewards import RewardError
from finetune.training.answers import sampler
from finetune.training.building import (
    RunDisplay,
    build_loop,
    publish,
    steps_of_run,
    timed_steps,
    too_few,
)
from finetune.training.checkpoints import (
    LOCK_FILE,
    check_whole,
    claim,
    drop_optimizer_states,
    last_checkpoint,
)
from finetune.training.display import duration, memory, peak_memory
from finetune.training.loop import Loop, NotFinite
from finetune.training.record import (
    LOG_FILE,
    RESULT_FILE,
    RunLog,
    begun_on,
    check_same_configuration,
    check_unchanged,
    configuration_of,
    read_record,
    read_written,
    without_places,
    write_json,
    write_record,
)
from finetune.training.setup import (
    RunSetup,
    is_first_process,
    keep_reference,
    processes,
    set_up_run,
)

BAD_BATCH_FILE = "bad_batch.jsonl"
SHORTEST = 5.0
"""Seconds of a training after which it is measured what was forgotten."""

# Keys that may change in a resumed run: none of them affects a step already taken. The locations of
# the model and the files may change too: digests tell whether they are the same.
FREE_KEYS = (
    "samples",
    *("train.epochs", "train.max_steps", "train.early_stop", "train.report_to"),
    *("train.eval_every", "train.save_every", "train.general_questions"),
)
# Keys that may change when a diverged run is continued.
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
            if _is_done(config, output):
                console.print(f"{output} holds this very run, and it is finished", markup=False)
                return output
            names = (output.with_name(f"{output.name}-{n}") for n in count(2))
            free = next(name for name in names if not name.exists())
            raise ConfigError(
                f"{output} holds a run already; `finetune resume {output}` continues it, and "
                f"output={free} at the end of this command starts a new one"
            )
        _refuse_other_files(output)
    return _run(config, console, device)


def _refuse_other_files(output: Path) -> None:
    if not output.is_dir() or any(file.name != LOCK_FILE for file in output.iterdir()):
        raise ConfigError(f"{output}: holds other files; name a new or an empty folder")


def _is_done(config: FinetuneConfig, output: Path) -> bool:
    """Whether a folder holds this run, finished, and no row has changed since. The result of a
    clock that was ahead says nothing of that.
    """
    record, result = read_record(output), output / RESULT_FILE
    if not result.exists() or processes() > 1 or record.get("folder") != str(Path.cwd()):
        return False
    held_out = config.data.held_out
    sources = [*config.data.train, *(held_out if isinstance(held_out, list) else [])]
    changed = [Path(source.path) for source in sources if Path(source.path).is_file()]
    return record["config"] == config.model_dump(mode="json") and all(
        path.stat().st_mtime <= result.stat().st_mtime <= time.time() for path in changed
    )


def _run(
    config: FinetuneConfig, console: Console, device: str, earlier: dict[str, Any] | None = None
) -> Path:
    """The steps of a run: config → rows, model and objective → loop → training → export.

    earlier: the record of the continued run. Returns the folder.
    """
    output = Path(config.output)
    setup = set_up_run(config, device, begun_on(earlier), runs_code=True)
    objective, held_out = setup.objective, setup.data.held_out
    with closing(objective), claim(output):
        if earlier:
            check_unchanged(output, earlier, setup.record)
        elif is_first_process():  # another may have begun and ended while the model was loaded
            _refuse_other_files(output)
        if objective.needs_reference:
            keep_reference(setup, output, console)
        loop = build_loop(setup, output)
        display = RunDisplay(
            console,
            RunLog(output / LOG_FILE, (*objective.names, *objective.settings(0.0))),
            f"{config.model} → {output}",
            objective.figures,
            objective.curves,
            # One process alone cannot generate with a sharded model.
            None if loop.learner.is_sharded else sampler(setup),
            config.samples.every,
        )
        if is_first_process():
            (output / RESULT_FILE).unlink(missing_ok=True)
            write_record(output, RUN_RECORD, setup.record)
            note_model(output)  # the chat lists its folder from now on
        try:
            take_steps(loop, display, header(setup), f"finetune resume {output}")
        except NotFinite as error:
            _write_bad_batch(output / BAD_BATCH_FILE, setup, error)
            command = f"finetune resume {output} train.learning_rate=RATE"
            raise NotFinite(
                f"{error}; the rows of that batch are in {output / BAD_BATCH_FILE}; "
                f"{_how_to_continue(output, command, ' at a lower rate')}",
                error.batches,
            ) from None
        best_step = loop.load_best()
        figures = loop.measure_all(held_out) if held_out else {}
        publish(setup, loop, output)
        if is_first_process():
            seconds = display.log.seconds
            general = _forgetting(setup, seconds, device, console)
            _write_result(loop, setup, best_step, figures | general, seconds, console)
    return output


def resume(folder: Path, overrides: Sequence[str], console: Console, device: str = "auto") -> Path:
    """Continue a run from its last checkpoint; return the folder.

    overrides: key=value, of `FREE_KEYS`, of `GENTLER_KEYS` after a loss that was not finite, or a
    new location of the model or a file. device: see `set_up_run`; the precision stays that of the
    first start. Raises as `train` does, and ConfigError when the data, the template, the objective
    or the model have changed since.
    """
    record = read_record(folder, untouched=True)
    config = configuration_of(folder, record)
    wanted = lay_over(config, overrides)
    free = FREE_KEYS + (GENTLER_KEYS if (folder / BAD_BATCH_FILE).exists() else ())
    check_same_configuration(folder, without_places(config), without_places(wanted), free)
    if not _is_longer(folder, wanted.train, config.train):
        key = "max_steps" if config.train.max_steps > 0 else "epochs"
        raise ConfigError(f"{folder}: the run is finished; set train.{key} higher to continue")
    settings = wanted.train.model_copy(update={"precision": record["precision"]})
    # The folder may have been moved.
    wanted = wanted.model_copy(update={"output": str(folder), "train": settings})
    try:
        find_model(wanted.model)
    except ModelError as error:
        raise ConfigError(
            f"{error}; a model that was moved is named by `finetune resume {folder} model=FOLDER`"
        ) from None
    return _run(wanted, console, device, record)


def _is_longer(folder: Path, wanted: Train, before: Train) -> bool:
    """Whether there are steps to take; for a finished run, more than it took."""
    if not (folder / RESULT_FILE).exists():
        return True
    if wanted.max_steps > 0:
        return wanted.max_steps > int(read_written(folder / RESULT_FILE)["steps"])
    return before.max_steps > 0 or wanted.epochs > before.epochs


def _print(console: Console, *lines: str) -> None:
    """Print lines of plain characters."""
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def take_steps(loop: Loop, display: RunDisplay, lines: Sequence[str], command: str) -> None:
    """Train to the end, from the last checkpoint if there is one, and show it.

    lines: the words above the display. command: continues the run. Raises SaveError for a broken
    checkpoint, NotFinite, and RewardError and Interrupted, which say how to continue.
    """
    output, console = loop.plan.output, display.console
    if checkpoint := last_checkpoint(output):
        check_whole(checkpoint)
        lines = [*lines, f"resuming from {checkpoint.name}"]
    _print(console, *lines)
    loop.observers.append(display)
    try:
        with _stops_on_signal(loop, console):
            loop.train(checkpoint)
    except RewardError as error:
        if loop.progress.step:
            loop.save_checkpoint()
        raise RewardError(f"{error}; {_how_to_continue(output, command)}") from None
    except KeyboardInterrupt:
        raise Interrupted(f"stopped at once; {_how_to_continue(output, command)}") from None
    finally:
        display.stop()
    if loop.stop_requested:
        step = loop.progress.step
        raise Interrupted(f"stopped at step {step}; {_how_to_continue(output, command)}")


def _forgetting(setup: RunSetup, seconds: float, device: str, console: Console) -> dict[str, Any]:
    """What the model lost and gained, in a tenth of the time that the training took, as an entry of
    the result; {} where it is not measured. A run is finished whether or not it can be.
    """
    config, most = setup.config, setup.config.train.general_questions
    if not most or not setup.objective.replies or seconds < SHORTEST:
        return {}
    try:
        found = measure_forgetting(config.model, config.output, most, seconds / 10, device)
    except (UserError, ModelError, ValueError, RuntimeError, OSError, MemoryError) as error:
        _print(console, f"what it lost could not be measured: {first_line(error)}")
        return {}
    if found is None:
        return {}
    _print(console, found.words)
    return {"general": found.to_json()}


def _write_result(
    loop: Loop,
    setup: RunSetup,
    best_step: int,
    figures: dict[str, Any],
    seconds: float,
    console: Console,
) -> None:
    """Write the report and the result of a finished run, and remove what only training needs."""
    output = Path(setup.config.output)
    result = {
        "steps": loop.progress.step,
        "best_step": best_step,
        **figures,
        "seconds": seconds,
        "peak_memory_bytes": peak_memory(),
    }
    write_report(output, header(setup), setup.objective, setup.record, result)
    write_card(output, setup.record, result)
    write_json(output / RESULT_FILE, result)
    drop_optimizer_states(output)
    (output / BAD_BATCH_FILE).unlink(missing_ok=True)
    use = "chatapp --model" if setup.objective.replies else "finetune eval"
    _print(
        console,
        f"done: step {best_step} is kept of {result['steps']}, {duration(seconds)}, "
        f"{memory(result['peak_memory_bytes'])}; {use} {output}",
    )


@contextmanager
def _stops_on_signal(loop: Loop, console: Console) -> Iterator[None]:
    """The first Ctrl+C or SIGTERM ends the run after its step; a second ends it at once.

    Only the main thread of a program receives signals; a run on another thread ignores them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if loop.stop_requested:
            raise KeyboardInterrupt
        loop.stop_requested = True
        console.print("stopping after this step; Ctrl+C again stops at once")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _write_bad_batch(path: Path, setup: RunSetup, error: NotFinite) -> None:
    lines = []
    for batch in error.batches:
        for ids, real in zip(batch["input_ids"], batch["example_ids"] > 0, strict=True):
            text = setup.tokenizer.decode(ids[real].tolist())
            lines.append(json.dumps({"text": text, "ids": ids[real].tolist()}) + "\n")
    write_whole(path, "".join(lines))


def _how_to_continue(output: Path, command: str, how: str = "") -> str:
    checkpoint = last_checkpoint(output)
    if checkpoint is None:
        return f"there is no checkpoint yet: `{command}` begins again{how}"
    return f"{checkpoint.name} is whole: `{command}` continues from it{how}"


@dataclass(frozen=True, slots=True)
class Examination:
    """The rows and cost of a training. steps: of the whole run."""

    setup: RunSetup
    steps: int
    trainable_parameters: int
    seconds_per_step: float
    peak_memory_bytes: int

    @property
    def kept(self) -> int:
        """Rows for training or evaluation."""
        data = self.setup.data
        if data.report.tables:
            return data.report.kept
        return data.examples + sum(len(rows) for rows in data.held_out.values())

    def document(self) -> dict[str, Any]:
        """The output of `--json`: tokens are labels of L2 and of L1 in one epoch."""
        data = self.setup.data
        return {
            "kept": self.kept,
            "dropped": dict(data.report.dropped),
            "truncated": dict(data.report.truncated),
            "held_out": {name: len(rows) for name, rows in data.held_out.items()},
            "prompt_tokens": data.aux_labels,
            "response_tokens": data.response_labels,
            "effective_prompt_weight": 0.0,
            "trainable_parameters": self.trainable_parameters,
            "steps": self.steps,
            "seconds_per_step": self.seconds_per_step,
            "peak_memory_bytes": self.peak_memory_bytes,
            **self.setup.objective.preview_figures(data, self.setup.tokenizer),
        }


def examine(
    config: FinetuneConfig, device: str = "auto", *, runs_code: bool = False
) -> Examination:
    """Prepare everything and take a few steps that leave nothing behind.

    device, runs_code: see `set_up_run`. Raises ConfigError and ModelError.
    """
    setup = set_up_run(config, device, runs_code=runs_code)
    return Examination(
        setup, steps_of_run(config.train, len(setup.data.train)), *timed_steps(setup)
    )


def show(examination: Examination, console: Console) -> None:
    """Print an examination; foreign text stays plain characters."""
    setup, marked = examination.setup, console.color_system is None
    cost = [Text(_cost(examination))]
    if warning := too_few(examination.steps):
        cost.append(Text(warning, "yellow"))
    parts: dict[str, Sequence[RenderableType]] = {
        "Rows": list(_rows(examination)),
        **setup.objective.preview(setup.data, setup.tokenizer, marked),
        "Cost": cost,
    }
    for title, lines in parts.items():
        console.print(Text(title, "bold"))
        for line in lines:
            console.print(Padding(line, (0, 0, 0, 2), expand=False))


def _rows(examination: Examination) -> Iterator[RenderableType]:
    """The rows that were read, kept and dropped."""
    data = examination.setup.data
    yield from (Text(printable(line)) for line in data.report.lines())
    held_out = ", ".join(f"{printable(name)} {len(rows):,}" for name, rows in data.held_out.items())
    yield Text(
        f"{data.examples:,} examples in {len(data.train):,} rows to learn from; "
        f"to measure: {held_out or 'none'}"
    )


def _cost(examination: Examination) -> str:
    seconds, method = examination.seconds_per_step, examination.setup.config.train.method
    return (
        f"{examination.trainable_parameters:,} parameters are trained ({method}); "
        f"{examination.steps:,} steps of {seconds:.2f} s, about "
        f"{duration(examination.steps * seconds)}; the longest step took "
        f"{memory(examination.peak_memory_bytes)} of memory, and measuring and saving take more"
    )
