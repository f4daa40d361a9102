"""Figures of tasks, measured while a model learns and choosing its weights."""

import json

import pytest
import tiny_finetune as tiny
from rich.console import Console
from typer.testing import CliRunner

from chatapp.cli import app
from chatapp.common.userfiles import UserError
from finetune.config.sections import ConfigError, FinetuneConfig, PretrainConfig, load_config
from finetune.pretrain import pretrain
from finetune.run import train

QUIET = Console(stderr=True, quiet=True)
METRIC = {"metric_for_best_model": "after"}


def tasks(folder):
    """A number and the next one, by a prompt file that stops at a full stop; and last words."""
    prompt = 'input_prefix = "The number "\noutput_prefix = " comes after"\nstop = ["."]\n'
    (folder / "after.toml").write_text(prompt + "[generate]\nmax_tokens = 4\n")
    rows = [{"input": f"{n}?", "output": f"{n}"} for n in range(12)]
    (folder / "after.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = "".join(f"The number {n} comes after the\n" for n in range(9))
    (folder / "words.txt").write_text(words)
    after = {"name": "after", "prompt": str(folder / "after.toml")}
    return [
        after | {"test": str(folder / "after.jsonl"), "limit": 8},
        {"name": "words", "test": str(folder / "words.txt")},
    ]


def pretraining(folder, **train):
    corpus = folder / "corpus.jsonl"
    rows = [{"text": f"The number {i} comes after the number {i - 1}."} for i in range(320)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    steps = {"batch_size": 8, "learning_rate": 0.01, "precision": "float32", "watch": False}
    return PretrainConfig.model_validate(
        {
            "output": str(folder / "run"),
            "data": {"train": str(corpus), "held_out": 0.1},
            "shape": {"vocabulary": 280, "layers": 1, "heads": 2, "hidden": 16, "positions": 64},
            "train": steps | {"save_every": 10, "max_steps": 30} | train,
            "tasks": tasks(folder),
        }
    )


def figures(log, name):
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return {row["step"]: row[f"eval_{name}"] for row in rows if f"eval_{name}" in row}


def measured(*arguments):
    done = CliRunner().invoke(app, ["eval", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_pretraining_measures_tasks_as_eval_does_and_keeps_the_best(tmp_path):
    run = pretrain(pretraining(tmp_path, metric_for_best_model="words"), QUIET)
    words = figures(run / "losses.jsonl", "words")
    assert list(words) == [10, 20, 30]
    assert max(words.values()) > 0
    best = json.loads((run / "result.json").read_text())["best_step"]
    assert words[best] == max(words.values())
    alone = measured("--lambada", str(tmp_path / "words.txt"), "--model", str(run))
    assert alone["last_word"]["accuracy"] == pytest.approx(words[best])


def test_a_task_that_cannot_be_read_claims_no_run_folder(tmp_path):
    config = pretraining(tmp_path)
    (tmp_path / "words.txt").unlink()
    with pytest.raises(UserError, match=r"words\.txt"):
        pretrain(config, QUIET)
    assert not (tmp_path / "run").exists()


def test_fine_tuning_measures_tasks_as_eval_does_and_keeps_the_best(tmp_path):
    steps = {"max_steps": 12, "eval_every": 4, **METRIC}
    run = train(tiny.config(tmp_path, train=steps, tasks=tasks(tmp_path)), QUIET)
    after = figures(run / "log.jsonl", "after")
    assert list(after)[:3] == [4, 8, 12]
    best = json.loads((run / "result.json").read_text())
    assert after[best["best_step"]] == max(after.values()) == best["eval_after"]
    assert figures(run / "log.jsonl", "words").keys() == after.keys()
    task = (str(tmp_path / "after.toml"), "--test", str(tmp_path / "after.jsonl"))
    alone = measured(*task, "--limit", "8", "--model", str(run))
    assert alone["results"][0]["mean"] == pytest.approx(max(after.values()))


def test_a_metric_of_no_task_and_no_held_out_rows_are_refused(tmp_path):
    made = pretraining(tmp_path, metric_for_best_model="word")
    with pytest.raises(ConfigError, match="metric_for_best_model is word; expected loss, after, w"):
        pretrain(made, QUIET)
    with pytest.raises(ConfigError, match=r"there are none; set data\.held_out"):
        train(tiny.config(tmp_path, data={"held_out": 0.0}, tasks=tasks(tmp_path)), QUIET)


def test_names_of_other_figures_are_refused(tmp_path):
    for name in ("loss", "after"):
        with pytest.raises(ValueError, match=f"'{name}', which is the name of another figure"):
            tiny.config(tmp_path, tasks=[*tasks(tmp_path), {"name": name, "test": "rows.txt"}])


def test_a_name_that_no_metric_can_have_is_refused_in_words(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('output = "run"\n[data]\ntrain = "x"\n[[tasks]]\nname = "A b"\ntest = "x"\n')
    with pytest.raises(ConfigError) as error:
        load_config(FinetuneConfig, path, ())
    assert str(error.value) == (
        f"{path}, line 5: 'tasks[1].name' is the string 'A b', expected small "
        "letters, digits and _, beginning with a letter"
    )
