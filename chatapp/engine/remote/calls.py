"""Calls of tools, which a server of chats tells apart from its model's text.

Keep: they come out as models write them in their own text, each between marks, in the order in
which they came.
"""

import json

from chatapp.engine.events import CALLING
from chatapp.engine.remote.chunks import Chunk, ServedToken


class Calls:
    """Makes text of the calls in a stream. have_come: whether there were any."""

    def __init__(self) -> None:
        self.have_come = False
        self._open: int | None = None
        self._has_arguments = False

    def into_text(self, chunk: Chunk) -> tuple[ServedToken, ...]:
        """The calls of a chunk; the last is closed when the reply ends."""
        text = ""
        for piece in chunk.calls:
            if piece.index != self._open:
                text += self._closed()
                self.have_come = True
                self._open, self._has_arguments = piece.index, False
                text += f'{CALLING[0]}{{"name": {json.dumps(piece.name)}, "arguments": '
            text += piece.arguments
            self._has_arguments = self._has_arguments or bool(piece.arguments.strip())
        if chunk.reason:
            text += self._closed()
        return (ServedToken(text),) if text else ()

    def _closed(self) -> str:
        if self._open is None:
            return ""
        self._open = None
        return f"{'' if self._has_arguments else '{}'}}}{CALLING[1]}"
