"""A selection method is known everywhere as soon as its class stands in the table."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import ScriptedModel

from chatapp.tasks.selection.methods import METHODS, Selector

ROOT = Path(__file__).parent.parent.parent


TASK = """
labels   = ["animal", "plant"]
examples = [
  {input = "the red fox", output = "animal"},
  {input = "an oak", output = "plant"},
  {input = "a grey wolf", output = "animal"},
]
[select]
method = "shortest"
k      = 2
"""


class Shortest(Selector):
    """The shortest inputs."""

    name = "shortest"
    summary = "the shortest of the pool"
    draws = True
    needs_labels = True
    needs_encoder = True

    def select(self, query, k):
        indices = sorted(range(len(self._pool)), key=lambda i: len(self._pool.inputs[i]))
        return self._first(indices, query, k)


@pytest.fixture(autouse=True)
def in_the_table(monkeypatch):
    monkeypatch.setitem(METHODS, Shortest.name, Shortest)


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "living.toml"
    path.write_text(TASK)
    return path


@pytest.fixture
def model(use_model):
    return use_model(ScriptedModel([" animal"]))


def shown(run, *command):
    made = json.loads(run("run", *command, "--input", "grass", "--json").out)
    return [example["index"] for example in made["examples"]]


def test_a_prompt_file_or_an_option_may_name_it(run, task, model):
    assert shown(run, str(task)) == [1, 0]
    task.write_text(TASK.replace("shortest", "fixed"))
    assert shown(run, str(task)) == [0, 1]
    assert shown(run, str(task), "--select", "shortest") == [1, 0]
    assert shown(run, str(task), "--select", "shortest:tfidf") == [1, 0]


def test_an_evaluation_asks_it_what_it_is(run, task, model, tmp_path):
    """It draws, so it is run with every seed; it is printed as chosen, as it does not rank."""
    test, report = tmp_path / "test.jsonl", tmp_path / "report"
    test.write_text('{"text": "grass", "label": "plant"}\n')
    result = run(
        *("eval", str(task), "--test", str(test), "--select", "shortest,knn:tfidf"),
        *("--shots", "1,2", "--seeds", "2", "--report", str(report), "--json"),
    )
    rows = {
        (row["selection"], row["order"], row["seeds"]) for row in json.loads(result.out)["results"]
    }
    assert rows == {("shortest", "as chosen", 2), ("knn:tfidf", "nearest-last", 1)}
    assert (report / "accuracy.png").stat().st_size > 0


@pytest.mark.parametrize("command", ["run", "eval"])
def test_help_tells_what_it_chooses(command):
    """In a process of its own, because the help of a command is put together at its import."""
    script = """
import sys
sys.path[:0] = ["tests", "tests/commands"]
from test_selection_methods import METHODS, Shortest
METHODS[Shortest.name] = Shortest
from chatapp.cli import main
main()
"""
    result = subprocess.run(
        [sys.executable, "-c", script, command, "--help"],
        cwd=ROOT,
        env={"COLUMNS": "400"},
        capture_output=True,
        text=True,
    )
    text = " ".join(result.stdout.split())
    assert "shortest: the shortest of the pool." in text
    assert "coverage, vote and shortest also with an encoder" in text
