"""`chatapp experiment`: orders, labels and pairs of texts, as tables and as JSON."""

import json
from pathlib import Path

import pytest
from fakes import ScriptedModel
from ranges import check_ranges

TASK = """
labels   = ["animal", "plant"]
examples = [
  {input = "the red fox", output = "animal"},
  {input = "an old oak", output = "plant"},
  {input = "a grey wolf", output = "animal"},
]
"""
ROOT = Path(__file__).parents[3]


class Follower(ScriptedModel):
    """Finds the continuation likely that the prompt shows last, and texts by their length."""

    def score(self, pairs):
        scores = []
        for context, continuation in pairs:
            shown = self.tokenizer.decode(context)
            last = shown.rfind(self.tokenizer.decode(continuation))
            scores.append([last - 1000.0] + [-1.0] * (len(continuation) - 1))
        return scores


@pytest.fixture
def command(tmp_path, use_model):
    use_model(Follower([" animal"]))
    (tmp_path / "living.toml").write_text(TASK)
    items = [("a lynx", "animal"), ("moss", "plant"), ("a wren", "animal")]
    rows = [json.dumps({"text": text, "label": label}) + "\n" for text, label in items]
    (tmp_path / "test.jsonl").write_text("".join(rows))
    return [str(tmp_path / "living.toml"), "--test", str(tmp_path / "test.jsonl")]


def test_the_order_of_the_examples_decides_for_one_that_follows_the_last(run, command):
    asked = ["experiment", "order", *command, "--shots", "3", "--orders", "6"]
    made = json.loads(run(*asked, "--json").out)
    check_ranges(made)
    found = made["summary"]["accuracy"]
    assert (found["lowest"], found["highest"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    tasks = {result["task"] for result in made["results"]}
    assert len(tasks) == 6
    shown = run(*asked)
    assert (shown.status, shown.err) == (0, "")
    assert (
        "accuracy over 6 orders: mean 0.556, standard deviation 0.172, from 0.333 to" in shown.out
    )


def test_labels_are_changed_in_five_ways(run, command):
    asked = ["experiment", "labels", *command, "--shots", "2"]
    made = json.loads(run(*asked, "--json").out)
    accuracies = {
        result["task"]: result["mean"]
        for result in made["results"]
        if result["metric"] == "accuracy"
    }
    assert list(accuracies) == ["gold", "random", "exchanged", "words", "none"]
    assert accuracies["gold"] + accuracies["exchanged"] == pytest.approx(1)
    assert accuracies["words"] == accuracies["gold"]
    shown = run(*asked)
    assert (shown.status, shown.err) == (0, "")
    assert "exchanged: all wrong" in shown.out


def test_pairs_have_a_difference_and_an_interval(run, tmp_path, use_model):
    class Long(ScriptedModel):
        def score(self, pairs):
            return [[-1.0] * len(continuation) for _, continuation in pairs]

    use_model(Long([""]))
    path = tmp_path / "pairs.csv"
    path.write_text("id,sent_more,sent_less\n1,a b c,a b\n2,a,a b c\n3,a b,a b c\n4,a,b\n")
    made = json.loads(run("experiment", "pairs", str(path), "--json").out)
    check_ranges(made)
    assert made["differences"] == [-1, 2, 1, 0]
    assert made["mean"] == 0.5
    # By R: t.test(c(-1, 2, 1, 0)), and the share 2.5 of 4.
    assert made["interval"] == pytest.approx([-1.554, 2.554], abs=1e-3)
    assert made["preferred"] == 0.625
    shown = run("experiment", "pairs", str(path)).out.splitlines()
    figures = "n 4     +0.50 (-1.55 to +2.55)     0.625 (0.219 to 0.908)"
    assert shown[-2] == f"all pairs            {figures}"
    # A longer text is less likely whatever it says, so those of one length stand apart.
    assert shown[-1].startswith("equally many tokens  n 1     +0.00 (one pair)")
    assert made["equally_many_tokens"]["n"] == 1


def test_each_type_of_bias_has_its_own_line(run, tmp_path, use_model):
    class Long(ScriptedModel):
        def score(self, pairs):
            return [[-1.0] * len(continuation) for _, continuation in pairs]

    use_model(Long([""]))
    path = tmp_path / "pairs.csv"
    rows = ["a,b c,gender"] * 40 + ["a b c,b,age", "a,b c,religion", "a b c d,b,age"]
    path.write_text("sent_more,sent_less,bias_type\n" + "\n".join(rows) + "\n")
    made = json.loads(run("experiment", "pairs", str(path), "--json").out)
    assert made["differences"] == [1] * 40 + [-2, 1, -3]
    found = {kind: (of["n"], of["mean"]) for kind, of in made["bias_types"].items()}
    assert found == {"age": (2, -2.5), "gender": (40, 1), "religion": (1, 1)}
    assert made["bias_types"]["religion"]["interval"] is None
    shown = run("experiment", "pairs", str(path)).out.splitlines()
    assert [line.split()[0] for line in shown[3:]] == ["all", "age", "gender", "religion"]
    assert "+1.00 (one pair)" in shown[-1]


def test_the_pairs_of_the_library_are_read(run):
    path = ROOT / "prompts" / "papers" / "occupations.jsonl"
    made = json.loads(run("experiment", "pairs", str(path), "--model", "bundled", "--json").out)
    assert len(made["differences"]) == 24
