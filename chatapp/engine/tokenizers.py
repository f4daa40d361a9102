"""From text to token ids and back: our byte-level BPE, GPT-2's tokenizer, in which every token is a
sequence of bytes, and any other that transformers reads (SentencePiece, WordPiece).

Invariant: `decode(encode(text)) == text` for any text without lone surrogates in a byte-level one,
no text ever becomes a special token, and a character is never split on its way to the screen.
"""

import codecs
import copy
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from chatapp.common.foreign import without_surrogates
from chatapp.common.userfiles import read_json_object
from chatapp.engine.decoder.families import checkpoint_of
from chatapp.engine.errors import ModelError, one_sentence
from chatapp.engine.files.model_files import ModelFiles, TokenizerFiles
from chatapp.engine.model import PieceTokenizer

if TYPE_CHECKING:
    from chatapp.engine.files.gguf.reader import GGUFFile

TOKENIZER = "tokenizer.json"
END_OF_TEXT = "<|endoftext|>"

# The names of Hugging Face and OpenAI's published ones.
_VOCABULARIES = ("vocab.json", "encoder.json")
_MERGES = ("merges.txt", "vocab.bpe")

NO_TOKENS = "the tokenizer cannot cut this text"
NO_TEXT = "the tokenizer cannot make text of this token"


class NotByteLevel(ModelError):
    """The folder's tokenizer is valid, but of another kind."""


def _byte_alphabet() -> dict[str, int]:
    """The character for each byte in a byte-level vocabulary.

    Printable Latin-1 characters stay; the other bytes, in order, map to the characters from U+0100
    on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet


_ESCAPED = re.compile("[\udc80-\udcff]+")


def readable(data: bytes) -> str:
    """Bytes as text; those that are not a whole character by their numbers, as `<C3 AF>`."""

    def numbers(escaped: re.Match[str]) -> str:
        part = escaped[0].encode("utf-8", "surrogateescape")
        return f"<{part.hex(' ').upper()}>"

    return _ESCAPED.sub(numbers, data.decode("utf-8", "surrogateescape"))


class _ByteStream:
    """Tokens to text through an incremental UTF-8 decoder."""

    def __init__(self, tokenizer: "BPETokenizer") -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        with one_sentence(NO_TEXT):
            return self._decoder.decode(self._tokenizer.token_bytes(id))

    def flush(self) -> str:
        return ""  # what the decoder holds is the beginning of a character


class BPETokenizer:
    """The `Tokenizer` protocol over a byte-level tokenizer of the tokenizers library.

    backend: the tokenizer of the library.
    end_id: the end-of-text token; None for a tokenizer that has none, see `separator`. It and the
    other special tokens decode to no text.
    text_size: one more than the largest id that text can become.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, end_id: int | None) -> None:
        if not isinstance(tokenizer.decoder, decoders.ByteLevel):
            raise NotByteLevel("the tokenizer is not a byte-level BPE")
        self.names_end = end_id is not None
        if end_id is not None:
            end = _token(tokenizer, end_id)
            if end is None:
                raise ModelError(f"the end-of-text token has the id {end_id}, which is not a token")
            tokenizer.add_special_tokens([AddedToken(end, special=True, normalized=False)])
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.backend = tokenizer
        self._alphabet = _byte_alphabet()
        self._added: dict[int, Any] = tokenizer.get_added_tokens_decoder()
        ids = tokenizer.get_vocab(with_added_tokens=True).values()
        self.size: int = max(ids, default=-1) + 1
        self.special: Mapping[str, int] = {
            token.content: id for id, token in self._added.items() if token.special
        }
        special = set(self.special.values())
        self.text_size: int = max((id for id in ids if id not in special), default=-1) + 1
        if not self.text_size:
            raise ModelError("the tokenizer has no token of text; its vocabulary is empty")
        self.end_id = separator(special, self.encode) if end_id is None else end_id

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        with one_sentence(NO_TOKENS):
            ids: list[int] = self.backend.encode(
                without_surrogates(text), add_special_tokens=False
            ).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        with one_sentence(NO_TEXT):
            return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    @property
    def start(self) -> list[int]:
        """The special tokens that the library can put before a text."""
        with one_sentence(NO_TOKENS):
            return tokens_before(self.backend.encode("a").ids, self.encode("a"))

    def stream(self) -> _ByteStream:
        return _ByteStream(self)

    def token_bytes(self, id: int) -> bytes:
        """The bytes of a token; empty for a special token and for an unused id."""
        added = self._added.get(id)
        if added is not None:
            return b"" if added.special else added.content.encode()
        token = _token(self.backend, id)
        return b"" if token is None else self._bytes(token)

    def _bytes(self, token: str) -> bytes:
        return bytes(self._alphabet[character] for character in token)

    def shown(self, token: str) -> str:
        """A token, or a part of one, by its entry of the vocabulary, for display."""
        return readable(self._bytes(token))

    def piece(self, id: int) -> str:
        """A token's own text for display: a special token's name, partial characters as
        `readable` has them."""
        added = self._added.get(id)
        if added is not None:
            return str(added.content)
        with one_sentence(NO_TEXT):
            return readable(self.token_bytes(id))


def _from_gguf(files: TokenizerFiles, file: "GGUFFile") -> BPETokenizer:
    # The gguf package takes as long to import as a small model to load.
    from chatapp.engine.files.gguf.vocabulary import NAMED_TOKENS, tokenizer_of

    tokenizer = tokenizer_of(file, files.config)
    return BPETokenizer(tokenizer, file.metadata.get(NAMED_TOKENS["eos_token"]))


def _first_file(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read(folder: Path) -> tokenizers.Tokenizer:
    """Read the folder's tokenizer with the library. Raises ModelError."""
    path = folder / TOKENIZER
    vocabulary, merges = _first_file(folder, _VOCABULARIES), _first_file(folder, _MERGES)
    if path.is_file():
        with one_sentence(f"{path}: not a tokenizer"):
            return tokenizers.Tokenizer.from_file(str(path))
    if vocabulary is None or merges is None:
        raise ModelError(
            f"{folder}: there is no tokenizer; expected {TOKENIZER}, or vocab.json and merges.txt"
        )
    with one_sentence(f"{vocabulary} and {merges.name}: not a BPE"):
        model = models.BPE.from_file(str(vocabulary), str(merges))
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def separator(special: Collection[int], encode: Callable[[str], list[int]]) -> int:
    """What stands between texts where no token ends one: a special token, else a line break."""
    return min(special) if special else [*encode("\n"), 0][0]


def _end_id(files: TokenizerFiles, tokenizer: tokenizers.Tokenizer) -> int | None:
    """The end-of-text token: the tokenizer's own, else the model's, else GPT-2's name for it.

    None for a tokenizer without one.
    """
    for config in _named_tokens(files):
        token = config.get("eos_token")
        token = token.get("content") if isinstance(token, dict) else token
        id = tokenizer.token_to_id(token) if isinstance(token, str) else None
        if id is not None:
            return id
    known = tokenizer.token_to_id(END_OF_TEXT)
    id = files.model.get("eos_token_id", known)
    if isinstance(id, int) and _token(tokenizer, id) is not None:
        return id
    return known


def _named_tokens(files: TokenizerFiles) -> Iterator[Mapping[str, Any]]:
    """The files that name tokens, each read only when those before it do not suffice."""
    yield files.config
    path = files.path / "special_tokens_map.json"
    if path.is_file():
        yield read_json_object(path, ModelError)


def _token(tokenizer: tokenizers.Tokenizer, id: int) -> str | None:
    """The token of an id, None for an unused one; the library accepts only 32 bits."""
    return tokenizer.id_to_token(id) if 0 <= id < 2**32 else None


# Classes of transformers that use a tokenizer.json unchanged.
PLAIN_CLASSES = (
    *("PreTrainedTokenizerFast", "TokenizersBackend", "GPT2Tokenizer", "GPT2TokenizerFast"),
    *("Qwen2Tokenizer", "Qwen2TokenizerFast"),
)


def load_plain_tokenizer(files: TokenizerFiles) -> tuple[BPETokenizer, list[int]]:
    """A byte-level tokenizer, and the special tokens that its model expects before any text.

    Equal to those of transformers, without its seconds of import. Raises ModelError, and
    NotByteLevel for a tokenizer of another kind, and for one that only transformers knows.
    """
    if files.gguf is None and not (
        files.config.get("tokenizer_class") in PLAIN_CLASSES and (files.path / TOKENIZER).is_file()
    ):
        raise NotByteLevel(f"{files.path}: this tokenizer needs transformers")
    loaded = load_tokenizer(files)
    return loaded, loaded.start


def tokens_before(whole: Sequence[int], text: Sequence[int]) -> list[int]:
    """The tokens in `whole` before `text` begins."""
    starts = (at for at in range(len(whole)) if whole[at : at + len(text)] == text)
    return list(whole[: next(starts, 0)])


def chat_tokenizer(files: ModelFiles) -> tuple[PieceTokenizer, list[int]]:
    """The tokenizer for a chat with a model, and the tokens that it puts before each text.

    Raises ModelError.
    """
    if files.has_decoder:
        try:
            if checkpoint_of(files.family, files.config_file).has_plain_tokenizer:
                return load_tokenizer(files.tokenizer), []
            return load_plain_tokenizer(files.tokenizer)
        except NotByteLevel:
            pass  # WordPiece, SentencePiece
    return open_tokenizer(files.tokenizer)


def load_tokenizer(files: TokenizerFiles) -> BPETokenizer:
    """Load tokenizer.json, a vocabulary and its merges, or a GGUF file.

    Raises ModelError when they are missing or broken, NotByteLevel for another kind of tokenizer.
    """
    if files.gguf is not None:
        return _from_gguf(files, files.gguf)
    tokenizer = _read(files.path)
    if not isinstance(tokenizer.decoder, decoders.ByteLevel):
        raise NotByteLevel(f"{files.path}: the tokenizer is not a byte-level BPE")
    return BPETokenizer(tokenizer, _end_id(files, tokenizer))


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
    tokenizer, start, _ = open_framed_tokenizer(files)
    return tokenizer, start


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
