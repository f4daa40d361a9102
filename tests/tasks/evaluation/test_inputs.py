"""Inputs and test items from every kind of file, each bad row named by its line."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from chatapp.rows.examples import Columns
from chatapp.rows.reading import RowsError
from chatapp.tasks.evaluation.inputs import Item, read_inputs, read_stream, read_test


def shown(rows):
    return [(line, text if isinstance(text, str) else f"! {text}") for line, text in rows]


def test_json_lines(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(
        b'{"input": " one "}\n\n{"text": "two", "label": "x"}\nbroken\n{"output": "x"}\n'
    )
    rows = shown(read_inputs(path))
    assert rows[:2] == [(1, "one"), (3, "two")]
    assert [line for line, _ in rows] == [1, 3, 4, 5]
    assert rows[2][1].startswith(f"! {path}, line 4: is not valid JSON")
    assert "no input; expected a field named" in rows[3][1]


def test_csv(tmp_path):
    path = tmp_path / "in.csv"
    path.write_bytes(b'question,n\n"one\ntwo",1\nthree\nfour,2\n')
    assert shown(read_inputs(path)) == [
        (2, "one\ntwo"),
        (4, f"! {path}, line 4: has 1 fields, expected 2"),
        (5, "four"),
    ]


def test_plain_lines(tmp_path):
    path = tmp_path / "in.txt"
    path.write_bytes(b'\xef\xbb\xbfone\r\n\n  {"input": "two"}\nthree\xff\nfo\0ur\n five')
    assert shown(read_inputs(path)) == [
        (1, "one"),
        (3, '{"input": "two"}'),
        (4, f"! {path}, line 4: is not UTF-8 text"),
        (5, f"! {path}, line 5: holds a NUL character"),
        (6, "five"),
    ]


@pytest.mark.parametrize("name", ["none.txt", "none.jsonl", "no\0ne.txt"])
def test_no_such_file(tmp_path, name):
    with pytest.raises(RowsError, match=r"cannot be read|NUL"):
        list(read_inputs(tmp_path / name))


def test_a_stream_of_plain_lines():
    lines = [b"one\n", b'{"input": "two"}\n', b"[3]\n"]
    assert shown(read_stream(lines)) == [(1, "one"), (2, '{"input": "two"}'), (3, "[3]")]


def test_a_stream_of_json_lines():
    lines = [b'{"question": "one"}\n', b"\n", b"two\n", b'{"a": 1}\n', b'{"input": "five"}']
    rows = shown(read_stream(lines))
    assert rows[0] == (1, "one")
    assert rows[1] == (3, "! standard input, line 3: expected a JSON object like those before it")
    assert rows[2][1].startswith("! standard input, line 4: no input")
    assert rows[3] == (5, "five")


def test_braces_alone_are_no_json():
    assert shown(read_stream([b'{"name": "x"}\n'])) == [(1, '{"name": "x"}')]


def test_test_items(tmp_path):
    path = tmp_path / "test.jsonl"
    path.write_text('{"text": "one", "label": "a"}\n\n{"text": "one", "label": "a"}\n')
    assert read_test(path, Columns(labels=("a", "b"))) == [Item("one", "a", 1), Item("one", "a", 3)]
    with pytest.raises(
        RowsError, match=r"line 1: 'a' is not one of the labels; there are " "'x', 'yes'"
    ):
        read_test(path, Columns(labels=("x", "yes")))


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", "contains no test items"),
        ('{"text": "one"}\n', "line 1: no output"),
        ('{"text": "one", "label": "a"}\n{"text": "two", "label": 1}\n', "line 2: 'label' is"),
    ],
)
def test_test_items_that_cannot_be_used(tmp_path, content, error):
    path = tmp_path / "test.jsonl"
    path.write_text(content)
    with pytest.raises(RowsError, match=error):
        read_test(path)


def test_a_pipe_is_read_as_standard_input_is(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        written = pool.submit(pipe.write_bytes, b'{"input": "one"}\n{"x": 1}\n')
        rows = shown(read_inputs(pipe))
        written.result()
    assert rows[0] == (1, "one")
    assert rows[1][1].startswith(f"! {pipe}, line 2: no input")
