"""Checks the JSON Schema (draft 2020-12) of a tool's arguments, and calls against it."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from chatapp.common.userfiles import Location, did_you_mean, dotted_key, quoted, shown, suggestion
from chatapp.engine.constraint.validation import TooManySteps, errors_of

if TYPE_CHECKING:
    from jsonschema import ValidationError

_META_SCHEMA = "https://json-schema.org/draft/2020-12/schema"
_ANNOTATIONS = "title description default examples deprecated readOnly writeOnly"
_OTHERS = "then else minContains maxContains $defs $schema $id $comment"
_LEFT_TO_SERVER = ("$ref", "$dynamicRef", "pattern", "patternProperties", "unevaluatedProperties")


def fault(schema: Any, place: Location = (), *, is_foreign: bool = False) -> tuple[Location, str]:
    """The fault of a schema: its place, and the words after the key; "" for none.

    is_foreign: of a server, which may have keys and types that the draft does not know.
    """
    from jsonschema import Draft202012Validator, FormatChecker

    known = [*Draft202012Validator.VALIDATORS, *_ANNOTATIONS.split(), *_OTHERS.split()]
    # Its anchor is that of the draft's own schema, so it holds at any depth. Not with
    # unevaluatedProperties: a check would take three times as long for every level.
    own = {
        "$id": "urn:chatapp:schema",
        "$dynamicAnchor": "meta",
        "$ref": _META_SCHEMA,
        "propertyNames": {"enum": known},
        "properties": {key: {"pattern": "^#"} for key in ("$ref", "$dynamicRef")},
    }
    meta = Draft202012Validator.META_SCHEMA if is_foreign else own
    formats = FormatChecker([] if is_foreign else ["regex"])
    try:
        errors = errors_of(Draft202012Validator, meta, schema, format_checker=formats)
    except TooManySteps:
        return place, "is nested too deeply or has too many parts"
    if is_foreign:
        errors = [error for error in errors if error.validator != "anyOf"]  # that is of `type`
    error = _deepest(errors)
    if error is None:
        return place, ""
    where = (*place, *error.absolute_path)
    if error.validator_value is known:
        key = error.instance
        return (*where, key), f"is not a key of a schema{did_you_mean(key, known)}"
    return where, _in_words(error, errors)


def misfit(arguments: Any, schema: Mapping[str, Any], *, is_foreign: bool = False) -> str:
    """Why arguments do not fit a schema, in words; "" if they fit."""
    from jsonschema import Draft202012Validator
    from referencing import Registry

    kind = _left_to_server() if is_foreign else Draft202012Validator
    try:
        errors = errors_of(kind, schema, arguments, registry=Registry())
    except (TooManySteps, ArithmeticError):
        return "" if is_foreign else "the schema of its arguments cannot be applied"
    error = _deepest(errors)
    if error is None:
        return ""
    name = dotted_key(tuple(error.absolute_path))
    within = f"{name}." if name else ""
    if error.validator == "required":
        key = next(key for key in error.validator_value if key not in error.instance)
        return f"the argument {quoted(within + key)} is missing"
    if error.validator == "additionalProperties":
        known = error.schema.get("properties", {})
        key = next(key for key in error.instance if key not in known)
        return f"there is no argument {quoted(within + key)}{suggestion(key, known)}"
    what = f"the argument {quoted(name)}" if name else "what it was given"
    return f"{what} {_in_words(error, errors)}"


@cache
def _left_to_server() -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    return extend(Draft202012Validator, dict.fromkeys(_LEFT_TO_SERVER, lambda *_: None))


def _deepest(errors: "Iterable[ValidationError]") -> "ValidationError | None":
    """The first error at the deepest place: those above it follow from it."""
    return max(_leaves(errors), key=lambda error: len(error.absolute_path), default=None)


def _leaves(errors: "Iterable[ValidationError]") -> "Iterator[ValidationError]":
    """The errors, with those about alternatives replaced by the errors of each alternative."""
    for error in errors:
        yield from _leaves(error.context) if error.context else (error,)


def _in_words(error: "ValidationError", errors: "Iterable[ValidationError]") -> str:
    """The words after the name of a place. errors: all of them, for its other types."""
    limit = error.validator_value
    match error.validator:
        case "type":
            same = [leaf for leaf in _leaves(errors) if leaf.absolute_path == error.absolute_path]
            kinds = [leaf.validator_value for leaf in same if leaf.validator == "type"]
            names = [name for kind in kinds for name in ([kind] if isinstance(kind, str) else kind)]
            expected = " or ".join(dict.fromkeys(names))
        case "enum":
            expected = f"one of {', '.join(map(str, limit))}"
        case "minimum":
            expected = f"{limit} or more"
        case "maximum":
            expected = f"{limit} or less"
        case keyword:
            expected = f"{keyword} {limit!r}"
    return f"is {shown(error.instance)}, expected {expected[:300]}"
