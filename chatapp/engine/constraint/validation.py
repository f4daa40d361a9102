"""Whether a text is JSON that fits a schema: a check that does not trust the grammar.

Invariant: the time is bounded: nobody but `errors_of` runs jsonschema, and it counts the steps;
patterns are matched in linear time, and no reference leaves the schema.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from decimal import Decimal
from functools import cache
from itertools import count
from typing import Any
from urllib.parse import unquote

from chatapp.common.userfiles import dotted_key
from chatapp.engine.constraint.compiling import (
    ConstraintError,
    byte_tokenizer,
    grammar_of,
    matcher_of,
)

MOST_STEPS = 60_000
"""Keywords that one check applies, in one to two seconds."""

_MOST_MERGED = 5_000
"""Values of a schema below an `allOf`, with each reference replaced by what it names: a compiler
that merges them writes them all out.
"""

_NEUTRAL = {"$ref", "$defs", "definitions", "$schema", "$id", "title", "description", "default"}
"""Keys that are not merged with what a `$ref` beside them names."""

_left: ContextVar[Iterator[int]] = ContextVar("steps left")


class TooManySteps(Exception):
    """A check that was given up after `MOST_STEPS`."""


def errors_of(kind: Any, schema: Any, value: Any, *, first: bool = False, **options: Any) -> Any:
    """The errors of a value by a schema; first: at most one.

    kind: a validator class of jsonschema; options: its own. Raises TooManySteps, and what the
    class raises.
    """
    token = _left.set(count(MOST_STEPS, -1))
    try:
        errors = _counted(kind)(schema, **options).iter_errors(value)
        return [error for error in (next(errors, None),) if error] if first else list(errors)
    finally:
        _left.reset(token)


@cache
def _counted(kind: Any) -> Any:
    """The class, with keywords that count; a `$schema` within a schema does not change it."""
    import attrs
    from jsonschema.validators import extend

    def counted(check: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*given: Any) -> Any:
            if next(_left.get()) <= 0:
                raise TooManySteps
            return check(*given)

        return checked

    own = extend(kind, {key: counted(check) for key, check in kind.VALIDATORS.items()})
    own.evolve = lambda self, **changes: attrs.evolve(self, **changes)
    return own


def check_merging(schema: Mapping[str, Any]) -> None:
    """Raises ConstraintError for a schema whose merged parts, those of an `allOf` or beside a
    `$ref`, have more than `_MOST_MERGED` values.
    """
    sizes: dict[int, int] = {}
    anchors = {str(part["$anchor"]): part for part in _objects(schema) if "$anchor" in part}

    def size(part: Any) -> int:
        if not isinstance(part, (dict, list)):
            return 1
        if id(part) in sizes:
            return sizes[id(part)]
        sizes[id(part)] = 1  # of a reference back to it
        total = 1 + sum(map(size, part.values() if isinstance(part, dict) else part))
        if isinstance(part, dict):
            if isinstance(part.get("$ref"), str):
                total += size(_target(schema, anchors, part["$ref"]))
            is_merged = "allOf" in part or ("$ref" in part and not part.keys() <= _NEUTRAL)
            if is_merged and total - _size_of_definitions(part, size) > _MOST_MERGED:
                raise ConstraintError("the schema cannot be used: its allOf merge too many parts")
        sizes[id(part)] = total
        return total

    size(schema)


def _size_of_definitions(part: Mapping[str, Any], size: Callable[[Any], int]) -> int:
    return sum(size(part[key]) for key in ("$defs", "definitions") if key in part)


def _target(schema: Any, anchors: Mapping[str, Any], reference: str) -> Any:
    """What a reference names within a schema; None for nothing."""
    name = unquote(reference.partition("#")[2])
    if name and not name.startswith("/"):
        return anchors.get(name)
    for key in name.split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and key.isascii() and key.isdigit() and int(key) < len(schema):
            schema = schema[int(key)]
        elif isinstance(schema, Mapping) and key in schema:
            schema = schema[key]
        else:
            return None
    return schema


def _objects(part: Any) -> Iterator[Mapping[str, Any]]:
    """All objects within a part of a schema, and itself."""
    if isinstance(part, Mapping):
        yield part
    if isinstance(part, (Mapping, list)):
        for inner in part.values() if isinstance(part, Mapping) else part:
            yield from _objects(inner)


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raises ConstraintError, naming the part, for a schema that is none by its draft."""
    from jsonschema.validators import Draft202012Validator, validator_for

    kind = validator_for(schema, default=Draft202012Validator)
    try:
        errors = errors_of(kind, kind.META_SCHEMA, schema, first=True)
    except RecursionError:
        raise ConstraintError("the schema cannot be used: it is nested too deeply") from None
    except TooManySteps:
        raise ConstraintError("the schema cannot be used: it has too many parts") from None
    for error in errors:
        place = dotted_key(tuple(error.absolute_path))
        at = f"at {place}: " if place else ""
        raise ConstraintError(f"the schema cannot be used: {at}{error.message[:300]}")


def misfit(text: str, schema: str) -> str:
    """Why a text does not fit, in words; "" if it does. schema: as JSON."""
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    try:
        value = json.loads(text, parse_float=Decimal)
        # As decimals, 0.3 is a multiple of 0.1.
        parts = json.loads(schema, parse_float=Decimal)
        kind = _without_slow_patterns(validator_for(parts, default=Draft202012Validator))
        options = {"registry": Registry(), "format_checker": kind.FORMAT_CHECKER}
        errors = errors_of(kind, parts, value, first=True, **options)
    except (ValueError, RecursionError) as failure:
        return f"it is no JSON: {failure}"
    except ArithmeticError:
        return "it has a number that is too large to check"
    except TooManySteps:
        return "it cannot be checked in a bounded number of steps"
    for error in errors:
        place = dotted_key(tuple(error.absolute_path))
        return f"{f'at {place}: ' if place else ''}{error.message[:300]}"
    return ""


@cache
def _without_slow_patterns(kind: Any) -> Any:
    from jsonschema.validators import extend

    return extend(
        kind,
        {
            "pattern": _pattern,
            "patternProperties": lambda *_: None,  # left to the grammar
            "additionalProperties": _additional(kind.VALIDATORS["additionalProperties"]),
        },
    )


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and not _matches(pattern, instance):
        yield ValidationError(f"{instance[:100]!r} does not match {pattern[:100]!r}")


def _matches(pattern: str, text: str) -> bool:
    schema = json.dumps({"type": "string", "pattern": pattern})
    state = matcher_of(byte_tokenizer(), grammar_of("schema", schema))
    data = json.dumps(text, ensure_ascii=False).encode()
    return state.consume_tokens(list(data)) and state.is_accepting()


def _additional(check: Any) -> Any:
    def additional(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if "patternProperties" not in schema:
            yield from check(validator, allowed, instance, schema)

    return additional
