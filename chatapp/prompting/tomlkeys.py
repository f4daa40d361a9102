"""Sentences on what is wrong with a TOML file that a user wrote, with the line of the key.

Keep: every sentence names the file and the key, and the line where `line_of` can tell it.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from chatapp.prompting.examples import PromptError
from chatapp.userfiles import did_you_mean, quoted, shown


def invalid_key(
    path: Path, source: str, details: ErrorDetails, schema: type[BaseModel], whole: str
) -> PromptError:
    """What pydantic says of a value, as a sentence about a key of the file.

    schema: the keys there are. whole: what the file is, in words.
    """
    keys = tuple(str(part) for part in details["loc"] if isinstance(part, str))
    items = "".join(f"[{part + 1}]" for part in details["loc"] if isinstance(part, int))
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "extra_forbidden":
        known = _known_keys(schema, keys[:-1])
        hint = did_you_mean(keys[-1], known) or f"; there are {', '.join(known)}"
        return key_error(path, source, keys, f"is no key of a {whole}{hint}")
    if kind == "model_type":
        expected = "a table"
    elif kind == "string_too_short":
        expected = "a text that is not empty"
    elif kind == "too_short":
        return key_error(
            path, source, keys, f"holds {context['actual_length']}, expected two or more"
        )
    else:
        bounds = "a number " if kind in ("greater_than_equal", "less_than_equal") else ""
        expected = bounds + details["msg"].removeprefix("Input should be ")
        expected = expected.replace("a valid integer", "a whole number").replace("a valid ", "a ")
    return key_error(path, source, keys, f"is {shown(value)}, expected {expected}", items)


def _known_keys(schema: type[BaseModel], tables: tuple[str, ...]) -> list[str]:
    """The keys of a table within tables."""
    for name in tables:
        table = schema.model_fields[name].annotation
        assert isinstance(table, type)
        assert issubclass(table, BaseModel)
        schema = table
    return list(schema.model_fields)


def invalid_toml(path: Path, source: str, message: str) -> PromptError:
    """What tomllib says, with its place moved to the front."""
    match = re.fullmatch(r"(.*) \(at (line \d+, column \d+|end of document)\)", message)
    what, where = match.groups() if match else (message, "")
    if where == "end of document":
        last = source.rstrip().count("\n") + 1
        where = f"line {last}"
    place = f", {where}" if where else ""
    return PromptError(f"{path}{place}: is not valid TOML: {what.split(';')[0]}")


def key_error(
    path: Path, source: str, keys: tuple[str, ...], message: str, items: str = ""
) -> PromptError:
    """An error about a key; items: which of a list, as in "[2]"."""
    name = quoted(".".join(keys) + items)
    return PromptError(f"{path}{line_of(source, keys)}: {name} {message}")


def line_of(source: str, keys: tuple[str, ...]) -> str:
    """Where a TOML source sets a key, as ", line 3"; empty when that cannot be said.

    tomllib keeps no positions, and this reads less than all of TOML: three quotes within a
    comment or a string of one line can move or hide the line, never more than that.
    """
    blanked = re.sub(
        r'("""|\'\'\').*?\1', lambda match: "\n" * match[0].count("\n"), source, flags=re.DOTALL
    )
    table: tuple[str, ...] = ()
    for number, line in enumerate(blanked.split("\n"), 1):
        header = re.match(r"\s*\[\[?([^\[\]]+)\]", line)
        assignment = re.match(r"([^=#]+)=", line)
        if header:
            here = table = _keys(header[1])
        else:
            here = (*table, *_keys(assignment[1])) if assignment else ()
        # A table written within a line stands for its keys.
        if here == keys or (assignment and len(here) > len(table) and here == keys[: len(here)]):
            return f", line {number}"
    return ""


def _keys(text: str) -> tuple[str, ...]:
    """A dotted key of TOML in its parts; nothing when it is none."""
    try:
        value: Any = tomllib.loads(f"{text} = 0")
    except (ValueError, RecursionError):
        return ()
    keys: list[str] = []
    while isinstance(value, dict):
        key, value = next(iter(value.items()))
        keys.append(key)
    return tuple(keys)
