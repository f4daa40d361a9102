"""A prompt file: a task, the layout of its prompt, and its examples; or a persona for a chat. Its
keys, with their types and defaults.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from chatapp.common.userfiles import Progress, line_of, parse_toml, quoted, read_required, shown
from chatapp.common.validation import key_of, located, sampling_model, validated
from chatapp.prompting.messages import InlineCalls
from chatapp.prompting.template import TEMPLATES
from chatapp.prompting.thoughts_and_calls import CALCULATOR
from chatapp.rows.examples import (
    POOL_SUFFIXES,
    BadRows,
    Columns,
    Pool,
    PoolRow,
    PromptError,
    collect,
    parse_row,
    read_pool,
)
from chatapp.rows.published import FORMATS
from chatapp.rows.reading import BadRow, RowsError, suffix
from chatapp.tasks.files.documents import LIMIT, PASSAGE_SIZE, PASSAGES, DocumentsError, DocumentSet
from chatapp.tasks.files.form import Form, FormError, named_form, short_form
from chatapp.tasks.metrics import MEASURES
from chatapp.tasks.selection.methods import Selector, method_and_encoder
from chatapp.tasks.selection.select import Select, build_selector
from chatapp.tasks.settings import Scoring, Style

if TYPE_CHECKING:
    from chatapp.engine.model import LanguageModel

LABEL_SCORINGS: tuple[Scoring, ...] = ("direct", "calibrated", "channel")
LABEL_MEASURES = ("accuracy", "macro_f1")
TEXT_MEASURES = ("exact_match", "token_f1")
"""What is measured where a prompt file does not say."""

CHOICE_SCORINGS: tuple[Scoring, ...] = ("direct", "per_token", "unconditional")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


_Filled = Annotated[str, StringConstraints(min_length=1)]
_Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Score(_Strict):
    method: Scoring = "direct"


class _Chat(_Strict):
    style: Style = "text"


class DocumentKeys(_Strict):
    paths: list[_Filled] = Field(min_length=1)
    method: str = "bm25"
    limit: int = key_of(LIMIT, PASSAGES)
    size: int = Field(PASSAGE_SIZE, ge=50)


class _Calls(_Strict):
    tool: _Filled = CALCULATOR.tool
    argument: _Filled = CALCULATOR.argument
    begin: _Filled = CALCULATOR.begin
    end: _Filled = CALCULATOR.end
    close: _Filled = CALCULATOR.close


class OutputKeys(_Strict):
    schema_: _Filled | None = Field(None, alias="schema")
    pattern: _Filled | None = None
    grammar: _Filled | None = None


class GenerateKeys(sampling_model()):  # type: ignore[misc]  # a class made of another
    """The sampling parameters; only those set in the file count."""


class DescribedKeys(_Strict):
    description: str = ""


class PersonaKeys(DescribedKeys):
    """The keys of a persona, with their defaults."""

    system: _Words
    template: str = ""


class PromptKeys(DescribedKeys):
    """The keys of a prompt file, with their defaults."""

    instruction: str = ""
    input_prefix: str = "Input: "
    output_prefix: str = "Output:"
    example: _Filled = ""
    query: _Filled = ""
    separator: str = "\n\n"
    stop: list[_Filled] | None = None
    labels: list[_Words] = Field([], min_length=2)
    choices: str = ""
    format: Literal[tuple(FORMATS)] | None = None  # type: ignore[valid-type]
    columns: dict[str, str] = {}
    bad_rows: BadRows = "raise"
    metrics: list[Literal[tuple(MEASURES)]] | None = None  # type: ignore[valid-type]
    examples_file: str | None = None
    examples: list[Any] | None = None
    select: Select = Select()
    score: _Score = _Score()
    chat: _Chat = _Chat()
    documents: DocumentKeys | None = None
    calls: _Calls = _Calls()
    output: OutputKeys | None = None
    generate: GenerateKeys = GenerateKeys()


NO_CHANNEL = (
    "is 'channel', which puts the input after the label; a layout of named fields has one order, "
    "so write 'input_prefix' and 'output_prefix' instead"
)

# An answer should be the most likely one, the same each time, and short.
_ANSWER: dict[str, int | float] = {"temperature": 0.0, "max_tokens": 64}


# The id of a hub data set, perhaps with its subset and split.
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(:[\w.-]*){0,2}")

OutputKind = Literal["schema", "pattern", "grammar"]


@dataclass(frozen=True, slots=True)
class Output:
    """What an answer may look like. kind: schema, pattern or grammar. text: of the pattern, or of
    the file that the key names.
    """

    kind: OutputKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFile:
    """A task that can be rendered (see `layout`).

    path: the source file. text: a prompt that is completed unchanged; it takes no input, and the
    layout below does not apply to it. description: one line for lists of prompts. instruction:
    opens the prompt. input_prefix, output_prefix: announce an input and an output. example, query:
    templates with named fields in their place. form: what either means, see `form`. separator:
    follows the instruction and each example. stop: strings that end a generated answer; by default
    the separator. labels: the only possible answers, scored instead of generated. metrics: measured
    in an evaluation; by default accuracy and macro_f1 with labels, else exact_match and token_f1.
    scoring: decides between labels by the likelihood of the label (`direct`), by the same relative
    to the label's likelihood without an input (`calibrated`, Zhao et al. 2021), or by the
    likelihood of the input given the label (`channel`, Min et al. 2021). choices: the field with
    the possible answers of each item, scored like labels; there, `per_token` divides the likelihood
    by the tokens of a choice, and `unconditional` by its likelihood after the answer's prefix alone
    (Brown et al. 2020). published: the format of the pool and of test items, see `published`.
    renamed: columns of their files, by the field that is taken from them. bad_rows: whether one of
    them ends the reading. style: one text, or
    demonstrations as turns of a chat. documents: whose passages precede the input, or None. calls:
    how an output contains the call of a tool. output: what a generated answer may look like.
    generate: sampling parameters; by default greedy and
    at most 64 tokens; empty for a text prompt. source: the file's text, so that a later error can
    still name the line.
    """

    path: Path
    text: str | None = None
    description: str = ""
    instruction: str = ""
    input_prefix: str = "Input: "
    output_prefix: str = "Output:"
    example: str = ""
    query: str = ""
    form: Form = field(init=False, repr=False, compare=False)
    separator: str = "\n\n"
    stop: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = TEXT_MEASURES
    pool: Pool = field(default_factory=lambda: Pool([], []), repr=False)
    select: Select = field(default_factory=Select)
    scoring: Scoring = "direct"
    choices: str = ""
    published: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    bad_rows: BadRows = "raise"
    style: Style = "text"
    documents: DocumentSet | None = None
    calls: InlineCalls = CALCULATOR
    output: Output | None = None
    generate: Mapping[str, int | float] = field(default_factory=dict)
    source: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "form", self._form())
        if self.scoring == "channel" and self.form.channel is None:
            raise self.error("score.method", NO_CHANNEL)
        if self.documents is not None and len(self.form.query_fields) != 1:
            raise self.error("documents", "needs a layout whose query has one field")
        if len(set(self.labels)) < len(self.labels):
            raise self.error("labels", "holds a label twice")
        if self.style == "turns" and self.scoring == "channel":
            raise self.error(
                "score.method",
                "is 'channel', which puts the input after the label; the order of chat turns "
                "cannot be reversed, so use the style text",
            )
        if self.documents is not None and (self.scoring == "channel" or self.select.selector.votes):
            raise self.error(
                "documents", "is set, but channel scoring and votes search no documents"
            )
        self._check_answers()

    def _check_answers(self) -> None:
        if self.choices and self.labels:
            raise self.error("choices", "conflicts with 'labels'")
        possible = CHOICE_SCORINGS if self.choices else LABEL_SCORINGS
        if (self.labels or self.choices) and self.scoring not in possible:
            what = "choices" if self.choices else "labels"
            known = ", ".join(possible)
            message = f"is {self.scoring!r}; there are {known} for {what}"
            raise self.error("score.method", message)
        if self.labels:
            return
        if self.select.selector.needs_labels:
            raise self.error("select.method", f"is {self.select.method!r}, which needs labels")
        if self.choices:
            return
        if self.scoring != "direct":
            needed = "choices" if self.scoring in CHOICE_SCORINGS else "labels"
            raise self.error("score.method", f"is {self.scoring!r}, which needs {needed}")
        if needy := [name for name in self.metrics if MEASURES[name].needs_labels]:
            raise self.error("metrics", f"holds {needy[0]!r}, which needs labels")

    @property
    def columns(self) -> Columns:
        """The fields of its pool, its inputs and its test items."""
        return replace(
            self.form.columns,
            choices=self.choices,
            published=self.published,
            columns=self.renamed,
            labels=self.labels,
            bad_rows=self.bad_rows,
        )

    def _form(self) -> Form:
        if not (self.example or self.query):
            return short_form(self.input_prefix, self.output_prefix)
        try:
            return named_form(self.example, self.query)
        except FormError as error:
            raise self.error(error.key, str(error)) from None

    def changed(
        self,
        *,
        shots: int | None = None,
        select: str | None = None,
        order: str | None = None,
        score: str | None = None,
        seed: int | None = None,
        style: str | None = None,
        instruction: str | None = None,
    ) -> "PromptFile":
        """A copy with changed keys; None leaves one unchanged.

        The values are those that `Setting.read` gives. seed: of the selection, and of sampling.
        select: a method, and perhaps an encoder. instruction: whether it is there. Raises
        PromptError.
        """
        keys: dict[str, object] = {"k": shots, "seed": seed, "order": order}
        if select is not None:
            # The file's encoder applies unless the option names one.
            keys["method"], keys["encoder"] = method_and_encoder(select)
        chosen = {key: value for key, value in keys.items() if value is not None}
        return replace(
            self,
            instruction="" if instruction == "off" else self.instruction,
            select=self.select.model_copy(update=chosen),
            scoring=cast(Scoring, score or self.scoring),
            style=cast(Style, style or self.style),
            generate=dict(self.generate) | ({"seed": seed} if seed is not None else {}),
        )

    def error(self, key: str, message: str) -> PromptError:
        """An error about a key of this file ("select.k") that names its line."""
        return _key_error(self.path, self.source, tuple(key.split(".")), message)


@dataclass(frozen=True, slots=True)
class Persona:
    """The role of a model in a chat.

    path: the source file. description: one line for lists. system: the chat's instructions.
    template: the dialogue template for models trained without one; "" for the default.
    """

    path: Path
    description: str
    system: str
    template: str = ""


def selector_for(
    prompt: PromptFile, model: "LanguageModel | None", progress: Progress | None = None
) -> Selector | None:
    """The selector for the prompt file; None when it has no demonstrations.

    model: for the encoder `lm`. Raises ModelError when the encoder is not available, PromptError
    when its embeddings are invalid.
    """
    if not len(prompt.pool) or prompt.text is not None:
        return None
    encoder = None
    if prompt.select.selector.needs_encoder:
        from chatapp.tasks.selection.encoders import load_encoder

        own = model if hasattr(model, "embed") else None
        encoder = load_encoder(prompt.select, own, progress)
    return build_selector(prompt.pool, prompt.select, encoder)


def load_for_chat(path: Path) -> PromptFile | Persona:
    """Load a prompt or a persona; a TOML file with the key `system` is a persona.

    Raises PromptError when it is invalid, or takes no message.
    """
    if path.suffix.lower() == ".toml" and "system" in _keys_of(source := _read(path)):
        own = _parsed(path, source, PersonaKeys)
        if own.template and own.template not in TEMPLATES:
            known = ", ".join(TEMPLATES)
            message = f"is {quoted(own.template)}; there are {known}"
            raise _key_error(path, source, ("template",), message)
        return Persona(path, own.description.strip(), own.system, own.template)
    prompt = load_prompt(path)
    if prompt.text is not None:
        raise PromptError(f"{path}: is a text to complete and takes no message")
    if prompt.choices:
        raise PromptError(f"{path}: has choices for each item, and a message has none")
    if len(names := prompt.form.columns.inputs) > 1:
        raise PromptError(f"{path}: has the fields {', '.join(names)}, and a message is one text")
    return prompt


def describe(path: Path) -> str:
    """One line on a prompt file or persona, without reading its examples.

    Raises PromptError when the file itself is invalid.
    """
    source = _read(path)
    schema = PersonaKeys if "system" in _keys_of(source) else PromptKeys
    return _parsed(path, source, schema).description.strip()


def load_prompt(path: Path) -> PromptFile:
    """Load a prompt from TOML, from plain text that is completed, or from a pool.

    Raises PromptError when it is invalid.
    """
    kind = suffix(path)
    if kind in POOL_SUFFIXES:
        return prompt_from_pool(path)
    if kind not in (".toml", ".txt"):
        raise PromptError(f"{path}: expected a prompt file ending in .toml, .txt, .jsonl or .csv")
    source = _read(path)
    if kind == ".toml":
        return prompt_from(path, source)
    text = source.rstrip()
    if not text:
        raise PromptError(f"{path}: is empty, expected a text to complete")
    first = text.strip().splitlines()[0]
    return PromptFile(path=path, text=text, description=first[:60] + "…" * (len(first) > 60))


def prompt_from(path: Path, source: str) -> PromptFile:
    """The prompt of a TOML source that stands, or would be saved, at `path`. Raises PromptError."""
    if "system" in _keys_of(source):
        raise _key_error(
            path, source, ("system",), "is the key of a persona, which only a chat takes"
        )
    file = _parsed(path, source, PromptKeys)
    measures: tuple[str, ...] = LABEL_MEASURES if file.labels else TEXT_MEASURES
    if file.choices:
        measures = ("accuracy",)
    if file.example or file.query:
        for key in ("input_prefix", "output_prefix"):
            if key in file.model_fields_set:
                message = "conflicts with a layout of named fields ('example', 'query')"
                raise _key_error(path, source, (key,), message)
    prompt = PromptFile(
        path=path,
        description=file.description.strip(),
        instruction=file.instruction.strip(),
        input_prefix=file.input_prefix,
        output_prefix=file.output_prefix,
        example=file.example,
        query=file.query,
        separator=file.separator,
        stop=(file.separator or "\n",) if file.stop is None else tuple(file.stop),
        labels=tuple(file.labels),
        metrics=measures if file.metrics is None else tuple(file.metrics),
        select=file.select,
        scoring=file.score.method,
        choices=file.choices,
        published=file.format or "",
        renamed=file.columns,
        bad_rows=file.bad_rows,
        style=file.chat.style,
        documents=_documents(path, source, file.documents),
        calls=InlineCalls(**file.calls.model_dump()),
        output=_output(path, source, file),
        generate=_ANSWER | file.generate.model_dump(exclude_unset=True),
        source=source,
    )
    return replace(prompt, pool=_pool(prompt, file))


def prompt_from_pool(path: Path) -> PromptFile:
    """The prompt for a JSONL or CSV file of examples without a prompt file.

    The names of the fields announce inputs and outputs ("Question: ", "Answer:"), except for fields
    that contain a whole prompt (context, prompt).
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
    text = read_required(path, PromptError)
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise PromptError(f"{path}, line {line}: holds a NUL character, which no text has")
    return text.replace("\r\n", "\n")


_Schema = TypeVar("_Schema", bound=DescribedKeys)


def _parsed(path: Path, source: str, schema: type[_Schema]) -> _Schema:
    """The validated keys of a TOML file. Raises PromptError."""
    data = parse_toml(source, path, PromptError)
    what = "persona" if schema is PersonaKeys else "prompt file"
    return validated(schema, data, PromptError, origin=path, what=what, source=source)


def _keys_of(source: str) -> Set[str]:
    """The top-level keys of a TOML source; none when it is invalid."""
    try:
        return tomllib.loads(source).keys()
    except (ValueError, RecursionError):
        return frozenset()


def _output(path: Path, source: str, file: PromptKeys) -> Output | None:
    """The table [output]; its files are relative to the prompt file's folder."""
    if file.output is None:
        return None
    table: dict[Any, str] = file.output.model_dump(by_alias=True, exclude_none=True)
    if len(table) != 1:
        message = "needs exactly one of schema, pattern and grammar"
        raise _key_error(path, source, ("output",), message)
    for kind, given in table.items():
        if file.labels or file.choices:
            message = "conflicts with labels and choices, which are scored"
            raise _key_error(path, source, ("output",), message)
        if kind == "pattern":
            return Output(kind, given)
        try:
            return Output(kind, read_required(path.parent / given, PromptError))
        except RowsError as error:
            raise _key_error(path, source, ("output", kind), f"cannot be read: {error}") from None
    return None


def _documents(path: Path, source: str, table: DocumentKeys | None) -> DocumentSet | None:
    """The documents of a prompt file, whose paths are relative to its folder."""
    if table is None:
        return None
    paths = (str(path.parent / Path(name).expanduser()) for name in table.paths)
    try:
        return DocumentSet(tuple(paths), table.method, table.limit, table.size)
    except DocumentsError as error:
        message = f"cannot be loaded: {error}"
        raise _key_error(path, source, ("documents", "method"), message) from None


def _pool(prompt: PromptFile, file: PromptKeys) -> Pool:
    path, source, columns = prompt.path, prompt.source, prompt.columns
    if file.examples_file is not None:
        if file.examples is not None:
            raise prompt.error("examples", "conflicts with 'examples_file'")
        pool = path.parent / file.examples_file
        try:
            exists = pool.exists()
        except ValueError:  # raised for a NUL in a path
            exists = False
        is_id = bool(_HUB_ID.fullmatch(file.examples_file)) and not suffix(pool)
        if not exists and not is_id:
            message = f"is {quoted(file.examples_file)}, but there is no file {quoted(str(pool))}"
            raise prompt.error("examples_file", message)
        return read_pool(pool if exists else Path(file.examples_file), columns)
    if file.examples is None:
        return Pool([], [])
    line = line_of(source, ("examples",))
    location = f"{path}, line {line}" if line else f"{path}"
    rows = _inline(file.examples, location, columns)
    return collect(rows, location, "example", columns)


def _inline(
    rows: list[Any], location: str, columns: Columns
) -> Iterator[tuple[int, PoolRow | BadRow]]:
    for number, row in enumerate(rows, 1):
        row_location = f"{location}, example {number}"
        if not isinstance(row, dict):
            expected = "{input = …, output = …}"
            raise PromptError(f"{row_location}: is {shown(row)}, expected {expected}")
        for item in FORMATS[columns.published](row) if columns.published else [row]:
            yield number, parse_row(item, row_location, columns)


def _key_error(path: Path, source: str, keys: tuple[str, ...], message: str) -> PromptError:
    return PromptError(f"{located(path, source, keys)} {message}")
