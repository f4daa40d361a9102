"""The built-in tools: a calculator, the clock and the calendar, units of measurement.

Invariant: an expression is parsed by the grammar below and never executed; its length, its depth
and the size of every number in it are bounded. A number stays an exact fraction until it is
printed, and a rounded one is marked. A time includes its zone and a date its day of the week.

    sum     = product {("+"
 "-") product}
    product = sign {("*"
 "/"
 "//"
 "mod"
 "of") sign}
    sign    = ("-"
 "+") sign
 power
    power   = part ["**" sign]
    part    = (number
 "(" sum ")") {"%"}

`%` before a number or a parenthesis is the remainder, elsewhere per cent.
"""

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from fractions import Fraction
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from chatapp.common.userfiles import quoted, suggestion
from chatapp.dialogue.tools.tool import ToolError

MOST_BITS = 13_000
"""Of a numerator or a denominator: about 3,900 digits; Python's own limit is 4,300."""

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
    try:
        return datetime.now(ZoneInfo(_zone_at(zone)))
    except (OSError, ValueError, LookupError):
        raise ToolError(
            f"there is no time zone {quoted(zone)}; expected a name such as Europe/Paris"
        ) from None


def _zone_at(place: str) -> str:
    """The zone of this name, or with this city: Asia/Tokyo for Tokyo."""
    return _zones().get(place.strip().replace(" ", "_").casefold(), place)


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


def calendar(day: str, days: int = 0, until: str | None = None) -> str:
    """Describe a date, or one so many days later, and the number of days until another.

    day, until: as 2026-11-23, or "today". Raises ToolError.
    """
    start = _date(day)
    try:
        start += timedelta(days=days)
    except OverflowError:
        raise ToolError("the date is too far away") from None
    words = in_words(start)
    if until is None:
        return words
    end = _date(until)
    return f"{words}; {(end - start).days:,} days until {in_words(end)}"


def in_words(day: date) -> str:
    """A date with its day of the week and its week."""
    _, week, _ = day.isocalendar()
    return f"{day:%A}, {day.day} {day:%B} {day.year} ({day.isoformat()}, week {week})"


def _date(text: str) -> date:
    if text.strip().lower() == "today":
        return now().date()
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise ToolError(f"{quoted(text)} is not a date; expected one such as 2026-11-23") from None


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


_FACTORS = {
    "length": """
        m metre meter = 1; km kilometre kilometer = 1000; cm centimetre centimeter = 0.01
        mm millimetre millimeter = 0.001; inch in inches = 0.0254; foot ft feet = 0.3048
        yard yd = 0.9144; mile mi = 1609.344; nmi nautical-mile = 1852""",
    "mass": """
        kg kilogram kilogramme = 1; g gram gramme = 0.001; mg milligram = 0.000001
        t tonne = 1000; lb pound = 0.45359237; oz ounce = 0.028349523125; stone = 6.35029318""",
    "volume": """
        l litre liter = 1; ml millilitre milliliter = 0.001; cl centilitre centiliter = 0.01
        m3 cubic-metre cubic-meter = 1000; gallon gal = 3.785411784; pint pt = 0.473176473
        cup = 0.2365882365; floz fluid-ounce = 0.0295735295625; tablespoon tbsp = 0.01478676478125
        teaspoon tsp = 0.00492892159375""",
    "time": """
        s second sec = 1; ms millisecond = 0.001; min minute = 60; h hour = 3600; day d = 86400
        week = 604800""",
    "area": """
        m2 square-metre square-meter = 1; km2 square-kilometre square-kilometer = 1000000
        cm2 = 0.0001; hectare ha = 10000; acre = 4046.8564224; square-foot square-feet ft2 sqft
        = 0.09290304; square-mile mi2 = 2589988.110336""",
    "speed": """
        m/s = 1; km/h kmh kph = 5/18; mph = 0.44704; knot kn = 463/900; ft/s = 0.3048""",
    "energy": """
        j joule = 1; kj kilojoule = 1000; cal calorie = 4.184; kcal kilocalorie = 4184
        wh watt-hour = 3600; kwh kilowatt-hour = 3600000""",
    "data": """
        byte b = 1; kb kilobyte = 1000; mb megabyte = 1000000; gb gigabyte = 1000000000
        tb terabyte = 1000000000000; kib = 1024; mib = 1048576; gib = 1073741824
        tib = 1099511627776; bit = 0.125""",
}
"""For each dimension: the names of a unit, and its size in the first unit. Volumes are those of the
United States where countries differ; a calorie is the thermochemical one.
"""

_DEGREES = {
    "celsius": (Fraction(1), Fraction("273.15")),
    "kelvin": (Fraction(1), Fraction(0)),
    "fahrenheit": (Fraction(5, 9), Fraction("459.67") * Fraction(5, 9)),
}
"""Conversion of a temperature to kelvin: times the first, plus the second."""

_DEGREE_NAMES = {"c": "celsius", "°c": "celsius", "k": "kelvin", "f": "fahrenheit"}
_DEGREE_NAMES |= {"°f": "fahrenheit"} | {name: name for name in _DEGREES}


def convert(value: str, unit: str, into: str) -> str:
    """A quantity in another unit, in words. Raises ToolError."""
    amount, source, target = number(value), _known(unit), _known(into)
    if source[0] != target[0]:
        raise ToolError(f"{quoted(unit)} is {source[0]} and {quoted(into)} is {target[0]}")
    _, factor, offset = source
    _, into_factor, into_offset = target
    result = check_size((amount * factor + offset - into_offset) / into_factor)
    return f"{value.strip()} {unit.strip()} = {in_digits(result)} {into.strip()}"


def _known(unit: str) -> tuple[str, Fraction, Fraction]:
    """The dimension of a unit, its factor and its offset. Raises ToolError."""
    known = _looked_up(unit)
    if known is None:
        hint = suggestion(unit.strip().lower(), [*_table(), *_DEGREES])
        raise ToolError(f"there is no unit {quoted(unit)}{hint}")
    return known


def _looked_up(unit: str) -> tuple[str, Fraction, Fraction] | None:
    name = "-".join(unit.strip().lower().replace("²", "2").replace("³", "3").split())
    degrees = _DEGREE_NAMES.get(name.removeprefix("degrees-").removeprefix("degree-"))
    if degrees is not None:
        return ("temperature", *_DEGREES[degrees])
    units = _table()
    for spelling in (name, name.removesuffix("s")):
        if spelling in units:
            dimension, factor = units[spelling]
            return dimension, factor, Fraction(0)
    return None


def is_unit(text: str) -> bool:
    """Whether it names a unit, and not the word between two of them."""
    return text.casefold() != "in" and _looked_up(text) is not None


@cache
def _table() -> dict[str, tuple[str, Fraction]]:
    """The dimension and the factor of every unit, by each of its names."""
    units = {}
    for dimension, text in _FACTORS.items():
        for entry in text.replace("\n        =", " =").replace("\n", ";").split(";"):
            names, equals, factor = entry.partition("=")
            for name in names.split() if equals else ():
                units[name] = dimension, Fraction(factor.strip())
    return units
