"""Runs a chat template in the environment of transformers, with origins and step counts.

Invariant: in the limited process, a template reaches only its arguments, is bounded in steps, time
and memory, and writes exactly the text that it writes in transformers' own environment.
"""

import json
import re
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime
from functools import lru_cache, partial, wraps
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from chatapp.prompting.traced_text import (
    TEMPLATE,
    Traced,
    from_json,
    joined,
    origins_of,
    through,
    to_json,
    with_marks,
)

if TYPE_CHECKING:
    from jinja2.parser import Parser

_MOST_STEPS = 200_000
_MOST_SECONDS = 2.0
_LARGEST = 1_000_000
"""The largest number by which a text may be multiplied, padded, cut or formatted."""

_LONGEST_TEXT = 20_000_000
"""Characters of intermediate texts: small enough for memory."""

_LONGEST_RESULT = 5_000_000
"""Characters: more than any window holds."""

_LARGE_NUMBER = re.compile("[0-9]{7}")

# Filters through which every character keeps its origin. Jinja's others, such as `indent`, join
# parts of a text as plain strings.
_EXACT_FILTERS = frozenset(
    (
        *("join", "tojson", "trim", "string", "replace", "format"),
        *("upper", "lower", "capitalize", "default", "d"),
    )
)


class BoundPassedError(jinja2.TemplateError):
    """A template exceeded the limits on steps, time or memory, which every honest one meets."""


class _Instrumented(NodeTransformer):
    """A program that counts the turns of its loops, and joins strings by `+`.

    `a ~ b` would compile into a join of plain strings, which loses origins.
    """

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        first, *others = (nodes.Filter(part, "string", [], [], None, None) for part in node.nodes)
        total: nodes.Expr = first
        for part in others:
            total = nodes.Add(total, part, lineno=node.lineno)
        return total

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        # No name of a template leads to an attribute of its environment, so none can replace it.
        step = nodes.Call(nodes.EnvironmentAttribute("no_text"), [], [], None, None)
        node.body.insert(0, nodes.Output([step]).set_lineno(node.lineno))
        return node


class _Generation(Extension):
    """The tag around the text on which transformers trains; it changes no text."""

    tags = {"generation"}  # noqa: RUF012  # as jinja has it

    def parse(self, parser: "Parser") -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Dict:
    """The global `dict` of templates: it makes dicts and exposes no class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """The global `namespace`; names that begin with an underscore are refused."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace can have no attribute {name!r}")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


class Program:
    """A compiled chat template. variables: the names that it reads."""

    def __init__(self, source: str) -> None:
        """Raises jinja2.TemplateSyntaxError when the source is no template."""
        self._steps = 0
        self._started = 0.0
        environment = _environment(self._count_step)
        program = environment.parse(source)
        self.variables = find_undeclared_variables(program)
        self._template = environment.from_string(_Instrumented().visit(program))

    def render(self, variables: Mapping[str, Any]) -> Traced:
        """Run the template. Raises BoundPassedError, another jinja2.TemplateError, or any error of
        its own.
        """
        self._steps, self._started = 0, time.thread_time()
        text = joined([self._template.render(**variables)])
        if len(text) > _LONGEST_RESULT:
            raise BoundPassedError(f"it writes more than {_LONGEST_RESULT:,} characters")
        return text

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise BoundPassedError(f"it takes more than {_MOST_STEPS:,} steps")
        if time.thread_time() - self._started > _MOST_SECONDS:
            raise BoundPassedError(f"it takes more than {_MOST_SECONDS:.0f} seconds")


def _environment(count_step: Callable[[], None]) -> SandboxedEnvironment:
    """The environment of transformers 5.24 for templates, with each call and filter as a step."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    own_call = environment.call
    own_filters = {"tojson": _to_json, "join": _join, "format": _format}
    filters = {**environment.filters, **own_filters}

    def call(context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        count_step()
        if function is _no_text:
            return ""
        # The sandbox wraps the methods that format a text.
        owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)
        if isinstance(owner, str):
            _check_numbers(args, kwargs)
            if function.__name__.startswith("format"):
                return _formatted(owner, partial(own_call, context, function), args, kwargs)
        result = own_call(context, function, *args, **kwargs)
        if isinstance(result, Traced):  # a method of such a text, or a macro
            return _checked(result)
        return _checked(_attributed(result, (owner, args, kwargs)))

    environment.call = call  # type: ignore[method-assign]
    environment.no_text = _no_text  # type: ignore[attr-defined]
    environment.concat = _concatenated  # type: ignore[method-assign]
    environment.filters = {
        name: _counting(count_step, function if name in _EXACT_FILTERS else _attributing(function))
        for name, function in filters.items()
    }
    operators = {"*": _product, "+": _sum, "%": _remainder, "**": _power}
    environment.intercepted_binops = frozenset(operators)
    environment.binop_table = {**environment.binop_table, **operators}
    return environment


def _no_text() -> str:
    """The call in each turn of a loop, made only to be counted."""
    return ""


def _counting(count_step: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)  # with the marks by which jinja passes a context
    def filter(*args: Any, **kwargs: Any) -> Any:
        count_step()
        return function(*args, **kwargs)

    return filter


@lru_cache(8)
def _program(source: str) -> Program:
    return Program(source)


def answer(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Answer requests in the limited process.

    A request with a source alone yields the variables that it reads; with values for them, the text
    that it writes, or the reason why it failed.
    """
    try:
        program = _program(request["source"])
    except jinja2.TemplateSyntaxError as error:
        yield {"line": error.lineno, "problem": error.message}
        return
    except (RecursionError, ValueError, OverflowError) as error:
        yield {"problem": str(error)}
        return
    if "values" not in request:
        yield {"variables": sorted(program.variables)}
        return
    values = from_json(request["values"])
    if today := request["today"]:
        values["strftime_now"] = date.fromisoformat(today).strftime
    yield _rendered(program, values)


def _rendered(program: Program, values: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"text": to_json(program.render(values))}
    except jinja2.TemplateError as error:
        problem = str(error.message or type(error).__name__)
        return {"refusal": problem, "is_endless": isinstance(error, BoundPassedError)}
    except MemoryError:
        raise
    except Exception as error:  # a foreign program may raise anything
        return {"failure": f"{type(error).__name__}: {error}"}


def _attributing(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)  # with the marks by which jinja passes a context
    def filter(*args: Any, **kwargs: Any) -> Any:
        _check_numbers(args, kwargs)
        return _checked(_attributed(function(*args, **kwargs), (args, kwargs)))

    return filter


def _attributed(result: Any, arguments: Any) -> Any:
    """The result of a call; characters of lost origin count as those of a message in it.

    So whatever a template does, no text of a message is ever taken for the template's own.
    """
    if not isinstance(result, str):
        return result
    message = _message_in(arguments)
    if message is None:
        return result
    origins = (message if origin == TEMPLATE else origin for origin in origins_of(result))
    return Traced(result, array("i", origins))


def _message_in(value: Any) -> int | None:
    """The number of a message that has text in a value."""
    match value:
        case Traced():
            return next((origin for origin in origins_of(value) if origin != TEMPLATE), None)
        case dict():
            parts: Iterable[Any] = (*value.keys(), *value.values())
        case list() | tuple():
            parts = value
        case _:
            return None
    return next((number for part in parts if (number := _message_in(part)) is not None), None)


def _product(left: Any, right: Any) -> Any:
    size = max((len(side) for side in (left, right) if hasattr(side, "__len__")), default=0)
    number = max((side for side in (left, right) if isinstance(side, int)), default=1)
    if size * number > _LARGEST:
        raise jinja2.TemplateError("it multiplies a text to more than a million characters")
    return left * right


def _sum(left: Any, right: Any) -> Any:
    return _checked(left + right)


def _remainder(left: Any, right: Any) -> Any:
    if not isinstance(left, str):
        return left % right
    return _formatted(left, lambda *values: left % values[0], (right,), {})


def _format(text: str, *args: Any, **kwargs: Any) -> Any:
    """Jinja's filter."""
    return _remainder(text, kwargs or args)


def _formatted(
    text: str, function: Callable[..., str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Apply a formatting function to the format `text` and its arguments.

    Raises jinja2.TemplateError for a format that would fill memory.
    """
    if _LARGE_NUMBER.search(text):
        raise jinja2.TemplateError("it formats a text to more than a million characters")
    exact = function(*args, **kwargs)
    if _message_in(text) is None:
        # A format that inspects its arguments, such as {:>9}, would change the marks.
        inserted = through(function, *args, **kwargs)
        if inserted.plain() == str.__str__(exact):
            return _checked(inserted)
    return _checked(_attributed(exact, (text, args, kwargs)))


def _power(left: Any, right: Any) -> Any:
    if not (abs(left) <= _LARGEST and abs(right) <= 64):
        raise jinja2.TemplateError("it raises a number to a power that is too large")
    return left**right


def _check_numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises jinja2.TemplateError for a number that would make a text too long."""
    numbers = (value for value in (*args, *kwargs.values()) if isinstance(value, int))
    if any(number > _LARGEST for number in numbers):
        raise jinja2.TemplateError("it fills a text up to more than a million characters")


def _checked(result: Any) -> Any:
    """Return the result. Raises BoundPassedError when it is an excessively long text or list."""
    if isinstance(result, str | list | tuple) and len(result) > _LONGEST_TEXT:
        raise BoundPassedError(f"it makes a text of more than {_LONGEST_TEXT:,} characters")
    return result


def _concatenated(parts: Iterable[str]) -> Traced:
    """Join the output of a template. Raises BoundPassedError before it grows too long."""
    parts = list(parts)
    if sum(map(len, parts)) > _LONGEST_TEXT:
        raise BoundPassedError(f"it makes a text of more than {_LONGEST_TEXT:,} characters")
    return joined(parts)


def _join(parts: Iterable[Any], separator: str = "", attribute: str | None = None) -> Traced:
    if attribute is not None:
        parts = (part[attribute] for part in parts)
    return joined(map(str, parts), separator)


def _to_json(value: Any, **options: Any) -> Traced:
    """Like transformers' filter: no HTML escapes, and characters unchanged."""
    options = {"ensure_ascii": False, **options}

    def escaped(text: Traced) -> Traced:
        characters = zip(text.plain(), origins_of(text), strict=True)
        # Without the quotes, which are written around its mark.
        return joined(
            Traced(json.dumps(character, ensure_ascii=options["ensure_ascii"])[1:-1], origin)
            for character, origin in characters
        )

    return with_marks(escaped, json.dumps, value, **options)
