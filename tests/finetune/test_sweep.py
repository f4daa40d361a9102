"""Every combination of values is an ordinary run; a finished one is not repeated."""

import json

import pytest
import tiny_finetune as tiny
from rich.console import Console
from typer.testing import CliRunner

from finetune.cli import app
from finetune.config.sections import ConfigError
from finetune.sweep import sweep

QUIET = Console(stderr=True, quiet=True)
VALUES = ["seed=0,1", "train.learning_rate=0.01,0.002", "train.max_steps=2"]


def test_an_interrupted_sweep_continues(tmp_path, monkeypatch):
    path = tiny.written(tiny.saved_config(tmp_path), tmp_path / "config.toml")
    with monkeypatch.context() as patch:
        tiny.at_step(patch, 1, tiny.raising(tiny.Killed()))
        with pytest.raises(tiny.Killed):
            sweep(path, VALUES, QUIET, "cpu")
    result = CliRunner().invoke(app, ["sweep", str(path.with_suffix("")), *VALUES, "--json"])
    assert result.exit_code == 0, result.stderr
    runs = json.loads(result.stdout)["runs"]
    names = {(run["run"], run["group"]) for run in runs}
    assert {name for name, _ in names} == {
        f"seed={seed}_learning_rate={rate}" for seed in (0, 1) for rate in ("0.01", "0.002")
    }
    assert len({group for _, group in names}) == 2
    for run in runs:
        record = json.loads((tmp_path / "run" / run["run"] / "run.json").read_text())["config"]
        rate = record["train"]["learning_rate"]
        assert run["run"] == f"seed={record['seed']}_learning_rate={rate:g}"
        assert [step for step, _ in run["curves"]["loss"]] == [1, 2]

    written = [path.stat().st_mtime_ns for path in (tmp_path / "run").glob("*/result.json")]
    sweep(path, VALUES, QUIET, "cpu")
    assert [p.stat().st_mtime_ns for p in (tmp_path / "run").glob("*/result.json")] == written
    with pytest.raises(ConfigError, match=r"holds a run with train\.batch_size = 8, not 4"):
        sweep(path, [*VALUES, "train.batch_size=4"], QUIET, "cpu")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["seed=0"], "a key with several values"),
        (["seed"], "expected key=value,value"),
        (["sede=0,1"], "sede"),
        (["seed=0,x"], "seed"),
        (["output=a,b"], "'output' has one value"),
        (["seed=0,1", "seed=2"], "'seed' is given twice"),
    ],
)
def test_wrong_values_are_refused_before_anything_is_trained(tmp_path, values, words):
    path = tiny.written(tiny.config(tmp_path), tmp_path / "config.toml")
    with pytest.raises(ConfigError, match=words):
        sweep(path, values, QUIET, "cpu")
    assert not (tmp_path / "run").exists()
