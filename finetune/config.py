"""Configurations: typed models which are the TOML file, the `key=value` flags and the help.

The one invariant: a key that is not in the model is an error that names it, so a
misspelt option never trains something else in silence.
"""

import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class ConfigError(ValueError):
    """One sentence that names the file, the key and what was expected."""


class Section(BaseModel):
    """A table of a configuration file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


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
    positions: int = Field(1024, ge=2, description="context window and training window, in tokens")


class PretrainTrain(Section):
    """The optimiser and its schedule."""

    epochs: float = Field(1.0, gt=0)
    batch_size: int = Field(4, ge=1, description="windows a step")
    accumulate: int = Field(1, ge=1, description="micro-batches a step")
    learning_rate: float = Field(1e-3, gt=0)
    warmup: float = Field(0.02, ge=0, lt=1, description="share of the steps")
    weight_decay: float = Field(0.1, ge=0)
    precision: str = Field(
        "bfloat16", pattern="^(float32|bfloat16)$", description="of the products"
    )
    save_every: int = Field(100, ge=1, description="steps between checkpoints")
    log_every: int = Field(10, ge=1, description="steps between lines of the loss log")


class PretrainConfig(Section):
    """`finetune pretrain`: the language-model objective over packed windows of text."""

    output: str = Field(description="the run folder")
    seed: int = Field(0, ge=0, lt=2**32)
    data: PretrainData
    shape: Shape = Shape.model_validate({})
    train: PretrainTrain = PretrainTrain.model_validate({})


ConfigModel = TypeVar("ConfigModel", bound=BaseModel)


def load_config(model: type[ConfigModel], path: Path, overrides: Sequence[str]) -> ConfigModel:
    """Read a TOML file and lay `section.key=value` overrides over it.

    A value is read as TOML (`3`, `0.1`, `true`, `[1, 2]`, `"text"`); what is not TOML is
    taken as a string. Raises ConfigError.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    for override in overrides:
        _lay_over(data, override)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_first_problem(model, error)}") from None


def _lay_over(data: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise ConfigError(f"{override!r}: expected key=value, as in train.epochs=2")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *sections, key = dotted.split(".")
    for section in sections:
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            raise ConfigError(f"{override!r}: {section!r} is not a section")
    data[key] = value


def _first_problem(model: type[BaseModel], error: ValidationError) -> str:
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(problem["loc"][-1]), _keys(model, problem["loc"]), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"unknown key {key!r}{hint}"
    if problem["type"] == "missing":
        return f"key {key!r} is missing"
    return (
        f"key {key!r}: {problem['msg'][:1].lower()}{problem['msg'][1:]}, found {problem['input']!r}"
    )


def _keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The keys allowed where an unknown one was found."""
    for part in location[:-1]:
        field = model.model_fields.get(str(part))
        if field is None:
            continue
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
        model = next(k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel))
    return list(model.model_fields)
