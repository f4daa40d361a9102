"""Any tokenizer that transformers reads, as a `Tokenizer`: SentencePiece, WordPiece and others."""

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chatapp.common.foreign import without_surrogates
from chatapp.engine.errors import ModelError, one_sentence
from chatapp.engine.files.model_files import TokenizerFiles
from chatapp.engine.model import PieceTokenizer
from chatapp.engine.tokenizers.byte_level import (
    NO_TEXT,
    NO_TOKENS,
    BPETokenizer,
    NotByteLevel,
    separator,
    tokens_before,
)

if TYPE_CHECKING:
    from chatapp.engine.files.gguf.reader import GGUFFile

# A boundary that no SentencePiece token crosses, and its sign for a space.
_LINE, _SPACE = "\n", "\u2581"

# How SentencePiece writes a byte of a character that it has no token for.
_BYTE = re.compile("<0x([0-9A-F]{2})>")


class _DecodingStream:
    """Tokens to text for tokenizers whose tokens have no bytes of their own.

    Each step decodes the tokens of the last two steps that gave text, because the decoding of a
    token may depend on the one before it.
    """

    def __init__(self, tokenizer: "TransformersTokenizer") -> None:
        self._tokenizer = tokenizer
        # The text continues other text, so a space at its beginning is real.
        self._ids: list[int] = list(tokenizer.before)
        self._known = len(self._ids)

    def push(self, id: int) -> str:
        self._ids.append(id)
        new = self._new()
        # An unfinished character decodes to U+FFFD.
        if not new or new.endswith("\ufffd"):
            return ""
        self._ids = self._ids[self._known :]
        self._known = len(self._ids)
        return new

    def flush(self) -> str:
        new = self._new().rstrip("\ufffd")
        self._known = len(self._ids)
        return new

    def _new(self) -> str:
        known = self._tokenizer.decode(self._ids[: self._known])
        return self._tokenizer.decode(self._ids)[len(known) :]


class TransformersTokenizer:
    """The `Tokenizer` protocol over a tokenizer of transformers.

    before: tokens of a line that make the text after it a continuation; none if the position of a
    text does not matter.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.names_end = tokenizer.eos_token_id is not None
        self.size: int = max(tokenizer.get_vocab().values(), default=-1) + 1
        named = set(tokenizer.all_special_tokens)
        self.special: Mapping[str, int] = {
            str(token): id
            for id, token in tokenizer.added_tokens_decoder.items()
            if token.special or str(token) in named
        }
        special = set(self.special.values())
        text = (id for id in tokenizer.get_vocab().values() if id not in special)
        self.text_size: int = max(text, default=-1) + 1
        if not self.text_size:
            raise ModelError("the tokenizer has no token of text; its vocabulary is empty")
        self.end_id: int = tokenizer.eos_token_id
        if not self.names_end:
            self.end_id = separator(special, self._encode)
        self.before = self._line_before()

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        if begins or not self.before:
            return self._encode(text)
        return self._encode(_LINE + text)[len(self.before) :]

    def _encode(self, text: str) -> list[int]:
        with one_sentence(NO_TOKENS):
            ids: list[int] = self._tokenizer.encode(
                without_surrogates(text), add_special_tokens=False, split_special_tokens=True
            )
        return ids

    def _line_before(self) -> list[int]:
        """The tokens of a line that make the text after it a continuation.

        None if the position of a text does not matter, or a line has no tokens of its own.
        """
        line, text = self._encode(_LINE), self._encode("a")
        if not text or not str(self._tokenizer.convert_ids_to_tokens(text)[0]).startswith(_SPACE):
            return []
        both = self._encode(f"{_LINE}a")
        rest = [str(token) for token in self._tokenizer.convert_ids_to_tokens(both[len(line) :])]
        return line if both[: len(line)] == line and rest == ["a"] else []

    def decode(self, ids: Sequence[int]) -> str:
        # transformers' tokenizers fail at ids beyond their own.
        known = [id for id in ids if 0 <= id < self.size]
        with one_sentence(NO_TEXT):
            text: str = self._tokenizer.decode(
                known, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        return text

    def token_bytes(self, id: int) -> bytes:
        """The bytes of a SentencePiece token; of another kind, its entry of the vocabulary."""
        token = self._tokenizer.convert_ids_to_tokens(id) if 0 <= id < self.size else None
        byte = _BYTE.fullmatch(str(token))
        if byte:
            return bytes([int(byte[1], 16)])
        return b"" if token is None else str(token).replace(_SPACE, " ").encode()

    def stream(self) -> _DecodingStream:
        return _DecodingStream(self)

    def piece(self, id: int) -> str:
        """A token's own text for display; see `shown`."""
        with one_sentence(NO_TEXT):
            token = self._tokenizer.convert_ids_to_tokens(id) if 0 <= id < self.size else None
        return "" if token is None else self.shown(str(token))

    def shown(self, token: str) -> str:
        """A token, or a part of one, by its entry of the vocabulary: with U+2581 of SentencePiece
        as a space, and a byte as `<C3>`."""
        byte = _BYTE.fullmatch(token)
        return f"<{byte[1]}>" if byte else token.replace(_SPACE, " ")

    @property
    def backend(self) -> Any:
        """The tokenizer of the tokenizers library; None for one that is written in Python."""
        return getattr(self._tokenizer, "backend_tokenizer", None)


def open_tokenizer(files: TokenizerFiles) -> tuple[PieceTokenizer, list[int]]:
    """A tokenizer, and the special tokens that its model expects before any text.

    Raises ModelError.
    """
    tokenizer = transformers_tokenizer(files)
    return _as_protocol(tokenizer), start_tokens(tokenizer)


def open_framed_tokenizer(files: TokenizerFiles) -> tuple[PieceTokenizer, list[int], list[int]]:
    """A tokenizer, and the special tokens that its model expects before and after a text.

    Raises ModelError.
    """
    tokenizer = transformers_tokenizer(files)
    start = start_tokens(tokenizer)
    with one_sentence(NO_TOKENS):
        bare = tokenizer.encode("a", add_special_tokens=False)
        after = tokenizer.encode("a")[len(start) + len(bare) :]
    return _as_protocol(tokenizer), start, after


def transformers_tokenizer(files: TokenizerFiles) -> Any:
    """The tokenizer as one of transformers. Raises ModelError."""
    import transformers

    if files.gguf is not None:
        return _gguf_tokenizer(files, files.gguf)
    with one_sentence(f"{files.path}: there is no tokenizer that can be loaded"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            files.path, trust_remote_code=False, local_files_only=True
        )
    if tokenizer.eos_token_id is None and tokenizer.sep_token_id is not None:
        tokenizer.eos_token = tokenizer.sep_token  # closes a text of BERT and its relatives
    return tokenizer


def mask_token(files: TokenizerFiles) -> tuple[str, int]:
    """The spelling and the id of the token that hides another. Raises ModelError."""
    tokenizer = transformers_tokenizer(files)
    if tokenizer.mask_token_id is None:
        raise ModelError(f"{files.path}: the tokenizer names no mask token")
    return str(tokenizer.mask_token), int(tokenizer.mask_token_id)


def _gguf_tokenizer(files: TokenizerFiles, file: "GGUFFile") -> Any:
    from transformers import PreTrainedTokenizerFast

    from chatapp.engine.files.gguf.vocabulary import tokenizer_of

    # The tokenizer decides whether texts begin with a token.
    named = {key: value for key, value in files.config.items() if key != "add_bos_token"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer_of(file, files.config), **named)


def save_tokenizer(files: TokenizerFiles, folder: Path) -> None:
    """Write a tokenizer, with its chat template, in transformers' layout.

    Raises ModelError and OSError.
    """
    transformers_tokenizer(files).save_pretrained(folder)


def _as_protocol(tokenizer: Any) -> PieceTokenizer:
    """Byte-level tokenizers stream by bytes; the others by their decoded text."""
    if hasattr(tokenizer, "backend_tokenizer"):
        try:
            return BPETokenizer(copy.deepcopy(tokenizer.backend_tokenizer), tokenizer.eos_token_id)
        except NotByteLevel:
            pass
    return TransformersTokenizer(tokenizer)


def start_tokens(tokenizer: Any) -> list[int]:
    """The special tokens that the tokenizer puts before a text."""
    with one_sentence(NO_TOKENS):
        text = tokenizer.encode("a", add_special_tokens=False)
        return tokens_before(tokenizer.encode("a"), text)
