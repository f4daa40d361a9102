"""Which rows taught a run a reply, against the run itself and against exact answers."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_finetune as tiny
import torch
from rich.console import Console
from typer.testing import CliRunner

from chatapp.engine.models.loading import load_model
from finetune.cli import app
from finetune.config.sections import ConfigError
from finetune.data.packing import Rows
from finetune.measuring.influence import (
    Influence,
    compare_gradients,
    leave_one_out,
    trace,
    trained_rows,
)
from finetune.measuring.retraining import Retraining, RowsWithout
from finetune.run import train

QUIET = Console(stderr=True, quiet=True)


def quiet(what: str, done: int, total: int) -> None:
    pass


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traced")
    return train(tiny.config(folder, train={"max_steps": 4}), QUIET)


@pytest.fixture(scope="module")
def again(run: Path) -> Retraining:
    return Retraining(run, "cpu")


PROMPT, REPLY = "What comes after 8?", "9 comes after."


@pytest.fixture(scope="module")
def found(again: Retraining) -> Influence:
    return trace(again, trained_rows(again), PROMPT, REPLY, quiet)


def test_the_repeated_training_is_the_run(run: Path, again: Retraining) -> None:
    row = again.encode_reply(PROMPT, REPLY)
    before = again.log_probability(row)
    again.train()
    ids = row["input_ids"].tolist()
    first = int(row["response_mask"].nonzero()[0])
    (scores,) = load_model(str(run)).score([(ids[:first], ids[first:])])
    assert again.log_probability(row) == pytest.approx(sum(scores), abs=2e-3)
    again.restart()
    assert again.log_probability(row) == before


def test_rows_left_out_have_no_labels_and_stay_in_their_place(again: Retraining) -> None:
    examples = again.rows.examples[:4]
    packed = Rows(examples, "full", [[0, 1], [2, 3]])
    without = RowsWithout(packed, {examples[1].key})
    assert without.lengths == packed.lengths
    for index in range(2):
        row, whole = without[index], packed[index]
        kept = (row["example_ids"] == 1) | torch.tensor(index == 1)
        for key in ("input_ids", "position_ids", "example_ids"):
            assert row[key].tolist() == whole[key].tolist()
        for mask in ("response_mask", "aux_mask"):
            assert row[mask].tolist() == (whole[mask] & kept).tolist()


def test_a_row_is_most_like_itself(again: Retraining, found: Influence) -> None:
    rows = trained_rows(again)
    chosen = next(number for number, row in enumerate(rows) if row.prompt == PROMPT)
    assert found.gradient.argmax() == found.text.argmax() == chosen
    assert found.gradient[chosen] == pytest.approx(1, abs=1e-4)
    assert np.abs(found.gradient).max() <= 1 + 1e-4
    assert "rows.json" in rows[chosen].location


@pytest.mark.parametrize("changes", [{"optimizer": "muon"}, {"method": "lora"}])
def test_every_optimizer_and_adapters_are_traced(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    folder = train(tiny.config(tmp_path, train={"max_steps": 2, **changes}), QUIET)
    again = Retraining(folder, "cpu")
    rows = trained_rows(again)[:3]
    own = again.encode_reply(rows[1].prompt, rows[1].reply)
    scores = compare_gradients(again, rows, own, quiet)
    assert scores[1] == pytest.approx(1, abs=1e-4)


def test_leaving_one_out_is_exact(again: Retraining, found: Influence) -> None:
    """Each change is that of an ordinary training on rows of which one has no labels."""
    rows = trained_rows(again)
    target = again.encode_reply(PROMPT, REPLY)
    left = leave_one_out(again, rows, found, target, 2, 0, quiet)
    assert found.replayed - again.log_probability(target) == pytest.approx(left.changes[1])
    assert len(left.numbers) == 2
    assert all(abs(change) > 1e-6 for change in left.changes)
    again.train([rows[left.numbers[0]].key])
    assert found.replayed - again.log_probability(target) == pytest.approx(left.changes[0])


def test_the_command_shows_its_cost_and_proves(run: Path) -> None:
    words = ["trace", str(run), "--prompt", PROMPT, "--reply", REPLY, "--json"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    assert "trained again 4 times, 4 steps each" in " ".join(result.stderr.split())
    document = json.loads(result.stdout)
    scores = [row["score"] for row in document["rows"]]
    assert scores == sorted(scores, reverse=True)
    assert document["rows"][0]["prompt"] == PROMPT
    proof = document["proof"]
    assert proof["before"] < proof["without_first"] < proof["log_probability"]


def test_what_cannot_be_traced_is_one_sentence(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected the folder of a run"):
        Retraining(tmp_path)
    words = ["trace", str(run), "--reply", "8 comes after."]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "expected --prompt" in result.stderr
    result = (run / "result.json").read_text()
    (run / "result.json").unlink()
    try:
        with pytest.raises(ConfigError, match="is not finished; `finetune resume"):
            Retraining(run)
    finally:
        (run / "result.json").write_text(result)
