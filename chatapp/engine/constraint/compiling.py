"""Compiles grammars with llguidance, in bounded time and memory."""

import json
import re
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from chatapp.common.foreign import parse_json
from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

Kind = Literal["schema", "pattern", "grammar"]

_TIGHT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""No white space that the model may choose, so that most tokens of a tool's call are forced."""

_LAID_OUT = {
    "whitespace_flexible": True,
    "whitespace_pattern": r" |\n {0,24}|\n\t{0,8}",
    "item_separator": ",",
    "key_separator": ":",
}
"""At most one space or line break between two signs, as models lay out JSON: where a line break
is forbidden, a model that wants one ends its list; without a bound, a weak one writes no other."""

_LEAD = {"lark_grammar": r"start: / |\n{1,2}/? @body"}
"""White space may precede the text."""


class ConstraintError(UserError, ValueError):
    """A schema, pattern or grammar that cannot be used, or a model that cannot follow one."""


def grammar_of(kind: Kind, source: str, *, led: bool = False, tight: bool = False) -> str:
    """A grammar in llguidance's form. led: white space may precede its text. tight: JSON has one
    layout.
    """
    from llguidance import LLMatcher

    if kind == "grammar":
        body: dict[str, Any] = {"lark_grammar": source}
    else:
        json_options = {
            **(_TIGHT if tight else _LAID_OUT),
            "lenient": False,
            "coerce_one_of": False,
        }
        text = (
            LLMatcher.grammar_from_regex(source)
            if kind == "pattern"
            else LLMatcher.grammar_from_json_schema(source, overrides=json_options)  # type: ignore[arg-type]
        )
        body = parse_json(text)["grammars"][0]
    return json.dumps({"grammars": [*([_LEAD] if led else []), {**body, "name": "body"}]})


@cache
def byte_tokenizer() -> "LLTokenizer":
    """Every byte is a token: for checks without a model."""
    tokens = [bytes([byte]) for byte in range(256)]
    return described([*tokens, b"\xff<end>"], 256, lambda text: list(text.encode()))


def described(
    tokens: Sequence[bytes], end_id: int, encode: Callable[[str], list[int]]
) -> "LLTokenizer":
    from llguidance import LLTokenizer, TokenizerWrapper

    class Described:
        """What llguidance wants to know."""

        eos_token_id = end_id
        bos_token_id = None
        special_token_ids = (end_id,)

        def __init__(self) -> None:
            self.tokens = tokens

        def __call__(self, text: str) -> list[int]:
            return encode(text)

    return LLTokenizer(TokenizerWrapper(Described()))


def _limits() -> "LLParserLimits":
    """The most work of one step, and the most memory: some 40 MB for the states of a lexer."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_lexer_states=20_000,
        max_grammar_size=100_000,
        initial_lexer_fuel=100_000,
        step_lexer_fuel=100_000,
        verbose_errors=False,
    )


def matcher_of(tokenizer: "LLTokenizer", grammar: str) -> "LLMatcher":
    """llguidance's state of a text in a grammar; its errors are in it."""
    from llguidance import LLMatcher

    return LLMatcher(tokenizer, grammar, log_level=0, limits=_limits())


_STEP_SECONDS = 1.0
"""Of the processor for one step, after which a reply is given up: others share its thread."""


def mask_of(state: "LLMatcher") -> bytes:
    """The bits of the tokens that may come next. Raises RuntimeError when that takes too long."""
    began = time.thread_time()
    bits = state.compute_bitmask()
    if time.thread_time() - began > _STEP_SECONDS:
        raise RuntimeError("it takes too much work for each token")
    return bits


def words_of(error: str) -> str:
    """The first sentence of an error of llguidance."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    last = next((line for line in lines if line.startswith("error: ")), "")
    first = lines[0] if lines else ""
    if first.startswith("NoExtension"):
        return "no text fits it"
    first = re.sub(r"Unimplemented keys: \[(.*)\]", r"no grammar can follow \1", first)
    # What follows advises options of llguidance, which the user does not have.
    first = re.split(r"; following special|\. Enable ", first)[0]
    return f"{first} {last}".strip()[:400]


def fault_of(grammar: str) -> str:
    """Why no text can be made with a grammar; "" if one can."""
    matcher = matcher_of(byte_tokenizer(), grammar)
    try:
        if not matcher.is_error():
            mask_of(matcher)
    except RuntimeError as slow:
        return str(slow)
    if matcher.is_error():
        return words_of(matcher.get_error())
    if matcher.is_stopped() and not matcher.is_accepting():
        return "no text fits it"
    return ""
