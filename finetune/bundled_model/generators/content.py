"""What the generators share: tables as data, and which content is kept out of training.

Keep: whether a content is kept out depends on its own words alone, so that every generator agrees.
"""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from finetune.data.split import is_held_out, text_key


@cache
def table(name: str) -> dict[str, Any]:
    """The table of that name: a TOML file beside this module."""
    source = files("finetune.bundled_model.generators").joinpath("tables", f"{name}.toml")
    return tomllib.loads(source.read_text(encoding="utf-8"))


def is_kept_out(content: object, share: float) -> bool:
    """Whether content is for measuring alone: by its hash, so it never changes sides."""
    return is_held_out(text_key(repr(content)), share)
