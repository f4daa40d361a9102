"""Runs a chat template and says, for each character that it writes, which message it comes from.

A chat template is a program: it strips, splits and joins messages and returns one string, in which
nobody can distinguish the template's own `<|im_end|>` from one that a user typed. So it runs twice:
with the texts, and with a private character in place of each character of a text that is not white
space. Where the second output has a private character, the first has a message's; the rest is equal
in both, or the chat is refused.

Invariant: the text is that of transformers' `apply_chat_template`, character for character, and no
character of a message ever counts as the template's own, except white space.
"""

import html
import json
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property, lru_cache
from itertools import chain, compress, pairwise, product
from operator import ne
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from chatapp.prompting.messages import TEMPLATE

if TYPE_CHECKING:
    from jinja2.parser import Parser

_LONGEST_RESULT = 5_000_000
"""Characters: more than any window holds."""

# Planes 15 and 16 of Unicode are private. A text of a message never keeps such a character, and one
# in a template's source counts as a message's, which is harmless.
_FIRST, _LAST = 0xF0000, 0x10FFEF
_BEGIN, _END = "\U0010fff0", "\U0010fff1"
_WORD = re.compile(f"([{chr(_FIRST)}-{chr(_LAST)}])\\1*")
# White space within a text, also as JSON writes it.
_RUN = re.compile(f"([{chr(_FIRST)}-{chr(_LAST)}])(?:(?:\\s|\\\\[nrt])*\\1)*")


def answer(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Answer requests: for a foreign template in the limited process.

    A request with a source alone yields the variables that it reads. With values for them it yields
    the text, its origins as runs of [origin, length], and the spans within `{% generation %}`; or
    the reason why it failed.
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
    try:
        yield _rendered(program, request)
    except jinja2.TemplateError as error:
        yield {"refusal": str(error.message or type(error).__name__)}
    except MemoryError:
        raise
    except Exception as error:  # a foreign program may raise anything
        yield {"failure": f"{type(error).__name__}: {error}"}


@dataclass(frozen=True)
class _Tracked:
    """The output for masked texts. spans: those of `{% generation %}`."""

    text: str
    spans: list[tuple[int, int]]

    @cached_property
    def runs(self) -> list[re.Match[str]]:
        return list(_RUN.finditer(self.text))

    @cached_property
    def gaps(self) -> list[str]:
        """The text before, between and after the runs."""
        ends = [0, *(run.end() for run in self.runs)]
        starts = [*(run.start() for run in self.runs), len(self.text)]
        return [self.text[end:start] for end, start in zip(ends, starts, strict=True)]


def _rendered(program: "TemplateProgram", request: dict[str, Any]) -> dict[str, Any]:
    values, day = request["values"], request.get("today")
    now = datetime.now()
    today = date.fromisoformat(day) if day else now
    text = program.run(_built(values, lambda _, text: text), today)
    if len(text) > _LONGEST_RESULT and not request.get("unbounded"):
        return {"endless": f"it writes more than {_LONGEST_RESULT:,} characters"}
    trained = None
    if program.has_generation:
        marked = program.track(_built(values, lambda _, text: text), today)
        trained = marked.spans if marked.text == text else []
    # A template may ask what a text contains: then it must find that in the masked text as well.
    special = request["special"]
    plain = [text for text in program.constants if not any(token in text for token in special)]
    for constants in ((), plain, program.constants):
        masks = _Masks(constants)
        try:
            tracked = program.track(_built(values, masks.mask), today)
            origins = _origins(text, tracked, masks)
            if origins is not None:
                if any(piece != piece.strip() for piece in masks.texts):
                    stripped = _built(values, masks.mask_stripped)
                    _give_edges(origins, tracked, program.track(stripped, today), masks)
                if constants:
                    _give_tokens(origins, text, special, masks.texts)
                return {"text": text, "runs": _as_runs(origins), "trained": trained}
        except jinja2.TemplateError:
            continue
    return {"refusal": "it rewrites a text so that nobody can say who wrote it"}


def _built(value: Any, change: Callable[[int, str], str]) -> Any:
    """The values of a request, each piece of a text changed."""
    if isinstance(value, list):
        return [_built(part, change) for part in value]
    if not isinstance(value, dict):
        return value
    if "pieces" in value:
        return "".join(change(origin, text) for origin, text in value["pieces"])
    return {_built(name, change): _built(part, change) for name, part in value["items"]}


class _Masks:
    """Texts without their letters. constants: what stays readable in them, the longest first."""

    def __init__(self, constants: Sequence[str]) -> None:
        self._kept = re.compile("|".join(map(re.escape, constants))) if constants else None
        self._whole = frozenset(constants)
        self.texts: dict[str, str] = {}
        """By each text, its mask."""
        self._hidden_texts: dict[str, list[str]] = {}

    def mask(self, origin: int, text: str) -> str:
        if origin == TEMPLATE:
            return text
        private = chr(_FIRST + origin)
        start, parts = 0, []
        for kept in self._kept.finditer(text) if self._kept else ():
            parts += [self._hidden(text[start : kept.start()], private), kept[0]]
            start = kept.end()
        mask = "".join([*parts, self._hidden(text[start:], private)])
        self.texts[text] = mask
        return mask

    def edges(self, run: re.Match[str] | None, side: int) -> set[str]:
        """The white space that may be at one end (1) or the beginning (0) of a run's text."""
        if run is None:
            return {""}
        spaces = {""}
        for text, mask in self.texts.items():
            if run[1] in mask:
                size = len(text) - len(text.rstrip() if side else text.lstrip())
                spaces.add(text[len(text) - size :] if side else text[:size])
        return spaces

    def mask_stripped(self, origin: int, text: str) -> str:
        return self.mask(origin, text if origin == TEMPLATE else text.strip())

    @property
    def words(self) -> dict[str, list[str]]:
        """By each private character, the parts of texts that it stands for, in order."""
        return {
            private: [word for text in texts for word in re.findall(r"\S+", text)]
            for private, texts in self._hidden_texts.items()
        }

    def _hidden(self, text: str, private: str) -> str:
        self._hidden_texts.setdefault(private, []).append(text)
        return re.sub(r"\S", private, text)


def _origins(text: str, tracked: _Tracked, masks: _Masks) -> "array[int] | None":
    """The origin of each character; None if the outputs differ in more than the texts."""
    if len(text) == len(tracked.text):
        origins = array("i", [TEMPLATE]) * len(text)
        end = 0
        for run in tracked.runs:
            start = run.start()
            if text[end:start] != tracked.text[end:start]:
                return None
            end = run.end()
            origins[start:end] = array("i", [ord(run[1]) - _FIRST]) * (end - start)
        if text[end:] != tracked.text[end:]:
            return None
    else:
        by_words = _by_words(text, tracked.text, masks.words)
        if by_words is None:
            return None
        origins = by_words
    for written, mask in masks.texts.items():
        whole = mask.strip()
        private = _WORD.search(whole)
        if private is None or private[0] == whole or len(text) != len(tracked.text):
            continue
        start = tracked.text.find(whole)
        while start >= 0:  # with the constants that stayed readable
            end = start + len(whole)
            if text[start:end] == written.strip():
                origins[start:end] = array("i", [ord(private[1]) - _FIRST]) * len(whole)
            start = tracked.text.find(whole, end)
    return origins


def _by_words(text: str, tracked: str, words: Mapping[str, list[str]]) -> "array[int] | None":
    """Like `_origins`, where escapes or another case change the length of texts."""
    origins = array("i")
    places = dict.fromkeys(words, 0)
    end, last = 0, ""
    for match in _WORD.finditer(tracked):
        private, between = match[1], tracked[end : match.start()]
        if not text.startswith(between, len(origins)):
            return None
        inside = private == last and re.fullmatch(r"(?:\s|\\[nrt])*", between)
        origins.extend([ord(private) - _FIRST if inside else TEMPLATE] * len(between))
        known, first = words.get(private, []), places.get(private, 0)
        for place in chain(range(first, len(known)), range(first)):
            word = known[place]
            form = next((form for form in _forms(word) if text.startswith(form, len(origins))), "")
            if len(word) == len(match[0]) and form:
                break
        else:
            return None
        places[private] = place + 1
        origins.extend([ord(private) - _FIRST] * len(form))
        end, last = match.end(), private
    if text[len(origins) :] != tracked[end:]:
        return None
    origins.extend([TEMPLATE] * (len(tracked) - end))
    return origins


def _forms(word: str) -> Iterator[str]:
    """What filters make of a word."""
    yield word
    yield json.dumps(word, ensure_ascii=False)[1:-1]
    yield json.dumps(word)[1:-1]
    yield from (word.upper(), word.lower(), word.title(), word.capitalize(), html.escape(word))


def _give_edges(
    origins: "array[int]", tracked: _Tracked, stripped: _Tracked, masks: _Masks
) -> None:
    """Give white space at the edges of texts to them, where the template leaves it there."""
    if len(origins) != len(tracked.text) or len(tracked.gaps) != len(stripped.gaps):
        return
    runs: list[re.Match[str] | None] = [None, *tracked.runs, None]
    for before, after, gap, bare in zip(
        runs[:-1], runs[1:], tracked.gaps, stripped.gaps, strict=True
    ):
        edges = product(masks.edges(before, 1), masks.edges(after, 0))
        own = next(((end, begin) for end, begin in edges if end + bare + begin == gap), None)
        if own is None:
            continue
        if before is not None:
            origin = array("i", [ord(before[1]) - _FIRST])
            origins[before.end() : before.end() + len(own[0])] = origin * len(own[0])
        if after is not None:
            origin = array("i", [ord(after[1]) - _FIRST])
            origins[after.start() - len(own[1]) : after.start()] = origin * len(own[1])


def _give_tokens(
    origins: "array[int]", text: str, special: Sequence[str], masks: Mapping[str, str]
) -> None:
    """Give special tokens that stayed readable in a text to that text, wherever they are written:
    nobody can say which of them is the template's.
    """
    for token in special:
        private = next((_WORD.search(mask) for mask in masks.values() if token in mask), None)
        if not any(token in mask for mask in masks.values()):
            continue
        origin = ord(private[1]) - _FIRST if private else 0
        for match in re.finditer(re.escape(token), text):
            if origins[match.start()] == TEMPLATE:
                origins[match.start() : match.end()] = array("i", [origin]) * len(token)


def _as_runs(origins: "array[int]") -> list[list[int]]:
    changes = compress(range(1, len(origins)), map(ne, origins, origins[1:]))
    edges = [0, *changes, len(origins)] if origins else []
    return [[origins[start], end - start] for start, end in pairwise(edges)]


class _Generation(Extension):
    """The tag around the text on which transformers trains."""

    tags = {"generation"}  # noqa: RUF012  # as jinja has it

    def parse(self, parser: "Parser") -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        begin, end = (
            nodes.Output([nodes.Name(name, "load")]).set_lineno(line) for name in _GENERATION
        )
        return nodes.Scope([begin, *body, end]).set_lineno(line)


_GENERATION = {"generation_begin": _BEGIN, "generation_end": _END}
"""Values for the variables around the body of that tag; empty when the text itself is written."""


class TemplateProgram:
    """A compiled chat template. variables: the names that it reads. constants: the texts in its
    expressions, the longest first. has_generation: whether it marks what is trained.
    """

    def __init__(self, source: str) -> None:
        """Raises jinja2.TemplateSyntaxError when the source is not a template."""
        # The environment of transformers 5.24 for templates.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        program = environment.parse(source)
        self.variables = find_undeclared_variables(program) - set(_GENERATION)
        self.has_generation = any(name.name in _GENERATION for name in program.find_all(nodes.Name))
        values = (node.value for node in program.find_all(nodes.Const))
        texts = {text for text in values if isinstance(text, str) and text.strip()}
        self.constants = sorted(texts, key=lambda text: (-len(text), text))
        self._template = environment.from_string(program)

    def run(self, values: Mapping[str, Any], today: date) -> str:
        """The text. Raises jinja2.TemplateError, or any error of the program."""
        marks = dict.fromkeys(_GENERATION, "")
        return self._template.render(**values, **marks, strftime_now=today.strftime)

    def track(self, values: Mapping[str, Any], today: date) -> _Tracked:
        """The output for masked values, without the marks of the tag `generation`."""
        marked = self._template.render(**values, **_GENERATION, strftime_now=today.strftime)
        parts = re.split(f"([{_BEGIN}{_END}])", marked)
        spans, starts, length = [], [], 0
        for part in parts:
            if part == _BEGIN:
                starts.append(length)
            elif part == _END:
                spans.append((starts.pop() if starts else 0, length))
            else:
                length += len(part)
        return _Tracked("".join(parts[::2]), spans)


@lru_cache(8)
def _program(source: str) -> TemplateProgram:
    return TemplateProgram(source)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Like transformers' filter: no HTML escapes, and characters unchanged."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
