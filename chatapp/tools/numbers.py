"""Exact numbers: read from what models write, and written in digits.

Keep: a number stays a fraction until it is written; what had to be rounded says so.
"""

from decimal import Context, Decimal
from fractions import Fraction

from chatapp.tools.tool import ToolError

MOST_BITS = 13_000
"""Of a numerator or a denominator: some 3,900 digits, where Python itself writes 4,300."""

_MOST_EXPONENT = 3_900
_MOST_DECIMALS = 30
_ROUNDED = Context(prec=15)


def sized(value: Fraction) -> Fraction:
    """The value. Raises ToolError when it is too long to go on with."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        raise ToolError("a number of this calculation has more than 3,900 digits")
    return value


def number(text: str) -> Fraction:
    """A decimal number, such as 1,234.5 or 6e23. Raises ToolError."""
    digits, _, exponent = text.replace(",", "").lower().partition("e")
    try:
        if "/" in digits:  # which Fraction would take
            raise ValueError
        if exponent and abs(int(exponent)) > _MOST_EXPONENT:
            raise ToolError(f"the exponent of {text[:40]} is beyond {_MOST_EXPONENT:,}")
        return sized(Fraction(digits) * Fraction(10) ** int(exponent or 0))
    except ValueError:
        raise ToolError(f"{text[:40]!r} is no number") from None


def in_digits(value: Fraction) -> str:
    """A number in digits, exactly where they end; else fifteen of them and the fraction."""
    if value.denominator == 1:
        return str(value.numerator)
    decimals = _decimals(value.denominator)
    if decimals is not None:
        shifted = abs(value.numerator) * 10**decimals // value.denominator
        whole, digits = divmod(shifted, 10**decimals)
        return f"{'-' if value < 0 else ''}{whole}.{digits:0{decimals}}"
    rounded = _ROUNDED.divide(Decimal(value.numerator), Decimal(value.denominator))
    fraction = str(value)
    return f"{rounded:f}… ({fraction})" if len(fraction) <= 40 else f"{rounded}…"


def _decimals(denominator: int) -> int | None:
    """How many decimals a fraction of it has; None when they do not end, or not soon."""
    counts = []
    for prime in (2, 5):
        count = 0
        while denominator % prime == 0 and count <= _MOST_DECIMALS:
            denominator //= prime
            count += 1
        counts.append(count)
    return max(counts) if denominator == 1 and max(counts) <= _MOST_DECIMALS else None
