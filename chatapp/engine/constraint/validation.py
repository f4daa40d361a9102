"""Whether a text is JSON that fits a schema: a check that does not trust the grammar.

Invariant: the time is bounded. Patterns are matched in linear time, and no reference leaves the
schema.
"""

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from chatapp.common.userfiles import dotted_key
from chatapp.engine.constraint.compiling import (
    ConstraintError,
    byte_tokenizer,
    grammar_of,
    matcher_of,
)


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raises ConstraintError, naming the part, for a schema that is none by its draft."""
    from jsonschema.validators import Draft202012Validator, validator_for

    kind = validator_for(schema, default=Draft202012Validator)
    try:
        error = next(iter(kind(kind.META_SCHEMA).iter_errors(schema)), None)
    except RecursionError:
        raise ConstraintError("the schema cannot be used: it is nested too deeply") from None
    if error is not None:
        place = dotted_key(tuple(error.absolute_path))
        at = f"at {place}: " if place else ""
        raise ConstraintError(f"the schema cannot be used: {at}{error.message[:300]}")


def misfit(text: str, schema: str) -> str:
    """Why a text does not fit, in words; "" if it does. schema: as JSON."""
    try:
        value = json.loads(text, parse_float=Decimal)
        error = next(_validator(schema).iter_errors(value), None)
    except (ValueError, RecursionError) as failure:
        return f"it is no JSON: {failure}"
    except ArithmeticError:
        return "it has a number that is too large to check"
    if error is None:
        return ""
    place = dotted_key(tuple(error.absolute_path))
    return f"{f'at {place}: ' if place else ''}{error.message[:300]}"


@lru_cache(16)
def _validator(source: str) -> Any:
    from jsonschema.validators import Draft202012Validator, extend, validator_for
    from referencing import Registry

    # As decimals, 0.3 is a multiple of 0.1.
    schema = json.loads(source, parse_float=Decimal)
    kind = validator_for(schema, default=Draft202012Validator)
    own = extend(
        kind,
        {
            "pattern": _pattern,
            "patternProperties": lambda *_: None,  # left to the grammar
            "additionalProperties": _additional(kind.VALIDATORS["additionalProperties"]),
        },
    )
    return own(schema, registry=Registry(), format_checker=kind.FORMAT_CHECKER)


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
