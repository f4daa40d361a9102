"""The user's own tools: a TOML file each, in the folder `tools` beside the settings.

    name        = "weather"
    description = "The weather in a city."
    command     = ["python3", "weather.py"]    # never through a shell; arguments as JSON on stdin
    folder      = "~/scripts"                  # where it runs; the file's own folder without it
    timeout     = 30                           # seconds
    output_limit = 20000                       # characters

    [parameters]                               # a JSON schema
    required = ["city"]
    [parameters.properties.city]
    type = "string"

Keep: a file that is no good is told in one sentence that names it and the key, and costs no other
tool.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chatapp.paths import tools_dir
from chatapp.tools.process import CommandLine
from chatapp.tools.schema import fault
from chatapp.tools.tool import LONGEST_RESULT, Tool, ToolError
from chatapp.userfiles import parse_toml, quoted, read_required, reason

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST_TIMEOUT = 3_600


@dataclass(frozen=True, slots=True)
class ToolFile:
    """What the file of a tool says."""

    name: str
    description: str
    command: tuple[str, ...]
    folder: str = ""
    timeout: float = 30.0
    output_limit: int = LONGEST_RESULT
    parameters: dict[str, Any] | None = None


def files() -> list[Path]:
    """The files of the user's tools. Raises ToolError when their folder cannot be read."""
    folder = tools_dir()
    try:
        return sorted(folder.glob("*.toml")) if folder.is_dir() else []
    except OSError as error:
        raise ToolError(f"{folder}: cannot be read: {reason(error)}") from None


def read_tool(path: Path) -> Tool:
    """The tool that a file describes. Raises ToolError, naming the file and the key."""
    from chatapp.validation import located, strict_model, validated

    text = read_required(path, ToolError)
    given = parse_toml(text, path, ToolError)
    if isinstance(given.get("command"), list):  # TOML has no tuples
        given["command"] = tuple(given["command"])
    model = strict_model(ToolFile)
    checked = dict(validated(model, given, ToolError, origin=path, what="tool", source=text))
    said = ToolFile(**{name: checked[name] for name in given})
    problems = {
        "name": "" if _NAME.fullmatch(said.name) else "may have letters, digits, _ and - alone",
        "description": "" if said.description.strip() else "is empty",
        "command": "" if said.command and all(said.command) else "names no program",
        "timeout": ""
        if 0 < said.timeout <= _LONGEST_TIMEOUT
        else f"is {said.timeout:g}, expected more than 0 and at most {_LONGEST_TIMEOUT:,} seconds",
        "output_limit": ""
        if 0 < said.output_limit <= LONGEST_RESULT
        else f"is {said.output_limit}, expected 1 to {LONGEST_RESULT:,} characters",
    }
    for key, problem in problems.items():
        if problem:
            raise ToolError(f"{located(path, text, (key,))} {problem}")
    schema = {"type": "object", "additionalProperties": False, **(said.parameters or {})}
    place, problem = fault(schema, ("parameters",))
    if problem:
        raise ToolError(f"{located(path, text, place)} {problem}")
    if schema["type"] != "object":
        where = located(path, text, ("parameters", "type"))
        raise ToolError(f"{where} is {quoted(str(schema['type']))}, expected 'object'")
    return _tool(said, path, schema)


def _tool(said: ToolFile, path: Path, schema: dict[str, Any]) -> Tool:
    try:
        folder = path.parent / Path(said.folder).expanduser()
    except RuntimeError as error:  # the home of a user there is not
        raise ToolError(f"{path}: 'folder': {error}") from None
    line = CommandLine(said.command, folder, said.timeout, said.output_limit)
    return Tool(
        said.name,
        said.description.strip(),
        schema,
        line.run,
        asks=True,
        definition=repr(line),
    )
