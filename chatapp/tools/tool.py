"""What a tool is, and a call of one from its arguments to the text that the model is told.

Keep: whatever a tool does, a call ends in a bounded text without control characters; nothing that
a tool raises as ToolError ends the chat.

The part of JSON Schema that tools describe their arguments with.

Keep: a schema of the user's own is refused for what is not checked here; of a foreign one, what is
not known here is left to its server.
"""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chatapp.common.foreign import printable
from chatapp.common.userfiles import Location, UserError, quoted, shown, suggestion

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


Arguments = Mapping[str, Any]
Ending = Literal["done", "failed", "refused", "stopped"]

LONGEST_RESULT = 20_000
"""Characters of a result: more than a small model's window, and little enough for any chat."""

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -~])?")
"""What a terminal would obey: colours, titles, links."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class ToolError(UserError):
    """A tool that cannot be used, or a call that failed; the model is told so."""


class Stopped(Exception):
    """The user has stopped a call while it ran."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A program that a model may call.

    description: a sentence for the model. parameters: the JSON schema of the arguments, an
    object. run: gives the result of a call; raises ToolError, and Stopped soon after its event
    is set. asks: whether the user is asked before it runs. definition: all that decides what
    would run, so that a permission ends where that changes. server: the name of the server that
    it is one of, if any.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    run: Callable[[Arguments, threading.Event], str]
    asks: bool = False
    definition: str = ""
    server: str = ""

    @property
    def key(self) -> str:
        """By which a permission knows it: its name, and a digest of what it runs."""
        digest = hashlib.sha256(self.definition.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.name} {digest[:16]}"

    def to_dict(self) -> dict[str, Any]:
        """As chat templates and servers are told of it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a call. text: what the model is told."""

    ending: Ending
    text: str


STOPPED = Outcome("stopped", "error: it was stopped before it ended")


def misfit_of(tools: Mapping[str, Tool], name: str, arguments: Arguments) -> str:
    """Why a call cannot be run, in words; "" where it can."""
    if name not in tools:
        return f"there is no tool {quoted(name)}{suggestion(name, tools)}"
    return misfit(arguments, tools[name].parameters)


def run(tool: Tool, arguments: Arguments, cancel: threading.Event) -> Outcome:
    """Run a tool with arguments that fit its schema."""
    try:
        text = tool.run(arguments, cancel)
    except ToolError as error:
        return failed(str(error))
    except Stopped:
        return STOPPED
    return Outcome("done", bounded(text))


def failed(reason: str) -> Outcome:
    """A call that came to nothing, and why."""
    return Outcome("failed", f"error: {bounded(reason)}")


def bounded(text: str, limit: int = LONGEST_RESULT) -> str:
    """A text of a tool as the chat keeps it: without what a terminal obeys, and not too long."""
    if len(text) <= limit:
        return clean(text)
    return f"{clean(text[:limit])}\n[cut after {limit:,} characters]"


def clean(text: str) -> str:
    """A text without control characters and sequences, but for newline and tab."""
    lines = _SEQUENCE.sub("", text.replace("\r\n", "\n"))
    return printable(_CONTROL.sub("", lines)).strip()


def call_in_words(name: str, arguments: Arguments) -> str:
    """A call on one line, to be read by people. name: as the model wrote it."""
    parts = (
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in arguments.items()
    )
    return " ".join(printable(f"{name.strip()}({', '.join(parts)})").split())
