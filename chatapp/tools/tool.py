"""A tool, and a call of one from its arguments to the text that the model reads.

Keep: whatever a tool does, a call ends in a bounded text without control characters; nothing that
a tool raises as ToolError ends the chat.
"""

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from chatapp.common.foreign import printable
from chatapp.common.userfiles import UserError, quoted, suggestion
from chatapp.tools.schemas import misfit

Arguments = Mapping[str, Any]
Ending = Literal["done", "failed", "refused", "stopped"]

LONGEST_RESULT = 20_000
"""Characters of a result: more than a small model's window, and little enough for any chat."""

LONGEST_SCHEMA = 10_000
"""Characters of the schema of a tool's arguments, which the model reads in every prompt."""

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -~])?")
"""What a terminal would obey: colours, titles, links."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class ToolError(UserError):
    """A tool that cannot be used, or a call that failed; the model reads the sentence."""


class Stopped(Exception):
    """The user has stopped a call while it ran."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A program that a model may call.

    description: a sentence for the model. parameters: the JSON schema of the arguments, an
    object. run: gives the result of a call; raises ToolError, and Stopped soon after its event
    is set. asks: whether the user is asked before it runs. definition: gives all that decides what
    would run, as JSON has it, as it is at the moment. server: the name of the server that it is one
    of, if any.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    run: Callable[[Arguments, threading.Event], str]
    asks: bool = False
    definition: Callable[[], Mapping[str, Any]] = dict
    server: str = ""

    @property
    def permission(self) -> str:
        """What a permission for it covers, as JSON: all of the tool as it is now."""
        shown = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return json.dumps(shown | {"program": self.definition()}, sort_keys=True)

    def to_dict(self) -> dict[str, Any]:
        """The definition that chat templates and servers take."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended. text: what the model reads."""

    ending: Ending
    text: str


STOPPED = Outcome("stopped", "error: it was stopped before it ended")


def misfit_of(tools: Mapping[str, Tool], name: str, arguments: Arguments) -> str:
    """Why a call cannot be run, in words; "" where it can."""
    if name not in tools:
        return f"there is no tool {quoted(name)}{suggestion(name, tools)}"
    tool = tools[name]
    return misfit(arguments, tool.parameters, is_foreign=bool(tool.server))


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
    """A text without control characters and sequences, except newline and tab."""
    lines = _SEQUENCE.sub("", text.replace("\r\n", "\n"))
    return printable(_CONTROL.sub("", lines)).strip()


def call_in_words(name: str, arguments: Arguments) -> str:
    """A call on one line, to be read by people. name: as the model wrote it."""
    parts = (
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in arguments.items()
    )
    return " ".join(printable(f"{name.strip()}({', '.join(parts)})").split())
