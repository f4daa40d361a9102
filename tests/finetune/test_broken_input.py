"""Broken data files and configurations: each is one sentence on stderr and exit status 2."""

import errno
import gzip
import json
from pathlib import Path

import datasets
import pytest
from messages import check_message
from tiny import write_tiny_gpt2
from typer.testing import CliRunner

from finetune.cli import app

GOOD = {"prompt": "a", "completion": "b"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_gpt2(tmp_path_factory.mktemp("model"), context=128)


def refused(arguments):
    """The one sentence with which a command line is refused."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    sentence = result.stderr.strip()
    assert len(sentence.splitlines()) == 1, sentence
    assert "Traceback" not in sentence
    return sentence


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


# The file's name, its content, and the line or key that the sentence must name beside it.
FILES = [
    ("absent.jsonl", None, ""),
    ("absent/in/a/folder", None, ""),
    ("rows.xlsx", "x", ""),
    ("empty.jsonl", "", ""),
    ("empty.json", "[]", ""),
    ("empty.txt", " \n", "'text'"),
    ("a.json", '[{"prompt": "a",\n "completion": }]', "line 2"),
    ("a.json", '[{"prompt": "a", "completion": "b"}\n{', "line 2"),
    ("a.json", '[{"prompt": "a", "completion": "b"}', ""),
    ("a.json", "[" + json.dumps(GOOD) + "] x", ""),
    ("a.json", "[3]", "line 1"),
    ("a.json", '[{"prompt": "a", "prompt": "b"}]', "'prompt'"),
    ("a.json", "[" * 100_000, ""),
    ("a.jsonl", lines(GOOD) + "{", "line 2"),
    ("a.jsonl", lines(GOOD, [1]), "line 2"),
    ("a.jsonl", '{"prompt": "a", "prompt": "b"}', "'prompt'"),
    ("a.jsonl", '{"a":' * 100_000, ""),
    ("a.jsonl", lines(GOOD).encode("utf-16"), ""),
    ("a.jsonl", lines(GOOD).encode() + b'{"prompt": "caf\xe9"}', "line 2"),
    ("a.txt", b"caf\xe9", "line 1"),
    ("a.jsonl.gz", lines(GOOD), ""),
    ("a.jsonl.gz", gzip.compress(lines(GOOD).encode() * 99, mtime=0)[:60], ""),
    ("a.csv", "prompt,completion\na,b\na\n", "line 3"),
    ("a.csv", 'prompt,completion\n"a,b\n', "line 2"),
    ("a.csv", "prompt,prompt\na,b\n", "'prompt'"),
    ("a.csv", "prompt|completion\na|b\n", "'prompt|completion'"),
    ("a.parquet", "PAR1 nonsense", ""),
    ("a.jsonl", lines(GOOD, {"prompt": "a"}), "line 2"),
    ("a.jsonl", lines({"messages": []}), ""),
    ("a.jsonl", lines(GOOD, {"prompt": "x " * 200, "completion": "b"}), "line 2"),
]


@pytest.mark.parametrize("number", range(len(FILES)))
def test_a_broken_file(model, tmp_path, number, pytestconfig):
    name, content, place = FILES[number]
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    sentence = refused(["check", config(tmp_path, model, f'train = "{path}"\nheld_out = 0')])
    assert place in sentence
    if not name.startswith("empty.j"):
        assert str(path) in sentence
    if name != "a.parquet":  # whose reason is the library's
        check_message(f"rows {number:02} {name}", sentence, tmp_path, pytestconfig)


def test_a_hub_that_is_out_of_reach(model, tmp_path, monkeypatch):
    def load_dataset(*_, **__):
        raise ConnectionError("the hub is out of reach")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    sentence = refused(["check", config(tmp_path, model, 'train = "nobody/nothing"')])
    assert sentence == (
        "nobody/nothing: there is no such file or folder, and as a data set of the hub it "
        "cannot be loaded: the hub is out of reach"
    )


def config(folder, model, data):
    path = folder / "config.toml"
    run = folder / "run"
    path.write_text(f'model = "{model}"\noutput = "{run}"\n[data]\ntemplate = "chat"\n{data}\n')
    return str(path)


REVIEWS = """
answer = "label"
options = ["good", "bad"]
[[templates]]
prompt = "{text}"
"""

# What stands in the [data] section, and the key or file that the sentence must name. ROWS and
# REVIEWS are files.
SECTIONS = (Path(__file__).parent / "broken_data.txt").read_text().split("#")[1:]
DATA = [(text.partition("\n")[2].strip("\n"), text.partition("\n")[0].strip()) for text in SECTIONS]


@pytest.mark.parametrize("number", range(len(DATA)))
def test_a_broken_data_section(model, tmp_path, number, pytestconfig):
    data, place = DATA[number]
    (tmp_path / "ROWS.jsonl").write_text(lines(GOOD))
    (tmp_path / "LABELS.jsonl").write_text(lines({"text": "a", "label": "fine"}))
    (tmp_path / "REVIEWS.toml").write_text(REVIEWS)
    (tmp_path / "EMPTY").mkdir()
    for name in ("ROWS.jsonl", "LABELS.jsonl", "REVIEWS.toml", "EMPTY"):
        data = data.replace(name.partition(".")[0], str(tmp_path / name))
    sentence = refused(["check", config(tmp_path, model, data)])
    assert place in sentence
    check_message(f"data {number:02}", sentence, tmp_path, pytestconfig)


def test_a_broken_configuration(model, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(lines(*[{**GOOD, "prompt": f"a {n}"} for n in range(9)]))
    good = config(tmp_path, model, f'train = "{rows}"')
    assert "none.toml: cannot be read" in refused(["check", str(tmp_path / "none.toml")])
    assert "expected key=value" in refused(["check", good, "epochs"])
    assert "there are plain, alpaca, chat" in refused(["check", good, "data.template=alpacca"])
    assert "has no dialogue template" in refused(["check", good, "data.template="])
    assert "model" in refused(["check", good, f"model={tmp_path / 'no model'}"])
    # The same files are refused by training, which then leaves no folder behind.
    assert "'data.to_long' is not a key" in refused(["train", good, "data.to_long=drop"])
    assert "cannot be read" in refused(["train", good, "data.train=none.jsonl"])
    assert not (tmp_path / "run").exists()


def test_there_are_forty_kinds():
    assert len(FILES) + len(DATA) >= 40


class PanicException(BaseException):
    """As Rust libraries raise it: no Exception."""


def test_a_path_that_is_too_long_is_one_sentence(monkeypatch, tmp_path):
    def fail(*_):
        raise OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300)

    monkeypatch.setattr("finetune.config.sections.load_config", fail)
    result = CliRunner().invoke(app, ["train", str(tmp_path / "x.toml")])
    assert result.exit_code == 2
    assert result.stderr == f"'{'x' * 60}'…: is not a valid path: it is too long\n"


@pytest.mark.parametrize("error", [PanicException("it panicked"), ZeroDivisionError("by zero")])
def test_an_error_that_nobody_foresaw_is_one_sentence(error, monkeypatch, tmp_path):
    def fail(*_):
        raise error

    monkeypatch.setattr("finetune.config.sections.load_config", fail)
    result = CliRunner().invoke(app, ["train", str(tmp_path / "x.toml")])
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert f"an unexpected error, {type(error).__name__}: {error}; the traceback" in result.stderr
