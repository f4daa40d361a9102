"""Makes foreign text (of users, models and files) safe to show in a terminal.

Keep: what `printable` returns holds no character that a terminal obeys, except newline and tab, and
no lone surrogate, so that it can always be written as UTF-8.
"""

import re
import unicodedata

_SURROGATE = re.compile("[\ud800-\udfff]")

_REPLACEMENT = "\ufffd"


def _stand_ins() -> dict[int, str]:
    """What is shown instead of each character that a terminal would obey."""
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
    """`text` with each lone surrogate as U+FFFD, so that it can be encoded as UTF-8."""
    return _SURROGATE.sub(_REPLACEMENT, text)


def printable(text: str) -> str:
    """`text` with every control character as a visible stand-in, newline and tab kept.

    C0 controls and DEL become their control pictures (ESC is shown as ␛); C1 controls,
    bidirectional controls and lone surrogates become U+FFFD. Idempotent, and it keeps the
    number of characters.
    """
    return without_surrogates(text).translate(_STAND_INS)


_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Characters that are shown as nothing, although their category is that of visible ones."""


def revealed(text: str) -> str:
    """`text` with each invisible or bidirectional character, and each space but the usual one, as
    the escape that JSON has for it."""
    return "".join(_escape(each) if _is_hidden(each) else each for each in text)


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
