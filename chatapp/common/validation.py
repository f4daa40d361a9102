"""Checks a user's data against a pydantic model.

Invariant: errors have the same wording for every file: place, key, value, expectation. This module
imports pydantic, so import it only after a file was read, never before the first frame.
"""

from collections.abc import Iterator
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Tag, ValidationError, create_model
from pydantic_core import ErrorDetails

from chatapp.common.userfiles import (
    Location,
    UserError,
    did_you_mean,
    dotted_key,
    line_of,
    quoted,
    shown,
    suggestion,
)

Model = TypeVar("Model", bound=BaseModel)

_EXPECTED = {
    "model_type": "a table",
    "dict_type": "a table",
    "tuple_type": "a list",
    "string_type": "a string",
    "string_too_short": "a text that is not empty",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
}
_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")


def validated(
    model: type[Model],
    data: object,
    error: type[UserError],
    *,
    origin: object,
    what: str,
    source: str = "",
) -> Model:
    """Convert data to a model. Raises `error` for the first fault.

    origin: the file, for the sentence. what: the kind of file, as in "prompt file". source: its
    text if that is TOML, for the line number. A validator of the model raises ValueError with the
    words that follow the key's name.
    """
    try:
        return model.model_validate(data)
    except ValidationError as problem:
        details = problem.errors()
    # An unknown key is the likely reason why another one is missing, so it comes first.
    first = min(details, key=lambda detail: not _is_unknown(detail))
    location, table = _resolved(model, first["loc"])
    sentence = _sentence(first, what, table, location)
    where = located(origin, source, location) if location else f"{origin}:"
    raise error(f"{where} {sentence}")


def strict_model(schema: type) -> type[BaseModel]:
    """A pydantic model of a dataclass, whose own module then needs no pydantic."""
    definitions: dict[str, Any] = {
        item.name: (item.type, ... if item.default is MISSING else item.default)
        for item in fields(schema)
    }
    config = ConfigDict(extra="forbid", strict=True)
    return create_model(schema.__name__, __config__=config, **definitions)


def located(origin: object, source: str, location: Location) -> str:
    """The beginning of a sentence on a key: the file, the line if known, the key."""
    line = line_of(source, location)
    return f"{origin}{f', line {line}' if line else ''}: {quoted(dotted_key(location))}"


def _is_unknown(details: ErrorDetails) -> bool:
    return details["type"] == "extra_forbidden"


def _sentence(details: ErrorDetails, what: str, table: type[BaseModel], location: Location) -> str:
    """The words after the key's name. table: the one that contains the key."""
    kind, context = details["type"], details.get("ctx", {})
    if _is_unknown(details):
        *above, unknown = location
        nearest = did_you_mean(str(unknown), table.model_fields)
        if nearest and all(isinstance(part, str) for part in above):  # as an override is written
            nearest = nearest.replace("mean '", f"mean '{dotted_key((*above, ''))}")
        return f"is not a key of a {what}{nearest or suggestion(str(unknown), table.model_fields)}"
    if kind == "missing":
        return "is missing"
    if kind == "value_error":
        return str(context["error"])
    if kind == "union_tag_invalid":
        known = str(context["expected_tags"]).replace("'", "").split(", ")
        return f"has the kind {quoted(context['tag'])}{suggestion(context['tag'], known)}"
    if kind == "too_short":
        return f"holds {context['actual_length']}, expected {context['min_length']} or more"
    expected = _EXPECTED.get(kind) or details["msg"].removeprefix("Input should be ")
    expected = f"a number {expected}" if kind in _BOUNDS else expected.replace("a valid ", "a ")
    return f"is {shown(details['input'])}, expected {expected}"


def _resolved(model: type[BaseModel], location: Location) -> tuple[Location, type[BaseModel]]:
    """The location in the user's keys, and the model of the last table in it.

    Pydantic inserts the name of a union's branch among the keys.
    """
    own: list[int | str] = []
    table, inner, in_union = model, model, False
    branches: dict[str, type[BaseModel]] = {}
    for part in location:
        if isinstance(part, str):
            if in_union:
                in_union = False
                inner = branches.get(part, inner)
                continue
            table = inner
            field = table.model_fields.get(part)
            annotation = field.annotation if field else None
            in_union = _is_union(annotation)
            branches = dict(_branches(annotation))
            inner = next(_tables(annotation), table)
        own.append(part)
    return tuple(own), table


def _is_union(annotation: Any) -> bool:
    """Whether it allows more than one type, apart from None."""
    kinds = set(get_args(annotation)) - {NoneType}
    return get_origin(annotation) in (Union, UnionType) and len(kinds) > 1


def _branches(annotation: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    """The tables of a union, by their tags."""
    for branch in get_args(annotation):
        tags = [item.tag for item in getattr(branch, "__metadata__", ()) if isinstance(item, Tag)]
        for tag in tags:
            yield from ((tag, table) for table in _tables(branch))


def _tables(annotation: Any) -> Iterator[type[BaseModel]]:
    """The tables that an annotation names, at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _tables(inner)
