"""Recipes: every configuration is valid, and builders write what the configurations read."""

import gzip
import json
import re
import tomllib
from pathlib import Path

import pytest
import torch
from fakes import WordTokenizer
from typer.testing import CliRunner

import chatapp
from chatapp.prompting.template import TEMPLATES
from chatapp.rows.reading import Row
from finetune.cli import app
from finetune.config.sections import ConfigError, FinetuneConfig, PretrainConfig, load_config
from finetune.data.encoding import ExampleEncoder
from finetune.data.formats import Labelled, read_labelled
from finetune.data.phrasings import load_phrasings
from finetune.data.preparation import CHATS, encode_rows
from finetune.data.prompts import detect_prompt
from finetune.recipes import arithmetic, flan, induction, run, sentiment, subtraction
from finetune.training.architectures import ARCHITECTURES, build_network

RECIPES = Path(__file__).parents[2] / "finetune" / "recipes"
RUNS = [
    *("instructions", "persona", "arithmetic", "sentiment", "flan"),
    *("preferences", "reward", "subtraction", "distillation"),
]

# The example of the documentation, which must stay valid as it stands.
EXAMPLE = """
model  = "bundled"                 # folder, hub id, adapter
output = "runs/instructions"
seed   = 0
[data]
train    = "instructions.json"     # or a list of {path, weight, template, columns}
held_out = 0.05                    # or a file
template = "alpaca"
too_long = "raise"                 # raise | drop | truncate-prompt | truncate-history
packing  = true
[objective]
aux_weight = 0.25                  # λ
aux_span   = "prompt"              # prompt | prompt-without-template | full
[train]
method = "full"                    # full | lora | embeddings-and-head | last-blocks
epochs = 2
batch_size = 8
accumulate = 1
learning_rate = 5e-5
"""


def config(name):
    return load_config(FinetuneConfig, RECIPES / f"{name}.toml", [])


def prepared(data, **changes):
    data = data.model_copy(update=changes)
    template = TEMPLATES[data.template or "chat"]
    encoder = ExampleEncoder(template, WordTokenizer(), 1024, data.too_long)
    return encode_rows(data, CHATS, encoder, 0)


def test_the_example_is_valid(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(EXAMPLE)
    data = load_config(FinetuneConfig, path, []).data
    assert [source.path for source in data.train] == ["instructions.json"]
    assert (data.held_out, data.template, data.packing) == (0.05, "alpaca", True)


@pytest.mark.parametrize("name", RUNS)
def test_every_recipe_is_valid_and_of_no_machine(name):
    settings = config(name)
    assert settings.output == f"runs/{name}"
    for source in settings.data.train:
        assert source.path.startswith("data/")
        if source.template:
            assert load_phrasings(RECIPES / Path(source.template).name).templates
    text = (RECIPES / f"{name}.toml").read_text(encoding="utf-8")
    assert not re.search(r'"(/|~|[A-Z]:)', text)


def test_a_recipe_without_its_data_is_one_sentence(tmp_path, monkeypatch):
    from tiny import write_tiny_gpt2

    write_tiny_gpt2(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["check", str(RECIPES / "instructions.toml"), "model=model"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "data/instructions.json: cannot be read: No such file or directory\n"


def test_passages_come_twice_at_many_distances(tmp_path):
    (tmp_path / "book.txt").write_text(" ".join(f"word{n}" for n in range(500)))
    induction.build(tmp_path, tmp_path / "data", rows=200)
    lines = (tmp_path / "data" / "repeated.jsonl").read_text().splitlines()
    pairs = [json.loads(line)["text"].split("\n") for line in lines]
    assert len(pairs) == 200
    assert all(first == second for first, second in pairs)
    assert {len(first.split()) for first, _ in pairs} == set(range(3, 10))
    settings = load_config(PretrainConfig, RECIPES / "induction.toml", [])
    assert settings.data.train[0].path == "data/repeated.jsonl"


def test_architectures_have_about_five_million_parameters():
    settings = load_config(PretrainConfig, RECIPES / "architectures.toml", [])
    for name in ARCHITECTURES:
        shape = settings.shape.model_copy(update={"architecture": name})
        with torch.device("meta"):
            size = build_network(shape, shape.vocabulary, 0).num_parameters()
        assert size == pytest.approx(5e6, rel=0.08)


def test_arithmetic(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arithmetic.build(Path("data"), digits=3, train=300, test=50, seed=0)
    made = prepared(config("arithmetic").data)
    assert (len(made.train), len(made.held_out["held_out"])) == (300, 50)
    assert made.report.dropped == {}
    asked = set()
    for name in ("train", "test"):
        for line in Path(f"data/arithmetic_{name}.jsonl").read_text().splitlines():
            row = json.loads(line)
            a, b = map(int, re.findall(r"\d+", row["prompt"]))
            minus = re.search(r"-|minus|Subtract", row["prompt"])
            if "from" in row["prompt"]:
                a, b = b, a
            result = int(row["completion"].rpartition(": ")[2])
            assert result == (a - b if minus else a + b) >= 0
            problem = (bool(minus), *sorted((a, b)))
            assert problem not in asked
            asked.add(problem)
    first = Path("data/arithmetic_train.jsonl").read_text()
    arithmetic.build(Path("data"), digits=3, train=300, test=50, seed=0)
    assert Path("data/arithmetic_train.jsonl").read_text() == first


def test_subtraction(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    subtraction.build(Path("data"), train=300, test=50, seed=3)
    asked = {}
    for name in ("train", "test"):
        lines = Path(f"data/subtraction_{name}.jsonl").read_text().splitlines()
        rows = [Row(name, json.loads(line)) for line in lines]
        examples = [detect_prompt(row).read(row) for row in rows]
        asked[name] = {example.parts for example in examples}
        for question, answer in asked[name]:
            a, b = map(int, re.findall(r"\d+", question))
            assert answer == f" {a - b}"
    assert (len(asked["train"]), len(asked["test"])) == (300, 50)
    assert not asked["train"] & asked["test"]
    assert config("subtraction").objective.kind == "grpo"


def write_reviews(folder):
    praise = "".join(f"good film {n} caf\xe9\n" for n in range(30))
    blame = "".join(f"bad film {n}\n" for n in range(30))
    (folder / "pos.txt").write_bytes((praise + "both\n").encode("latin-1"))
    (folder / "neg.txt").write_bytes((blame + "both\nbad film 0").encode("latin-1"))
    sentiment.build(
        folder / "pos.txt", folder / "neg.txt", folder / "data" / "reviews.jsonl", "latin-1"
    )


def test_sentiment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_reviews(tmp_path)
    (source,) = config("sentiment").data.train
    rows = [row for row in read_labelled(source, ("text", "label")) if isinstance(row, Labelled)]
    assert len(rows) == 60
    assert {row.fields["label"] for row in rows} == {"positive", "negative"}
    assert rows[0].fields["text"] == "good film 0 café"


def test_flan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    templates = [name.split()[0] + "_some_words" for name in flan.CLUSTERS.values()]
    rows = [
        {"template": template, "prompt": f"{template} {n}", "completion": "it" if n else " "}
        for template in templates
        for n in range(5)
    ]
    packed = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    (tmp_path / "p3.jsonl.gz").write_bytes(packed)
    asked = "".join(
        f"LOC:city Where is caf\xe9 {n} ?\nNUM:count How many {n} ?\n" for n in range(20)
    )
    (tmp_path / "trec.txt").write_bytes(asked.strip().encode("latin-1"))
    flan.build(tmp_path / "p3.jsonl.gz", tmp_path / "trec.txt", tmp_path / "data")
    write_reviews(tmp_path)
    data = config("flan").data
    sources = [
        source.model_copy(
            update={"template": source.template and str(RECIPES / Path(source.template).name)}
        )
        for source in data.train
    ]
    made = prepared(data, train=sources)
    assert made.report.dropped == {}
    assert made.report.clusters["sentiment"] == len(made.held_out["sentiment"]) == 4 + 60
    assert made.report.clusters["topic classification"] == 4 + 40
    assert len(made.report.clusters) == 8


def test_a_builder_says_what_is_wrong_in_a_sentence(tmp_path, monkeypatch, capsys):
    (tmp_path / "rows.jsonl").write_text('{"template": "imdb_x", "prompt": 3, "completion": "a"}')
    (tmp_path / "trec.txt").write_text("LOC:city Where ?\nWhere ?\n")
    for rows, words in (
        ("rows.jsonl", "'prompt' is the number 3"),
        ("trec.txt", "'template' is missing"),
    ):
        arguments = [str(tmp_path / rows), str(tmp_path / "trec.txt"), str(tmp_path / "out")]
        monkeypatch.setattr("sys.argv", ["flan", *arguments])
        with pytest.raises(SystemExit) as left:
            run(flan.build)
        error = capsys.readouterr().err
        assert (left.value.code, error.count("\n")) == (2, 1)
        assert words in error
    with pytest.raises(ConfigError, match=r"line 2: begins with 'Where', expected one of ABBR"):
        list(flan.questions(tmp_path / "trec.txt"))


def test_the_line_of_the_readme_can_be_run_twice(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    short = ["train", "pirate", "train.max_steps=2"]
    first = runner.invoke(app, short)
    assert (first.exit_code, first.stdout) == (0, "pirate\n"), first.stderr
    again = runner.invoke(app, short)
    assert (again.exit_code, again.stdout) == (0, "pirate\n")
    assert "this very run" in again.stderr
    changed = runner.invoke(app, ["train", "pirate", "train.max_steps=3"])
    assert (changed.exit_code, changed.stdout) == (2, "")
    assert "output=pirate-2" in changed.stderr
    (tmp_path / "pirate.jsonl").write_text('{"prompt": "Hi", "completion": "Arr!"}\n')
    own = runner.invoke(app, ["check", "pirate", "--json"])
    assert json.loads(own.stdout)["kept"] == 1, "rows that lie here come first"


def test_the_pirate_of_the_tour_is_the_recipe(tmp_path):
    tour = (Path(chatapp.__file__).parent / "docs" / "tour.md").read_text(encoding="utf-8")
    assert (RECIPES / "pirate.jsonl").read_text() in tour
    own = tomllib.loads(tour.partition("```toml pirate.toml\n")[2].partition("```")[0])
    assert tomllib.loads((RECIPES / "pirate.toml").read_text()) == own
