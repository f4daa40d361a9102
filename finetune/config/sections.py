"""Configurations: typed models which are the TOML file, the `key=value` flags and the help.

Keep: a key that is not in the model is an error that names it, so a misspelt option never
trains something else in silence.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
)

from chatapp.common import validation
from chatapp.common.userfiles import UserError, parse_toml, read_required
from finetune.config.objectives import Head, L3Settings, Objectives, Section


class ConfigError(UserError, ValueError):
    """A configuration or its rows cannot be used: the file, the key and what was expected."""


class Interrupted(Exception):
    """The run stopped on request, with a checkpoint. The message says how to continue."""


class Source(Section):
    """A file of training documents."""

    path: str = Field(description="text file, or JSONL with `text` or `messages` a line")
    weight: float = Field(1.0, gt=0, description="passes over this file in one epoch")


class PretrainData(Section):
    """Where the text comes from."""

    train: list[Source] = Field(min_length=1, description="files of documents")
    held_out: float = Field(
        0.01, ge=0, lt=0.5, description="share of the documents kept for measuring, by hash"
    )
    template: str = Field("chat", description="the dialogue template of `messages` documents")


class Shape(Section):
    """The decoder, trained from random weights."""

    vocabulary: int = Field(4096, ge=257, le=65535, description="byte-level BPE entries")
    layers: int = Field(6, ge=1)
    heads: int = Field(5, ge=1)
    hidden: int = Field(320, ge=1, description="a multiple of heads")
    positions: int = Field(1024, ge=2, description="context window, in tokens")


OptimizerName = Literal["adamw", "muon"]


class PretrainTrain(Section):
    """The optimizer and its schedule."""

    epochs: float = Field(1.0, gt=0)
    window: int = Field(
        0, ge=0, description="tokens of a training window, at most the positions; 0: as many"
    )
    batch_size: int = Field(4, ge=1, description="windows a step")
    accumulate: int = Field(1, ge=1, description="micro-batches a step")
    optimizer: OptimizerName = Field(
        "adamw", description="muon: for the matrices inside the blocks, adamw for the rest"
    )
    learning_rate: float = Field(1e-3, gt=0)
    warmup: float = Field(0.02, ge=0, lt=1, description="share of the steps")
    weight_decay: float = Field(0.1, ge=0)
    precision: Literal["float32", "bfloat16"] = Field("bfloat16", description="of the products")
    save_every: int = Field(100, ge=1, description="steps between checkpoints")
    log_every: int = Field(10, ge=1, description="steps between lines of the loss log")


class PretrainConfig(Section):
    """`finetune pretrain`: the language-model objective over packed windows of text."""

    output: str = Field(description="the run folder")
    seed: int = Field(0, ge=0, lt=2**32)
    data: PretrainData
    shape: Shape = Shape.model_validate({})
    train: PretrainTrain = PretrainTrain.model_validate({})


TooLong = Literal["raise", "drop", "truncate-prompt", "truncate-history"]
BadRows = Literal["raise", "skip"]


class TrainSource(Section):
    """Rows to learn from."""

    path: str = Field(min_length=1, description="a file, a folder of files, or a hub id")
    weight: float = Field(1.0, gt=0, le=1000, description="passes over these rows in one epoch")
    columns: dict[str, str] = Field(
        {}, description="the column that holds each field, as in {prompt = 'Question'}"
    )
    template: str = Field("", description="a TOML file of instruction templates for these rows")
    cluster: str = Field(
        "", description="the cluster of tasks these rows belong to; the templates' own when empty"
    )
    subset: str = Field("", description="of a hub id: the configuration's name")
    split: str = Field("train", min_length=1, description="of a hub id: which split")


def _as_sources(value: object) -> object:
    """A path, or a list with paths in it, as the list of tables it stands for."""
    rows = [value] if isinstance(value, str | dict) else value
    if not isinstance(rows, list):
        return rows
    return [{"path": row} if isinstance(row, str) else row for row in rows]


Sources = Annotated[list[TrainSource], Field(min_length=1), BeforeValidator(_as_sources)]
Share = Annotated[float, Field(ge=0, lt=1)]


def _share_or_files(value: object) -> str:
    return "share" if isinstance(value, int | float) else "files"


class Data(Section):
    """Where the rows come from and how they become tokens."""

    train: Sources = Field(description="a path, or a list of {path, weight, columns, template, …}")
    held_out: Annotated[
        Annotated[Share, Tag("share")] | Annotated[Sources, Tag("files")],
        Discriminator(_share_or_files),
    ] = Field(0.05, description="share of the rows kept for measuring, by hash; or files of them")
    held_out_clusters: list[str] = Field(
        [], description="clusters of tasks left out of training, each measured on its own"
    )
    template: str = Field(
        "",
        description="the dialogue template; when empty the one the model was trained in, else "
        "its tokenizer's chat template",
    )
    too_long: TooLong = Field("raise", description="what becomes of a row that does not fit")
    max_length: int | None = Field(
        None, ge=8, description="tokens of a row; the model's window, at most 1,024, when absent"
    )
    packing: bool = Field(
        False,
        description="several short examples in one row of some 512 tokens, kept apart by "
        "attention: faster, in fewer and larger steps",
    )
    bad_rows: BadRows = Field("raise", description="what becomes of a row that cannot be used")


Metric = Literal["loss", "accuracy", "macro_f1", "exact_match", "pearson", "spearman"]
Tracker = Literal["tensorboard", "wandb", "trackio"]
Method = Literal["full", "embeddings-and-head", "last-blocks", "lora", "dora", "rslora"]


class Train(Section):
    """What is trained, by which steps, and how often it is measured and saved."""

    method: Method = Field("full", description="which parameters are trained")
    last_blocks: int = Field(2, ge=1, description="of method last-blocks: how many")
    epochs: float = Field(2.0, gt=0, description="passes over the rows, as data.train weighs them")
    max_steps: int = Field(
        -1, ge=-1, description="steps of the whole run, in place of epochs where it is positive"
    )
    batch_size: int = Field(
        8,
        ge=1,
        description="examples a micro-batch and process; with data.packing rows, of several each",
    )
    accumulate: int = Field(1, ge=1, description="micro-batches a step")
    optimizer: OptimizerName = Field(
        "adamw", description="muon: for the matrices inside the blocks, adamw for the rest"
    )
    learning_rate: float = Field(
        5e-5, gt=0, description="at its highest; adapters take some five times as much"
    )
    schedule: Literal["cosine", "linear", "constant"] = Field(
        "cosine", description="how the learning rate falls to 0 after the warmup, if it does"
    )
    warmup: float = Field(
        0.03, ge=0, lt=1, description="share of the steps in which the learning rate rises"
    )
    warmup_steps: int = Field(
        0, ge=0, description="so many steps, in place of warmup where it is positive"
    )
    weight_decay: float = Field(
        0.0, ge=0, description="how fast weights shrink: by this share times the learning rate"
    )
    max_grad_norm: float = Field(1.0, gt=0, description="longer gradients are shortened to it")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="of the products; auto: bfloat16 where it is faster, on GPUs and AMX"
    )
    gradient_checkpointing: bool = Field(
        False, description="computes activations twice to keep fewer: less memory, more time"
    )
    eval_every: int = Field(
        0, ge=0, description="steps between measurements; 0: as save_every, else twice an epoch"
    )
    save_every: int = Field(
        0,
        ge=0,
        description="steps between checkpoints; 0: as eval_every; the best one is always saved",
    )
    metric_for_best_model: Metric = Field(
        "loss",
        description="held-out figure by which the weights to keep are chosen: macro_f1 of classes, "
        "pearson and spearman of regression, exact_match of greedy replies as long as "
        "samples.max_tokens",
    )
    report_to: list[Tracker] = Field(
        [], description="where the log goes besides log.jsonl; each has to be installed"
    )
    early_stop: int = Field(
        0, ge=0, description="measurements without a better one after which to stop; 0: never"
    )


class Adapter(Section):
    """Low-rank adapters of methods lora, dora and rslora."""

    rank: int = Field(8, ge=1, description="columns of the two factors of an update")
    alpha: float = Field(16.0, gt=0, description="the update is scaled by alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of an adapter's inputs left out")
    targets: list[str] = Field(
        [],
        description="names of the linear layers that get one, as in ['q_proj', 'v_proj']; all "
        "inside the blocks when empty",
    )
    modules_to_save: list[str] = Field(
        [], description="names of modules learnt whole beside it, as in ['lm_head']"
    )
    load_in_4bit: bool = Field(
        False,
        description="the base's weights in four bits (QLoRA); needs a GPU and bitsandbytes",
    )


class Samples(Section):
    """Greedy replies to fixed prompts, shown while the model learns."""

    prompts: list[str] = Field([], description="those of held-out rows when empty")
    held_out: int = Field(2, ge=0, description="of how many held-out rows; 0 with no prompts: none")
    every: int = Field(0, ge=0, description="steps; 0: with each measurement")
    max_tokens: int = Field(48, ge=1, description="of a reply")


def _without_nul(path: str) -> str:
    if "\0" in path:
        raise ValueError("holds a NUL character, which no path does")
    return path


class FinetuneConfig(Section):
    """`finetune check`, `train` and `resume`."""

    model: str = Field(
        "bundled", min_length=1, description="bundled, a folder, an adapter, a hub id"
    )
    output: Annotated[str, AfterValidator(_without_nul)] = Field(
        min_length=1, description="the run folder"
    )
    seed: int = Field(0, ge=0, lt=2**32, description="of the rows' order and of new weights")
    data: Data
    objective: Objectives = L3Settings.model_validate({})
    train: Train = Train.model_validate({})
    adapter: Adapter = Adapter.model_validate({})
    samples: Samples = Samples.model_validate({})
    head: Head | None = Field(None, description="a classifier instead of a model that replies")


ConfigModel = TypeVar("ConfigModel", bound=BaseModel)


def load_config(model: type[ConfigModel], path: Path, overrides: Sequence[str]) -> ConfigModel:
    """Read a TOML file and lay `section.key=value` overrides over it.

    A value is read as TOML (`3`, `0.1`, `true`, `[1, 2]`, `"text"`); what is not TOML is
    taken as a string. Raises ConfigError.
    """
    source = read_required(path, ConfigError)
    data = parse_toml(source, path, ConfigError)
    # What is laid over it may be what is wrong; it stands on no line.
    return _laid_over(model, data, overrides, str(path), "" if overrides else source)


def lay_over(config: ConfigModel, overrides: Sequence[str]) -> ConfigModel:
    """A configuration with `section.key=value` laid over it. Raises ConfigError."""
    data = config.model_dump(mode="json")
    return _laid_over(type(config), data, overrides, "the run's configuration")


def _laid_over(
    model: type[ConfigModel],
    data: dict[str, Any],
    overrides: Sequence[str],
    origin: str,
    source: str = "",
) -> ConfigModel:
    for override in overrides:
        _lay_over(data, override)
    return validated(model, data, origin, source)


def validated(
    model: type[ConfigModel], data: dict[str, Any], origin: str, source: str = ""
) -> ConfigModel:
    """Plain data as a configuration. Raises ConfigError that begins with `origin`.

    source: the TOML that the data is read from, for the line.
    """
    return validation.validated(
        model, data, ConfigError, origin=origin, what="configuration", source=source
    )


def _lay_over(data: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise ConfigError(f"{override!r}: expected key=value, as in train.epochs=2")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *sections, key = dotted.split(".")
    place: Any = data
    for section in sections:
        if isinstance(place, list) and section.isdecimal() and int(section) < len(place):
            place = place[int(section)]  # as in data.train.0.columns
        else:
            place = place.setdefault(section, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict | list):
            raise ConfigError(f"{override!r}: {section!r} is not a section")
    if not isinstance(place, dict):
        raise ConfigError(f"{override!r}: {key!r} is not a key of a list")
    place[key] = value
