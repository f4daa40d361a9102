"""Configurations: typed models for the TOML file, the `key=value` flags and the help."""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, Discriminator, Field, Tag

from chatapp.common import validation
from chatapp.common.userfiles import parse_toml, quoted, read_required, shown
from chatapp.common.validation import key_of
from chatapp.rows.reading import RowsError
from finetune.config.objectives import Head, L3Settings, Metric, Objectives, Section

ConfigError = RowsError
"""An unusable configuration or row: the file, the key and the expected value."""


class Interrupted(Exception):
    """The run stopped on request, with a checkpoint. The message says how to continue."""


def _checked_name(name: str) -> str:
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise ValueError(
            f"is {shown(name)}, expected small letters, digits and _, beginning with a letter"
        )
    return name


class TaskSource(Section):
    """What a model is asked at each measurement: a prompt file with rows, or last words."""

    name: Annotated[str, AfterValidator(_checked_name)] = Field(
        description="the name of its figure, which train.metric_for_best_model may choose"
    )
    prompt: str = Field(
        "",
        description="a prompt file, whose first metric is the figure; without one the last word "
        "of each text of test is predicted",
    )
    test: str = Field(min_length=1, description="a file of rows with their answers, or of texts")
    limit: int = Field(100, ge=1, description="the most rows, drawn from the file")


def _no_name_twice(tasks: list[TaskSource]) -> list[TaskSource]:
    names = [task.name for task in tasks]
    for name in names:
        if name in get_args(Metric) or names.count(name) > 1:
            raise ValueError(
                f"has a task named {quoted(name)}, which is the name of another figure; "
                "choose another name"
            )
    return tasks


Tasks = Annotated[list[TaskSource], AfterValidator(_no_name_twice)]
TASKS = "what the model is asked at each measurement of held-out rows, each a table of its own"


def _as_sources(value: object) -> object:
    """Expand a path, or a list with paths in it, to the list of tables that it abbreviates."""
    rows = [value] if isinstance(value, str | dict) else value
    if not isinstance(rows, list):
        return rows
    return [{"path": row} if isinstance(row, str) else row for row in rows]


class DocumentSource(Section):
    """A file of training documents."""

    path: str = Field(
        min_length=1,
        description="a text file, a file of rows with `text` or `messages`, or a folder of these",
    )
    weight: float = Field(1.0, gt=0, description="passes over these documents in one epoch")


class PretrainData(Section):
    """The source of the text."""

    train: Annotated[list[DocumentSource], Field(min_length=1), BeforeValidator(_as_sources)] = (
        Field(description="a path, or a list of {path, weight}")
    )
    held_out: float = Field(
        0.01,
        ge=0,
        lt=0.5,
        description="fraction of the text held out for measuring: documents chosen by hash, and "
        "the end of each document that is longer than ten windows",
    )
    template: str = Field("chat", description="the dialogue template of `messages` documents")


ArchitectureName = Literal[
    "gpt2", "gpt", "sparse", "rotary", "gated", "rmsnorm", "llama", "transformer-xl", "bert"
]


class Shape(Section):
    """The decoder, trained from random weights."""

    vocabulary: int = Field(4096, ge=257, le=65535, description="byte-level BPE entries")
    layers: int = Field(6, ge=1, description="number of blocks")
    heads: int = Field(5, ge=1, description="attention heads of a block")
    hidden: int = Field(320, ge=1, description="a multiple of heads")
    positions: int = Field(1024, ge=2, description="context window, in tokens")
    architecture: ArchitectureName = Field(
        "gpt2",
        description="gpt normalizes after each part; in sparse, every second layer sees an eighth "
        "of the window; rotary, gated, rmsnorm and llama each change one part more: rotary "
        "positions, a gated MLP, RMSNorm, grouped heads; transformer-xl has the window before as "
        "its memory; bert is trained to fill masks",
    )


OptimizerName = Literal["adamw", "muon"]
Tracker = Literal["tensorboard", "wandb", "trackio"]
Schedule = Literal["cosine", "linear", "constant", "wsd"]
LastRate = Annotated[
    float, Field(ge=0, le=1, description="the last learning rate, as a fraction of the peak")
]
Warmup = Annotated[
    float, Field(ge=0, lt=1, description="fraction of the steps in which the learning rate rises")
]
Decay = Annotated[
    float,
    Field(ge=0, description="weights shrink by this factor times the learning rate in each step"),
]


class Steps(Section):
    """The optimizer's steps: how many, how large, at which rate; what is kept of them."""

    epochs: float = Field(2.0, gt=0, description="passes over the rows, as weighted in data.train")
    max_steps: int = Field(-1, ge=-1, description="total steps; replaces epochs if positive")
    batch_size: int = Field(
        8,
        ge=1,
        description="examples per micro-batch and process; with data.packing, rows of "
        "several examples",
    )
    accumulate: int = Field(1, ge=1, description="micro-batches per step")
    optimizer: OptimizerName = Field(
        "adamw", description="muon updates the matrices inside the blocks, and adamw the rest"
    )
    learning_rate: float = Field(
        5e-5, gt=0, description="peak learning rate; adapters need about five times as much"
    )
    schedule: Schedule = Field(
        "cosine",
        description="how the learning rate changes after the warmup: it falls to min_rate, stays "
        "constant, or, with wsd, stays and falls linearly over the last fifth of the steps",
    )
    min_rate: LastRate = 0.0
    warmup: Warmup = 0.03
    weight_decay: Decay = 0.0
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are clipped to this norm")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="number format of matrix products; auto: bfloat16 where it is "
        "faster (GPUs, AMX)",
    )
    report_to: list[Tracker] = Field(
        [],
        description="trackers that receive the log as well as the run's own; each must be "
        "installed",
    )
    early_stop: int = Field(
        0, ge=0, description="stop after this many measurements without improvement; 0: never"
    )
    general_questions: int = Field(
        200,
        ge=0,
        le=200,
        description="questions that the base and the trained model are asked when the run ends, in "
        "at most a tenth of its time, to say what was lost and gained; 0: none",
    )


class PretrainTrain(Steps):
    """The steps of pretraining, over windows packed from the documents."""

    epochs: float = Field(1.0, gt=0, description="passes over the text, as weighted in data.train")
    window: int = Field(
        0,
        ge=0,
        description="tokens per training window, at most shape.positions; 0: as many as positions",
    )
    batch_size: int = Field(4, ge=1, description="windows per micro-batch")
    learning_rate: float = Field(1e-3, gt=0, description="peak learning rate")
    min_rate: LastRate = 0.05
    warmup: Warmup = 0.02
    weight_decay: Decay = 0.1
    ema: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="decay of an exponential moving average of the weights, such as 0.99, which is "
        "measured and kept in place of the last weights; 0: none",
    )
    save_every: int = Field(
        100, ge=1, description="steps between checkpoints, each with a measurement"
    )
    log_every: int = Field(10, ge=1, description="steps between lines of the loss log")
    metric_for_best_model: str = Field(
        "loss",
        description="loss, or the name of one of the tasks, whose best weights are then kept; "
        "early_stop looks at the same figure",
    )
    watch: bool = Field(
        True,
        description="keep the model of steps 0, 1, 2, 3, 4, 6, 8, 11, 16, …, and measure there "
        "what it has learned: heads, loss late in a window minus early, last words, a sample",
    )


class PretrainSamples(Section):
    """Texts that the model continues greedily at the watched steps."""

    prompts: list[str] = Field(
        [], description="texts to continue; default: the beginning of a held-out window"
    )
    max_tokens: int = key_of("max_tokens", 48)


class PretrainConfig(Section):
    """`finetune pretrain`: the language-model objective over packed windows of text."""

    output: str = Field(description="the run folder")
    seed: int = key_of("seed", 0, high=2**32 - 1, meaning="of the first weights and of the order")
    data: PretrainData
    shape: Shape = Shape.model_validate({})
    train: PretrainTrain = PretrainTrain.model_validate({})
    samples: PretrainSamples = PretrainSamples.model_validate({})
    tasks: Tasks = Field([], description=TASKS)


TooLong = Literal["raise", "drop", "truncate-prompt", "truncate-history"]
BadRows = Literal["raise", "drop", "skip"]


class TrainSource(Section):
    """Rows for training."""

    path: str = Field(min_length=1, description="a file, a folder of files, or a hub id")
    weight: float = Field(1.0, gt=0, le=1000, description="passes over these rows in one epoch")
    columns: dict[str, str] = Field(
        {}, description="the column of each field, such as {prompt = 'Question'}"
    )
    template: str = Field("", description="a TOML file of instruction templates for these rows")
    cluster: str = Field(
        "", description="the task cluster of these rows; default: the templates' own"
    )
    subset: str = Field("", description="configuration name of a hub data set")
    split: str = Field("train", min_length=1, description="split of a hub data set")


Sources = Annotated[list[TrainSource], Field(min_length=1), BeforeValidator(_as_sources)]
Share = Annotated[float, Field(ge=0, lt=1)]


def _share_or_files(value: object) -> str:
    return "share" if isinstance(value, int | float) else "files"


class Data(Section):
    """The source of the rows and their conversion to tokens."""

    train: Sources = Field(description="a path, or a list of {path, weight, columns, template, …}")
    held_out: Annotated[
        Annotated[Share, Tag("share")] | Annotated[Sources, Tag("files")],
        Discriminator(_share_or_files),
    ] = Field(
        0.05,
        description="fraction of the rows held out for measuring, chosen by "
        "hash; or files of held-out rows",
    )
    held_out_clusters: list[str] = Field(
        [], description="task clusters excluded from training and measured separately"
    )
    template: str = Field(
        "",
        description="the dialogue template; default: the one the model was trained with, "
        "else its tokenizer's chat template",
    )
    too_long: TooLong = Field("raise", description="what to do with a row that does not fit")
    max_length: int | None = Field(
        None, ge=8, description="maximum tokens per row; default: the model's window, at most 1,024"
    )
    packing: bool = Field(
        False,
        description="pack short examples into rows of about 512 tokens, with attention kept "
        "within each example: faster, with fewer and larger steps",
    )
    bad_rows: BadRows = Field("raise", description="what to do with a row that cannot be used")


Method = Literal["full", "embeddings-and-head", "last-blocks", "lora", "dora", "rslora"]


class Train(Steps):
    """What is trained, in which steps, and how often it is evaluated and saved."""

    method: Method = Field("full", description="which parameters are trained")
    last_blocks: int = Field(2, ge=1, description="number of blocks trained by method last-blocks")
    warmup_steps: int = Field(0, ge=0, description="warmup steps; replaces warmup if positive")
    gradient_checkpointing: bool = Field(
        False, description="recompute activations in the backward pass: less memory, more time"
    )
    eval_every: int = Field(
        0, ge=0, description="steps between measurements; 0: same as save_every, or twice an epoch"
    )
    save_every: int = Field(
        0,
        ge=0,
        description="steps between checkpoints; 0: same as eval_every; the best one is "
        "always saved",
    )
    metric_for_best_model: str = Field(
        "loss",
        description="held-out metric that selects the weights to keep: macro_f1 for "
        "classes, pearson and spearman for regression, exact_match for greedy replies of up to "
        "samples.max_tokens tokens, or the name of one of the tasks",
    )


class Adapter(Section):
    """Low-rank adapters of methods lora, dora and rslora."""

    rank: int = Field(8, ge=1, description="rank of the update")
    alpha: float = Field(16.0, gt=0, description="the update is scaled by alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout rate of the adapter's inputs")
    targets: list[str] = Field(
        [],
        description="names of the linear layers that get an adapter, such as ['q_proj', "
        "'v_proj']; default: all inside the blocks",
    )
    modules_to_save: list[str] = Field(
        [], description="names of modules trained in full as well, such as ['lm_head']"
    )
    base_precision: Literal["float32", "int8", "int4"] = Field(
        "float32",
        description="what the matrices of the base model are kept in; int4 on a GPU with "
        "bitsandbytes is its NF4 (QLoRA)",
    )


class Samples(Section):
    """Greedy replies to fixed prompts, shown during training."""

    prompts: list[str] = Field(
        [], description="prompts to reply to; default: those of held-out rows"
    )
    held_out: int = Field(
        2, ge=0, description="number of held-out rows to reply to if prompts is empty"
    )
    every: int = Field(0, ge=0, description="steps between samples; 0: with each measurement")
    max_tokens: int = key_of("max_tokens", 48)


def _without_nul(path: str) -> str:
    if "\0" in path:
        raise ValueError("holds a NUL character, which no path may contain")
    return path


class FinetuneConfig(Section):
    """`finetune check`, `train` and `resume`."""

    model: str = Field(
        "bundled", min_length=1, description="bundled, a folder, an adapter or a hub id"
    )
    output: Annotated[str, AfterValidator(_without_nul)] = Field(
        min_length=1, description="the run folder"
    )
    seed: int = key_of("seed", 0, high=2**32 - 1, meaning="of the rows' order and of new weights")
    data: Data
    objective: Objectives = L3Settings.model_validate({})
    train: Train = Train.model_validate({})
    adapter: Adapter = Adapter.model_validate({})
    samples: Samples = Samples.model_validate({})
    tasks: Tasks = Field([], description=TASKS)
    head: Head | None = Field(None, description="a classifier instead of a model that replies")


ConfigModel = TypeVar("ConfigModel", bound=BaseModel)


def load_config(model: type[ConfigModel], path: Path, overrides: Sequence[str]) -> ConfigModel:
    """Read a TOML file and apply `section.key=value` overrides.

    path: see `named_configuration`; the rows of a recipe are beside it. A value is parsed as TOML
    (`3`, `0.1`, `true`, `[1, 2]`, `"text"`); anything else is a string. Raises ConfigError.
    """
    path = named_configuration(path)
    source = read_required(path, ConfigError)
    data = parse_toml(source, path, ConfigError)
    if path.parent == RECIPES:
        _place_rows(data.get("data"))
    # The fault may be in an override, which has no line.
    return _laid_over(model, data, overrides, str(path), "" if overrides else source)


RECIPES = Path(__file__).parents[1] / "recipes"


def named_configuration(path: Path) -> Path:
    """The file that is meant: NAME is also NAME.toml, or else the recipe of that name."""
    if path.suffix or path.is_file():
        return path
    beside, recipe = path.with_suffix(".toml"), RECIPES / f"{path.name}.toml"
    if not beside.exists() and path.parent == Path() and recipe.is_file():
        return recipe
    return beside if beside.exists() else path


def _place_rows(data: Any) -> None:
    """Name the files beside a recipe by their whole path, unless they are here."""
    for key in ("train", "held_out") if isinstance(data, dict) else ():
        name = data.get(key)
        if isinstance(name, str) and not Path(name).exists() and (RECIPES / name).is_file():
            data[key] = str(RECIPES / name)


def lay_over(config: ConfigModel, overrides: Sequence[str]) -> ConfigModel:
    """A configuration with `section.key=value` overrides. Raises ConfigError."""
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
    """Validate plain data as a configuration. Raises ConfigError that begins with `origin`.

    source: the TOML text of the data, for the line.
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
