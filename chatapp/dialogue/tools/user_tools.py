"""The user's own tools: TOML files in the folder `tools` next to the settings.

    name        = "weather"
    description = "The weather in a city."
    command     = ["python3", "weather.py"]    # never through a shell; arguments as JSON on stdin
    folder      = "~/scripts"                  # working directory; default: the file's folder
    timeout     = 30                           # seconds
    output_limit = 20000                       # characters
    environment = ["WEATHER_KEY"]              # variables in addition to PATH, HOME, LANG

    [parameters]                               # a JSON schema
    required = ["city"]
    [parameters.properties.city]
    type = "string"

    copied = true                              # arguments are taken from the question, as in:
    [[examples]]                               # for models that do not open calls by themselves
    question  = "Is it raining in Oslo?"
    arguments = {city = "Oslo"}

A file with `server` in place of `command` is for a server of the Model Context Protocol over
standard input and output, which lists its own tools:

    name         = "notes"                     # prefix of the names of its tools: notes_search
    server       = ["python3", "notes.py"]     # and folder, timeout … as above

The setting `mcp_servers` names a file with the `mcpServers` block of another program:

    {"mcpServers": {"notes": {"command": "python3", "args": ["notes.py"], "env": {"KEY": "…"}},
                    "maps": {"url": "https://example.org/mcp", "headers": {"Authorization": "…"}}}}

Keys that only other programs know are ignored there, among them their permissions. ${NAME},
${env:NAME} and ${NAME:-default} are replaced by variables of the environment.
"""

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chatapp.common.foreign import without_surrogates
from chatapp.common.limited_process import Program, digests_of, run_program
from chatapp.common.paths import tools_dir
from chatapp.common.userfiles import (
    parse_json_object,
    parse_toml,
    quoted,
    read_required,
    reason,
    shown,
)
from chatapp.dialogue.tools.schemas import fault, misfit
from chatapp.dialogue.tools.tool import (
    LONGEST_RESULT,
    LONGEST_SCHEMA,
    CallExample,
    Tool,
    ToolError,
    bounded,
    stopped_by,
)

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
TIMEOUT, _LONGEST_TIMEOUT = 30.0, 3_600

_BYTES_A_CHARACTER = 4
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)(?::-([^{}]*))?\}")
_WEB = ("http", "streamable-http", "streamableHttp", "streamable_http")


@dataclass(frozen=True, slots=True)
class ToolFile:
    """The keys of a tool's file."""

    name: str
    description: str
    command: tuple[str, ...]
    folder: str = ""
    timeout: float = TIMEOUT
    output_limit: int = LONGEST_RESULT
    environment: tuple[str, ...] = ()
    parameters: dict[str, Any] | None = None
    examples: tuple[dict[str, Any], ...] = ()
    copied: bool = False


@dataclass(frozen=True, slots=True)
class ServerFile:
    """The keys of a server's file."""

    name: str
    server: tuple[str, ...]
    folder: str = ""
    timeout: float = TIMEOUT
    output_limit: int = LONGEST_RESULT
    environment: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandLine:
    """timeout: in seconds. output_limit: characters of output, after which the program is ended."""

    program: Program
    timeout: float
    output_limit: int

    def definition(self) -> dict[str, Any]:
        """See `Program.definition`."""
        limits = {"timeout": self.timeout, "output_limit": self.output_limit}
        return self.program.definition() | limits

    def run(self, arguments: Mapping[str, Any], cancel: threading.Event) -> str:
        """Run the program with the arguments as a JSON object; return its output.

        Raises UserError when it cannot be started, fails or takes too long, and Stopped.
        """
        given = json.dumps(arguments, ensure_ascii=False).encode("utf-8", "replace")
        most = _BYTES_A_CHARACTER * self.output_limit
        output = run_program(self.program, given, self.timeout, most, stopped_by(cancel))
        return bounded(output, self.output_limit)


@dataclass(frozen=True, slots=True)
class Address:
    """A server that others run. headers: of every request, such as a key."""

    url: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def definition(self) -> dict[str, Any]:
        """Everything that determines what is called, as JSON data; values of headers as digests."""
        return {"url": self.url, "headers": digests_of(self.headers)}


@dataclass(frozen=True, slots=True)
class ToolServer:
    """A server whose tools can be called. target: the program, or where it answers. timeout: of a
    call, in seconds. output_limit: of a result, in characters.
    """

    name: str
    target: Program | Address
    timeout: float
    output_limit: int


def files() -> list[Path]:
    """The files of the user's tools. Raises ToolError when their folder cannot be read."""
    folder = tools_dir()
    try:
        return sorted(folder.glob("*.toml")) if folder.is_dir() else []
    except OSError as error:
        raise ToolError(f"{folder}: cannot be read: {reason(error)}") from None


def read(path: Path) -> Tool | ToolServer:
    """The tool or the server that a file describes. Raises ToolError, naming the file and the
    key."""
    from chatapp.common.validation import strict_model, validated

    text = read_required(path, ToolError)
    table = parse_toml(text, path, ToolError)
    kind: type[ToolFile] | type[ServerFile] = ServerFile if "server" in table else ToolFile
    for key in ("command", "server", "environment", "examples"):
        if isinstance(table.get(key), list):  # TOML has no tuples
            table[key] = tuple(table[key])
    model = strict_model(kind)
    checked = dict(validated(model, table, ToolError, origin=path, what="tool", source=text))
    keys = kind(**{name: checked[name] for name in table})
    _check(keys, path, text)
    folder = _folder(keys, path)
    if isinstance(keys, ServerFile):
        program = Program(keys.server, folder, keys.environment)
        return ToolServer(keys.name, program, keys.timeout, keys.output_limit)
    program = Program(keys.command, folder, keys.environment)
    command = CommandLine(program, keys.timeout, keys.output_limit)
    tool = Tool(
        keys.name,
        keys.description.strip(),
        _schema(keys, path, text),
        command.run,
        asks=True,
        definition=command.definition,
        copied=keys.copied,
    )
    return replace(tool, examples=tuple(_examples(keys, tool, path)))


def _examples(keys: ToolFile, tool: Tool, path: Path) -> Iterator[CallExample]:
    from chatapp.common.validation import strict_model, validated

    model = strict_model(CallExample)
    for number, given in enumerate(keys.examples, start=1):
        place = f"{path}, example {number}"
        example = CallExample(
            **dict(validated(model, given, ToolError, origin=place, what="example"))
        )
        if problem := misfit(example.arguments, tool.parameters):
            raise ToolError(f"{place}: {problem}")
        yield example


def _check(keys: ToolFile | ServerFile, path: Path, text: str) -> None:
    """Raises ToolError for an invalid value."""
    from chatapp.common.validation import located

    problems = {
        "name": "" if NAME.fullmatch(keys.name) else "may have letters, digits, _ and - only",
        "timeout": ""
        if 0 < keys.timeout <= _LONGEST_TIMEOUT
        else f"is {keys.timeout:g}, expected more than 0 and at most {_LONGEST_TIMEOUT:,} seconds",
        "output_limit": ""
        if 0 < keys.output_limit <= LONGEST_RESULT
        else f"is {keys.output_limit}, expected 1 to {LONGEST_RESULT:,} characters",
    }
    if isinstance(keys, ServerFile):
        problems["server"] = _no_program(keys.server)
    else:
        problems["command"] = _no_program(keys.command)
        problems["description"] = "" if keys.description.strip() else "is empty"
    for key, problem in problems.items():
        if problem:
            raise ToolError(f"{located(path, text, (key,))} {problem}")


def _no_program(command: tuple[str, ...]) -> str:
    return "" if command and all(command) else "names no program"


def _schema(keys: ToolFile, path: Path, text: str) -> dict[str, Any]:
    from chatapp.common.validation import located

    schema = {"type": "object", "additionalProperties": False, **(keys.parameters or {})}
    if (length := len(json.dumps(schema))) > LONGEST_SCHEMA:
        where = located(path, text, ("parameters",))
        raise ToolError(
            f"{where} has {length:,} characters as JSON, expected at most {LONGEST_SCHEMA:,}"
        )
    place, problem = fault(schema, ("parameters",))
    if problem:
        raise ToolError(f"{located(path, text, place)} {problem}")
    if schema["type"] != "object":
        where = located(path, text, ("parameters", "type"))
        raise ToolError(f"{where} is {quoted(str(schema['type']))}, expected 'object'")
    properties = schema.get("properties", {})
    absent = [name for name in schema.get("required", ()) if name not in properties]
    if absent:
        where = located(path, text, ("parameters", "required"))
        raise ToolError(f"{where} names {quoted(absent[0])}, which is not a property")
    return schema


def _folder(keys: ToolFile | ServerFile, path: Path) -> Path:
    try:
        return path.parent / Path(keys.folder).expanduser()
    except RuntimeError as error:  # an unknown user's home
        raise ToolError(f"{path}: 'folder': {error}") from None


def read_servers(path: Path) -> tuple[list[ToolServer], dict[str, str]]:
    """The servers of a file, and a sentence for every invalid one by its name.

    Raises ToolError for a file without the block.
    """
    document = parse_json_object(read_required(path, ToolError), str(path), ToolError)
    block = document.get("mcpServers")
    if not isinstance(block, dict):
        raise ToolError(f"{path}: 'mcpServers' is {shown(block)}, expected an object of servers")
    servers: list[ToolServer] = []
    problems: dict[str, str] = {}
    for key, entry in block.items():
        name = re.sub(r"[^A-Za-z0-9_-]", "_", key)[:64] or "_"
        try:
            if not isinstance(entry, dict):
                raise ToolError(f"is {shown(entry)}, expected an object")
            if not entry.get("disabled"):
                target = _target(entry, path.parent)
                servers.append(ToolServer(name, target, TIMEOUT, LONGEST_RESULT))
        except ToolError as error:
            problems[name] = f"{path}: mcpServers.{quoted(key)}: {error}"
    return servers, problems


def _target(entry: Mapping[str, Any], folder: Path) -> Program | Address:
    """What a server's entry runs or calls. Raises ToolError without the file's name."""
    kind = entry.get("type")
    if "url" in entry:
        if kind is not None and kind not in _WEB:
            raise ToolError(f"'type' is {shown(kind)}, expected 'http'")
        return Address(_text(entry, "url"), _pairs(entry, "headers"))
    if "command" not in entry:
        raise ToolError("has neither 'command' nor 'url'")
    parts = entry.get("args", [])
    if not isinstance(parts, list):
        raise ToolError(f"'args' is {shown(parts)}, expected a list of texts")
    arguments = [_text({"args": part}, "args") for part in parts]
    if "cwd" in entry:
        folder /= Path(_text(entry, "cwd")).expanduser()
    command = (_text(entry, "command"), *arguments)
    return Program(command, folder, variables=_pairs(entry, "env"))


def _pairs(entry: Mapping[str, Any], key: str) -> tuple[tuple[str, str], ...]:
    pairs = entry.get(key) or {}
    if not isinstance(pairs, dict):
        raise ToolError(f"{key!r} is {shown(pairs)}, expected an object of texts")
    return tuple((name, _text(pairs, name)) for name in pairs)


def _text(entry: Mapping[str, Any], key: str) -> str:
    """A text with its variables replaced."""
    text = entry[key]
    if not isinstance(text, str):
        raise ToolError(f"{key!r} is {shown(text)}, expected a text")

    def value(match: re.Match[str]) -> str:
        text = os.environ.get(match[1], match[2])
        if text is None:
            raise ToolError(f"{key!r} needs the variable {match[1]}, which is not set")
        return text

    text = _VARIABLE.sub(value, text)
    if "\0" in text or "${" in text or text != without_surrogates(text):
        raise ToolError(f"{key!r} has a placeholder or a character that cannot be used")
    return text
