"""What pydantic finds wrong is told in our own words: file, line, key, value, what was expected."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag

from chatapp.common.userfiles import UserError, parse_toml
from chatapp.common.validation import strict_model, validated


def even(number):
    if number % 2:
        raise ValueError(f"is {number}, which is odd")
    return number


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Row(Strict):
    path: str = Field(min_length=1)
    columns: dict[str, str] = {}


class Table(Strict):
    rows: list[Row] = Field([], min_length=1)
    mode: Literal["fast", "exact"] | None = None
    pairs: Annotated[int, AfterValidator(even)] = 0
    share: Annotated[
        Annotated[float, Field(lt=1), Tag("number")] | Annotated[list[str], Tag("names")],
        Discriminator(lambda value: "number" if isinstance(value, float) else "names"),
    ] = 0.5
    names: list[str] | str = ""


class Document(Strict):
    table: Table = Table()
    size: int = 1


def refusal(source):
    data = parse_toml(source, Path("x.toml"))
    with pytest.raises(UserError) as error:
        validated(Document, data, UserError, origin="x.toml", what="document", source=source)
    return str(error.value)


REFUSALS = {
    "size = 1\nsise = 2": "x.toml, line 2: 'sise' is not a key of a document; did you mean 'size'?",
    "zzz = 2": "x.toml, line 1: 'zzz' is not a key of a document; there are table, size",
    "table = 3": "x.toml, line 1: 'table' is the number 3, expected a table",
    "[table]\nmode = 'slow'": "x.toml, line 2: 'table.mode' is the string 'slow', expected 'fast' "
    "or 'exact'",
    "[table]\nrows = []": "x.toml, line 2: 'table.rows' holds 0, expected 1 or more",
    "[[table.rows]]\npaht = ''": "x.toml, line 2: 'table.rows[1].paht' is not a key of a document; "
    "did you mean 'path'?",
    "[[table.rows]]\ncolumns = {}": "x.toml: 'table.rows[1].path' is missing",
    "[[table.rows]]\npath = ''": "x.toml, line 2: 'table.rows[1].path' is the string '', expected "
    "a text that is not empty",
    "[[table.rows]]\npath = 'a'\n[[table.rows]]\npath = 'b'\ncolumns = {a = 1}": "x.toml, line 5: "
    "'table.rows[2].columns.a' is the number 1, expected a string",
    "[[table.rows]]\npath = 'a'\n[[table.rows]]\npath = 2": "x.toml, line 4: 'table.rows[2].path' "
    "is the number 2, expected a string",
    "table.pairs = 3": "x.toml, line 1: 'table.pairs' is 3, which is odd",
    "table.share = 2.0": "x.toml, line 1: 'table.share' is the number 2.0, expected below 1",
    "table.share = ['a', true]": "x.toml, line 1: 'table.share[2]' is true, expected a string",
    "table.names = ['a', 2]": "x.toml, line 1: 'table.names[2]' is the number 2, expected a string",
    "size = true": "x.toml, line 1: 'size' is true, expected a whole number",
}


@pytest.mark.parametrize("source", REFUSALS)
def test_what_is_wrong_is_one_sentence(source):
    assert refusal(source) == REFUSALS[source]


@dataclass(frozen=True, slots=True)
class Place:
    url: str
    port: int = 80


def test_a_dataclass_is_as_strict():
    def place(data):
        return Place(
            **dict(validated(strict_model(Place), data, UserError, origin="x", what="place"))
        )

    assert place({"url": "a"}) == Place("a")
    for data, sentence in (
        ({"port": 1}, "x: 'url' is missing"),
        ({"url": "a", "port": "1"}, "x: 'port' is the string '1', expected a whole number"),
        ({"url": "a", "prot": 1}, "x: 'prot' is not a key of a place; did you mean 'port'?"),
        (3, "x: is the number 3, expected a table"),
    ):
        with pytest.raises(UserError, match=f"^{sentence.replace('?', '[?]')}$"):
            place(data)
