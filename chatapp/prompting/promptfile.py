"""A prompt file: what a task is, how its prompt is laid out, and which examples it has.
And a persona: instructions for a chat.

The invariant to keep: a file either becomes something that can be rendered as it is, or
one `PromptError` that names the file, the line, the key and what was expected there. No key
is ignored and no value is converted in silence.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import ErrorDetails

from chatapp.prompting.examples import (
    POOL_SUFFIXES,
    Pool,
    PromptError,
    Row,
    collect,
    not_utf8,
    parse_row,
    read_pool,
)
from chatapp.prompting.selection import Select
from chatapp.prompting.template import TEMPLATES
from chatapp.userfiles import did_you_mean, quoted, shown

Scoring = Literal["direct", "calibrated", "channel"]
Measure = Literal["accuracy", "macro_f1", "exact_match", "token_f1", "bleu", "rouge_l"]

# An answer should be the likeliest one, the same each time, and short.
_ANSWER: dict[str, int | float] = {"temperature": 0.0, "max_tokens": 64}

_LABEL_MEASURES: tuple[Measure, ...] = ("accuracy", "macro_f1")
_TEXT_MEASURES: tuple[Measure, ...] = ("exact_match", "token_f1")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFile:
    """A task, ready to be rendered (see `fewshot` for the layout).

    path: the file it was read from. text: a prompt that is completed as it stands; it takes
        no input, and what follows means nothing to it.
    description: one line for lists of prompts. instruction: what opens the prompt.
    input_prefix, output_prefix: what announces an input and an output.
    separator: what stands after the instruction and after each example.
    stop: where a generated answer ends; at the separator, unless the file says otherwise.
    labels: the only answers there are, then scored instead of generated.
    metrics: what an evaluation measures; accuracy and macro_f1 where there are labels, else
        exact_match and token_f1.
    scoring: what decides between labels: the likelihood of the label (`direct`), the same
        relative to the label's likelihood without an input (`calibrated`, Zhao et al. 2021),
        or the likelihood of the input given the label (`channel`, Min et al. 2021).
    generate: fields of the engine's Sampling; greedy and at most 64 tokens, unless the file
        says otherwise; empty for a text prompt, which is the user's own to sample from.
    source: the file's own text, so that an error found later still names the line.
    """

    path: Path
    text: str | None = None
    description: str = ""
    instruction: str = ""
    input_prefix: str = "Input: "
    output_prefix: str = "Output:"
    separator: str = "\n\n"
    stop: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    metrics: tuple[Measure, ...] = _TEXT_MEASURES
    pool: Pool = field(default_factory=lambda: Pool([], []), repr=False)
    select: Select = field(default_factory=Select)
    scoring: Scoring = "direct"
    generate: Mapping[str, int | float] = field(default_factory=dict)
    source: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if len(set(self.labels)) < len(self.labels):
            raise self.error("labels", "holds a label twice")
        if self.labels:
            return
        if self.select.method in ("balanced", "vote"):
            raise self.error("select.method", f"is {self.select.method!r}, which needs labels")
        if self.scoring != "direct":
            raise self.error("score.method", f"is {self.scoring!r}, which needs labels")
        if needy := [each for each in self.metrics if each in _LABEL_MEASURES]:
            raise self.error("metrics", f"holds {needy[0]!r}, which needs labels")

    def error(self, key: str, message: str) -> PromptError:
        """An error about a key of this file ("select.k"), naming the line it stands on."""
        return _error(self.path, self.source, tuple(key.split(".")), message)


@dataclass(frozen=True, slots=True)
class Persona:
    """Who a model is to be in a chat.

    path: the file it was read from. description: one line for lists. system: the chat's
    instructions. template: the dialogue template for models that were trained in none; ""
    leaves it open.
    """

    path: Path
    description: str
    system: str
    template: str = ""


def load_for_chat(path: Path) -> PromptFile | Persona:
    """The prompt or the persona in a file; a TOML file with the key `system` is a persona.

    Raises PromptError when it cannot be used, or takes no message.
    """
    if path.suffix.lower() == ".toml" and "system" in _keys_of(source := _read(path)):
        own = _parsed(path, source, _PersonaFile)
        if own.template and own.template not in TEMPLATES:
            known = ", ".join(TEMPLATES)
            message = f"is {quoted(own.template)}; there are {known}"
            raise _error(path, source, ("template",), message)
        return Persona(path, own.description.strip(), own.system, own.template)
    prompt = load_prompt(path)
    if prompt.text is not None:
        raise PromptError(f"{path}: is a text to complete and takes no message")
    return prompt


def describe(path: Path) -> str:
    """One line on a prompt file or persona, without reading its examples.

    Raises PromptError when the file itself cannot be used.
    """
    source = _read(path)
    schema = _PersonaFile if "system" in _keys_of(source) else _File
    return _parsed(path, source, schema).description.strip()


def load_prompt(path: Path) -> PromptFile:
    """The prompt in a file: TOML, plain text that is completed as it stands, or a pool.

    Raises PromptError when it cannot be used.
    """
    suffix = path.suffix.lower()
    if suffix in POOL_SUFFIXES:
        return prompt_from_pool(path)
    if suffix not in (".toml", ".txt"):
        raise PromptError(f"{path}: expected a prompt file named .toml, .txt, .jsonl or .csv")
    source = _read(path)
    if suffix == ".txt":
        return _from_text(path, source)
    if "system" in _keys_of(source):
        raise _error(path, source, ("system",), "is the key of a persona, which only a chat takes")
    return _from_toml(path, source)


def prompt_from_pool(path: Path) -> PromptFile:
    """The prompt of a JSONL or CSV file of examples without any prompt file.

    Inputs and outputs are announced by the names of their fields ("Question: ", "Answer:"),
    but for fields that hold the text of a whole prompt already (context, prompt).
    """
    pool = read_pool(path)
    input_field, output_field = pool.fields
    whole = input_field in ("context", "prompt")
    return PromptFile(
        path=path,
        description=f"{len(pool)} examples",
        input_prefix="" if whole else f"{input_field.capitalize()}: ",
        output_prefix="" if whole else f"{output_field.capitalize()}:",
        stop=("\n\n",),
        pool=pool,
        generate=_ANSWER,
    )


def _read(path: Path) -> str:
    if "\0" in str(path):
        raise PromptError(f"{quoted(str(path))}: holds a NUL character and is no path")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PromptError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeEncodeError:
        raise PromptError(f"{quoted(str(path))}: is no path") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PromptError(f"{path}, line {line}: {not_utf8(data)}") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise PromptError(f"{path}, line {line}: holds a NUL character, which no text has")
    return text.replace("\r\n", "\n")


def _from_text(path: Path, source: str) -> PromptFile:
    text = source.rstrip()
    if not text:
        raise PromptError(f"{path}: is empty, expected a text to complete")
    first = text.strip().splitlines()[0]
    return PromptFile(path=path, text=text, description=first[:60] + "…" * (len(first) > 60))


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Score(_Strict):
    method: Scoring = "direct"


class _Generate(_Strict):
    """The fields of the engine's Sampling, which this package does not import."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram: int | None = None
    seed: int | None = None
    max_tokens: int | None = None


_Label = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Stop = Annotated[str, StringConstraints(min_length=1)]


class _Described(_Strict):
    description: str = ""


class _PersonaFile(_Described):
    """The keys of a persona, with what stands for those left out."""

    system: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    template: str = ""


class _File(_Described):
    """The keys of a prompt file, with what stands for those left out."""

    instruction: str = ""
    input_prefix: str = "Input: "
    output_prefix: str = "Output:"
    separator: str = "\n\n"
    stop: list[_Stop] | None = None
    labels: list[_Label] = Field([], min_length=2)
    metrics: list[Measure] | None = None
    examples_file: str | None = None
    examples: list[Any] | None = None
    select: Select = Select()
    score: _Score = _Score()
    generate: _Generate = _Generate()


_TABLES: dict[tuple[str, ...], type[BaseModel]] = {
    ("select",): Select,
    ("score",): _Score,
    ("generate",): _Generate,
}


_Schema = TypeVar("_Schema", bound=_Described)


def _parsed(path: Path, source: str, schema: type[_Schema]) -> _Schema:
    """The keys of a TOML file, checked. Raises PromptError."""
    try:
        return schema.model_validate(tomllib.loads(source))
    except ValidationError as error:
        # A key that does not exist is likely why another one is missing: it comes first.
        details = error.errors()
        unknown = [each for each in details if each["type"] == "extra_forbidden"]
        raise _invalid(path, source, (unknown or details)[0], schema) from None
    except RecursionError:
        raise PromptError(f"{path}: is nested too deeply") from None
    except ValueError as error:
        raise _not_toml(path, source, str(error)) from None


def _keys_of(source: str) -> Set[str]:
    """The keys at the top of a TOML file; none when it is no TOML."""
    try:
        return tomllib.loads(source).keys()
    except (ValueError, RecursionError):
        return frozenset()


def _from_toml(path: Path, source: str) -> PromptFile:
    file = _parsed(path, source, _File)
    measures = _LABEL_MEASURES if file.labels else _TEXT_MEASURES
    return PromptFile(
        path=path,
        description=file.description.strip(),
        instruction=file.instruction.strip(),
        input_prefix=file.input_prefix,
        output_prefix=file.output_prefix,
        separator=file.separator,
        stop=(file.separator or "\n",) if file.stop is None else tuple(file.stop),
        labels=tuple(file.labels),
        metrics=measures if file.metrics is None else tuple(file.metrics),
        pool=_pool(path, source, file),
        select=file.select,
        scoring=file.score.method,
        generate=_ANSWER | file.generate.model_dump(exclude_unset=True),
        source=source,
    )


def _pool(path: Path, source: str, file: _File) -> Pool:
    if file.examples_file is not None:
        if file.examples is not None:
            raise _error(path, source, ("examples",), "stands beside 'examples_file'; keep one")
        pool = path.parent / file.examples_file
        try:
            exists = pool.is_file()
        except ValueError:  # what a NUL in a path is answered with
            exists = False
        if not exists:
            message = f"is {quoted(file.examples_file)}, but there is no file {quoted(str(pool))}"
            raise _error(path, source, ("examples_file",), message)
        return read_pool(pool, file.labels)
    if file.examples is None:
        return Pool([], [])
    place = f"{path}{_line_of(source, ('examples',))}"
    return collect(_inline(file.examples, place), place, "example", file.labels)


def _inline(rows: list[Any], place: str) -> Iterator[tuple[int, Row | PromptError]]:
    for number, row in enumerate(rows, 1):
        here = f"{place}, example {number}"
        if not isinstance(row, dict):
            raise PromptError(f"{here}: is {shown(row)}, expected {{input = …, output = …}}")
        yield number, parse_row(row, here)


def _invalid(
    path: Path, source: str, details: ErrorDetails, schema: type[_Described]
) -> PromptError:
    """What pydantic found first, as a sentence about a key of the file."""
    keys = tuple(str(each) for each in details["loc"] if isinstance(each, str))
    items = "".join(f"[{each + 1}]" for each in details["loc"] if isinstance(each, int))
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "extra_forbidden":
        known = _TABLES.get(keys[:-1], schema).model_fields
        hint = did_you_mean(keys[-1], known) or f"; there are {', '.join(known)}"
        whole = "persona" if schema is _PersonaFile else "prompt file"
        return _error(path, source, keys, f"is no key of a {whole}{hint}")
    if kind == "model_type":
        expected = "a table"
    elif kind == "string_too_short":
        expected = "a text that is not empty"
    elif kind == "too_short":
        return _error(path, source, keys, f"holds {context['actual_length']}, expected two or more")
    else:
        bounds = "a number " if kind in ("greater_than_equal", "less_than_equal") else ""
        expected = bounds + details["msg"].removeprefix("Input should be ")
        expected = expected.replace("a valid integer", "a whole number").replace("a valid ", "a ")
    return _error(path, source, keys, f"is {shown(value)}, expected {expected}", items)


def _not_toml(path: Path, source: str, message: str) -> PromptError:
    """What tomllib says, with its place moved to the front."""
    found = re.fullmatch(r"(.*) \(at (line \d+, column \d+|end of document)\)", message)
    what, where = found.groups() if found else (message, "")
    if where == "end of document":
        last = source.rstrip().count("\n") + 1
        where = f"line {last}"
    place = f", {where}" if where else ""
    return PromptError(f"{path}{place}: is not valid TOML: {what.split(';')[0]}")


def _error(
    path: Path, source: str, keys: tuple[str, ...], message: str, items: str = ""
) -> PromptError:
    name = quoted(".".join(keys) + items)
    return PromptError(f"{path}{_line_of(source, keys)}: {name} {message}")


def _line_of(source: str, keys: tuple[str, ...]) -> str:
    """Where a TOML source sets a key, as ", line 3"; empty when that cannot be said.

    tomllib keeps no positions, and this reads less than all of TOML: three quotes within a
    comment or a string of one line can move or hide the line, never more than that.
    """
    blanked = re.sub(
        r'("""|\'\'\').*?\1', lambda found: "\n" * found[0].count("\n"), source, flags=re.DOTALL
    )
    table: tuple[str, ...] = ()
    for number, line in enumerate(blanked.split("\n"), 1):
        header = re.match(r"\s*\[\[?([^\[\]]+)\]", line)
        assignment = re.match(r"([^=#]+)=", line)
        if header:
            here = table = _keys(header[1])
        else:
            here = (*table, *_keys(assignment[1])) if assignment else ()
        # A table written within a line stands for its keys.
        if here == keys or (assignment and len(here) > len(table) and here == keys[: len(here)]):
            return f", line {number}"
    return ""


def _keys(text: str) -> tuple[str, ...]:
    """A dotted key of TOML in its parts; nothing when it is none."""
    try:
        value: Any = tomllib.loads(f"{text} = 0")
    except (ValueError, RecursionError):
        return ()
    keys: list[str] = []
    while isinstance(value, dict):
        key, value = next(iter(value.items()))
        keys.append(key)
    return tuple(keys)
