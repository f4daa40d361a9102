import json
import sys

import pytest

from chatapp.rows import examples
from chatapp.rows.examples import Columns, Example, normalise, read_pool, read_rows
from chatapp.rows.reading import RowsError


def write(folder, content, name="pool.jsonl"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(path, labels=()):
    """The sentence a pool is refused with, without the folder it lies in."""
    with pytest.raises(RowsError) as caught:
        read_pool(path, Columns(labels=labels))
    message = str(caught.value)
    assert message.isprintable()
    return message.replace(f"{path.parent}/", "")


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        ({"input": "a", "output": "b"}, ("input", "output")),
        ({"context": "a", "completion": " b"}, ("context", "completion")),
        ({"prompt": "a", "target": "b"}, ("prompt", "target")),
        ({"question": " a\n", "answer": "b\r\n"}, ("question", "answer")),
        ({"id": 7, "text": "a", "label": "b", "source": None}, ("text", "label")),
    ],
)
def test_every_alias_is_read(tmp_path, row, fields):
    pool = read_pool(write(tmp_path, json.dumps(row)))
    assert pool[0] == Example("a", "b")
    assert pool.fields == fields


def test_jsonl_survives_what_editors_do(tmp_path):
    body = '{"input": "é{}\u2028\\"", "output": "1"}\r\n\r\n{"input": "\\ud800", "output": "2"}'
    pool = read_pool(write(tmp_path, b"\xef\xbb\xbf" + body.encode()))
    assert pool.inputs == ['é{}\u2028"', "\ufffd"]
    assert pool.outputs == ["1", "2"]


def test_csv_survives_what_editors_do(tmp_path):
    body = '\ufefftext,label\r\n"a, ""b""\r\nc",spam\r\n\r\nd,ham\r\n'
    pool = read_pool(write(tmp_path, body, "pool.CSV"))
    assert pool.inputs == ['a, "b"\nc', "d"]
    assert pool.outputs == ["spam", "ham"]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_csv_is_read_by_its_dialect(tmp_path, mark):
    path = write(tmp_path, f'text{mark}label\n"a{mark} b"{mark}x\n', "pool.csv")
    assert read_pool(path).inputs == [f"a{mark} b"]


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_huge_field_is_fine(tmp_path, suffix):
    huge = "x" * 3_000_000
    body = (
        f'{{"input": "{huge}", "output": "y"}}' if suffix == "jsonl" else f"input,output\n{huge},y"
    )
    assert read_pool(write(tmp_path, body, f"pool.{suffix}")).inputs == [huge]


def test_a_label_is_kept_once_in_memory(tmp_path):
    rows = [json.dumps({"text": f"row {number}", "label": "spam"}) for number in range(100)]
    pool = read_pool(write(tmp_path, "\n".join(rows)))
    assert len({id(output) for output in pool.outputs}) == 1


def test_reading_a_pool_keeps_little_beside_its_texts(tmp_path):
    import tracemalloc

    text = "a row with the number {} and some more words to make it as long as a sentence"
    rows = [json.dumps({"text": text.format(n), "label": str(n % 2)}) for n in range(4_000)]
    path = write(tmp_path, "\n".join(rows))
    tracemalloc.start()
    pool = read_pool(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * sum(map(sys.getsizeof, pool.inputs))


JSONL_REFUSALS = {
    "": "pool.jsonl: contains no examples",
    "\n \n": "pool.jsonl: contains no examples",
    '{"input": "a", "output":\n': "line 1: is not valid JSON: Expecting value at column 25",
    '{"input": "a", "output": "b"': "line 1: is not valid JSON: Expecting ',' delimiter at column",
    '{"input": "a", "output": "b"}\n["a", "b"]': "line 2: is a list, expected a JSON object",
    '[{"input": "a"}]': "line 1: no output; expected a field named output, completion, target",
    '["a"]': "line 1: is the string 'a', expected a JSON object",
    '"text"': "line 1: is the string 'text', expected a JSON object",
    "[" * 200_000: "line 1: is not valid JSON: it is nested too deeply",
    '{"input": ' + "9" * 5_000 + "}": "line 1: is not valid JSON: Exceeds the limit",
    '{"output": "b"}': "no input; expected a field named input, context, prompt, question or text",
    '{"Text": "a", "output": "b"}': "or text; there are 'Text', 'output'; name the "
    'right ones in the prompt file, such as columns = {input = "Text", output = "output"}',
    '{"input": "a", "lable": "b"}': "answer or label; there are 'input', 'lable'; name the right",
    '{"input": "a", "text": "b", "label": "c"}': "holds both 'input' and 'text'; keep one input",
    '{"input": "a", "output": "b", "label": "c"}': "holds both 'output' and 'label'",
    '{"input": "a", "input": "b", "output": "c"}': "the key 'input' occurs twice",
    '{"input": "a", "label": true}': "'label' is true, expected a string; write it in quotes",
    '{"input": "a", "label": 1}': "'label' is the number 1, expected a string; write it in quotes",
    '{"input": NaN, "label": "1"}': "'input' is the number nan, expected a string",
    '{"input": "a", "label": null}': "'label' is null, expected a string",
    '{"input": ["a"], "label": "b"}': "'input' is a list, expected a string",
    '{"input": {"a": 1}, "label": "b"}': "'input' is a table, expected a string",
    '{"input": " ", "label": "b"}': "'input' is empty",
    '{"input": "a", "label": ""}': "'label' is empty",
    '{"input": "a\\u0000b", "label": "b"}': "'input' holds a NUL character",
    '{"input": "a\0b", "label": "b"}': "is not valid JSON: Invalid control character",
}


@pytest.mark.parametrize("body", JSONL_REFUSALS)
def test_a_jsonl_pool_is_refused_in_one_sentence(tmp_path, body):
    assert JSONL_REFUSALS[body] in refusal(write(tmp_path, body))


CSV_REFUSALS = {
    "text,label\n": "pool.csv: contains no examples",
    'text,label\n"a\nb",spam\nc,ham,3': "line 4: has 3 fields, expected 2",
    "text,label\na": "line 2: has 1 fields, expected 2",
    'text,label\nb,spam\n"c,ham\nd': "line 3: is not valid CSV: unexpected end of data",
    "text,label\nb\rc,spam\n": "line 2: is not valid CSV: a field without quotes holds a line",
    'text,label\n"b"c,spam': "line 2: is not valid CSV: ',' expected after '\"'",
    "text,label,text\na,b,c": "line 1: two columns are named 'text'",
    "text|label\na|b": "line 2: no input; expected a field named",
    "text,label\na\0,b": "line 2: 'text' holds a NUL character",
    "text,label\né,b".encode("latin-1"): "line 2: is not UTF-8 text (perhaps Latin-1",
    "text,label\na,b".encode("utf-16"): "line 1: is not UTF-8 text (perhaps UTF-16)",
}


@pytest.mark.parametrize("body", CSV_REFUSALS)
def test_a_csv_pool_is_refused_in_one_sentence(tmp_path, body):
    assert CSV_REFUSALS[body] in refusal(write(tmp_path, body, "pool.csv"))


def test_an_output_outside_the_labels_is_refused(tmp_path):
    body = '{"text": "a", "label": "spam"}\n{"text": "b", "label": "Ham"}'
    message = refusal(write(tmp_path, body), ("spam", "ham"))
    assert message == "pool.jsonl, line 2: 'Ham' is not one of the labels; did you mean 'ham'?"


def test_a_row_that_stands_twice_is_used_once(tmp_path):
    rows = [("a", "x"), ("b", "y"), ("a", "x"), (" a ", "x"), ("b", "x"), ("c", "x")]
    body = "\n\n".join(json.dumps({"text": text, "label": label}) for text, label in rows)
    pool = read_pool(write(tmp_path, body))
    assert [pool[index] for index in range(len(pool))] == [
        Example("a", "x"),
        Example("b", "y"),
        Example("b", "x"),
        Example("c", "x"),
    ]
    assert pool.repeats == 2
    assert pool.source == str(tmp_path / "pool.jsonl")
    assert pool.conflicts == ()  # of texts, more than one may be right


def test_an_input_with_two_labels_is_named(tmp_path):
    rows = [("a", "x"), ("b", "y"), ("a", "y"), ("b", "y"), ("a", "x"), ("c", "x"), ("c", "y")]
    path = write(tmp_path, "\n".join(json.dumps({"text": t, "label": y}) for t, y in rows))
    pool = read_pool(path, Columns(labels=("x", "y")))
    assert len(pool) == 5
    assert pool.repeats == 2
    assert pool.conflicts == (
        f"{path}, line 3: 'a' has the label 'y', in line 1 'x'",
        f"{path}, line 7: 'c' has the label 'y', in line 6 'x'",
    )


def test_inputs_of_one_hash_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(examples, "hash", lambda text: 7, raising=False)
    path = write(tmp_path, '{"text": "a", "label": "x"}\n{"text": "b", "label": "x"}\n' * 2)
    pool = read_pool(path)
    assert (pool.inputs, pool.repeats) == (["a", "b"], 2)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    assert "absent.jsonl: cannot be read: No such file" in refusal(tmp_path / "absent.jsonl")
    assert "folder.jsonl: this folder holds no file named .jsonl" in refusal(
        tmp_path / "folder.jsonl"
    )
    assert "pool.xlsx: expected a file of examples" in refusal(tmp_path / "pool.xlsx")
    assert "is not a valid path" in refusal(tmp_path / "po\0ol.jsonl")
    assert "\x1b" not in refusal(tmp_path / "two\nlines\x1b[31m.jsonl")


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_reading_goes_on_after_a_bad_row(tmp_path, suffix):
    bodies = {
        "jsonl": b'{"input": "a"}\n{"input": 3}\n{"input": "\xff"}\n{"input": "b", "label": "c"}',
        "csv": b'input,output\na,x\n"b"b,y\n\xff,z\nc,w\n',
    }
    path = write(tmp_path, bodies[suffix], f"pool.{suffix}")
    rows = list(read_rows(path, output_required=False))
    assert [isinstance(row, RowsError) for _, row in rows] == [False, True, True, False]
    first = 2 if suffix == "csv" else 1
    assert [line for line, _ in rows] == list(range(first, first + 4))


def test_an_output_may_be_absent_only_where_none_is_asked_for(tmp_path):
    path = write(tmp_path, '{"question": "why?"}')
    ((_, row),) = read_rows(path, output_required=False)
    assert not isinstance(row, RowsError)
    assert (row.input, row.output) == ("why?", "")
    assert "no output" in refusal(path)


def test_same_items():
    def same_item(first, second):
        return normalise(first) == normalise(second)

    assert same_item("“Où est-ce?”", "ou\u0300  EST-CE")
    assert same_item("Straße", "STRASSE!")
    assert same_item("① (a)", "1 (A)")
    assert same_item("\ud800 x", "\ud800 X")
    assert not same_item("-5", "5")
    assert not same_item("€5", "5")
    assert not same_item("?", "!")
    assert not same_item("a b", "ab")


@pytest.mark.parametrize("text", ["", "  ?! ", "ﬁ “x”", "İ", "ß\u0301", "\ud800", "a\t\nb"])
def test_normalising_twice_changes_nothing(text):
    assert normalise(normalise(text)) == normalise(text)
