"""The tools of `chatapp ask`: which are on, and which may run though they would ask.

Keep: a command has nobody to ask, so that a tool that would ask runs only where it was named.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from chatapp.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.dialogue.calling import Toolbox
    from chatapp.engine.model import LanguageModel
    from chatapp.prompting.chat_template import Template
    from chatapp.tools.tool import Tool


def names_in(option: str) -> list[str]:
    """The names in an option, which stand between commas."""
    return [name.strip() for name in option.split(",") if name.strip()]


def allowed_names(names: Collection[str], tools: Collection[str]) -> Collection[str]:
    """The tools that need not ask. Raises UserError for one that is not on, where some are."""
    for name in names:
        # A tool of a server may be named by itself where all of the server's are on.
        if tools and not any(f"{name}_".startswith(f"{each}_") for each in tools):
            raise UserError(f"--yes-tools names {name!r}, which is not among --tools")
    return names


def is_allowed(tool: "Tool", names: Collection[str]) -> bool:
    """Whether a tool, or the server that it is one of, is among these."""
    return tool.name in names or tool.server in names


def toolbox_of(
    model: "LanguageModel", template: "Template", names: Collection[str], allowed: Collection[str]
) -> "Toolbox":
    """Tools for one question. Raises UserError for one that there is not, or that the model has
    no way to call."""
    from chatapp.dialogue.calling import Toolbox, out_of_reach
    from chatapp.dialogue.template_choice import writer_for
    from chatapp.tools.registry import find_tools

    tools = find_tools().chosen(names)
    if problem := out_of_reach(writer_for(model, template).calls, list(tools)):
        raise UserError(problem)
    return Toolbox(tools, lambda tool, arguments, cancel: is_allowed(tool, allowed))
