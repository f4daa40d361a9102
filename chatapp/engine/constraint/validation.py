"""Whether a text is JSON that fits a schema: a check that does not trust the grammar.

Invariant: the time is bounded: nobody but `errors_of` runs jsonschema, and it counts the steps and
the seconds; patterns are matched in linear time, and no reference leaves the schema.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from decimal import Decimal
from functools import cache
from itertools import count
from typing import Any

from chatapp.common.foreign import parse_json
from chatapp.common.userfiles import dotted_key
from chatapp.engine.constraint.compiling import byte_tokenizer, grammar_of, matcher_of

MOST_STEPS, _SECONDS = 60_000, 5.0
"""Keywords that one check applies, which takes one to two seconds, and the most time for it."""

_left: ContextVar[Iterator[bool]] = ContextVar("steps left")
"""Whether one more step may be made."""


class TooManySteps(Exception):
    """A check that was given up."""


def errors_of(kind: Any, schema: Any, value: Any, *, first: bool = False, **options: Any) -> Any:
    """The errors of a value by a schema; first: at most one.

    kind: a validator class of jsonschema; options: its own. Raises TooManySteps, also for a schema
    that cannot be applied, such as one that refers to a number or in a circle, and ArithmeticError.
    """
    until = time.monotonic() + _SECONDS
    token = _left.set(n < MOST_STEPS and time.monotonic() < until for n in count())
    try:
        errors = _counted(kind)(schema, **options).iter_errors(value)
        return [error for error in (next(errors, None),) if error] if first else list(errors)
    except ArithmeticError:
        raise
    except Exception:  # the package has no class for them
        raise TooManySteps from None
    finally:
        _left.reset(token)


@cache
def _counted(kind: Any) -> Any:
    """The class, with keywords that count; a `$schema` within a schema does not change it."""
    import attrs
    from jsonschema.validators import extend

    def counted(check: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*given: Any) -> Any:
            if not next(_left.get()):
                raise TooManySteps
            return check(*given)

        return checked

    own = extend(kind, {key: counted(check) for key, check in kind.VALIDATORS.items()})
    own.evolve = lambda self, **changes: attrs.evolve(self, **changes)
    return own


def fault_by_draft(schema: Mapping[str, Any]) -> str:
    """Why a schema is none by its draft, naming the part; "" if it is one."""
    from jsonschema.validators import Draft202012Validator, validator_for

    kind = validator_for(schema, default=Draft202012Validator)
    try:
        errors = errors_of(kind, kind.META_SCHEMA, schema, first=True)
    except TooManySteps:
        return "it is nested too deeply or has too many parts"
    for error in errors:
        place = dotted_key(tuple(error.absolute_path))
        return f"{f'at {place}: ' if place else ''}{error.message[:300]}"
    return ""


def misfit(text: str, schema: str) -> str:
    """Why a text does not fit, in words; "" if it does. schema: as JSON."""
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    try:
        value = parse_json(text, parse_float=Decimal)
        # As decimals, 0.3 is a multiple of 0.1.
        parts = parse_json(schema, parse_float=Decimal)
        kind = _without_slow_patterns(validator_for(parts, default=Draft202012Validator))
        options = {"registry": Registry(), "format_checker": kind.FORMAT_CHECKER}
        errors = errors_of(kind, parts, value, first=True, **options)
    except ValueError as failure:
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
