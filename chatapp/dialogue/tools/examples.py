"""The examples of the built-in tools, from examples.toml."""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from chatapp.dialogue.tools.tool import CallExample, Tool

PATH = Path(__file__).with_suffix(".toml")

NONE = "none"
"""The choice of no tool."""


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(PATH.read_text(encoding="utf-8"))


def with_examples(tool: Tool) -> Tool:
    """A built-in tool with its examples."""
    own = _table().get(tool.name, {})
    examples = tuple(CallExample(**example) for example in own.get("examples", ()))
    return replace(tool, examples=examples, copied=own.get("copied", False))


def questions_without_tool() -> list[str]:
    """Questions that need no tool."""
    return [example["question"] for example in _table()[NONE]["examples"]]
