"""Files of inputs with generated answers: the order of rows, and a run that was ended goes on."""

from pathlib import Path

import pytest

from chatapp.engine.models.loading import load_model
from chatapp.rows.examples import PromptError
from chatapp.tasks.answering import Answerer
from chatapp.tasks.evaluation.journal import Journal, answer_all, read_rows
from chatapp.tasks.files.promptfile import PromptFile

BAD = {3, 4, 17, 24}
PROMPT = PromptFile(
    path=Path("task.toml"),
    instruction="Go on.",
    stop=("\n",),
    generate={"max_tokens": 12, "temperature": 0.9, "seed": 2},
)


@pytest.fixture(scope="module")
def model():
    return load_model("bundled", precision="float32")


def inputs():
    for line in range(1, 25):
        text = f"number {line} " * (1 + line % 5)
        yield line, PromptError(f"line {line} is bad") if line in BAD else text


def answered(model, path, steps=None):
    """Answer all, or break off after so many steps; returns the errors."""
    errors = []
    with Journal(path) as journal:
        rows = answer_all(
            Answerer(model, PROMPT, None),
            inputs(),
            source="inputs",
            identity="same",
            journal=journal,
            report=errors.append,
        )
        for number, _ in enumerate(rows, 1):
            if number == steps:
                break
    return errors


def what_counts(path):
    """Of each row all that does not depend on time."""
    names = ("line", "input", "output", "error", "finish_reason", "reply_tokens")
    return [tuple(row.get(name) for name in names) for row in read_rows(path)]


def test_rows_are_in_the_order_of_the_inputs(model, tmp_path):
    errors = answered(model, tmp_path / "out.jsonl")
    rows = what_counts(tmp_path / "out.jsonl")
    assert [row[0] for row in rows] == list(range(1, 25))
    assert errors == [f"line {line} is bad" for line in sorted(BAD)]
    assert {row[0] for row in rows if row[3]} == BAD
    alone = Answerer(model, PROMPT, None)
    for line, text, output, *_ in rows:
        if line not in BAD:
            assert alone.answer([alone.prepare(text)])[0].output == output


@pytest.mark.parametrize("steps", [1, 2, 9, 15])
def test_a_run_that_broke_off_goes_on(model, tmp_path, steps):
    answered(model, tmp_path / "whole.jsonl")
    answered(model, tmp_path / "out.jsonl", steps)
    first = what_counts(tmp_path / "out.jsonl")
    assert steps <= len(first) < 24
    errors = answered(model, tmp_path / "out.jsonl")
    assert what_counts(tmp_path / "out.jsonl") == what_counts(tmp_path / "whole.jsonl")
    assert errors == [f"line {line} is bad" for line in sorted(BAD)]
