"""Makes foreign text (of users, models and files) safe to show in a terminal.

Keep: what `printable` returns holds no character that a terminal obeys, except newline and tab, and
no lone surrogate, so that it can always be written as UTF-8.
"""

import re

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
