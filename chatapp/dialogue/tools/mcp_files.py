"""The `mcpServers` block of other programs' JSON files, which the setting `mcp_servers` names.

    {"mcpServers": {"notes": {"command": "python3", "args": ["notes.py"], "env": {"KEY": "…"}},
                    "maps": {"url": "https://example.org/mcp", "headers": {"Authorization": "…"}}}}

Keys that only other programs know are ignored, among them their permissions. ${NAME}, ${env:NAME}
and ${NAME:-default} are replaced by variables of the environment.

Invariant: an invalid server gives one sentence that names it and the key, and affects no other.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chatapp.common.foreign import without_surrogates
from chatapp.common.userfiles import parse_json_object, quoted, read_required, shown
from chatapp.dialogue.tools.mcp_transports import Address
from chatapp.dialogue.tools.process import Program
from chatapp.dialogue.tools.tool import LONGEST_RESULT, ToolError
from chatapp.dialogue.tools.user_tools import TIMEOUT, Server

_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)(?::-([^{}]*))?\}")
_WEB = ("http", "streamable-http", "streamableHttp", "streamable_http")


def read_servers(path: Path) -> tuple[list[Server], dict[str, str]]:
    """The servers of a file, and a sentence for every invalid one by its name.

    Raises ToolError for a file without the block.
    """
    document = parse_json_object(read_required(path, ToolError), str(path), ToolError)
    block = document.get("mcpServers")
    if not isinstance(block, dict):
        raise ToolError(f"{path}: 'mcpServers' is {shown(block)}, expected an object of servers")
    servers: list[Server] = []
    problems: dict[str, str] = {}
    for key, entry in block.items():
        name = re.sub(r"[^A-Za-z0-9_-]", "_", key)[:64] or "_"
        try:
            if not isinstance(entry, dict):
                raise ToolError(f"is {shown(entry)}, expected an object")
            if not entry.get("disabled"):
                target = _target(entry, path.parent)
                servers.append(Server(name, target, TIMEOUT, LONGEST_RESULT))
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
