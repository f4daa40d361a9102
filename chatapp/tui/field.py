"""A one-line input for foreign text.

Keep: its value holds nothing that a terminal would obey, however it came there.
"""

from textual.widgets import Input

from chatapp.foreign import printable


class Field(Input):
    """An Input whose value holds nothing that a terminal would obey."""

    def validate_value(self, value: str) -> str:
        return printable(value)
