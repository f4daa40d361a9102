"""Broken data files and configurations: each is one sentence on stderr and exit status 2."""

import errno
import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from tiny import write_tiny_gpt2
from typer.testing import CliRunner

from finetune.cli import app

GOOD = {"prompt": "a", "completion": "b"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gpt2(tmp_path_factory.mktemp("model"), context=128)


def refused(arguments: list[str]) -> str:
    """The one sentence with which a command line is refused."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    sentence = result.stderr.strip()
    assert len(sentence.splitlines()) == 1, sentence
    assert "Traceback" not in sentence
    return sentence


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# The file's name, its content, and what the sentence must hold beside the name.
FILES: list[tuple[str, str | bytes | None, str]] = [
    ("absent.jsonl", None, "cannot be read: No such file"),
    ("absent/in/a/folder", None, "there is no such file or folder"),
    ("rows.xlsx", "x", "expected a file named .jsonl"),
    ("empty.jsonl", "", "no row is left"),
    ("empty.json", "[]", "no row is left"),
    ("empty.txt", " \n", "'text' is empty"),
    ("a.json", '[{"prompt": "a",\n "completion": }]', "line 2: is not valid JSON"),
    ("a.json", '[{"prompt": "a", "completion": "b"}\n{', "line 2: is not valid JSON: expected ,"),
    ("a.json", '[{"prompt": "a", "completion": "b"}', "the file ends"),
    ("a.json", "[" + json.dumps(GOOD) + "] x", "text after the end of the list"),
    ("a.json", json.dumps(GOOD, indent=2), "is one JSON object, expected a list"),
    ("a.json", "[3]", "line 1: is the number 3, expected a JSON object"),
    ("a.json", '[{"prompt": "a", "prompt": "b"}]', "the key 'prompt' occurs twice"),
    ("a.json", "[" * 100_000, "nested too deeply"),
    ("a.jsonl", lines(GOOD) + "{", "line 2: is not valid JSON"),
    ("a.jsonl", lines(GOOD, [1]), "line 2: is a list, expected a JSON object"),
    ("a.jsonl", '{"prompt": "a", "prompt": "b"}', "the key 'prompt' occurs twice"),
    ("a.jsonl", '{"a":' * 100_000, "nested too deeply"),
    ("a.jsonl", lines(GOOD).encode("utf-16"), "is not UTF-8"),
    ("a.jsonl", lines(GOOD).encode() + b'{"prompt": "caf\xe9"}', "line 2: is not UTF-8"),
    ("a.txt", b"caf\xe9", "line 1: is not UTF-8"),
    ("a.jsonl.gz", lines(GOOD), "is not a whole gzip file"),
    (
        "a.jsonl.gz",
        gzip.compress(lines(GOOD).encode() * 99, mtime=0)[:60],
        "is not a whole gzip file",
    ),
    ("a.csv", "prompt,completion\na,b\na\n", "line 3: has 1 fields, expected 2"),
    ("a.csv", 'prompt,completion\n"a,b\n', "line 2: is not valid CSV"),
    ("a.csv", "prompt,prompt\na,b\n", "two columns are named 'prompt'"),
    ("a.csv", "prompt|completion\na|b\n", "there are 'prompt|completion'"),
    ("a.parquet", "PAR1 nonsense", "is not a whole Parquet file"),
    ("a.jsonl", lines(GOOD, {"prompt": "a"}), "line 2: 'completion' is missing"),
    ("a.jsonl", lines({"messages": []}), "messages is an empty list"),
    ("a.jsonl", lines(GOOD, {"prompt": "x " * 200, "completion": "b"}), "line 2: 4"),
]


@pytest.mark.parametrize(("name", "content", "words"), FILES)
def test_a_broken_file(
    model: Path, tmp_path: Path, name: str, content: str | bytes | None, words: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    sentence = refused(["check", config(tmp_path, model, f'train = "{path}"\nheld_out = 0')])
    assert words in sentence
    if not name.startswith("empty.j"):
        assert str(path) in sentence


def test_a_hub_that_is_out_of_reach(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_dataset(*_: Any, **__: Any) -> None:
        raise ConnectionError("the hub is out of reach")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    sentence = refused(["check", config(tmp_path, model, 'train = "nobody/nothing"')])
    assert sentence == (
        "nobody/nothing: there is no such file or folder, and as a data set of the hub it "
        "cannot be loaded: the hub is out of reach"
    )


def config(folder: Path, model: Path | str, data: str) -> str:
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

# What stands in the [data] section, and what the sentence must hold. ROWS and REVIEWS are files.
DATA: list[tuple[str, str]] = [
    ('train = "EMPTY"', "this folder holds no file named"),
    ('train = "\\u0000.jsonl"', "NUL character"),
    ('train = {path = "ROWS", columns = {prompt = "promt"}}', "no column 'promt' to take 'prompt'"),
    ('train = {path = "ROWS", columns = {promt = "prompt"}}', "columns names 'promt', which no"),
    ('train = {path = "ROWS", template = "none.toml"}', "none.toml: cannot be read"),
    ('train = {path = "ROWS", template = "chat"}', "this is a dialogue template"),
    ('train = {path = "ROWS", template = "REVIEWS"}', "names the field 'label', which is missing"),
    ('train = {path = "LABELS", template = "REVIEWS"}', "'label' is the string 'fine', expected"),
    ('train = "ROWS"\nheld_out = "none.jsonl"', "none.jsonl: cannot be read"),
    ('train = "ROWS"\nheld_out = "ROWS"', "no row is left to train on: 1 held out, 1 dropped"),
    ('train = "ROWS"\nheld_out_clusters = ["nli"]', "no row belongs to a cluster 'nli'"),
    ('train = "ROWS"\nmax_length = 4096', "data.max_length is 4,096; the model's window has 128"),
    ('train = "ROWS"\nmax_length = 1', "'data.max_length' is the number 1"),
    ("", "'data.train' is missing"),
    ("train = []", "'data.train' holds 0, expected 1 or more"),
    ("train = 3", "'data.train' is the number 3, expected a list"),
    (
        'train = {pth = "a"}',
        "'data.train[1].pth' is not a key of a configuration; did you mean 'path'?",
    ),
    (
        'train = {path = "a", weight = 0}',
        "'data.train[1].weight' is the number 0, expected a number greater than 0",
    ),
    (
        'train = {path = "a", columns = {prompt = 3}}',
        "'data.train[1].columns.prompt' is the number 3, expected a string",
    ),
    (
        'train = "ROWS"\nheld_out = 1.5',
        "'data.held_out' is the number 1.5, expected a number less than 1",
    ),
    ('train = "ROWS"\nheld_out = true', "'data.held_out' is true, expected a number"),
    ('train = "ROWS"\ntoo_long = "cut"', "'raise', 'drop', 'truncate-prompt' or 'truncate-hist"),
    (
        'train = "ROWS"\npacking = "yes"',
        "'data.packing' is the string 'yes', expected true or false",
    ),
    (
        'train = "ROWS"\nto_long = "drop"',
        "'data.to_long' is not a key of a configuration; did you mean 'data.too_long'?",
    ),
    ('train = "ROWS"\ntrain = "ROWS"', "not valid TOML"),
    ('train = "ROWS"\n[dta]', "'dta' is not a key of a configuration; did you mean 'data'?"),
    (
        'train = "ROWS"\n[train]\nepochs = -1',
        "'train.epochs' is the number -1, expected a number greater than 0",
    ),
    ('train = [{path = "ROWS", template = "a\\u0000"}]', "'a\\x00': is not a valid path"),
    (
        'train = "ROWS"\n[train]\nepochs = inf',
        "'train.epochs' is the number inf, expected a finite number",
    ),
    (
        'train = "ROWS"\n[objective]\naux_weight = "small"',
        "'objective.aux_weight' is the string 'small', expected a number",
    ),
    (
        'train = "ROWS"\n[objective]\nkind = "dop"',
        "'objective' has the kind 'dop'; did you mean 'dpo'?",
    ),
    (
        'train = "ROWS"\n[objective]\nkind = "dpo"\nbta = 0.2',
        "'objective.bta' is not a key of a configuration; did you mean 'objective.beta'?",
    ),
    (
        'train = "ROWS"\n[objective]\nbeta = 0.2',
        "'objective.beta' is not a key of a configuration",
    ),
]


@pytest.mark.parametrize(("data", "words"), DATA)
def test_a_broken_data_section(model: Path, tmp_path: Path, data: str, words: str) -> None:
    (tmp_path / "ROWS.jsonl").write_text(lines(GOOD))
    (tmp_path / "LABELS.jsonl").write_text(lines({"text": "a", "label": "fine"}))
    (tmp_path / "REVIEWS.toml").write_text(REVIEWS)
    (tmp_path / "EMPTY").mkdir()
    for name in ("ROWS.jsonl", "LABELS.jsonl", "REVIEWS.toml", "EMPTY"):
        data = data.replace(name.partition(".")[0], str(tmp_path / name))
    sentence = refused(["check", config(tmp_path, model, data)])
    assert words in sentence


def test_a_broken_configuration(model: Path, tmp_path: Path) -> None:
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


def test_there_are_forty_kinds() -> None:
    assert len(FILES) + len(DATA) >= 40


class PanicException(BaseException):
    """As Rust libraries raise it: no Exception."""


def test_a_path_that_is_too_long_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300)

    monkeypatch.setattr("finetune.config.sections.load_config", fail)
    result = CliRunner().invoke(app, ["train", str(tmp_path / "x.toml")])
    assert result.exit_code == 2
    assert result.stderr == f"'{'x' * 60}'…: is not a valid path: it is too long\n"


@pytest.mark.parametrize("error", [PanicException("it panicked"), ZeroDivisionError("by zero")])
def test_an_error_that_nobody_foresaw_is_one_sentence(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("finetune.config.sections.load_config", fail)
    result = CliRunner().invoke(app, ["train", str(tmp_path / "x.toml")])
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert f"an unexpected error, {type(error).__name__}: {error}; the traceback" in result.stderr
