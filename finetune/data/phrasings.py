"""Instruction templates of a task (Wei et al. 2021): several phrasings, one drawn per example.

Invariant: a field's value is inserted once and never parsed, so braces in data are plain
characters. The phrasing of a row depends on the seed, the row's content and the pass, never on the
order of the rows.
"""

import math
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from chatapp.common.userfiles import did_you_mean, quoted, shown
from chatapp.prompting.messages import Message
from chatapp.prompting.template import TEMPLATES
from chatapp.rows.reading import BadRow, Row, names
from finetune.config.objectives import Section
from finetune.config.sections import ConfigError, load_config
from finetune.data.formats import TrainingExample
from finetune.data.split import content_key


class _Template(Section):
    """One phrasing: a prompt, and the response to it; `{name}` is a field."""

    prompt: str = Field(min_length=1)
    response: str = Field("", description="`{answer's field}` when absent")


class _File(Section):
    """A file of instruction templates."""

    cluster: str = Field("", description="the cluster of tasks this one belongs to")
    answer: str = Field("", description="the field whose value is one of the options")
    options: list[str] | str = Field(
        [], description="the answers there are, or the field that lists them"
    )
    templates: list[_Template] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text with fields in it: pairs of plain text and the field after it ("" after the last)."""

    location: str
    parts: tuple[tuple[str, str], ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, in their order."""
        return tuple(name for _, name in self.parts if name)

    def fill(self, row: Row) -> str:
        """Replace the fields in the text by the row's values.

        Raises BadRow, naming the template, the field and the existing fields.
        """
        return "".join(text + (self._value(row, name) if name else "") for text, name in self.parts)

    def _value(self, row: Row, name: str) -> str:
        value = _field(row, name, self.location)
        if isinstance(value, str) or _is_number(value):
            return str(value)
        raise BadRow(
            f"{name} is not text",
            f"{self.location}: at {row.location} the field {quoted(name)} is {shown(value)}, "
            "expected text or a number",
        )


def _field(row: Row, name: str, location: str) -> Any:
    """The value of a field that a template file names, at `location`. Raises BadRow."""
    if name not in row.fields:
        raise BadRow(
            f"no {name}",
            f"{location} names the field {quoted(name)}, which is missing at {row.location}"
            f"{did_you_mean(name, row.fields)}; there are {names(row.fields)}",
        )
    return row.fields[name]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def parse_pattern(text: str, location: str) -> Pattern:
    """Parse a text with `{name}` for fields and `{{`, `}}` for braces. Raises ConfigError."""
    try:
        parsed = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ConfigError(f"{location}: {error}; write {{{{ or }}}} for a brace") from None
    for _, name, specification, conversion in parsed:
        if name is not None and (not name.strip() or specification or conversion):
            raise ConfigError(f"{location}: expected only the name of a field between braces")
    return Pattern(location, tuple((text, name or "") for text, name, _, _ in parsed))


@dataclass(frozen=True, slots=True)
class Phrasings:
    """The phrasings of one task.

    templates: pairs of prompt and response. options: the possible answers, or the name of the field
    that lists them, or () for a task without.
    """

    path: Path
    cluster: str
    answer: str
    options: tuple[str, ...] | str
    templates: tuple[tuple[Pattern, Pattern], ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that the templates name, sorted."""
        patterns = (pattern for pair in self.templates for pattern in pair)
        return tuple(sorted({name for pattern in patterns for name in pattern.fields}))

    def phrase(self, row: Row, seed: int, turn: int = 0) -> TrainingExample:
        """The row in one of the phrasings. Raises BadRow.

        turn: the pass over the data; as many passes as there are phrasings use each once.
        """
        values = {name: row.fields[name] for name in self.fields if name in row.fields}
        options = self._options(row)
        key = content_key([values, options])
        start = int(content_key([seed, key]), 16)
        prompt, response = self.templates[(start + turn) % len(self.templates)]
        if options:
            row = Row(row.location, {**row.fields, self.answer: self._answer(row, options)})
        request = prompt.fill(row).strip()
        reply = response.fill(row)
        for name, text in (("prompt", request), ("response", reply)):
            if not text.strip():
                raise BadRow(
                    f"empty {name}", f"{prompt.location}: the {name} is empty at {row.location}"
                )
        # A template that asks for the text of a given class has no answer options.
        if options and self.answer in response.fields:
            request += "\n\nOPTIONS:" + "".join(f"\n- {option}" for option in options)
        messages = (Message("user", request), Message("assistant", reply))
        return TrainingExample(row.location, key, messages)

    def _options(self, row: Row) -> tuple[str, ...]:
        if not isinstance(self.options, str):
            return self.options
        options = _field(row, self.options, str(self.path))
        if (
            isinstance(options, list)
            and len(options) > 1
            and all(isinstance(option, str) and option.strip() for option in options)
        ):
            return tuple(options)
        raise BadRow(
            f"no {self.options}",
            f"{row.location}: {self.options!r} is {shown(options)}, expected a list of two or more "
            f"texts, the options of {self.path}",
        )

    def _answer(self, row: Row, options: tuple[str, ...]) -> str:
        """The option that the answer's field names, by its text or by its number from 0."""
        answer = _field(row, self.answer, str(self.path))
        if isinstance(answer, str):
            answer = answer.strip()
            if answer in options:
                return answer
        if isinstance(answer, int | str) and str(answer) in map(str, range(len(options))):
            return options[int(answer)]
        raise BadRow(
            f"{self.answer} is not an option",
            f"{row.location}: {self.answer!r} is {shown(answer)}, expected one of the options of "
            f"{self.path}: {names(options)}",
        )


def load_phrasings(path: Path) -> Phrasings:
    """A TOML file of instruction templates. Raises ConfigError."""
    if str(path) in TEMPLATES:
        raise ConfigError(
            f"the template {str(path)!r} of a source: this is a dialogue template, which is one "
            "for the whole run (data.template); expected a TOML file of instruction templates"
        )
    file = load_config(_File, path, [])
    options = file.options if isinstance(file.options, str) else tuple(file.options)
    if bool(file.answer) != bool(options):
        raise ConfigError(f"{path}: 'options' and 'answer' go together; one of them is missing")
    if isinstance(options, tuple) and options:
        distinct = {option.strip() for option in options} - {""}
        if len(distinct) < max(2, len(options)):
            raise ConfigError(f"{path}: 'options': expected two or more different texts")
    templates = []
    for number, template in enumerate(file.templates, 1):
        location = f"{path}, template {number}"
        if not template.response and not file.answer:
            raise ConfigError(f"{location}: 'response' is missing")
        response = template.response or f"{{{file.answer}}}"
        templates.append(
            (parse_pattern(template.prompt, location), parse_pattern(response, location))
        )
    return Phrasings(path, file.cluster, file.answer, options, tuple(templates))
