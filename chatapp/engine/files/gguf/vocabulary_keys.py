"""A vocabulary and its method of cutting texts as the metadata of a GGUF file.

Invariant: reading the metadata again gives the same tokenizer; one that a GGUF file cannot express
is refused in one sentence.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import pre_tokenizers

from chatapp.engine.errors import ModelError
from chatapp.engine.files.gguf.pre_tokenizers import PRE_TOKENIZERS, pre_tokenizer
from chatapp.engine.files.gguf.vocabulary import TokenType, gguf_tokenizer

Metadata = dict[str, Any]


def vocabulary_metadata(
    tokenizer: tokenizers.Tokenizer, rows: int, named: Mapping[str, int | None], origin: str
) -> Metadata:
    """The GGUF keys of a vocabulary and its method.

    rows: the number of tokens of the model, which can differ from the tokenizer's. named: ids of
    tokens with a meaning, by their keys. origin: for messages. Raises ModelError when llama.cpp has
    no such method of cutting texts.
    """
    description = json.loads(tokenizer.to_str())
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
        metadata |= _sentencepiece(tokenizer, tokens, types, merges)
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


def _sentencepiece(
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
    unknown = json.loads(tokenizer.to_str())["model"]["unk_token"]
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
