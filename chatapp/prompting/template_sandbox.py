"""Where a chat template runs: transformers' sandbox, with origins kept and steps counted.

Keep: a template reaches nothing but its arguments, ends after a bounded number of steps and in
bounded memory, and writes the very text that it writes in transformers' own environment.
"""

import json
import re
import time
from array import array
from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import SandboxedEnvironment
from jinja2.visitor import NodeTransformer

from chatapp.prompting.traced_text import TEMPLATE, Traced, joined, origins_of, through, with_marks

_MOST_STEPS = 200_000
_MOST_SECONDS = 5.0
_LARGEST = 1_000_000
"""Of the numbers that a text may be multiplied, filled up, cut or formatted with."""

_LONGEST_TEXT = 20_000_000
"""Characters: more than any window holds, and little enough for memory."""

_LARGE_NUMBER = re.compile("[0-9]{7}")

# Filters through which every character keeps its origin. Jinja's others, such as `indent`, put
# parts of a text together as plain strings.
_EXACT_FILTERS = frozenset(
    (
        *("join", "tojson", "trim", "string", "replace", "format"),
        *("upper", "lower", "capitalize", "default", "d"),
    )
)


class BoundPassedError(jinja2.TemplateError):
    """A template took more steps, time or memory than any that is meant well."""


class _Instrumented(NodeTransformer):
    """A program that counts the turns of its loops, and joins strings by `+`.

    `a ~ b` is compiled into a join of plain strings, in which origins would be lost.
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
        step = nodes.Call(nodes.Name("_count_step", "load"), [], [], None, None)
        node.body.insert(0, nodes.Output([step]).set_lineno(node.lineno))
        return node


class Program:
    """A compiled chat template. variables: the names of those it reads."""

    def __init__(self, template: jinja2.Template, variables: frozenset[str]) -> None:
        self._template = template
        self.variables = variables

    def render(self, **variables: Any) -> str:
        """What the template writes. Raises BoundPassedError or another jinja2.TemplateError, or
        whatever it provokes."""
        steps, started = 0, time.thread_time()

        def count_step() -> str:
            nonlocal steps
            steps += 1
            if steps > _MOST_STEPS:
                raise BoundPassedError(f"it takes more than {_MOST_STEPS:,} steps")
            if time.thread_time() - started > _MOST_SECONDS:
                raise BoundPassedError(f"it takes more than {_MOST_SECONDS:.0f} seconds")
            return ""

        return self._template.render(**variables, _count_step=count_step)


def compiled(source: str) -> Program:
    """Compile a chat template. Raises jinja2.TemplateSyntaxError when it is none."""
    # Not public; checked on transformers 5.23 and 5.24. There is no other way to its environment.
    from transformers.utils.chat_template_utils import _compile_jinja_template

    environment: SandboxedEnvironment = _compile_jinja_template("").environment.overlay()
    own_call = environment.call
    own_filters = {"tojson": _to_json, "join": _join, "format": _format}
    filters = {**environment.filters, **own_filters}

    def call(context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
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
    environment.concat = _concatenated  # type: ignore[method-assign]
    environment.filters = {
        name: each if name in _EXACT_FILTERS else _attributing(each)
        for name, each in filters.items()
    }
    operators = {"*": _product, "+": _sum, "%": _remainder, "**": _power}
    environment.intercepted_binops = frozenset(operators)
    environment.binop_table = {**environment.binop_table, **operators}
    program = environment.parse(source)
    variables = frozenset(find_undeclared_variables(program))
    return Program(environment.from_string(_Instrumented().visit(program)), variables)


def _attributing(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)  # with the marks by which jinja passes a context
    def filter(*args: Any, **kwargs: Any) -> Any:
        _check_numbers(args, kwargs)
        return _checked(_attributed(function(*args, **kwargs), (args, kwargs)))

    return filter


def _attributed(result: Any, arguments: Any) -> Any:
    """The result of a call; characters that lost their origin are those of a message in it.

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
    """A message that has text in a value."""
    match value:
        case Traced():
            return next((origin for origin in origins_of(value) if origin != TEMPLATE), None)
        case dict():
            parts: Iterable[Any] = (*value.keys(), *value.values())
        case list() | tuple():
            parts = value
        case _:
            return None
    return next((found for part in parts if (found := _message_in(part)) is not None), None)


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
    """As jinja's filter."""
    return _remainder(text, kwargs or args)


def _formatted(
    text: str, function: Callable[..., str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What a function makes of the format `text` and its arguments.

    Raises jinja2.TemplateError for a format that would fill memory.
    """
    if _LARGE_NUMBER.search(text):
        raise jinja2.TemplateError("it formats a text to more than a million characters")
    exact = function(*args, **kwargs)
    if _message_in(text) is None:
        # A format that looks at what it is given, such as {:>9}, makes another text of the marks.
        inserted = through(function, *args, **kwargs)
        if inserted.plain() == str.__str__(exact):
            return _checked(inserted)
    return _checked(_attributed(exact, (text, args, kwargs)))


def _power(left: Any, right: Any) -> Any:
    if not (abs(left) <= _LARGEST and abs(right) <= 64):
        raise jinja2.TemplateError("it raises a number to a power that is too large")
    return left**right


def _check_numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises jinja2.TemplateError for a number by which a text would become too long."""
    numbers = (value for value in (*args, *kwargs.values()) if isinstance(value, int))
    if any(number > _LARGEST for number in numbers):
        raise jinja2.TemplateError("it fills a text up to more than a million characters")


def _checked(result: Any) -> Any:
    """The result. Raises BoundPassedError when it is a text or a list of no sane length."""
    if isinstance(result, str | list | tuple) and len(result) > _LONGEST_TEXT:
        raise BoundPassedError(f"it makes a text of more than {_LONGEST_TEXT:,} characters")
    return result


def _concatenated(parts: Iterable[str]) -> Traced:
    """What a template has written. Raises BoundPassedError before it is too much."""
    parts = list(parts)
    if sum(map(len, parts)) > _LONGEST_TEXT:
        raise BoundPassedError(f"it makes a text of more than {_LONGEST_TEXT:,} characters")
    return joined(parts)


def _join(parts: Iterable[Any], separator: str = "", attribute: str | None = None) -> Traced:
    if attribute is not None:
        parts = (part[attribute] for part in parts)
    return joined(map(str, parts), separator)


def _to_json(value: Any, **options: Any) -> Traced:
    """As transformers' filter: no escapes of HTML, and characters as they are."""
    options = {"ensure_ascii": False, **options}

    def escaped(text: Traced) -> Traced:
        characters = zip(text.plain(), origins_of(text), strict=True)
        # Without the quotes, which are written around its mark.
        return joined(
            Traced(json.dumps(character, ensure_ascii=options["ensure_ascii"])[1:-1], origin)
            for character, origin in characters
        )

    return with_marks(escaped, json.dumps, value, **options)
