"""The vocabulary in a GGUF file as a tokenizer of the tokenizers library.

A GGUF file names its method of cutting texts instead of holding a tokenizer.json: BPE with a
pre-tokenizer known by name, or SentencePiece's BPE, whose merges follow from the scores of
its pieces.

Invariant: a text gets the ids that llama.cpp gives it; a vocabulary with an unknown method is
refused by name, never cut differently; one that is written as metadata is read back the same, or
refused. Named tokens and chat templates are converted to the keys of
a tokenizer_config.json, which the rest of the program reads.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from chatapp.common.foreign import parse_json
from chatapp.common.userfiles import did_you_mean, shown
from chatapp.engine.errors import ModelError
from chatapp.engine.files.gguf.pre_tokenizers import (
    BEGIN,
    CHARACTERS,
    PRE_TOKENIZERS,
    SPACES_MARKED,
    WHOLE_WORDS_FIRST,
    pre_tokenizer,
)
from chatapp.engine.files.gguf.reader import GGUFFile


class TokenType(IntEnum):
    """The type of a token in `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPACE = "▁"
_WITH_MARKS = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]


def gguf_tokenizer(metadata: Mapping[str, Any], origin: str) -> tokenizers.Tokenizer:
    """The tokenizer that a GGUF file's metadata describe.

    metadata: the file's keys. origin: the file, for error messages. Raises ModelError when keys are
    missing, or the method of cutting is unknown.
    """
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelError(f"{origin}: there is no vocabulary; expected tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type") or [TokenType.NORMAL] * len(tokens)
    # Those at the end only make the model's matrix larger.
    used = max((id for id, type in enumerate(types) if type != TokenType.UNUSED), default=-1) + 1
    tokens, types = tokens[:used], types[:used]
    if kind in ("gpt2", "gemma4"):
        tokenizer = _bpe(metadata, tokens, origin)
    elif kind == "llama":
        tokenizer = _sentencepiece(metadata, tokens, types, origin)
    else:
        raise ModelError(
            f"{origin}: tokenizer.ggml.model is {shown(kind)}; expected 'gpt2' or 'gemma4' (BPE), "
            "or 'llama' (SentencePiece)"
        )
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, type in zip(tokens, types, strict=True)
            if type in (TokenType.CONTROL, TokenType.UNKNOWN)
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken(token, special=False, normalized=False)
            for token, type in zip(tokens, types, strict=True)
            if type == TokenType.USER_DEFINED
        ]
    )
    return tokenizer


def begins_texts(metadata: Mapping[str, Any]) -> bool:
    """Whether texts begin with the beginning-of-text token if the file does not specify it."""
    is_sentencepiece = metadata.get("tokenizer.ggml.model") == "llama"
    return is_sentencepiece or metadata.get("tokenizer.ggml.pre") in BEGIN


def _bpe(metadata: Mapping[str, Any], tokens: Sequence[str], origin: str) -> tokenizers.Tokenizer:
    is_gemma = metadata["tokenizer.ggml.model"] == "gemma4"
    name = "gemma4" if is_gemma else metadata.get("tokenizer.ggml.pre", "default")
    if str(name) not in PRE_TOKENIZERS:
        raise ModelError(
            f"{origin}: tokenizer.ggml.pre is {shown(name)}, an unknown way of splitting "
            f"texts{did_you_mean(str(name), PRE_TOKENIZERS)}"
        )
    vocabulary = {token: id for id, token in enumerate(tokens)}
    merges = []
    for merge in metadata.get("tokenizer.ggml.merges", ()):
        # In a few vocabularies, a token may have a space only at its beginning.
        left, _, right = merge[1:].partition(" ")
        pair = (merge[:1] + left, right)
        if all(part in vocabulary for part in (*pair, "".join(pair))):
            merges.append(pair)
    has_bytes, whole = name not in CHARACTERS, name in WHOLE_WORDS_FIRST
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, ignore_merges=whole, byte_fallback=not has_bytes)
    )
    if name in SPACES_MARKED:
        tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    tokenizer.pre_tokenizer = pre_tokenizer(name)
    tokenizer.decoder = decoders.ByteLevel() if has_bytes else decoders.Sequence(_WITH_MARKS)
    return tokenizer


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int], origin: str
) -> tokenizers.Tokenizer:
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) < len(tokens):
        raise ModelError(f"{origin}: tokenizer.ggml.scores does not have one score per token")
    vocabulary = {token: id for id, token in enumerate(tokens)}
    unknown = int(metadata.get("tokenizer.ggml.unknown_token_id", 0))
    normal = {
        token: float(score)
        for token, score, type in zip(tokens, scores, types, strict=False)
        if type == TokenType.NORMAL
    }
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=list(_merges(normal, vocabulary)),
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", _SPACE)
    before = metadata.get("tokenizer.ggml.add_space_prefix", True)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if before else spaces
    )
    tokenizer.decoder = decoders.Sequence(_WITH_MARKS + [decoders.Strip(" ", 1, 0)] * bool(before))
    return tokenizer


def _merges(
    scores: Mapping[str, float], vocabulary: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    """Pairs of pieces that merge into a piece, those of the best score first.

    The next pair to merge is the one whose result has the highest score (Kudo and Richardson,
    2018).
    """
    pairs = [
        (-score, vocabulary[piece[:cut]], vocabulary[piece[cut:]], piece[:cut], piece[cut:])
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    return ((left, right) for *_, left, right in sorted(pairs))


CHAT_TEMPLATE = "tokenizer.chat_template"
"""The key of the chat template; a model's other templates are below it, by name."""

NAMED_TOKENS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
"""The tokens that have a name in a tokenizer_config.json, and the keys of their ids."""


def tokenizer_config(file: GGUFFile) -> dict[str, Any]:
    """The named tokens, the chat templates, and whether texts begin with a token.

    Raises ModelError when a token's id is invalid.
    """
    tokens = file.metadata.get("tokenizer.ggml.tokens") or []
    config: dict[str, Any] = {}
    for name, key in NAMED_TOKENS.items():
        id = file.metadata.get(key)
        if id is None:
            continue
        if not isinstance(id, int) or not 0 <= id < len(tokens):
            raise ModelError(f"{file.path}: {key} is {shown(id)}; expected a token's id")
        config[name] = tokens[id]
    begins = file.metadata.get("tokenizer.ggml.add_bos_token", begins_texts(file.metadata))
    config["add_bos_token"] = bool(begins) and "bos_token" in config
    if templates := _chat_templates(file.metadata):
        config["chat_template"] = templates
    return config


def tokenizer_of(file: GGUFFile, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """The tokenizer, including the token at the beginning of texts, if any. Raises ModelError.

    config: from `tokenizer_config`.
    """
    tokenizer = gguf_tokenizer(file.metadata, str(file.path))
    if config["add_bos_token"]:
        start = config["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[start, "$A"], special_tokens=[(start, tokenizer.token_to_id(start))]
        )
    return tokenizer


def _chat_templates(metadata: Mapping[str, Any]) -> str | list[dict[str, Any]] | None:
    own = metadata.get(CHAT_TEMPLATE)
    others = [
        {"name": key.removeprefix(f"{CHAT_TEMPLATE}."), "template": metadata[key]}
        for key in metadata
        if key.startswith(f"{CHAT_TEMPLATE}.")
    ]
    if not others or own is None:
        return own
    return [{"name": "default", "template": own}, *others]


Metadata = dict[str, Any]


def vocabulary_metadata(
    tokenizer: tokenizers.Tokenizer, rows: int, named: Mapping[str, int | None], origin: str
) -> Metadata:
    """The GGUF keys of a vocabulary and its method.

    rows: the number of tokens of the model, which can differ from the tokenizer's. named: ids of
    tokens with a meaning, by their keys. origin: for messages. Raises ModelError when llama.cpp has
    no such method of cutting texts.
    """
    description = parse_json(tokenizer.to_str())
    model = description["model"]
    if model["type"] != "BPE":
        raise ModelError(f"{origin}: its tokenizer is a {model['type']}; expected a BPE")
    tokens, types = _tokens(tokenizer, rows)
    metadata: Metadata = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        **{key: id for key, id in named.items() if id is not None},
    }
    merges = [pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"]]
    if model["byte_fallback"]:
        metadata |= _sentencepiece_keys(tokenizer, tokens, types, merges)
        names: Iterable[str] = ("",)  # SentencePiece has only one method
    else:
        metadata["tokenizer.ggml.model"] = "gpt2"
        metadata["tokenizer.ggml.merges"] = [" ".join(pair) for pair in merges]
        names = _names_of_cuts(tokenizer)
    for name in names:
        chosen = metadata | {"tokenizer.ggml.pre": name} if name else metadata
        if _encodes_alike(tokenizer, gguf_tokenizer(chosen, origin)):
            return chosen
    raise ModelError(
        f"{origin}: its tokenizer splits texts in a way that llama.cpp does not know, so it cannot "
        "be written as GGUF"
    )


def _tokens(tokenizer: tokenizers.Tokenizer, rows: int) -> tuple[list[str], list[int]]:
    added = tokenizer.get_added_tokens_decoder()
    tokens, types = [], []
    for id in range(rows):
        token = tokenizer.id_to_token(id)
        if token is None:
            tokens.append(f"[PAD{id}]")
            types.append(TokenType.UNUSED)
            continue
        tokens.append(token)
        if id in added:
            types.append(TokenType.CONTROL if added[id].special else TokenType.USER_DEFINED)
        else:
            types.append(TokenType.NORMAL)
    return tokens, [int(kind) for kind in types]


def _sentencepiece_keys(
    tokenizer: tokenizers.Tokenizer,
    tokens: Sequence[str],
    types: list[int],
    merges: Sequence[Sequence[str]],
) -> Metadata:
    """Scores that merge in the order of `merges`; byte tokens are marked in `types`."""
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank)
    for id, token in enumerate(tokens):
        if len(token) == 6 and token.startswith("<0x") and types[id] == TokenType.NORMAL:
            types[id] = int(TokenType.BYTE)
    unknown = parse_json(tokenizer.to_str())["model"]["unk_token"]
    if unknown in tokens:
        types[tokens.index(unknown)] = int(TokenType.UNKNOWN)
    begins = tokenizer.encode("a", add_special_tokens=False).tokens[0].startswith("▁")
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.scores": [-float(ranks.get(token, len(merges))) for token in tokens],
        "tokenizer.ggml.add_space_prefix": begins,
    }


# Texts on which the known methods differ.
_TEXTS = (
    "Hello world, it's me; I'LL say: don't!  Two  spaces,\ttabs\n\nand lines \n end.",
    "In 1984 there were 12345678 numbers, 3.14159 or 1,000,000; x2y3 v1.2",
    "URLs like http://a.b/c?d=e&f=g, HTTPServer camelCase snake_case $100 #tag @you",
    "naïve café Straße ÀÉÎ Ελληνικά кириллица 日本語のテスト 한국어 हिन्दी العربية ก็",
    "emoji 🦙🦙 and `code` {x: [1, 2]} <tag/> ~/path/to\\file ^_^ ... --- !!!",
    "'tis 'twas we've they're I'm he'd (parentheses) \"quotes\" “typographic”\r\nend",
)
# Some methods differ only here: in how they cut white space.
_WHITE_SPACE = ("a  1", "one\n\n2", "x \n3")


def _names_of_cuts(tokenizer: tokenizers.Tokenizer) -> Iterator[str]:
    """llama.cpp's names of the methods that cut texts like the tokenizer, the best first."""
    if tokenizer.pre_tokenizer is None:
        return
    for texts in ((*_TEXTS, *_WHITE_SPACE), _TEXTS):
        for name in PRE_TOKENIZERS:
            other = pre_tokenizer(name)
            if all(_pieces(tokenizer.pre_tokenizer, t) == _pieces(other, t) for t in texts):
                yield name


def cuts_white_space(tokenizer: tokenizers.Tokenizer, metadata: Metadata) -> bool:
    """Whether the file's method cuts white space before digits like the tokenizer."""
    name = metadata.get("tokenizer.ggml.pre")
    if name is None:
        return True
    own, other = tokenizer.pre_tokenizer, pre_tokenizer(name)
    return all(_pieces(own, text) == _pieces(other, text) for text in _WHITE_SPACE)


def _pieces(cuts: pre_tokenizers.PreTokenizer, text: str) -> list[str]:
    return [piece for piece, _ in cuts.pre_tokenize_str(text)]


def _encodes_alike(one: tokenizers.Tokenizer, other: tokenizers.Tokenizer) -> bool:
    one_ids, other_ids = (
        [tokenizer.encode(text, add_special_tokens=False).ids for text in _TEXTS]
        for tokenizer in (one, other)
    )
    return one_ids == other_ids
