"""Text cut into numbered pieces, in the place of the tokens of a model out of reach.

Keep: the pieces of a text together are that text, whatever it holds.
"""

import re
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType


class TextPieces:
    """A `Tokenizer` for models whose own is out of reach: pieces of text, numbered as they come.

    A piece is up to five letters, or one other character, with the space before it. Their
    number is an estimate of that of tokens: for English prose it is 2 to 8 % above GPT-2's,
    for other scripts it may be too low. What a server sends as one token becomes one piece,
    so that replies are counted as they are.
    """

    end_id = 0
    special: Mapping[str, int] = MappingProxyType({})

    _PIECE = re.compile(r" ?(?:[A-Za-z]{1,5}|.)", re.DOTALL)

    def __init__(self) -> None:
        # The end-of-text token stands for no text: what it is called there is not known.
        self._pieces = [""]
        self._ids: dict[str, int] = {}
        self._lock = threading.Lock()
        self.size = 1

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        return [self.token(piece) for piece in self._PIECE.findall(text)]

    def token(self, piece: str) -> int:
        """The id of a piece, whether or not `encode` would ever cut it so."""
        with self._lock:
            if piece not in self._ids:
                self._ids[piece] = len(self._pieces)
                self._pieces.append(piece)
                self.size += 1
            return self._ids[piece]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(self.piece, ids))

    def piece(self, id: int) -> str:
        """A token's own text."""
        return self._pieces[id]

    def stream(self) -> "TextPieces":
        return self

    def push(self, id: int) -> str:
        return self.piece(id)

    def flush(self) -> str:
        return ""
