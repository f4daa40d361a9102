"""Checks a user's data against a pydantic model.

Invariant: errors have the same wording for every file: place, key, value, expectation. This module
imports pydantic, so import it only after a file was read, never before the first frame.
"""

import math
from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, Tag, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from chatapp.common.parameters import PARAMETERS, Parameter, range_in_words
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
_BOUNDS = {
    "greater_than": "gt",
    "greater_than_equal": "ge",
    "less_than": "lt",
    "less_than_equal": "le",
}


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
        location, sentence = first_fault(model, problem, what)
    where = located(origin, source, location) if location else f"{origin}:"
    raise error(f"{where} {sentence}")


def first_fault(
    model: type[BaseModel], problem: ValidationError, what: str
) -> tuple[Location, str]:
    """Where the first fault is, and the words that follow its place. what: as in `validated`."""
    # An unknown key is the likely reason why another one is missing, so it comes first.
    first = min(problem.errors(include_url=False), key=lambda detail: not _is_unknown(detail))
    location, table = _resolved(model, first["loc"])
    return location, _sentence(first, what, table, location)


def key_of(name: str | Parameter, default: Any = None, **differing: Any) -> Any:
    """A key of a file, or of a request, with the range and the meaning of a parameter.

    name: of a sampling parameter, or any other. differing: fields of `Parameter` that are others
    here.
    """
    here = replace(PARAMETERS[name] if isinstance(name, str) else name, **differing)
    bounds: dict[str, Any] = {"gt" if here.above_low else "ge": here.low}
    if here.high != math.inf:
        bounds["lt" if here.below_high else "le"] = here.high
    return Field(default, description=here.help, **bounds)


def sampling_model(*but: str) -> type[BaseModel]:
    """A pydantic model of all sampling parameters, each None where it is not set.

    but: the names of those that it leaves out.
    """
    definitions: dict[str, Any] = {
        name: (parameter.kind | None, key_of(name))
        for name, parameter in PARAMETERS.items()
        if name not in but
    }
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return create_model("Sampling", __config__=config, **definitions)


def bounds_in_words(field: FieldInfo | None, *, name: str, **known: Any) -> str:
    """The range of a pydantic field, as `Parameter.range_in_words` says it; "" if it has none.

    name: of the key. known: a bound that need not be looked for.
    """
    own = {
        bound: value
        for part in (field.metadata if field else ())
        for bound in ("ge", "gt", "le", "lt")
        if (value := getattr(part, bound, None)) is not None
    }
    bounds = known | own
    if not bounds:
        return ""
    low = bounds.get("gt", bounds.get("ge", -math.inf))
    high = bounds.get("lt", bounds.get("le", math.inf))
    off = PARAMETERS[name].off if name in PARAMETERS else None
    return range_in_words(low, high, "gt" in bounds, "lt" in bounds, off)


def strict_model(schema: type) -> type[BaseModel]:
    """A pydantic model of a dataclass, whose own module then needs no pydantic.

    The metadata of a field may have its bounds, `ge` and `le`.
    """
    definitions: dict[str, Any] = {
        item.name: (
            item.type,
            Field(
                ... if item.default is MISSING else item.default,
                ge=item.metadata.get("ge"),
                le=item.metadata.get("le"),
            ),
        )
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
    if kind == "too_long":
        return f"holds more than {context['max_length']:,}, which is too many"
    if (bound := _BOUNDS.get(kind)) is not None:
        name = str(location[-1]) if location else ""
        broken = {bound: context[bound]}
        expected = bounds_in_words(table.model_fields.get(name), name=name, **broken)
    else:
        expected = _EXPECTED.get(kind) or details["msg"].removeprefix("Input should be ")
        expected = expected.replace("a valid ", "a ")
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
