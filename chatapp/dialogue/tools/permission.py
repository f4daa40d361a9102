"""The user's permission for tools: the question, and the permanently allowed tools.

Invariant: a permission covers everything that determines what runs and what the model reads of the
tool (see `Tool.permission`), so any change asks again; a file that cannot be read allows nothing.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from chatapp.common.foreign import parse_json, revealed
from chatapp.common.paths import allowed_tools_path
from chatapp.common.userfiles import UserError, change_whole, dotted_key, read_json_object, reason
from chatapp.dialogue.tools.tool import Arguments, Tool, ToolError

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
