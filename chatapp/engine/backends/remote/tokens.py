"""The tokens of a server's model, where the server cuts texts and joins tokens.

Invariant: a count of tokens is the server's own. Tokens of replies arrive as text without their
ids; they get numbers that no server uses, and are sent back as text.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from chatapp.engine.backends.remote.http import JSONClient
from chatapp.engine.backends.remote.stream import TextPieces
from chatapp.engine.errors import ModelError

_PIECES = 2**40
"""The first number of a piece of a reply; every id of a server is below."""

_REMEMBERED = 4096
"""Texts and runs of tokens whose conversions are kept."""

UNKNOWN = -1
"""The id of an end-of-text token that the server does not tell."""


class ServedTokens:
    """A `Tokenizer` for a model on a server that cuts texts, as ours, vLLM and llama.cpp's do."""

    special: Mapping[str, int]

    def __init__(self, client: JSONClient) -> None:
        """Raises ModelError for a server that does not cut texts."""
        self._client = client
        self._pieces = TextPieces()
        self.encode_once = lru_cache(_REMEMBERED)(self._encode)
        self._join = lru_cache(_REMEMBERED)(self._joined)
        self._encode("a")
        information = self._information()
        end, size = information.get("eos_token_id"), information.get("vocab_size")
        if not isinstance(end, int) and isinstance(information.get("eos_token"), str):
            (end, *_) = self.encode(information["eos_token"])  # vLLM cuts its name so
        self.end_id = end if isinstance(end, int) else UNKNOWN
        self.size = size if isinstance(size, int) else _PIECES
        special = information.get("special_tokens")
        self.special = special if isinstance(special, dict) else {}

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        """The server's tokens of a text. Raises ModelError."""
        return list(self.encode_once(text)) if text else []

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, of the server and of replies. Raises ModelError."""
        return "".join(
            self._join(tuple(run))
            if served
            else "".join(self._pieces.piece(id - _PIECES) for id in run)
            for served, run in groupby(ids, key=self.is_served)
        )

    def is_served(self, id: int) -> bool:
        """Whether a token is the server's, which it can be sent as a number."""
        return 0 <= id < _PIECES

    def token(self, piece: str) -> int:
        """The number of a piece of a reply."""
        return _PIECES + self._pieces.token(piece)

    def piece(self, id: int) -> str:
        """A token's own text."""
        return self.decode([id])

    def stream(self) -> "_Stream":
        return _Stream(self)

    def _encode(self, text: str) -> tuple[int, ...]:
        # llama.cpp's own server calls the text "content".
        body: dict[str, object] = {"prompt": text, "content": text, "add_special_tokens": False}
        body["parse_special"] = False  # in ours and llama.cpp's
        ids = self._client.post("/tokenize", body).get("tokens")
        if not isinstance(ids, list) or not all(isinstance(id, int) for id in ids):
            raise ModelError("the server does not cut texts into tokens")
        return tuple(ids)

    def _joined(self, ids: tuple[int, ...]) -> str:
        answer = self._client.post("/detokenize", {"tokens": [id for id in ids if id >= 0]})
        text = answer.get("prompt", answer.get("content"))
        if not isinstance(text, str):
            raise ModelError("the server does not join tokens to a text")
        return text

    def _information(self) -> Mapping[str, Any]:
        """What the server tells of its vocabulary; vLLM does so where it was started with
        --enable-tokenizer-info-endpoint.
        """
        try:
            return self._client.get("/tokenizer_info")
        except ModelError:
            return {}


class _Stream:
    """Tokens to text, one at a time."""

    def __init__(self, tokens: ServedTokens) -> None:
        self._tokens, self._ids, self._text = tokens, list[int](), ""

    def push(self, id: int) -> str:
        self._ids.append(id)
        whole = self._tokens.decode(self._ids)
        if whole.endswith("\ufffd"):  # a part of a character
            return ""
        new, self._text = whole[len(self._text) :], whole
        return new

    def flush(self) -> str:
        return self._tokens.decode(self._ids)[len(self._text) :]
