"""The files of a run: run.json (pretrain.json of `pretrain`) identifies it, result.json ends it,
log.jsonl is its log.

A record is an object with these keys; pretrain.json has neither begun, template, weights nor
versions:

- config: the whole configuration, defaults included. folder: the one that its relative paths
  are read from.
- begun: the day for chat templates that write a date; absent in older runs.
- template: the dialogue template as chatapp_template.json has it; null for a head.
- data: name of a source -> digest (SHA-256) of the tokens and spans made of its rows, or of its
  documents.
- weights: digest of the weights that training starts from.
- precision: of the products, "float32" or "bfloat16".
- processes: how many take part in a step.
- versions: of Python, of this program and of the packages that numbers depend on; for the
  report alone.
- digest: of all that; absent in older runs.

Older versions wrote the keys of a pretraining's configuration and `digests` in place of data.

result.json of a finished run: steps taken; best_step, whose weights are kept; eval_* of those as in
log.jsonl; seconds of all sessions; peak_memory_bytes. That of `pretrain` has steps, best_step,
parameters with their formula, held_out_loss in nats a token and held_out_perplexity, null without
held-out documents.

log.jsonl (losses.jsonl of `pretrain`) has one JSON object per line, in the order of the steps:

- step: optimizer steps taken; seconds: of all sessions of the run up to here.
- of a training step: loss (of `pretrain`), or the objective's scalars (l3, l2, l1, accuracy)
  and its settings (aux_weight), means over the step's labels in nats a token; of feedback the
  losses and rewards a pair or reply, log-probabilities in nats a reply; of grpo the loss a token,
  reward, no_signal (the share of groups with one reward), length in tokens, kl in nats a token and
  clipped (the share of tokens whose ratio is cut), where there are any; of distillation jsd, l2
  and accuracy; learning_rate, grad_norm before clipping, tokens_per_second of this session,
  memory_bytes at most so far.
- of a measurement: eval_loss, eval_l1, eval_perplexity, eval_accuracy of the held-out rows; of
  grpo eval_reward and eval_length of greedy replies, and eval_loss, minus the reward;
  those of another held-out set with its name behind, as in eval_loss_sentiment.
- of a watched step: what `finetune.measuring.learning.measure_learning` returns.
- of sample replies: samples, a list of {prompt, reply}, with an error where a reply failed, and of
  grpo with its reward.

Invariant: a run is resumed only with an equal record; a difference is refused with a sentence. A
step is in the log once, however often the run was interrupted and continued.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from chatapp.common.foreign import parse_json
from chatapp.common.paths import RUN_RECORD
from chatapp.common.userfiles import read_json_object, read_regular, reason, write_whole
from chatapp.common.validation import validated as checked
from chatapp.engine.models.resolving import BUNDLED
from finetune.config.sections import (
    ConfigError,
    FinetuneConfig,
    PretrainConfig,
    TrainSource,
    validated,
)

RESULT_FILE = "result.json"
STATE_FILE = "trainer_state.json"
"""How far a checkpoint is; see `finetune.training.loop.Progress`."""

CARD_FILE = "README.md"
"""The model card."""

PRETRAIN_RECORD = "pretrain.json"
LOSSES_FILE = "losses.jsonl"


class _Written(BaseModel):
    """What is read again of a file that a run wrote; other keys are not looked at."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Pretraining(_Written):
    config: dict[str, Any]
    data: dict[str, str]
    folder: str = ""


class _Run(_Pretraining):
    begun: Annotated[str, AfterValidator(date.fromisoformat)] = ""
    template: dict[str, Any] | None
    weights: str
    precision: Literal["float32", "bfloat16"]
    processes: int


class _Result(_Written):
    steps: int = Field(ge=0)


class _State(_Written):
    global_step: int = Field(ge=0)
    best_metric: float | None
    best_global_step: int | None
    without_gain: int = 0


_SHAPES: dict[str, type[_Written]] = {
    RUN_RECORD: _Run,
    PRETRAIN_RECORD: _Pretraining,
    RESULT_FILE: _Result,
    STATE_FILE: _State,
}
"""Every JSON file that a run writes and reads again."""


def read_written(path: Path) -> dict[str, Any]:
    """A file of a run, one of `_SHAPES` by its name. Raises FileNotFoundError, and ConfigError that
    names a key whose value cannot be one that was written.
    """
    return _checked(read_json_object(path, ConfigError), path)


def _checked(data: dict[str, Any], path: Path) -> dict[str, Any]:
    checked(_SHAPES[path.name], data, ConfigError, origin=path, what="record")
    return data


def digest_of(record: dict[str, Any]) -> str:
    """Twelve hex digits over a record, without its own digest."""
    own = {key: value for key, value in record.items() if key != "digest"}
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:12]


def write_record(folder: Path, name: str, record: dict[str, Any]) -> None:
    """Write the record of a run with its digest. name: one of `RECORDS`. Raises OSError."""
    write_json(folder / name, record | {"digest": digest_of(record)})


def read_record(folder: Path, name: str = RUN_RECORD, *, untouched: bool = False) -> dict[str, Any]:
    """The record of a run, or of a pretraining by its name. untouched: as it was written.

    Raises ConfigError.
    """
    path = folder / name
    try:
        record = read_json_object(path, ConfigError)
    except FileNotFoundError:
        raise ConfigError(f"{folder}: there is no {name}; expected the folder of a run") from None
    if name == PRETRAIN_RECORD and "config" not in record:
        config = {key: value for key, value in record.items() if key != "digests"}
        record = {"config": config, "data": record.get("digests", {})}
    _checked(record, path)
    if untouched and record.get("digest", "") not in ("", digest_of(record)):
        raise ConfigError(
            f"{path}: was changed since the run began, so a step would not be the run's own; "
            "start a new run for other settings"
        )
    config = record["config"]
    if name == RUN_RECORD and isinstance(config.get("train"), dict):
        config["train"].pop("watch", None)  # a key of older versions
    return record


def configuration_of(folder: Path, record: dict[str, Any]) -> FinetuneConfig:
    """The configuration of a run, its relative paths as they were when it began.

    Raises ConfigError.
    """
    config = validated(FinetuneConfig, record["config"], str(folder / RUN_RECORD))
    begun_in = Path(record.get("folder", ""))

    def there(path: str) -> str:
        return str(begun_in / path) if path and (begun_in / path).exists() else path

    def placed(sources: list[TrainSource]) -> list[TrainSource]:
        return [
            source.model_copy(
                update={"path": there(source.path), "template": there(source.template)}
            )
            for source in sources
        ]

    data: dict[str, Any] = {"train": placed(config.data.train)}
    if isinstance(config.data.held_out, list):
        data["held_out"] = placed(config.data.held_out)
    model = config.model if config.model == BUNDLED else there(config.model)
    return config.model_copy(
        update={
            "model": model,
            "data": config.data.model_copy(update=data),
            "objective": config.objective.relocated(there),
            "tasks": [
                task.model_copy(update={"prompt": there(task.prompt), "test": there(task.test)})
                for task in config.tasks
            ],
        }
    )


def begun_on(record: dict[str, Any] | None) -> date | None:
    """The day that a run was begun on; None in older runs, and for no record."""
    return date.fromisoformat(record["begun"]) if record and "begun" in record else None


def without_places(config: FinetuneConfig | PretrainConfig) -> dict[str, Any]:
    """A configuration without where its model and files are, which digests identify."""
    plain = config.model_dump(mode="json", exclude={"model": True, "objective": {"teacher"}})
    sources = plain["data"]["train"], plain["data"]["held_out"]
    for source in (
        source for entries in sources if isinstance(entries, list) for source in entries
    ):
        del source["path"]
        source.pop("template", None)
    return plain


def check_same_configuration(
    folder: Path, begun: Mapping[str, Any], wanted: Mapping[str, Any], free: tuple[str, ...]
) -> None:
    """Raises ConfigError that names a key whose value a run was not begun with. free: how keys
    begin that may differ.
    """
    for key, old, new in differences(begun, wanted, free):
        raise ConfigError(
            f"{folder} holds a run with {key} = {old!r}, not {new!r}; start a new run for that, "
            "with another output"
        )


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write plain data as a file, whole or not at all. Raises OSError."""
    write_whole(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def check_unchanged(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises ConfigError that names what of a run's record is another now; what older versions did
    not record is not compared.
    """
    changed = {key for key in before.keys() & now.keys() if before[key] != now[key]}
    if "template" in changed:
        old, new = ((record["template"] or {}).get("name") for record in (before, now))
        another = "another one of that name" if old == new else new
        raise ConfigError(
            f"{folder}: the template changed: the run was begun in {old}, now it is {another}"
        )
    if before["data"]:
        _check_same_data(folder, before["data"], now["data"])
    reasons = {
        "weights": f"the model {now['config'].get('model')} has other weights than the run was "
        "begun with",
        "precision": f"the run was begun with products in {before.get('precision')}, this machine "
        f"would use {now['precision']}",
        "processes": f"the run was begun with {before.get('processes')} processes, now there are "
        f"{now['processes']}; a step would hold other rows",
    }
    for key in reasons.keys() & changed:
        raise ConfigError(f"{folder}: {reasons[key]}")


def _check_same_data(folder: Path, before: dict[str, str], now: dict[str, str]) -> None:
    """Raises ConfigError that names a source whose digest is another now."""
    if list(before.values()) == list(now.values()):
        return  # wherever the files lie now
    for name in before.keys() | now.keys():
        if before.get(name) != now.get(name):
            raise ConfigError(f"{folder}: the data changed since the run was begun: {name}")


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any], free: tuple[str, ...] = ()
) -> Iterator[tuple[str, Any, Any]]:
    """Dotted keys with their two values, where they differ. free: how keys begin that may."""
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if key.startswith(free):
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            within = f"{key}."
            below = tuple(name.removeprefix(within) for name in free if name.startswith(within))
            yield from ((within + k, a, b) for k, a, b in differences(old, new, below))
        elif old != new:
            yield key, old, new


LOG_FILE = "log.jsonl"

_LARGEST = 1e150
"""Of a figure: its square is finite."""

_COSTS = ("learning_rate", "grad_norm", "tokens_per_second", "memory_bytes")


class RunLog:
    """Writes a log. losses: the keys of a training step beside what it costs."""

    def __init__(self, path: Path, losses: Sequence[str]) -> None:
        self.path = path
        self._keys = {*losses, *_COSTS}

    def begin(self, step: int) -> list[dict[str, Any]]:
        """Continue from a step: the rows up to it, which stay. Later ones will come again."""
        self._begun = time.monotonic()
        if not self.path.exists():
            return []
        rows = [row for row in read_log(self.path) if row["step"] <= step]
        if rows:
            self._begun -= rows[-1].get("seconds", 0.0)
        write_whole(self.path, "".join(json.dumps(row) + "\n" for row in rows))
        return rows

    def keep(self, step: int, logs: dict[str, Any]) -> None:
        """Write the values of a step or a measurement that belong into the log."""
        row = {
            key: value
            for key, value in logs.items()
            if key in self._keys or key.startswith("eval_")
        }
        if row:
            self.write(step, row)

    @property
    def seconds(self) -> float:
        """The seconds of all sessions of the run so far."""
        return round(time.monotonic() - self._begun, 2)

    def write(self, step: int, row: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, "seconds": self.seconds, **row}) + "\n")


def is_figure(value: object) -> bool:
    """Whether a value of a log is a number that can be drawn and averaged."""
    return isinstance(value, int | float) and abs(value) < _LARGEST


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log. A last line that a killed process left unfinished is left out.

    Raises ConfigError for a log that cannot be read, and for a row that is none of a log.
    """
    rows: list[dict[str, Any]] = []
    try:
        texts = read_regular(path).decode().splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {reason(error)}") from None
    for number, text in enumerate(texts, 1):
        try:
            row = parse_json(text)
        except ValueError:
            break
        numbers = (row.get("step"), row.get("seconds", 0)) if isinstance(row, dict) else ("",)
        if not all(map(is_figure, numbers)):
            raise ConfigError(f"{path}, line {number}: is not a row of a run's log")
        rows.append(row)
    return rows
