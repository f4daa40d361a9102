"""What a model thought before it replied, where its server tells that apart.

Keep: it comes out as models write it that think in their own text: between marks, before the
reply, in the order in which it came.
"""

from dataclasses import replace

from chatapp.engine.events import THINKING
from chatapp.engine.remote.chunks import Chunk, ServedToken


class Thoughts:
    """Makes one text of the thoughts and the reply in a stream."""

    def __init__(self) -> None:
        self._is_open = False

    def into_text(self, chunk: Chunk) -> tuple[ServedToken, ...]:
        """All tokens of a chunk. A mark belongs to the text of the token after it."""
        begin, end = THINKING
        tokens: tuple[ServedToken, ...] = ()
        if chunk.thoughts:
            tokens += chunk.thoughts if self._is_open else _after(f"{begin}\n", chunk.thoughts)
            self._is_open = True
        if chunk.tokens:
            tokens += _after(f"\n{end}\n\n", chunk.tokens) if self._is_open else chunk.tokens
            self._is_open = False
        return tokens


def _after(mark: str, tokens: tuple[ServedToken, ...]) -> tuple[ServedToken, ...]:
    first, *others = tokens
    return (replace(first, text=mark + first.text), *others)
