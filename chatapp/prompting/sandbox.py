"""Where a chat template runs: transformers' sandbox, with origins kept and steps counted.

Keep: a template reaches nothing but its arguments, ends after a bounded number of steps, and
writes the very text that it writes in transformers' own environment.
"""

import json
from array import array
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import SandboxedEnvironment
from jinja2.visitor import NodeTransformer

from chatapp.prompting.traced import TEMPLATE, Traced, joined, origins_of, with_marks

_MOST_STEPS = 200_000
_LONGEST_PRODUCT = 1_000_000

# Filters through which every character keeps its origin. Jinja's others, such as `indent`, put
# parts of a text together as plain strings.
_EXACT_FILTERS = frozenset(
    ("join", "tojson", "trim", "string", "replace", "upper", "lower", "capitalize", "default", "d")
)


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
        """What the template writes. Raises jinja2.TemplateError, or whatever it provokes."""
        steps = 0

        def count_step() -> str:
            nonlocal steps
            steps += 1
            if steps > _MOST_STEPS:
                raise jinja2.TemplateError(f"it takes more than {_MOST_STEPS:,} steps")
            return ""

        return self._template.render(**variables, _count_step=count_step)


def compiled(source: str) -> Program:
    """Compile a chat template. Raises jinja2.TemplateSyntaxError when it is none."""
    # Not public; checked on transformers 5.23. There is no other way to its environment.
    from transformers.utils.chat_template_utils import _compile_jinja_template

    environment: SandboxedEnvironment = _compile_jinja_template("").environment.overlay()
    own_call, filters = environment.call, {**environment.filters, "tojson": _to_json, "join": _join}

    def call(context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        result = own_call(context, function, *args, **kwargs)
        if isinstance(result, Traced):  # a method of such a text, or a macro
            return result
        return _attributed(result, (getattr(function, "__self__", None), args, kwargs))

    environment.call = call  # type: ignore[method-assign]
    environment.concat = joined  # type: ignore[method-assign]
    environment.filters = {
        name: each if name in _EXACT_FILTERS else _attributing(each)
        for name, each in filters.items()
    }
    environment.intercepted_binops = frozenset("*")
    environment.binop_table = {**environment.binop_table, "*": _product}
    program = environment.parse(source)
    variables = frozenset(find_undeclared_variables(program))
    return Program(environment.from_string(_Instrumented().visit(program)), variables)


def _attributing(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)  # with the marks by which jinja passes a context
    def filter(*args: Any, **kwargs: Any) -> Any:
        return _attributed(function(*args, **kwargs), (args, kwargs))

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
    size = max((len(side) for side in (left, right) if hasattr(side, "__len__")), default=1)
    number = max((side for side in (left, right) if isinstance(side, int)), default=1)
    if size * number > _LONGEST_PRODUCT and not isinstance(left, int | float):
        raise jinja2.TemplateError("it multiplies a text to more than a million characters")
    return left * right


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
