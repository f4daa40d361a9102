"""The keys of prompt files and personas, with their types and defaults."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from chatapp.common.validation import key_of, sampling_model
from chatapp.prompting.calls import CALCULATOR
from chatapp.rows.examples import BadRows
from chatapp.rows.published import FORMATS
from chatapp.tasks.files.documents import LIMIT, PASSAGE_SIZE, PASSAGES
from chatapp.tasks.metrics import MEASURES
from chatapp.tasks.selection.select import Select
from chatapp.tasks.settings import Scoring, Style

LABEL_SCORINGS: tuple[Scoring, ...] = ("direct", "calibrated", "channel")
LABEL_MEASURES = ("accuracy", "macro_f1")
TEXT_MEASURES = ("exact_match", "token_f1")
"""What is measured where a prompt file does not say."""

CHOICE_SCORINGS: tuple[Scoring, ...] = ("direct", "per_token", "unconditional")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


_Path = Annotated[str, StringConstraints(min_length=1)]
_Mark = Annotated[str, StringConstraints(min_length=1)]


class _Score(_Strict):
    method: Scoring = "direct"


class _Chat(_Strict):
    style: Style = "text"


class DocumentKeys(_Strict):
    paths: list[_Path] = Field(min_length=1)
    method: str = "bm25"
    limit: int = key_of(LIMIT, PASSAGES)
    size: int = Field(PASSAGE_SIZE, ge=50)


class _Calls(_Strict):
    tool: _Mark = CALCULATOR.tool
    argument: _Mark = CALCULATOR.argument
    begin: _Mark = CALCULATOR.begin
    end: _Mark = CALCULATOR.end
    close: _Mark = CALCULATOR.close


class OutputKeys(_Strict):
    schema_: _Path | None = Field(None, alias="schema")
    pattern: _Path | None = None
    grammar: _Path | None = None


class GenerateKeys(sampling_model()):  # type: ignore[misc]  # a class made of another
    """The sampling parameters; only those set in the file count."""


_Layout = Annotated[str, StringConstraints(min_length=1)]
_Label = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Stop = Annotated[str, StringConstraints(min_length=1)]


class DescribedKeys(_Strict):
    description: str = ""


class PersonaKeys(DescribedKeys):
    """The keys of a persona, with their defaults."""

    system: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    template: str = ""


class PromptKeys(DescribedKeys):
    """The keys of a prompt file, with their defaults."""

    instruction: str = ""
    input_prefix: str = "Input: "
    output_prefix: str = "Output:"
    example: _Layout = ""
    query: _Layout = ""
    separator: str = "\n\n"
    stop: list[_Stop] | None = None
    labels: list[_Label] = Field([], min_length=2)
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
