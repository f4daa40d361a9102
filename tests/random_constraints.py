"""Random schemas and patterns that can be followed."""

import random
from typing import Any

from chatapp.engine.constraint.constraint import Constraint

NAMES = "name age city kind tags size price id note when items count is_new α".split()
WORDS = ["red", "green", "blue", "a b", 'with "quotes"', "é", "", "42", "x" * 30]
PARTS = [
    "[a-z]",
    "([A-Z][a-z]+)",
    "([0-9]{1,4})",
    "(yes|no|maybe)",
    "-",
    " ",
    "é",
    "[^x]",
    r"(\d+)",
    r"\w",
]
FORMATS = ["date", "time", "ipv4", "uuid", "email"]
REPEATS = ["", "", "", "?", "{2,3}", "{4}", "(, [a-z]+){0,2}"]


def random_schema(numbers: random.Random, depth: int = 3) -> dict[str, Any]:
    """A schema whose values are not deeper than this."""
    kinds = ["string", "integer", "number", "boolean", "enum", "const", "pattern", "format", "null"]
    if depth:
        kinds += ["object"] * 4 + ["array"] * 2 + ["anyOf"]
    kind = numbers.choice(kinds)
    low = numbers.randrange(-50, 50)
    match kind:
        case "string":
            shortest = numbers.randrange(4)
            return {
                "type": kind,
                "minLength": shortest,
                "maxLength": shortest + numbers.randrange(12),
            }
        case "integer":
            return {"type": kind, "minimum": low, "maximum": low + numbers.randrange(1000)}
        case "number":
            return {
                "type": kind,
                "minimum": low,
                "exclusiveMaximum": low + 1 + numbers.randrange(9),
            }
        case "enum":
            return {kind: numbers.sample([*WORDS, 1, -2.5, None, True, [1, 2], {"a": 1}], 4)}
        case "const":
            return {kind: numbers.choice(WORDS)}
        case "pattern":
            return {"type": "string", kind: f"^{random_pattern(numbers)}$"}
        case "format":
            return {"type": "string", kind: numbers.choice(FORMATS)}
        case "object":
            return random_object(numbers, depth)
        case "array":
            least = numbers.randrange(3)
            items = random_schema(numbers, depth - 1)
            return {"type": kind, "items": items, "minItems": least, "maxItems": least + 1}
        case "anyOf":
            return {kind: [random_schema(numbers, depth - 1) for _ in range(2)]}
    return {"type": kind}


def random_object(numbers: random.Random, depth: int) -> dict[str, Any]:
    """A schema of an object with a few properties, some of them required."""
    names = numbers.sample(NAMES, numbers.randrange(1, 5))
    return {
        "type": "object",
        "properties": {name: random_schema(numbers, depth - 1) for name in names},
        "required": numbers.sample(names, numbers.randrange(len(names) + 1)),
        "additionalProperties": False,
    }


def random_pattern(numbers: random.Random) -> str:
    """A regular expression."""
    parts = (
        numbers.choice(PARTS) + numbers.choice(REPEATS) for _ in range(numbers.randrange(1, 6))
    )
    return "".join(parts)


def random_constraint(numbers: random.Random) -> Constraint:
    """A schema or, one time in four, a pattern."""
    if numbers.random() < 0.25:
        return Constraint.of_pattern(random_pattern(numbers))
    return Constraint.of_schema(random_object(numbers, 3))
