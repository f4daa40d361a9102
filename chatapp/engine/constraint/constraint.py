"""A constraint and its check, without a model."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from chatapp.common.foreign import parse_json
from chatapp.common.limited_process import LimitedProcess, LimitPassedError
from chatapp.common.userfiles import Location, dotted_key, read_required
from chatapp.engine.constraint.compiling import ConstraintError as ConstraintError
from chatapp.engine.constraint.compiling import Kind, fault_of, grammar_of
from chatapp.engine.constraint.validation import fault_by_draft

LONGEST = 100_000
"""Characters of a schema, a pattern or a grammar."""

_SECONDS, _MOST_MEMORY = 10.0, 2 * 2**30
"""Limits for compiling one."""

_PARTS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = ("items", "additionalProperties", "contains", "not", "if", "then", "else")

_MOST_PARTS = 500
"""Parts of a schema that are tried in search of the one at fault."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a reply may look like. Raises ConstraintError.

    source: JSON of the schema, the regular expression, or the Lark grammar. spaced: a space or line
    breaks may precede it. begun: the beginning of the reply, which is in the prompt. after: it
    applies to the text after this one; is_optional: which need not come, and has one layout.
    """

    kind: Kind
    source: str
    spaced: bool = False
    begun: str = ""
    after: str = ""
    is_optional: bool = False

    def __post_init__(self) -> None:
        if len(self.source) > LONGEST:
            raise ConstraintError(
                f"the {self.kind} has {len(self.source):,} characters; expected at most {LONGEST:,}"
            )
        if fault := _fault_of(self.kind, self.source, self.spaced or bool(self.after)):
            raise ConstraintError(f"the {self.kind} cannot be used: {fault}")

    @classmethod
    def of_schema(
        cls, schema: Mapping[str, Any] | bool | str, *, spaced: bool = False
    ) -> "Constraint":
        """schema: as JSON data or its text; true allows any JSON."""
        if isinstance(schema, str):
            try:
                schema = parse_json(schema)
            except ValueError as error:
                raise ConstraintError(f"the schema is not JSON: {error}") from None
        if schema is True:
            schema = {}
        if not isinstance(schema, Mapping):
            what = "allows nothing" if schema is False else "is not a JSON object"
            raise ConstraintError(f'the schema {what}; expected an object such as {{"type": …}}')
        try:
            return cls("schema", json.dumps(schema, ensure_ascii=False), spaced)
        except (TypeError, RecursionError, ValueError) as error:
            if isinstance(error, ConstraintError):
                raise
            raise ConstraintError(f"the schema cannot be used: {error}") from None

    @classmethod
    def of_pattern(cls, pattern: str, *, spaced: bool = False) -> "Constraint":
        """pattern: a regular expression that the whole reply matches."""
        return cls("pattern", pattern, spaced)

    @classmethod
    def of_grammar(cls, grammar: str, *, spaced: bool = False) -> "Constraint":
        """grammar: in Lark's notation, with a rule `start`."""
        return cls("grammar", grammar, spaced)

    def grammar(self) -> str:
        """The grammar in llguidance's form."""
        led = self.spaced or bool(self.after)
        return grammar_of(self.kind, self.source, led=led, tight=self.is_optional)

    @classmethod
    def read(cls, kind: Kind, given: str) -> "Constraint":
        """A constraint that a user gave: the path of a file with a schema or a grammar, or the text
        itself. Raises ConstraintError that names the file.
        """
        is_text = kind == "pattern" or given.lstrip().startswith("{") or "start:" in given
        try:
            text = given if is_text else read_required(Path(given).expanduser(), ConstraintError)
            return cls.of_schema(text) if kind == "schema" else cls(kind, text)
        except ConstraintError as error:
            if is_text or str(error).startswith(given):
                raise
            raise ConstraintError(f"{given}: {error}") from None

    @property
    def in_words(self) -> str:
        """For the model and people: what is expected, and the source."""
        what = {
            "schema": "JSON that fits this schema",
            "pattern": "a text that matches this regular expression",
            "grammar": "a text of this grammar",
        }
        return f"{what[self.kind]}: {self.source}"


@cache
def _trial() -> LimitedProcess:
    """The process that compiles everything first, one at a time."""
    return LimitedProcess(__name__, "answer", memory=_MOST_MEMORY)


@lru_cache(maxsize=512)
def _fault_of(kind: Kind, source: str, led: bool) -> str:
    """Why something cannot be used, in words; "" if it can."""
    try:
        return str(_trial().ask([kind, source, led], _SECONDS))
    except LimitPassedError as passed:
        limit = f"{_MOST_MEMORY // 2**30} GiB of memory"
        limit = f"{_SECONDS:.0f} seconds" if passed.limit == "time" else limit
        return f"it cannot be compiled within {limit}"


def answer(request: tuple[Kind, str, bool]) -> Iterator[str]:
    """Answer requests of `_fault_of`, in a limited process."""
    kind, source, led = request
    fault = fault_of(grammar_of(kind, source, led=led))
    if kind == "schema":
        schema = parse_json(source)
        fault = _smallest_fault(schema, fault) if fault else fault_by_draft(schema)
    yield fault


def _smallest_fault(schema: Any, fault: str) -> str:
    """The fault of the smallest part of a schema that cannot be used by itself, with its place.

    fault: of the whole.
    """
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    place: Location = ()
    left = _MOST_PARTS
    going_on = True
    while going_on:
        going_on = False
        for path, part in _parts(schema):
            left -= 1
            if left <= 0 or not isinstance(part, dict):
                continue
            if own := fault_of(grammar_of("schema", json.dumps({**definitions, **part}))):
                schema, place, fault, going_on = part, (*place, *path), own, True
                break
    return f"at {dotted_key(place)}: {fault}" if place else fault


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[Location, Any]]:
    """The schemas directly within one, with their places."""
    for key in _PARTS:
        if isinstance(inner := schema.get(key), dict):
            yield from (((key, name), part) for name, part in inner.items())
    for key in _LISTS:
        if isinstance(inner := schema.get(key), list):
            yield from (((key, number), part) for number, part in enumerate(inner))
    for key in _SINGLE:
        if isinstance(inner := schema.get(key), dict):
            yield (key,), inner
