"""A chat as roles and texts, before any template has touched it.

Keep: a text is that of the message alone, with no marker of a template, and without what was
thought before it.
"""

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat. A `system` message, if any, comes first.

    thoughts: what was thought before a reply.
    """

    role: Role
    text: str
    thoughts: str = ""
