"""A chat as roles and texts, before any template has touched it.

Keep: a text is that of the message alone, with no marker of a template, and without what was
thought before it.
"""

from dataclasses import dataclass
from typing import Literal

from chatapp.prompting.calls import Call

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat. A `system` message, if any, comes first.

    thoughts: what was thought before a reply. call: of a tool, that an `assistant` message ends
    in; the `tool` message after it has the result.
    """

    role: Role
    text: str
    thoughts: str = ""
    call: Call | None = None
