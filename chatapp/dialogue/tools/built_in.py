"""Two built-in tools: a calculator and the clock.

Invariant: an expression is parsed by the grammar below and never executed; its length, its depth
and the size of every number in it are bounded. A number stays an exact fraction until it is
printed, and a rounded one is marked. A time includes its zone and a date its day of the week.

    sum     = product {("+" | "-") product}
    product = sign {("*" | "/" | "//" | "mod" | "of") sign}
    sign    = ("-" | "+") sign | power
    power   = part ["**" sign]
    part    = (number | "(" sum ")") {"%"}

`%` before a number or a parenthesis is the remainder, elsewhere per cent.
"""

import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import Context, Decimal
from fractions import Fraction
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from chatapp.common.userfiles import quoted
from chatapp.dialogue.tools.tool import ToolError

MOST_BITS = 13_000
"""Bits of the largest numerator or denominator: about 3,900 digits; Python's own limit is 4,300."""

_MOST_EXPONENT = 3_900
_MOST_DECIMALS = 30
_ROUNDED = Context(prec=15)


def check_size(value: Fraction) -> Fraction:
    """Return the value. Raises ToolError when it is too long."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        raise ToolError("a number of this calculation has more than 3,900 digits")
    return value


def number(text: str) -> Fraction:
    """A decimal number, such as 1,234.5 or 6e23. Raises ToolError."""
    digits, _, exponent = text.replace(",", "").lower().partition("e")
    try:
        if "/" in digits:  # which Fraction would accept
            raise ValueError
        if exponent and abs(int(exponent)) > _MOST_EXPONENT:
            raise ToolError(f"the exponent of {text[:40]} is beyond {_MOST_EXPONENT:,}")
        return check_size(Fraction(digits) * Fraction(10) ** int(exponent or 0))
    except ValueError:
        raise ToolError(f"{text[:40]!r} is not a number") from None


def in_digits(value: Fraction) -> str:
    """A number in digits, exact if they end; else fifteen of them and the fraction."""
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
    """The number of decimals of a fraction; None when they do not end, or not soon."""
    counts = []
    for prime in (2, 5):
        count = 0
        while denominator % prime == 0 and count <= _MOST_DECIMALS:
            denominator //= prime
            count += 1
        counts.append(count)
    return max(counts) if denominator == 1 and max(counts) <= _MOST_DECIMALS else None


def now(zone: str | None = None) -> datetime:
    """The time, in a zone such as Europe/Paris or at its city, or in the machine's own zone.

    Raises ToolError for an unknown zone.
    """
    if not zone:
        return datetime.now().astimezone()
    named = _zones().get(zone.strip().replace(" ", "_").casefold(), zone)  # Tokyo: Asia/Tokyo
    try:
        return datetime.now(ZoneInfo(named))
    except (OSError, ValueError, LookupError):
        raise ToolError(
            f"there is no time zone {quoted(zone)}; expected a name such as Europe/Paris"
        ) from None


@cache
def _zones() -> dict[str, str]:
    """The zones by their names and their cities, in lower case."""
    names = sorted(available_timezones(), key=len, reverse=True)
    return {
        key: name for name in names for key in (name.casefold(), name.casefold().rpartition("/")[2])
    }


def is_place(text: str) -> bool:
    """Whether there is a time zone of this name or city."""
    return text.replace(" ", "_").casefold() in _zones()


def clock(zone: str | None = None) -> str:
    """The date and the time in words."""
    time = now(zone)
    return f"{in_words(time.date())}, {time:%H:%M:%S} {time.tzname()}"


def in_words(day: date) -> str:
    """A date with its day of the week and its week."""
    _, week, _ = day.isocalendar()
    return f"{day:%A}, {day.day} {day:%B} {day.year} ({day.isoformat()}, week {week})"


_LONGEST = 1_000
_DEEPEST = 50

_TOKEN = re.compile(
    r"\s*(?:(\d{1,3}(?:,\d{3})+(?:\.\d+)?|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(\*\*|//|mod\b|of\b|[-+*/%()]))"
)
_BEGINS_PART = re.compile(r"[\d(.]")
_SAME = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "^": "**", "\u00a0": " "})
_TIMES = re.compile(r"(?<=[\d)\s])[xX](?=[\d(\s])")


def calculate(expression: str) -> Fraction:
    """The value of an expression. Raises ToolError."""
    if len(expression) > _LONGEST:
        raise ToolError(f"the expression is longer than {_LONGEST:,} characters")
    text = _TIMES.sub("*", expression.translate(_SAME)).rstrip(" =\n")
    try:
        return _Parser(_tokens(text)).value()
    except ZeroDivisionError:
        raise ToolError("it divides by zero") from None


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    place = 0
    while place < len(text.rstrip()):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ToolError(f"{quoted(text[place:].strip(), 20)} cannot be calculated with")
        tokens.append(match[1] or match[2])
        place = match.end()
    return tokens


class _Parser:
    """Parses an expression from the left, and computes in the same pass."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = [*tokens, ""]
        self._place = 0
        self._depth = 0

    def value(self) -> Fraction:
        value = self._sum()
        if self._next:
            raise ToolError(f"there is {self._next!r} where an operator should be")
        return value

    @property
    def _next(self) -> str:
        return self._tokens[self._place]

    def _take(self, *tokens: str) -> str:
        """Take the next token if it is one of these; else ""."""
        token = self._next
        if token not in tokens:
            return ""
        self._place += 1
        return token

    def _sum(self) -> Fraction:
        value = self._product()
        while sign := self._take("+", "-"):
            other = self._product()
            value = check_size(value + other if sign == "+" else value - other)
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while sign := self._take("*", "of", "/", "//", "mod", "%"):
            other = self._signed()
            if sign in ("*", "of"):
                value = check_size(value * other)
            elif sign == "/":
                value = check_size(value / other)
            else:
                quotient = Fraction(value // other)
                value = check_size(quotient if sign == "//" else value - quotient * other)
        return value

    def _signed(self) -> Fraction:
        sign = self._take("+", "-")
        if not sign:
            return self._power()
        with_depth = self._deeper(self._signed)
        return -with_depth if sign == "-" else with_depth

    def _power(self) -> Fraction:
        base = self._part()
        if not self._take("**"):
            return base
        exponent = self._deeper(self._signed)
        if exponent.denominator != 1:
            raise ToolError("a power has to be a whole number")
        length = max(base.numerator.bit_length(), base.denominator.bit_length())
        if length > 1 and abs(exponent) * (length - 1) > MOST_BITS:
            raise ToolError("a power of this calculation has more than 3,900 digits")
        return check_size(Fraction(base**exponent.numerator))

    def _part(self) -> Fraction:
        if self._take("("):
            value = self._deeper(self._sum)
            if not self._take(")"):
                raise ToolError("a parenthesis is not closed")
        elif self._next[:1].isdigit() or self._next[:1] == ".":
            value = number(self._next)
            self._place += 1
        else:
            raise ToolError(f"there is {self._next or 'nothing'!r} where a number should be")
        while self._next == "%" and not _BEGINS_PART.match(self._tokens[self._place + 1]):
            self._place += 1
            value /= 100
        return value

    def _deeper(self, read: Callable[[], Fraction]) -> Fraction:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ToolError(f"it is nested deeper than {_DEEPEST}")
        value = read()
        self._depth -= 1
        return value
