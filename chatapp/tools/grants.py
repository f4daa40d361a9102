"""The tools that the user has allowed for good.

Keep: a permission is for what a tool was when it was given (see `Tool.key`); a file that cannot be
read allows nothing.
"""

import json

from chatapp.paths import allowed_tools_path
from chatapp.tools.tool import Tool, ToolError
from chatapp.userfiles import UserError, read_json_object, reason, write_whole


def is_allowed(tool: Tool) -> bool:
    """Whether the user has allowed a tool for good."""
    return tool.key in _keys()


def allow(tool: Tool) -> None:
    """Allow a tool for good. Raises ToolError when that cannot be written down."""
    keys = sorted({*_keys(), tool.key})
    try:
        write_whole(allowed_tools_path(), json.dumps({"allowed": keys}, indent=2) + "\n")
    except OSError as error:
        raise ToolError(f"{allowed_tools_path()}: cannot be written: {reason(error)}") from None


def _keys() -> list[str]:
    try:
        keys = read_json_object(allowed_tools_path()).get("allowed")
    except (OSError, UserError):
        return []
    return [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else []
