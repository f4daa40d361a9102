"""Whole runs of GRPO: they learn, go on after a break, and end in a sentence."""

import pytest
import tiny_finetune as tiny
from rich.console import Console
from tiny_grpo import config, trust

from finetune.objectives.rewards import RewardError
from finetune.run import resume, train

QUIET = Console(stderr=True, quiet=True)


@pytest.mark.parametrize(
    ("method", "objective"),
    [("full", {}), ("lora", {"beta": 0.05}), ("full", {"iterations": 2, "beta": 0.05})],
)
def test_a_run_learns_what_is_rewarded(tmp_path, method, objective):
    made = config(tmp_path, **objective)
    longer = {"max_steps": 30, "method": method, "eval_every": 15}
    made = made.model_copy(update={"train": made.train.model_copy(update=longer)})
    folder = train(made, QUIET, "cpu")
    rewards = list(tiny.trace(folder, "reward").values())
    assert sum(rewards[-5:]) > sum(rewards[:5])
    rows = tiny.rows_of(folder)
    measured = [row for row in rows if "eval_reward" in row]
    assert [row["eval_loss"] for row in measured] == [-row["eval_reward"] for row in measured]
    samples = next(row["samples"] for row in rows if "samples" in row)
    assert all(each["reward"] in (0, 1) for each in samples)
    assert ("kl" in rows[0]) == bool(objective)
    report = (folder / "report.md").read_text()
    assert "| step | GRPO | reward | no signal | tokens a reply |" in report
    assert "| held-out loss | held-out reward | held-out tokens a reply |" in report


def test_a_reward_that_fails_ends_the_run_in_a_sentence_and_loses_nothing(tmp_path, monkeypatch):
    trust(tmp_path, monkeypatch)
    mine = tmp_path / "mine.py"
    mine.write_text(
        "calls = 0\n"
        "def score(prompt, reply, reference):\n"
        "    global calls; calls += 1\n"
        "    return 'x' if calls == 70 else float('e' in reply)\n"
    )
    made = config(tmp_path, [{"kind": "function", "function": f"{mine}:score"}], {"held_out": 0.0})
    words = r"mine\.py:score gave 'x', expected a number, .*; checkpoint-4 is whole: `finetune res"
    with pytest.raises(RewardError, match=words):
        train(made, QUIET, "cpu")
    mine.write_text("def score(prompt, reply, reference): return float('e' in reply)\n")
    folder = resume(tmp_path / "run", [], QUIET, "cpu")
    assert len(tiny.trace(folder, "reward")) == 6
