"""Tests a foreign tokenizer.json in a limited process before this one uses it.

Its normalizer can lengthen a text without bound, and its patterns can take a time that grows
exponentially with the text. Both run in a library that cannot be interrupted.

Invariant: no pattern and no replacement of a tokenizer.json is applied here before its test.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chatapp.common.limited_process import LimitedProcess, LimitPassedError
from chatapp.common.userfiles import UserError, read_json_object
from chatapp.engine.errors import ModelError

_PROGRAM = Path(__file__).resolve().parents[2]

_SECONDS = 10.0
_MOST_MEMORY = 2**30
_LENGTH = 3_000
"""Characters of each test text: few enough for patterns with quadratic time, which good tokenizers
may have.
"""

_MOST_GROWTH = 40
"""Characters for one: Unicode's compatibility forms expand one to up to 18."""

_STEPS = ("normalizer", "pre_tokenizer", "decoder")
_TEXTS = (
    "a",
    " ",
    "\n",
    "1",
    "!",
    "A",
    "é",
    "一",
    "a ",
    "'s",
    "\r\n",
    "aA",
    "a1",
    "-_",
    "👍",
    "\u0301",
)

_LIMITS = {
    "time": f"takes more than {_SECONDS:.0f} seconds for a text of {_LENGTH:,} characters",
    "memory": f"takes more than {_MOST_MEMORY // 2**30} GiB of memory for a short text",
    "end": "fails on a short text",
}


def try_tokenizer(file: Path) -> None:
    """Raises ModelError for a tokenizer.json that explodes or backtracks.

    One without patterns and replacements of its own needs no test, nor does one that came with this
    program: the test takes longer than a first token.
    """
    if file.resolve().is_relative_to(_PROGRAM):
        return
    data = file.read_bytes()
    if b'"Regex"' not in data and b'"Replace"' not in data and b'"Prepend"' not in data:
        return
    document = read_json_object(file, ModelError)
    request = {step: document.get(step) for step in _STEPS}
    process = LimitedProcess(__name__, "answer", memory=_MOST_MEMORY)
    try:
        process.ask(request, _SECONDS)
    except LimitPassedError as passed:
        raise ModelError(f"{file}: the tokenizer {_LIMITS[passed.limit]}") from None
    except UserError as error:
        raise ModelError(f"{file}: {error}") from None
    finally:
        process.close()


def answer(request: dict[str, Any]) -> Iterator[bool]:
    """Answer requests in the limited process: True for a tokenizer that has cut all texts."""
    import tokenizers

    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "post_processor": None,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
        **request,
    }
    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
    except BaseException:
        yield True  # the library reports the fault in its own words
        return
    for piece in _TEXTS:
        text = (piece * _LENGTH)[:_LENGTH]
        for end in ("", "\x00"):
            _try(tokenizer, text + end)
    yield True


def _try(tokenizer: Any, text: str) -> None:
    normal = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    if len(normal) > _MOST_GROWTH * len(text):
        raise UserError(f"the tokenizer makes more than {_MOST_GROWTH} characters of one")
    if tokenizer.pre_tokenizer:
        tokenizer.pre_tokenizer.pre_tokenize_str(normal)
    if tokenizer.decoder:
        tokenizer.decoder.decode([text])
