"""Units of measurement, and how many of one are in another.

Keep: every factor is exact, as it is defined; nothing is rounded before it is written.
"""

from fractions import Fraction

from chatapp.tools.numbers import in_digits, number, sized
from chatapp.tools.tool import ToolError
from chatapp.userfiles import quoted, suggestion

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
"""Of each dimension: names of a unit, and how many of the first unit it is. Volumes are those of
the United States where countries differ; a calorie is the thermochemical one."""

_DEGREES = {
    "celsius": (Fraction(1), Fraction("273.15")),
    "kelvin": (Fraction(1), Fraction(0)),
    "fahrenheit": (Fraction(5, 9), Fraction("459.67") * Fraction(5, 9)),
}
"""How a temperature becomes kelvin: times the first, plus the second."""

_DEGREE_NAMES = {"c": "celsius", "°c": "celsius", "k": "kelvin", "f": "fahrenheit"}
_DEGREE_NAMES |= {"°f": "fahrenheit"} | {name: name for name in _DEGREES}


def convert(value: str, unit: str, into: str) -> str:
    """A quantity in another unit, in words. Raises ToolError."""
    amount, source, target = number(value), _known(unit), _known(into)
    if source[0] != target[0]:
        raise ToolError(f"{quoted(unit)} is {source[0]} and {quoted(into)} is {target[0]}")
    _, factor, offset = source
    _, into_factor, into_offset = target
    result = sized((amount * factor + offset - into_offset) / into_factor)
    return f"{value.strip()} {unit.strip()} = {in_digits(result)} {into.strip()}"


def _known(unit: str) -> tuple[str, Fraction, Fraction]:
    """The dimension of a unit, its factor and its offset."""
    name = "-".join(unit.strip().lower().replace("²", "2").replace("³", "3").split())
    degrees = _DEGREE_NAMES.get(name.removeprefix("degrees-").removeprefix("degree-"))
    if degrees is not None:
        return ("temperature", *_DEGREES[degrees])
    units = _table()
    for spelling in (name, name.removesuffix("s")):
        if spelling in units:
            dimension, factor = units[spelling]
            return dimension, factor, Fraction(0)
    raise ToolError(f"there is no unit {quoted(unit)}{suggestion(name, [*units, *_DEGREES])}")


def _table() -> dict[str, tuple[str, Fraction]]:
    """Each unit's dimension and factor, by each of its names."""
    units = {}
    for dimension, text in _FACTORS.items():
        for entry in text.replace("\n        =", " =").replace("\n", ";").split(";"):
            names, equals, factor = entry.partition("=")
            for name in names.split() if equals else ():
                units[name] = dimension, Fraction(factor.strip())
    return units
