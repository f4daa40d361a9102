"""Arithmetic, exact: sums, products, quotients, powers and percentages of decimal numbers.

Keep: a text is read by this grammar alone and nothing of it is ever run; its length, its depth and
the size of every number in it are bounded.

    sum     = product {("+" | "-") product}
    product = sign {("*" | "/" | "//" | "mod" | "of") sign}
    sign    = ("-" | "+") sign | power
    power   = part ["**" sign]
    part    = (number | "(" sum ")") {"%"}

`%` before a number or a parenthesis is the remainder, elsewhere per cent.
"""

import re
from collections.abc import Callable
from fractions import Fraction

from chatapp.tools.numbers import MOST_BITS, number, sized
from chatapp.tools.tool import ToolError
from chatapp.userfiles import quoted

_LONGEST = 1_000
_DEEPEST = 50

_TOKEN = re.compile(
    r"\s*(?:(\d{1,3}(?:,\d{3})+(?:\.\d+)?|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(\*\*|//|mod\b|of\b|[-+*/%()]))"
)
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
    """Reads an expression from the left, and computes as it goes."""

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
        """The next token where it is one of these; else nothing is taken."""
        token = self._next
        if token not in tokens:
            return ""
        self._place += 1
        return token

    def _sum(self) -> Fraction:
        value = self._product()
        while sign := self._take("+", "-"):
            other = self._product()
            value = sized(value + other if sign == "+" else value - other)
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while sign := self._take("*", "of", "/", "//", "mod", "%"):
            other = self._signed()
            if sign in ("*", "of"):
                value = sized(value * other)
            elif sign == "/":
                value = sized(value / other)
            else:
                quotient = Fraction(value // other)
                value = sized(quotient if sign == "//" else value - quotient * other)
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
        return sized(Fraction(base**exponent.numerator))

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
        while self._next == "%" and not self._begins_part(self._tokens[self._place + 1]):
            self._place += 1
            value /= 100
        return value

    def _begins_part(self, token: str) -> bool:
        return token[:1].isdigit() or token[:1] in ("(", ".")

    def _deeper(self, read: Callable[[], Fraction]) -> Fraction:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ToolError(f"it is nested deeper than {_DEEPEST}")
        value = read()
        self._depth -= 1
        return value
