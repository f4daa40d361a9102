"""A tool, a call of one from its arguments to the text that the model reads, and the user's
permission for it: the question, and the permanently allowed tools.

Invariant: a permission covers everything that determines what runs and what the model reads of the
tool (see `Tool.permission`), so any change asks again; a file that cannot be read allows nothing.
"""

import json
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from chatapp.common.foreign import clean, one_line, parse_json, revealed
from chatapp.common.paths import allowed_tools_path
from chatapp.common.userfiles import (
    UserError,
    change_whole,
    dotted_key,
    quoted,
    read_json_object,
    reason,
    suggestion,
)
from chatapp.dialogue.tools.schemas import misfit

Arguments = Mapping[str, Any]
Ending = Literal["done", "failed", "refused", "stopped"]

LONGEST_RESULT = 20_000
"""Characters of a result: more than a small model's window, and few enough for any chat."""

LONGEST_SCHEMA = 10_000
"""Characters of the schema of a tool's arguments, which the model reads in every prompt."""

EXAMPLES_TABLE = Path(__file__).with_name("examples.toml")
NONE = "none"
"""The choice of no tool, as the file of examples names it."""


class ToolError(UserError):
    """A tool that cannot be used, or a failed call; the model reads the sentence."""


class Stopped(Exception):
    """The user has stopped a running call."""


def stopped_by(cancel: threading.Event) -> Callable[[], None]:
    """What raises Stopped once the event is set."""

    def go_on() -> None:
        if cancel.is_set():
            raise Stopped

    return go_on


@dataclass(frozen=True, slots=True)
class CallExample:
    """A question, and the arguments of a tool that answer it."""

    question: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tool:
    """A program that a model may call.

    description: a sentence for the model. parameters: the JSON schema of the arguments, an object.
    run: returns the result of a call; raises UserError, and Stopped soon after its event is set.
    asks: whether it needs the user's permission. asks_each_time: for every call, whatever the user
    has allowed before. definition: returns everything that determines what would run now, as JSON
    data. server: the name of its server, if any. examples: for models that do not open calls by
    themselves. copied: whether their arguments are taken from the question. accepts: for an
    argument, whether the tool knows a text, if its schema does not say.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    run: Callable[[Arguments, threading.Event], str]
    asks: bool = False
    asks_each_time: bool = False
    definition: Callable[[], Mapping[str, Any]] = dict
    server: str = ""
    examples: tuple[CallExample, ...] = ()
    copied: bool = False
    accepts: Mapping[str, Callable[[str], bool]] = field(default_factory=dict)

    @property
    def permission(self) -> str:
        """The scope of a permission for it, as JSON: the whole current tool."""
        shown = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return json.dumps(shown | {"program": self.definition()}, sort_keys=True)

    def to_dict(self) -> dict[str, Any]:
        """The definition for chat templates and servers."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended. text: for the model."""

    ending: Ending
    text: str


STOPPED = Outcome("stopped", "error: it was stopped before it ended")


def misfit_of(tools: Mapping[str, Tool], name: str, arguments: Arguments) -> str:
    """Why a call cannot be run, in words; "" if it can."""
    if name not in tools:
        return f"there is no tool {quoted(name)}{suggestion(name, tools)}"
    tool = tools[name]
    return misfit(arguments, tool.parameters, is_foreign=bool(tool.server))


def run(tool: Tool, arguments: Arguments, cancel: threading.Event) -> Outcome:
    """Run a tool with arguments that fit its schema."""
    try:
        text = tool.run(arguments, cancel)
    except UserError as error:
        return failed(str(error))
    except Stopped:
        return STOPPED
    except Exception as error:  # of a library: the reply goes on with what it says
        return failed(f"{type(error).__name__}: {error}")
    return Outcome("done", bounded(text))


def failed(reason: str) -> Outcome:
    """The outcome of a failed call."""
    return Outcome("failed", f"error: {bounded(reason)}")


def bounded(text: str, limit: int = LONGEST_RESULT) -> str:
    """A tool's text for the chat: without what a terminal obeys, and shortened."""
    if len(text) <= limit:
        return clean(text)
    return f"{clean(text[:limit])}\n[cut after {limit:,} characters]"


def call_in_words(name: str, arguments: Arguments) -> str:
    """A call on one line, for people. name: in the model's spelling."""
    parts = (
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in arguments.items()
    )
    return one_line(f"{name.strip()}({', '.join(parts)})")


@cache
def _examples() -> Mapping[str, Any]:
    return tomllib.loads(EXAMPLES_TABLE.read_text(encoding="utf-8"))


def with_examples(tool: Tool) -> Tool:
    """A built-in tool with its examples."""
    own = _examples().get(tool.name, {})
    examples = tuple(CallExample(**example) for example in own.get("examples", ()))
    return replace(tool, examples=examples, copied=own.get("copied", False))


def questions_without_tool() -> list[str]:
    """Questions that need no tool."""
    return [example["question"] for example in _examples()[NONE]["examples"]]


_SHOWN = 160
"""Characters of an argument in a question that is not expanded; its middle is left out, because its
end may matter most.
"""


@dataclass(frozen=True, slots=True)
class PermissionRequest:
    """A call that needs the user's permission. changes: a line for each difference from the tool
    that the user allowed before; see `changes_of`.
    """

    tool: Tool
    arguments: Arguments
    changes: tuple[str, ...] = ()

    def text(self, *, is_expanded: bool = False) -> str:
        """The question: a line for each argument, as JSON without invisible characters; a text of
        several lines is set apart by a bar.

        is_expanded: long arguments are complete; those of a tool that asks each time always are.
        """
        is_expanded = is_expanded or self.tool.asks_each_time
        since = ", which has changed since you allowed it" if self.changes else ""
        lines = [
            f"  {_in_json(key)}: {_value(value, is_expanded)}"
            for key, value in self.arguments.items()
        ]
        changes = [f"  {line if is_expanded else _cut(line)}" for line in self.changes]
        return "\n".join(
            [
                f"The model wants to run {self.tool.name}{since}. Allow it?",
                *(lines or ["  without arguments"]),
                *(["Changed:", *changes] if changes else []),
            ]
        )

    @property
    def is_cut(self) -> bool:
        """Whether expanding the question shows more of it."""
        return self.text() != self.text(is_expanded=True)


def changes_of(tool: Tool, permissions: Iterable[str]) -> tuple[str, ...]:
    """The changes of a tool since it was allowed; empty when it never was.

    permissions: of any tools, in the form of `Tool.permission`.
    """
    now = dict(_leaves(parse_json(tool.permission)))
    before = [dict(_leaves(permission)) for permission in _of_name(tool.name, permissions)]
    differences = [
        tuple(
            f"{place}: {old.get(place, 'nothing')} → {now.get(place, 'nothing')}"
            for place in dict.fromkeys([*old, *now])
            if old.get(place) != now.get(place)
        )
        for old in before
    ]
    return min(differences, key=len, default=())


def allowed_for_good() -> list[str]:
    """The permissions that the user gave for every chat."""
    try:
        permissions = read_json_object(allowed_tools_path()).get("allowed")
    except (OSError, UserError):
        return []
    strings = permissions if isinstance(permissions, list) else []
    return [place for place in strings if isinstance(place, str)]


def allow_for_good(permission: str) -> None:
    """Allow a tool in every chat; see `Tool.permission`. Raises ToolError when that cannot be
    stored.
    """
    path = allowed_tools_path()

    def changed() -> str:
        permissions = sorted({*allowed_for_good(), permission})
        return json.dumps({"allowed": permissions}, indent=2) + "\n"

    try:
        change_whole(path, changed)
    except OSError as error:
        raise ToolError(f"{path}: cannot be written: {reason(error)}") from None


def _of_name(name: str, permissions: Iterable[str]) -> Iterator[dict[str, Any]]:
    for text in permissions:
        try:
            permission = parse_json(text)
        except ValueError:
            continue
        if isinstance(permission, dict) and permission.get("name") == name:
            yield permission


def _leaves(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str, str]]:
    """The leaves of a JSON document: the place of each, and its value as JSON."""
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _leaves(part, (*place, key))
    elif isinstance(value, list) and value:
        for index, part in enumerate(value):
            yield from _leaves(part, (*place, index))
    else:
        yield revealed(dotted_key(place)), _in_json(value)


def _value(value: Any, is_expanded: bool) -> str:
    if is_expanded and isinstance(value, str) and "\n" in value:
        return "".join(f"\n  │ {revealed(line)}" for line in value.split("\n"))
    return _in_json(value) if is_expanded else _cut(_in_json(value))


def _in_json(value: Any) -> str:
    return revealed(json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    if len(text) <= 2 * _SHOWN:
        return text
    return f"{text[:_SHOWN]} … {len(text) - 2 * _SHOWN:,} characters more … {text[-_SHOWN:]}"
