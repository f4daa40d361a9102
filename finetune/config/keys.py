"""`finetune keys`: every key of a configuration with its values, its default and its meaning."""

import json
import types
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from chatapp.common.userfiles import suggestion
from chatapp.common.validation import bounds_in_words
from finetune.config.objectives import Check, Objectives
from finetune.config.sections import (
    ConfigError,
    DocumentSource,
    FinetuneConfig,
    PretrainConfig,
    TaskSource,
    TrainSource,
)

_WORDS = {str: "text", int: "integer", float: "number", bool: "true | false"}


@dataclass(frozen=True, slots=True)
class Key:
    """A key. default: in TOML; empty for a required one.

    kind: for tables with kinds the one that has the key, such as "dpo".
    """

    name: str
    values: str
    default: str
    meaning: str
    kind: str = ""

    def document(self) -> dict[str, str]:
        """Plain data for --json."""
        return asdict(self)


PRETRAIN = "pretrain"


def keys(section: str = "") -> list[Key]:
    """All keys of `finetune train`, or those of a section, in the order of the configuration.

    section: "pretrain" for all keys of `finetune pretrain`, "pretrain.shape" for those of one of
    its sections. Raises ConfigError that names the sections for an unknown one.
    """
    first, _, rest = section.partition(".")
    of_pretrain = first == PRETRAIN
    all_keys = list(_keys(PretrainConfig if of_pretrain else FinetuneConfig, ""))
    section = rest if of_pretrain else section
    if not section:
        return all_keys
    chosen = [key for key in all_keys if key.name.startswith(f"{section}.")]
    if not chosen:
        sections = dict.fromkeys(key.name.rpartition(".")[0] for key in all_keys if "." in key.name)
        if not of_pretrain:
            sections[PRETRAIN] = None
        raise ConfigError(f"there is no section {section!r}{suggestion(section, sections)}")
    return chosen


def lines(chosen: Sequence[Key]) -> list[str]:
    """Keys as TOML would set them, each below its description. Required ones have no value."""
    output = []
    for key in chosen:
        of_kind = f" (of kind {key.kind})" if key.kind else ""
        output += [
            f"{key.name} = {key.default or '…'}",
            f"    {key.values}: {key.meaning}{of_kind}",
        ]
    return output


def _keys(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        if name in _KINDS:
            table = f"{prefix}{name}." + ("N." if get_origin(field.annotation) is list else "")
            annotation, meaning = _KINDS[name]
            default = not field.is_required()
            yield from _keys_of_kinds(annotation, meaning, table, has_default=default)
            continue
        inner = _section_in(field.annotation)
        if inner is None or inner in _LISTED:
            bounds = bounds_in_words(field, name=name)
            values = _values(field.annotation) + (f", {bounds}" if bounds else "")
            yield Key(prefix + name, values, _default(field), field.description or "")
        if inner is not None and name != "held_out":  # its tables are those of train
            yield from _keys(inner, f"{prefix}{name}." + ("N." if inner in _LISTED else ""))


_LISTED = (DocumentSource, TrainSource, TaskSource)
"""Tables of which there may be several."""

_KINDS: dict[str, tuple[Any, str]] = {
    "objective": (Objectives, "the loss to minimize"),
    "rewards": (Check, "what a reply is checked for"),
}
"""Tables that come in kinds, and the meaning of their kind."""


def _keys_of_kinds(
    annotation: Any, meaning: str, prefix: str, *, has_default: bool
) -> Iterator[Key]:
    """The key `kind` with its meaning, then the keys of each kind.

    has_default: whether the first kind is the default.
    """
    union, _ = get_args(annotation)
    kinds = {get_args(branch)[1].tag: get_args(branch)[0] for branch in get_args(union)}
    values = " | ".join(f'"{kind}"' for kind in kinds)
    default = f'"{next(iter(kinds))}"' if has_default else ""
    yield Key(f"{prefix}kind", values, default, meaning)
    for kind, table in kinds.items():
        for key in _keys(table, prefix):
            if key.name != f"{prefix}kind":
                yield replace(key, kind=key.kind or kind)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The table in a key, or in the key's list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    sections = (_section_in(argument) for argument in get_args(annotation))
    return next((section for section in sections if section is not None), None)


def _values(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(f'"{value}"' for value in inner)
    if origin is Annotated:
        return _values(inner[0])
    if origin is list:
        return f"list of {_values(inner[0])}"
    if origin is dict:
        return "table of texts"
    if origin in (Union, types.UnionType):
        return ", or ".join(_values(member) for member in inner if member is not types.NoneType)
    if annotation is TaskSource:
        return "tables"
    return "paths and tables" if annotation in _LISTED else _WORDS[annotation]


def _default(field: FieldInfo) -> str:
    value = field.default
    if field.is_required() or value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value)
    return str(value)
