"""Makes foreign text (from users, models and files) safe to show in a terminal.

Invariant: the result of `printable` contains no character that a terminal obeys, except newline and
tab, and no lone surrogate, so it can always be encoded as UTF-8.
"""

import json
import re
import unicodedata
from datetime import datetime
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")

_REPLACEMENT = "\ufffd"

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -~])?")
"""Terminal control sequences: colours, titles, links."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def _stand_ins() -> dict[int, str]:
    """The replacement of each character that a terminal would obey, by code point."""
    # Unicode has a visible picture for each C0 control and for DEL, but for no C1 control.
    pictures = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "\u2421"}
    obeyed = [
        *range(0x80, 0xA0),  # C1: the one-byte forms of ESC [ and its like
        *range(0x202A, 0x202F),  # bidirectional embeddings and overrides
        *range(0x2066, 0x206A),  # bidirectional isolates
        *(0x2028, 0x2029),  # line and paragraph separator
    ]
    table = pictures | dict.fromkeys(obeyed, _REPLACEMENT)
    del table[ord("\n")], table[ord("\t")]
    return table


_STAND_INS = _stand_ins()


def without_surrogates(text: str) -> str:
    """Replace each lone surrogate by U+FFFD, so that the text can be encoded as UTF-8."""
    return text if text.isascii() else _SURROGATE.sub(_REPLACEMENT, text)


def parse_json(text: str | bytes, **options: Any) -> Any:
    """The data of a JSON text. options: of `json.loads`. Raises ValueError for any other text, also
    one that is nested too deeply.
    """
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def local_time(seconds: float) -> datetime:
    """A time of a file as a date here; the first one that there is for a time out of range."""
    try:
        return datetime.fromtimestamp(seconds).astimezone()
    except (OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(0).astimezone()


def printable(text: str) -> str:
    """Replace each control character by a visible one; newline and tab stay.

    C0 controls and DEL become their control pictures (ESC is shown as ␛); C1 controls,
    bidirectional controls and lone surrogates become U+FFFD. Idempotent, and the number of
    characters stays the same.
    """
    return without_surrogates(text).translate(_STAND_INS)


_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Characters that show nothing, although Unicode classes them as visible."""


def one_line(text: str) -> str:
    """Foreign text for one line: printable, with single spaces."""
    return " ".join(printable(text).split())


def revealed(text: str) -> str:
    """Replace invisible and bidirectional characters, and unusual spaces, by their JSON escapes."""
    return "".join(_escape(character) if _is_hidden(character) else character for character in text)


def _is_hidden(character: str) -> bool:
    if character.isascii():
        return not character.isprintable()
    # Variation selectors are the marks (Mn) that show nothing of their own.
    selects = "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"
    category = unicodedata.category(character)
    return category[0] in "CZ" or selects or character in _BLANK


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def clean(text: str) -> str:
    """A text without control characters and sequences, except newline and tab."""
    lines = _SEQUENCE.sub("", text.replace("\r\n", "\n"))
    return printable(_CONTROL.sub("", lines)).strip()
