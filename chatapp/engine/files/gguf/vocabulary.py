"""The vocabulary in a GGUF file as a tokenizer of the tokenizers library.

A GGUF file names its method of cutting texts instead of holding a tokenizer.json: byte-level BPE
with a pre-tokenizer known by name, or SentencePiece's BPE, whose merges follow from the scores of
its pieces.

Invariant: a text gets the ids that llama.cpp gives it; a vocabulary with an unknown method is
refused by name, never cut differently. Named tokens and chat templates are converted to the keys of
a tokenizer_config.json, which the rest of the program reads.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from chatapp.common.userfiles import did_you_mean, shown
from chatapp.engine.errors import ModelError
from chatapp.engine.files.gguf.reader import GGUFFile


class TokenType(IntEnum):
    """The type of a token in `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# The patterns of pre-tokenizers; facts of the models, with llama.cpp's names.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _LINES
)
_LOWER = r"((?=[\p{L}])([^A-Z]))"
_UPPER = r"((?=[\p{L}])([^a-z]))"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = (
    f"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _LINES
)
_CJK = "[一-龥ࠀ-一가-\ud7ff]+"
# Letters of Unicode 12 with a case, without some alphabets.
_CASED = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\x{560}-\x{588}\x{10C7}-\x{10FF}\x{1C80}-\x{1C8F}\x{1FBE}"
    r"\x{2D00}-\x{2D2D}\x{A790}-\x{A7FF}\x{AB30}-\x{AB6F}\x{10570}-\x{105FF}"
    r"\x{10D50}-\x{10D8F}\x{16E40}-\x{1DFFF}]]"
)
_SIGNS = r"[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]"
_HAN_AND_KANA = "[一-龥぀-ゟ゠-ヿ]+"
_WORDS_WITH_MARKS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
)
_LARGE = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _capitalized(large: str, small: str, digits: str) -> str:
    """Words cut where a large letter follows a small one. digits: the pattern of numbers."""
    return (
        f"{_BEFORE}{large}*{small}+{_CONTRACTIONS}?|{_BEFORE}{large}+{small}*{_CONTRACTIONS}?"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}"
    )


_SENTENCES = r" ?[^(\s|.,!?…。，、।۔،)]+"

_LLAMA3_NAMES = tuple(
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano".split()
)

_DIGIT_THEN_GPT2 = (r"\p{N}", _GPT2)
_QWEN2 = (_LLAMA3.replace("{1,3}", ""),)
PRE_TOKENIZERS: Mapping[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    **dict.fromkeys(
        (
            *("gpt-2", "phi-2", "mpt", "olmo", "dolma", "gpt-neox", "jais", "trillion"),
            *("roberta-bpe", "gigachat", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es"),
            *("jina-v2-de", "jina-v2-code", "a.x-4.0", "mellum", "granite-docling"),
            *("modern-bert", "exaone4"),
        ),
        (_GPT2,),
    ),
    **dict.fromkeys(
        (
            *_LLAMA3_NAMES,
            *("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"),
        ),
        (_LLAMA3,),
    ),
    **dict.fromkeys(
        (
            *("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez", "hunyuan", "kormo", "f2llmv2"),
            *("grok-2", "solar-open"),
        ),
        _QWEN2,
    ),
    **dict.fromkeys(
        (
            *("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"),
            *("minerva-7b", "mellum2"),
        ),
        _DIGIT_THEN_GPT2,
    ),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"),
    "deepseek-llm": (r"[\r\n]", rf"\s?{_CASED}+", rf"\s?{_SIGNS}+", r"\s+$", _CJK, r"\p{N}+"),
    **dict.fromkeys(
        ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
        (
            r"\p{N}{1,3}",
            _HAN_AND_KANA,
            rf"{_WORDS_WITH_MARKS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}",
        ),
    ),
    "spark2_5": (
        r"\p{N}{1,3}",
        _HAN_AND_KANA,
        rf"{_WORDS_WITH_MARKS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
        r"\p{N}",
    ),
    "youtu": (
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _HAN_AND_KANA,
        _capitalized(_LARGE, _SMALL, r"\p{N}"),
    ),
    "tekken": (_TEKKEN,),
    **dict.fromkeys(
        ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
        (_capitalized(_UPPER, _LOWER, r"\p{N}{1,3}"),),
    ),
    "granite-embed-multi-97m": (
        _capitalized(r"((?=[\p{L}\p{M}])([^a-z]))", r"((?=[\p{L}\p{M}])([^A-Z]))", r"\p{N}{1,3}"),
    ),
    **dict.fromkeys(
        ("tiny_aya", "cohere2moe"),
        (r"\d{1,3}(?=(?:\d{3})*\b)", _capitalized(_LARGE, _SMALL, r"\p{N}{1,3}")),
    ),
    "jais-2": (
        _LLAMA3.removesuffix(r"\s+(?!\S)|\s+")
        + "".join(rf"\s{{{2**power}}}(?!\S)|" for power in range(9, 1, -1))
        + r"\s{1,2}(?!\S)|\s",
    ),
    "qwen35": (
        _CONTRACTIONS + rf"|{_BEFORE}[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}",
    ),
    "ufakzeka": (_QWEN2[0].removeprefix(_CONTRACTIONS + "|"),),
    "laguna": (r"[^\n]+|\n+", *_QWEN2),
    **dict.fromkeys(
        ("bailingmoe", "bailingmoe2", "llada-moe"),
        (_QWEN2[0].replace(r"\s*[\r\n]+", r"\s*[\r\n]"),),
    ),
    "seed-coder": (_QWEN2[0].replace(r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+"),),
    "exaone-moe": (
        _CONTRACTIONS + rf"|{_BEFORE}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    "chameleon": (
        "<sentinel:[0-9]+>",
        "IMGIMG[A-I]{1,4}Z",
        r"[\t\n]|    |  ",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        _GPT2,
    ),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), (_SENTENCES,)),
    "viking": (_SENTENCES, r"\p{N}"),
}
"""The patterns of each method by its name: each cuts the results of those before it."""

# Their vocabularies hold whole words that no merge leads to.
_WHOLE_WORDS_FIRST = frozenset(
    (*_LLAMA3_NAMES, "tekken", "gpt-4o", "llama4", "youtu", "granite-embed-multi-97m")
)

# Their texts begin with the beginning-of-text token.
_BEGIN = frozenset((*_LLAMA3_NAMES, "tekken", "chameleon"))

_SPACE = "▁"


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
    if kind == "gpt2":
        tokenizer = _byte_level(metadata, tokens, origin)
    elif kind == "llama":
        tokenizer = _sentencepiece(metadata, tokens, types, origin)
    else:
        raise ModelError(
            f"{origin}: tokenizer.ggml.model is {kind!r}; expected 'gpt2' (byte-level BPE) or "
            "'llama' (SentencePiece)"
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


def pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer of a name in `PRE_TOKENIZERS`."""
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[name]]
    return pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def begins_texts(metadata: Mapping[str, Any]) -> bool:
    """Whether texts begin with the beginning-of-text token if the file does not specify it."""
    is_sentencepiece = metadata.get("tokenizer.ggml.model") == "llama"
    return is_sentencepiece or metadata.get("tokenizer.ggml.pre") in _BEGIN


def _byte_level(
    metadata: Mapping[str, Any], tokens: Sequence[str], origin: str
) -> tokenizers.Tokenizer:
    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in PRE_TOKENIZERS:
        raise ModelError(
            f"{origin}: tokenizer.ggml.pre is {name!r}, an unknown way of splitting "
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
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=name in _WHOLE_WORDS_FIRST)
    )
    tokenizer.pre_tokenizer = pre_tokenizer(name)
    tokenizer.decoder = decoders.ByteLevel()
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
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        + [decoders.Strip(" ", 1, 0)] * bool(before)
    )
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

    Raises ModelError when a token's id is invalid, or there is no end-of-text token.
    """
    tokens = file.metadata.get("tokenizer.ggml.tokens") or []
    config: dict[str, Any] = {}
    for name, key in NAMED_TOKENS.items():
        id = file.metadata.get(key)
        if id is None and name != "eos_token":
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
