"""The part of JSON Schema that tools describe their arguments with.

Keep: a schema of the user's own is refused for what is not checked here; of a foreign one, what is
not known here is left to its server.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chatapp.userfiles import Location, quoted, shown, suggestion

_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "null": lambda value: value is None,
}

_KEYWORDS: Mapping[str, Callable[[Any], bool]] = {
    "type": lambda value: isinstance(value, str) and value in _TYPES,
    "description": _TYPES["string"],
    "properties": _TYPES["object"],
    "required": lambda value: isinstance(value, list) and all(map(_TYPES["string"], value)),
    "additionalProperties": _TYPES["boolean"],
    "items": _TYPES["object"],
    "enum": _TYPES["array"],
    "minimum": _TYPES["number"],
    "maximum": _TYPES["number"],
}

_EXPECTED = {
    "type": f"one of {', '.join(_TYPES)}",
    "description": "a string",
    "properties": "a table",
    "required": "a list of strings",
    "additionalProperties": "true or false",
    "items": "a table",
    "enum": "a list",
    "minimum": "a number",
    "maximum": "a number",
}

_DEEPEST = 20


_FREELY_READ = ("type", "additionalProperties")
"""Keywords that `misfit` reads whatever they are."""


def fault(schema: Any, place: Location = (), *, is_foreign: bool = False) -> tuple[Location, str]:
    """What is wrong with a schema: where, and what stands after the key; "" for nothing."""
    if not isinstance(schema, dict):
        return place, f"is {shown(schema)}, expected a table"
    if len(place) > _DEEPEST:
        return place, "is nested too deeply"
    for keyword, value in schema.items():
        if is_foreign and (keyword not in _KEYWORDS or keyword in _FREELY_READ):
            continue
        if keyword not in _KEYWORDS:
            return (*place, keyword), f"is no key of a schema{suggestion(keyword, _KEYWORDS)}"
        if not _KEYWORDS[keyword](value):
            return (*place, keyword), f"is {shown(value)}, expected {_EXPECTED[keyword]}"
    properties = schema.get("properties", {})
    absent = [name for name in schema.get("required", ()) if name not in properties]
    if absent and not is_foreign:
        return (*place, "required"), f"names {quoted(absent[0])}, which is no property"
    inner = [((*place, "properties", name), part) for name, part in properties.items()]
    inner += [((*place, "items"), schema["items"])] if "items" in schema else []
    faults = (fault(part, where, is_foreign=is_foreign) for where, part in inner)
    return next((each for each in faults if each[1]), (place, ""))


def misfit(value: Any, schema: Mapping[str, Any], name: str = "") -> str:
    """Why a value does not fit a schema, in words; "" where it does. name: of the argument."""
    what = f"the argument {quoted(name)}" if name else "what it was given"
    kind = schema.get("type")
    given = kind if isinstance(kind, list) else [kind]
    kinds = [each for each in given if isinstance(each, str) and each in _TYPES]
    if kinds and not any(_TYPES[each](value) for each in kinds):
        return f"{what} is {shown(value)}, expected {' or '.join(kinds)}"
    allowed = schema.get("enum")
    if isinstance(allowed, list) and value not in allowed:
        return f"{what} is {shown(value)}, expected one of {', '.join(map(str, allowed))}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _out_of_bounds(value, schema, what)
    if isinstance(value, dict):
        return _misfit_in(value, schema, name)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        places = ((f"{name}[{place}]", item) for place, item in enumerate(value, 1))
        return _first(misfit(item, schema["items"], place) for place, item in places)
    return ""


def _out_of_bounds(value: float, schema: Mapping[str, Any], what: str) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if isinstance(least, int | float) and not value >= least:
        return f"{what} is {shown(value)}, expected {least} or more"
    if isinstance(most, int | float) and not value <= most:
        return f"{what} is {shown(value)}, expected {most} or less"
    return ""


def _misfit_in(value: Mapping[str, Any], schema: Mapping[str, Any], name: str) -> str:
    properties = schema.get("properties", {})
    required: Sequence[str] = schema.get("required", ())
    within = f"{name}." if name else ""
    for key in required:
        if key not in value:
            return f"the argument {quoted(within + key)} is missing"
    if schema.get("additionalProperties") is False:
        for key in value:
            if key not in properties:
                known = suggestion(key, properties)
                return f"there is no argument {quoted(within + key)}{known}"
    parts = ((key, part) for key, part in properties.items() if key in value)
    return _first(misfit(value[key], part, within + key) for key, part in parts)


def _first(problems: Any) -> str:
    return next(filter(None, problems), "")
