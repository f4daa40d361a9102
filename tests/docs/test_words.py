"""The words of guides, docstrings and messages: plain phrases and one spelling.

The sources are read for their sentences alone; see "Conventions" in CONTRIBUTING.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from guides import GUIDES, ROOT

# What no sentence says, and what it says instead.
ARCHAIC = {
    r"but for (?!one|no|the (?:first|last))": "except",
    r"as it is told\b": "as shown",
    r"perceptron": "MLP",
    r"took turns": "interleaved",
    r"is no kind of\b": "is not a",
    r"heed\b": "follow",
    r"of before\b": "earlier",
    r"besides\b": "in addition",
    r"what was said\b": "the feedback, or the text",
    r"let go of\b": "released",
    r"told apart": "distinguished",
    r"hangs? on\b": "depends on",
    r"(?:can|cannot|may) be had\b": "is available",
    r"becomes of\b": "happens to",
    r"as (?:it is|they are)(?=[.;:])": "unchanged",
    r"what (?:stands|stood)\b": "what is, or the noun",
    r"stands? for (?:it|them|what)\b": "replaces",
    r"(?:goes|go|went|going) on (?:with|from|behind|for its)\b": "continues",
    r"gives back\b": "returns",
    r"by people\b": "for people",
    r"put right\b": "corrected",
    r"(?:object|row|file) a (?:line|file|row)\b": "one per line",
    r"(?:is|be) held with\b": "uses",
    r"commonest": "most common",
    r"is no (?:number|date|option|property)\b": "is not a",
}

# One spelling: British, with -ize as in "tokenizer" and "optimizer".
STEMS = (
    "normal|quant|special|organ|recogn|minim|maxim|optim|summar|initial|token|general|penal"
    "|util|custom|serial|emphas|categor|visual|author|synchron|final|memor|regular"
)
SPELLINGS = {
    rf"\w*(?:{STEMS})is(?:e[sd]?|ing|ations?|ers?)\b": "-ize",
    r"(?:color|behavior|favor|honor|neighbor|flavor)(?:s|ed|ing|ful|ite|able)?\b": "-our",
    r"(?:cancel|label|model|travel|signal)(?:ed|ing)\b": "-lled",
    r"(?:licenses?|defense|gray|catalogs?|analyze[sd]?|analyzing)\b": "licence, defence, grey, …",
}


def compiled(*tables: dict[str, str]) -> re.Pattern[str]:
    return re.compile("|".join(rf"\b(?:{pattern})" for table in tables for pattern in table))


FORBIDDEN = compiled(ARCHAIC, SPELLINGS)
SOURCES = [
    path for package in ("chatapp", "finetune") for path in sorted((ROOT / package).rglob("*.py"))
]


def prose(text: str) -> str:
    """A text without its code and addresses."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+", "", text)


def is_sentence(text: str) -> bool:
    """Whether a literal is a sentence or a part of one: not a word, SQL, CSS or a pattern."""
    marks = ("{\n", "$", "\\", "<", "SELECT", "CREATE")
    return len(text.split()) >= 3 and not any(mark in text for mark in marks)


def sentences(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings and messages of a module, each with its line."""
    tree = ast.parse(source)
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in statements:
                yield node.lineno, prose(" ".join(node.value.split()))
            elif is_sentence(node.value):
                yield node.lineno, prose(node.value)


# Verbs and pronouns that say nothing of the value they would name.
NAMES = set("told said asked found each some judged material".split())


def names(source: str) -> Iterator[tuple[int, str]]:
    """The names that a module defines, each with its line."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr


def forbidden_names(source: str) -> list[tuple[int, str]]:
    return [(line, name) for line, name in names(source) if name.strip("_").lower() in NAMES]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_a_guide_is_plain(guide: Path) -> None:
    match = FORBIDDEN.search(prose(guide.read_text(encoding="utf-8")))
    assert match is None, f"{guide.name}: {match[0]!r}"


def test_docstrings_and_messages_are_plain() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]!r}"
        for path in SOURCES
        for line, text in sentences(path.read_text(encoding="utf-8"))
        if (match := FORBIDDEN.search(text))
    ]
    assert not wrong, "\n".join(wrong)


def test_names_are_nouns_or_say_what_is_done() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in SOURCES
        for line, name in forbidden_names(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_names_would_be_seen() -> None:
    source = (
        "def told(asked, model):\n    for each in model.words:\n        self._found = found_words"
    )
    assert [name for _, name in forbidden_names(source)] == ["told", "asked", "each", "_found"]


def test_the_words_would_be_seen() -> None:
    source = '"""A text that shares less than it has besides."""\nraise ValueError("a gray row x")'
    assert [FORBIDDEN.search(text)[0] for _, text in sentences(source)] == ["besides", "gray"]
    for text in ("it is normalised", "was canceled", "a modeling task", "it hangs on that"):
        assert FORBIDDEN.search(text), text
    for text in ("a tokenizer's colour", "cancelled", "advertised", "its licence", "otherwise"):
        assert not FORBIDDEN.search(text), text
