"""How byte-level and other BPE tokenizers cut a text before they merge, by llama.cpp's names."""

from collections.abc import Mapping

from tokenizers import Regex, pre_tokenizers

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
# Ranges of characters in llama.cpp hold no white space beyond ASCII.
_CJK = r"[一-龥ࠀ-一가-\x{D7FF}&&[^\s]]+"
# Letters of Unicode 12 with a case, without some alphabets.
_CASED = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\x{560}-\x{588}\x{10C7}-\x{10FF}\x{1C80}-\x{1C8F}\x{1FBE}"
    r"\x{2D00}-\x{2D2D}\x{A790}-\x{A7FF}\x{AB30}-\x{AB6F}\x{10570}-\x{105FF}"
    r"\x{10D50}-\x{10D8F}\x{16E40}-\x{1DFFF}]]"
)
_SIGNS = r"[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3001}-\x{3002}]"
_HAN_AND_KANA = "[一-龥぀-ゟ゠-ヿ]+"
_WORDS_WITH_MARKS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
)
_HAN = (
    r"\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF}"
    r"\x{2F800}-\x{2FA1F}"
)
_ASIAN = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}"
    r"\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{0E40}-\x{0E7F}\x{0E80}-\x{0EFF}\x{1780}-\x{17FF}"
    r"\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+"
)
# Where a pattern names kinds of letters (Lu, Ll …), llama.cpp takes all letters.
_LETTERS = r"[\p{L}\p{M}]"


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
    **dict.fromkeys((*_LLAMA3_NAMES, *("dbrx", "smaug-bpe", "glm4", "chatglm-bpe")), (_LLAMA3,)),
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
        (r"\p{N}{1,3}", _HAN_AND_KANA, rf"{_WORDS_WITH_MARKS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}"),
    ),
    "spark2_5": (
        r"\p{N}{1,3}",
        _HAN_AND_KANA,
        rf"{_WORDS_WITH_MARKS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
        r"\p{N}",
    ),
    "youtu": (
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _HAN_AND_KANA,
        _capitalized(_LETTERS, _LETTERS, r"\p{N}"),
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
        (_capitalized(_LETTERS, _LETTERS, r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"),),
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
    "minicpm5": (r"\p{N}{1,3}", _LLAMA3.replace("{1,3}", "+")),
    "superbpe": (r"\p{N}+", "(?=([0-9]{3})+(?![0-9]))"),
    "kimi-k2": (
        f"[{_HAN}]+|{_BEFORE}[\\p{{L}}&&[^{_HAN}]]+{_CONTRACTIONS}?"
        rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES}",
    ),
    "afmoe": (
        r"\P{N}*\p{N}{1,3}(?=(\p{N}{3})*(?!\p{N}))",
        _ASIAN,
        rf"{_WORDS_WITH_MARKS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}",
    ),
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m", "sarvam-moe"), (r"[^\n]+|\n+",)),
    "whitespace": (r"\S+",),
}
"""The patterns of each method by its name: each cuts the results of those before it."""

WHOLE_WORDS_FIRST = frozenset(
    (*_LLAMA3_NAMES, "tekken", "gpt-4o", "llama4", "youtu", "granite-embed-multi-97m", "minicpm5")
)
"""Their vocabularies hold whole words that no merge leads to."""

BEGIN = frozenset((*_LLAMA3_NAMES, "tekken", "chameleon", "gemma4", "granite-embed-multi-311m"))
"""Their texts begin with the beginning-of-text token."""

SPACES_MARKED = frozenset(("gemma4", "granite-embed-multi-311m", "sarvam-moe"))
"""Their tokens are characters, and a space is U+2581, as in SentencePiece."""

CHARACTERS = SPACES_MARKED | {"whitespace"}
"""Their tokens are characters, not bytes."""


def pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer of a name in `PRE_TOKENIZERS`."""
    cuts: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[name]
    ]
    if name not in CHARACTERS:
        cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(cuts)
