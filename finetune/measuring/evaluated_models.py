"""A model that is to be measured, and the rows it is measured on, before its weights are read.

Keep: a run is measured on the rows that its training measured. A file in their place is read as
the run's own rows were.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from chatapp.common.paths import RUN_RECORD
from chatapp.dialogue.writers.choosing import own_template
from chatapp.engine.backends.head import HEAD_FILE, HeadSpec
from chatapp.engine.backends.transformers_loading import context_of, read_config
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import PieceTokenizer
from chatapp.engine.tokenizers import chat_tokenizer
from chatapp.models.resolving import find_model, model_folder
from chatapp.prompting.chat_template import Template
from finetune.config.objectives import GrpoSettings, L3Settings
from finetune.config.sections import ConfigError, FinetuneConfig, TrainSource, lay_over, validated
from finetune.data.encoding import Encoded
from finetune.data.preferences import EncodedJudged, detect_judged
from finetune.data.preparation import LONGEST, choose_template, encode_chats, on_day
from finetune.objectives.head_rows import HeadExample, HeadRows, read_labelled_rows
from finetune.objectives.rows import encode_judged
from finetune.training.record import begun_on, configuration_of, read_record

Example = Encoded | HeadExample | EncodedJudged


@dataclass(frozen=True, slots=True)
class Subject:
    """A model with its rows.

    window: tokens of the longest row. start: special tokens before every row.
    template: None for a head on rows with labels. head: the spec of a head, of rewards too.
    config: of the run whose rows they are.
    sets: rows by name. left_out: how many of each set another model cannot hold.
    """

    name: str
    files: ModelFiles
    tokenizer: PieceTokenizer
    start: list[int]
    window: int
    template: Template | None
    head: HeadSpec | None
    sets: Mapping[str, Sequence[Example]]
    left_out: Mapping[str, int]
    config: FinetuneConfig


def open_subject(
    model: str, run: str, data_file: str = "", overrides: Sequence[str] = ()
) -> Subject:
    """A model in its own template; one that has none, in that of the run.

    run: the run whose held-out rows are measured when there is no `data_file`; of a run, the
        file is read as its rows were. overrides: key=value of its data and head.
    Rows that another model than the run cannot hold are left out, not refused.
    Raises ConfigError and ModelError.
    """
    files = find_model(model)
    tokenizer, start = chat_tokenizer(files)
    window = context_of(read_config(files)) - len(start)
    config = _configuration(run, data_file, overrides)
    if model != run:
        config = _that_fits(config, window)
    head = template = None
    sets: Mapping[str, Sequence[Example]]
    if not isinstance(config.objective, L3Settings | GrpoSettings):
        head = _reward_head(model, files, config.objective.kind)
        template = own_template(files.path, tokenizer.special)
        template = template or choose_template(config.data, files.path, tokenizer.special)
        judged = encode_judged(config, template, tokenizer, window, start, detect_judged)
        sets = {"": judged.train} if data_file else judged.held_out
    elif (files.path / HEAD_FILE).is_file():
        if config.head is None:
            raise ConfigError(f"{model} has a head; compare it with another head's run")
        head = HeadSpec.load(files.path)
        sets = _labelled(config, head, tokenizer, window, start, bool(data_file))
    elif config.head:
        raise ConfigError(f"{model} has no head; {run} has one for {config.head.task}")
    else:
        special = tokenizer.special
        template = own_template(files.path, special)
        template = template or choose_template(config.data, files.path, special)
        template = on_day(template, _begun(run) or date.today())
        prepared = encode_chats(config.data, template, tokenizer, window, config.seed, start)
        sets = {"": prepared.train} if data_file else prepared.held_out
    if not sets:
        raise ConfigError(f"{run}: the run held no rows out; name rows with --data")
    if data_file:
        sets = {Path(data_file).name: next(iter(sets.values()))}
    return Subject(model, files, tokenizer, start, window, template, head, sets, {}, config)


def on_shared_rows(subjects: Sequence[Subject]) -> list[Subject]:
    """The models with those rows that each of them holds whole, in the same order."""
    shared: dict[str, Collection[str]] = {}
    left_out = {}
    for name in subjects[0].sets:
        if all(name in subject.sets for subject in subjects):
            keys = [{row.key for row in subject.sets[name]} for subject in subjects]
            whole = [{row.key for row in s.sets[name] if _is_whole(row)} for s in subjects]
            shared[name] = set.intersection(*whole)
            left_out[name] = len(set.union(*keys)) - len(shared[name])
    shared = {name: keys for name, keys in shared.items() if keys}
    if not shared:
        names = " and ".join(subject.name for subject in subjects)
        raise ConfigError(f"there is no row that {names} can both hold")
    return [
        replace(
            subject,
            left_out=left_out,
            sets={
                name: [row for row in subject.sets[name] if row.key in keys]
                for name, keys in shared.items()
            },
        )
        for subject in subjects
    ]


def _is_whole(row: Example) -> bool:
    return not (isinstance(row, Encoded) and row.is_window)


def _reward_head(model: str, files: ModelFiles, kind: str) -> HeadSpec | None:
    """The spec of a reward model's head; None where replies are judged by their probability."""
    if kind != "reward":
        return None
    if not (files.path / HEAD_FILE).is_file():
        raise ConfigError(f"{model} has no head that scores replies; compare reward models")
    return HeadSpec.load(files.path)


def _configuration(run: str, data_file: str, overrides: Sequence[str]) -> FinetuneConfig:
    """The run's own configuration; with a data file, its rows in place of the run's."""
    folder = model_folder(run)
    if (folder / RUN_RECORD).is_file():
        config = configuration_of(folder, read_record(folder))
    elif data_file:
        config = validated(FinetuneConfig, {"output": "-", "data": {"train": data_file}}, run)
    else:
        raise ConfigError(f"{run} is no run of finetune; name rows with --data")
    if data_file:
        source = {**_common(config.data.train), "path": data_file}
        rows = {
            "train": [TrainSource.model_validate(source)],
            "held_out": 0.0,
            "held_out_clusters": [],
        }
        config = config.model_copy(update={"data": config.data.model_copy(update=rows)})
    for override in overrides:
        if not override.startswith(("data.", "head.")):
            raise ConfigError(f"{override!r}: eval takes keys of data and head alone")
    return lay_over(config, overrides)


def _begun(run: str) -> date | None:
    folder = model_folder(run)
    return begun_on(read_record(folder)) if (folder / RUN_RECORD).is_file() else None


def _common(sources: Sequence[TrainSource]) -> dict[str, Any]:
    """How rows are read, as far as all sources agree."""
    first, *others = (each.model_dump(include={"columns", "template"}) for each in sources)
    return {
        key: value for key, value in first.items() if all(each[key] == value for each in others)
    }


def _that_fits(config: FinetuneConfig, window: int) -> FinetuneConfig:
    """The same rows for another model, as far as its window holds them."""
    data = config.data
    changes = {
        "max_length": min(window, data.max_length or LONGEST),
        "too_long": "drop" if data.too_long == "raise" else data.too_long,
    }
    return config.model_copy(update={"data": data.model_copy(update=changes)})


def _labelled(
    config: FinetuneConfig,
    head: HeadSpec,
    tokenizer: PieceTokenizer,
    window: int,
    start: Sequence[int],
    all_rows: bool,
) -> dict[str, Sequence[HeadExample]]:
    _, prepared = read_labelled_rows(config, tokenizer, window, start, head)
    sets = {"": prepared.train} if all_rows else prepared.held_out
    return {name: rows.examples for name, rows in sets.items() if isinstance(rows, HeadRows)}
