"""Files to rows: every kind of file gives the same rows, each with its place."""

import csv
import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from chatapp.rows.reading import BadRow, Row, RowsError, _rows_at_once, renamed, tables
from finetune.config.sections import TrainSource

ROWS = [
    {"prompt": 'two\nlines, "quoted"', "completion": "yes"},
    {"prompt": "{braces} [markup] ☃", "completion": "no"},
]


def read(path, **source):
    found = tables(TrainSource(path=str(path), **source))
    return [row for table in found for row in table.rows()]


def fields(path, **source):
    return [row.fields if isinstance(row, Row) else str(row) for row in read(path, **source)]


def places(path):
    return [row.location.removeprefix(str(path)) for row in read(path) if isinstance(row, Row)]


def write(path, rows):
    """The rows in the kind of file that the name says."""
    name = path.name.removesuffix(".gz")
    if name.endswith(".json"):
        text = json.dumps(rows, indent=2)
    elif name.endswith((".jsonl", ".ndjson")):
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        text = path.read_text(encoding="utf-8")
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", "a.json a.jsonl a.ndjson a.csv a.json.gz a.jsonl.gz a.CSV".split())
def test_every_kind_of_file_gives_the_same_rows(tmp_path, name):
    assert fields(write(tmp_path / name, ROWS)) == ROWS


def test_parquet(tmp_path):
    path = tmp_path / "rows.parquet"
    rows = [{"prompt": "a", "turns": [{"from": "human", "value": "x"}]}, {"prompt": None}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert fields(path) == [rows[0], {"prompt": None, "turns": None}]
    assert places(path) == [", row 1", ", row 2"]


@pytest.mark.parametrize(
    ("name", "text", "kept"),
    [
        ("a.jsonl.gz", '{"a": "LONG"}\n{"a": "b"}\n', [2]),
        ("a.json.gz", '{\n "a": "LONG"}', []),
        ("a.json.gz", '[{"a": "b"}, {"a": "LONG"}]', [1]),
        ("a.csv.gz", "a\nb\nLONG\n", [2]),
        ("a.csv.gz", 'a\nb\n"LINES"\n', [2]),
        ("a.csv.gz", "a,b\nx,y\nz,LONG\n", [2]),
        ("a.tsv", "LONG\nb\n", []),
    ],
)
def test_a_row_has_a_bound(tmp_path, monkeypatch, name, text, kept):
    """Counted as decoded: a compressed file may make a gigabyte of little."""
    monkeypatch.setattr("chatapp.rows.reading._LONGEST_ROW", 100_000)
    path = tmp_path / name
    data = text.replace("LONG", "x" * 2_000_000).replace("LINES", "x\n" * 500_000).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    rows, refused = [], ""
    try:
        for row in tables(TrainSource(path=str(path)))[0].rows():
            refused = str(row) if isinstance(row, BadRow) else refused
            rows += [row.number] if isinstance(row, Row) else []
    except RowsError as error:
        refused = str(error)
    assert "is longer than 100,000 bytes" in refused
    assert "csv" not in name or f"line {len(kept) + 2}: a row is" in refused
    assert rows == kept


def test_a_whole_file_has_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr("chatapp.common.userfiles._MOST", 100_000)
    monkeypatch.setattr("chatapp.common.userfiles._PIECE", 1_000)
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"x" * 1_000_000))
    with pytest.raises(RowsError, match="it is larger than"):
        fields(path)


def test_values_of_parquet_that_have_no_place_in_python(tmp_path, monkeypatch):
    path = tmp_path / "rows.parquet"
    days = pyarrow.array([0, 2**31 - 1], pyarrow.date32())
    parquet.write_table(pyarrow.table({"a": ["b", "c"], "day": days}), path)
    first, second = read(path)
    assert isinstance(first, Row)
    assert "row 2: has a value that cannot be read" in str(second)

    monkeypatch.setattr("chatapp.rows.reading._LONGEST_ROW", 100_000)
    texts = pyarrow.array(["x" * 1_000, "x" * 200_000])
    parquet.write_table(pyarrow.table({"a": texts}), path)
    first, second = read(path)
    assert isinstance(first, Row)
    assert "row 2: is longer than 100,000 bytes" in str(second)


def test_a_value_that_a_file_has_once_is_not_a_thousand_in_memory(tmp_path):
    path = tmp_path / "rows.parquet"
    once = pyarrow.array(["x" * 8_000_000] * 40).dictionary_encode()
    parquet.write_table(pyarrow.table({"a": once}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    assert _rows_at_once(parquet.ParquetFile(path).metadata) == 134


def test_places_are_the_lines_that_rows_begin_on(tmp_path):
    array = tmp_path / "a.json"
    array.write_text('\ufeff [\n {"a":\n 1},\n\n {"a": 2}, {"a": 3}\n]\n', encoding="utf-8")
    assert places(array) == [", line 2", ", line 5", ", line 5"]
    assert fields(array) == [{"a": 1}, {"a": 2}, {"a": 3}]
    lines = tmp_path / "a.jsonl"
    lines.write_text('\ufeff{"a": 1}\r\n\r\n{"a": 2}', encoding="utf-8")
    assert places(lines) == [", line 1", ", line 3"]
    table = tmp_path / "a.csv"
    table.write_text('a,b\n"one\ntwo",x\nthree,y\n', encoding="utf-8")
    assert places(table) == [", line 2", ", line 4"]
    assert places(write(tmp_path / "b.jsonl.gz", ROWS)) == [", line 1", ", line 2"]


def test_tsv_has_no_quotes(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b'Question\tAnswer\r\nsay "hi\tit\'s "fine"\r\n')
    assert fields(path) == [{"Question": 'say "hi', "Answer": 'it\'s "fine"'}]


def test_the_content_says_whether_it_is_an_array_or_lines(tmp_path):
    lines = tmp_path / "lines.json"
    lines.write_text('{"a": 1}\n{"a": 2}\n')
    array = tmp_path / "array.jsonl"
    array.write_text('[{"a": 1},\n{"a": 2}]')
    assert fields(lines) == fields(array) == [{"a": 1}, {"a": 2}]
    array.write_text("[]")
    assert fields(array) == []


def test_plain_text_is_one_row(tmp_path):
    path = tmp_path / "story.txt"
    path.write_bytes("\ufeffOnce.\r\n\r\nEnd.\r\n".encode())
    assert fields(path) == [{"text": "Once.\n\nEnd.\n"}]


def test_a_folder_is_its_files_in_order(tmp_path):
    write(tmp_path / "b.jsonl", ROWS[1:])
    write(tmp_path / "a.json", ROWS[:1])
    (tmp_path / "README.md").write_text("not data")
    (tmp_path / "deeper.json").mkdir()
    found = tables(TrainSource(path=str(tmp_path)))
    assert [Path(table.name).name for table in found] == ["a.json", "b.jsonl"]
    assert fields(tmp_path) == ROWS


def test_a_table_can_be_read_twice(tmp_path):
    (table,) = tables(TrainSource(path=str(write(tmp_path / "a.jsonl", ROWS))))
    assert list(table.rows()) == list(table.rows())


def test_a_broken_line_is_named_and_the_next_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": \n[1]\n"\xff"\n{"a": 2}\n')
    first, cut, listed, latin, last = fields(path)
    assert (first, last) == ({"a": 1}, {"a": 2})
    assert cut.startswith(f"{path}, line 2: is not valid JSON")
    assert listed == f"{path}, line 3: is a list, expected a JSON object; write one object per line"
    assert "line 4: is not UTF-8" in latin
    array = tmp_path / "a.json"
    array.write_text('[{"a": 1},\n 3]')
    assert fields(array)[1] == f"{array}, line 2: is the number 3, expected a JSON object"


def test_columns_are_given_their_names(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"Q": "ask", "A": "reply", "prompt": "other", "c": "1"}])
    (table,) = tables(TrainSource(path=str(path)))
    (row,) = renamed(table, {"prompt": "Q", "completion": "A"})
    assert row.fields == {"prompt": "ask", "completion": "reply", "c": "1"}
    with pytest.raises(RowsError, match=r"line 1: there is no column 'q' to take 'prompt' from"):
        list(renamed(table, {"prompt": "q"}))
    # One column can serve two fields.
    (row,) = renamed(table, {"prompt": "Q", "completion": "Q"})
    assert (row.fields["prompt"], row.fields["completion"]) == ("ask", "ask")


def use_datasets(monkeypatch, load_dataset):
    """Have a package `datasets` that loads so, as an installed one has a spec."""
    package = SimpleNamespace(load_dataset=load_dataset, __spec__=object())
    monkeypatch.setitem(sys.modules, "datasets", package)


def test_a_hub_data_set(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked = []

    def load_dataset(path, name, *, split):
        asked.append((path, name, split))
        return ROWS

    use_datasets(monkeypatch, load_dataset)
    rows = read("someone/something", subset="main", split="test")
    assert asked == [("someone/something", "main", "test")]
    assert [row.location for row in rows if isinstance(row, Row)] == [
        "someone/something (test), row 1",
        "someone/something (test), row 2",
    ]


def test_without_a_network_a_hub_data_set_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def load_dataset(*_, **__):
        raise ConnectionError("Couldn't reach 'someone/something' on the Hub\nmore")

    use_datasets(monkeypatch, load_dataset)
    with pytest.raises(RowsError) as caught:
        read("someone/something")
    assert str(caught.value) == (
        "someone/something: there is no such file or folder, and as a data set of the hub it "
        "cannot be loaded: Couldn't reach 'someone/something' on the Hub"
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(
    rows=st.lists(st.dictionaries(st.text(max_size=4), JSON, max_size=3), max_size=5),
    indent=st.sampled_from([None, 0, 2]),
    tail=st.sampled_from(["", "\n", " \t\r\n"]),
)
def test_any_array_is_read_element_by_element(tmp_path_factory, rows, indent, tail):
    path = tmp_path_factory.mktemp("array") / "rows.json"
    path.write_text(json.dumps(rows, indent=indent) + tail, encoding="utf-8")
    assert fields(path) == json.loads(path.read_text(encoding="utf-8"))
