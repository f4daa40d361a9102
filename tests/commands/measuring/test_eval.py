"""`chatapp eval`: a table, a report that is kept, tasks of the paper, and LAMBADA."""

import json

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
[select]
method  = "knn"
encoder = "tfidf"
k       = 2
"""


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "living.toml"
    path.write_text(TASK)
    return str(path)


@pytest.fixture
def test_file(tmp_path):
    path = tmp_path / "test.jsonl"
    items = [("a fox", "animal"), ("an oak", "plant"), ("wolf", "animal"), ("grass", "plant")]
    path.write_text("".join(json.dumps({"text": t, "label": g}) + "\n" for t, g in items))
    return str(path)


@pytest.fixture
def model(use_model):
    return use_model(ScriptedModel([" animal"]))


def test_a_table_on_standard_output(run, task, test_file, model):
    result = run("eval", task, "--test", test_file, "--shots", "0,2")
    assert (result.status, result.err) == (0, "")
    head, *lines = (line for line in result.out.splitlines() if line.strip())
    assert head.startswith("task living, scoring direct, ")
    assert lines[0].split()[:4] == ["measure", "shots", "selection", "order"]
    assert len([line for line in lines if "accuracy" in line]) == 2
    assert result.out.count("mean of the metric over seeds\n") == 1
    assert any("knn:tfidf nearest-last" in " ".join(line.split()) for line in lines)


def test_a_report_is_kept_and_continued(run, task, test_file, model, tmp_path):
    folder = tmp_path / "report"
    command = (
        *("eval", task, "--test", test_file, "--shots", "0,1,2", "--select", "random,knn,vote"),
        *("--score", "direct,calibrated,channel", "--seeds", "2", "--report", str(folder)),
    )
    result = run(*command)
    assert (result.status, result.err) == (0, "")
    assert sorted(each.name for each in folder.iterdir()) == [
        "accuracy.png",
        "answers.jsonl",
        "report.json",
    ]
    report = json.loads((folder / "report.json").read_text())
    check_ranges(report)
    assert report["config"]["shots"] == [0, 1, 2]
    assert report["config"]["seeds"] == 2
    # Three scorings without demonstrations, and for 1 and 2: three each of random and knn,
    # and the vote; two measures of each.
    assert len(report["results"]) == 2 * (3 + 2 * (3 + 3 + 1))
    answers = (folder / "answers.jsonl").read_bytes()
    # Two layouts: once without demonstrations, twice random, once knn; the vote has one.
    assert answers.count(b"\n") == 1 + 4 * (2 + 2 * (2 * 2 + 2 + 1))
    again = run(*command, "--json")
    assert json.loads(again.out)["results"] == report["results"]
    assert (folder / "answers.jsonl").read_bytes() == answers


def test_several_models_in_one_evaluation(run, task, test_file, use_model, tmp_path):
    first, second = (use_model(ScriptedModel([" animal"]), name) for name in ("one", "two/b"))
    folder = tmp_path / "report"
    options = ("--test", test_file, "--shots", "0,2", "--report", str(folder), "--json")
    result = run("eval", task, *options, "--model", "one,two/b")
    check_ranges(json.loads(result.out))
    rows, pairs = (json.loads(result.out)[name] for name in ("results", "comparisons"))
    assert [pair["metric"] for pair in pairs] == [row["metric"] for row in rows[: len(rows) // 2]]
    assert {(pair["first"], pair["second"], pair["mean"]) for pair in pairs} == {
        ("one", "two/b", 0)
    }
    assert [row["model"] for row in rows] == ["one"] * (len(rows) // 2) + ["two/b"] * (
        len(rows) // 2
    )
    assert (folder / "accuracy.png").stat().st_size > 0
    written = [(folder / name / "answers.jsonl").read_text() for name in ("one", "two-b")]
    # A second start goes on where both models were.
    again = run("eval", task, *options, "--model", "one,two/b")
    assert json.loads(again.out)["results"] == rows
    assert [(folder / name / "answers.jsonl").read_text() for name in ("one", "two-b")] == written
    assert first is not second
    shown = run("eval", task, *options[:-1], "--model", "one,two/b").out
    assert "accuracy (living, 0 shots, text, direct), one less two/b: +0.000 (" in shown
    assert "right alone: 0 and 0, McNemar's exact p 1\n" in shown
    result = run("eval", task, "--test", test_file, "--model", "two/b,two-b")
    assert result.status == 2
    assert "in which two names are alike" in result.err


def test_items_of_a_task_are_written_without_a_model(run, tmp_path):
    folder = tmp_path / "tasks"
    words = tmp_path / "words.txt"
    words.write_text(
        " ".join(
            f"{a}{b}cdef" for a in "ghijklmnopqrstuvwxyz" for b in "abcdefghijklmnopqrstuvwxyz"
        )
    )
    result = run(
        *("eval", "--task", "3D-,RW", "--limit", "7", "--seed", "5"),
        *("--words", str(words), "--generate", str(folder)),
    )
    assert result.status == 0
    assert result.out == f"{folder}/3D-.jsonl: 7 items\n{folder}/RW.jsonl: 7 items\n"
    first = json.loads((folder / "RW.jsonl").read_text().splitlines()[0])
    assert set(first) == {"context", "completion"}
    assert first["context"].endswith(f"\n{first['completion'].strip()[::-1]} =")


@pytest.mark.parametrize("name", ["passages.jsonl", "passages.txt"])
def test_lambada(run, use_model, tmp_path, name):
    use_model(ScriptedModel(lambda prompt: " bat" if prompt.endswith("the") else " no"))
    texts = ["it was the bat", "it was a bat"]
    lines = [json.dumps({"text": text}) if name.endswith("l") else text for text in texts]
    file = tmp_path / name
    file.write_text("\n".join(lines))
    made = json.loads(run("eval", "--lambada", str(file), "--json").out)
    check_ranges(made)
    assert made["n"] == 2
    assert made["last_word"]["accuracy"] == made["last_token"]["accuracy"] == 0.5
    shown = run("eval", "--lambada", str(file)).out
    assert shown == (
        "last_token: accuracy 0.5000, perplexity 2.72\n"
        "last_word: accuracy 0.5000, perplexity 2.72\n"
    )


def test_a_pool_of_real_data(run, test_file, model, tmp_path):
    """Rows that stand twice, and an input with two labels, as Banking77 and others have."""
    rows = [("fox", "animal"), ("oak", "plant"), ("fox", "animal"), ("oak", "animal")]
    pool = tmp_path / "pool.jsonl"
    pool.write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in rows))
    task = tmp_path / "living.toml"
    task.write_text('labels = ["animal", "plant"]\nexamples_file = "pool.jsonl"\n')
    conflict = f"{pool}, line 4: 'oak' has the label 'animal', in line 2 'plant'"
    for command in (["eval", str(task), "--test", test_file], ["run", str(task), "--input", "x"]):
        result = run(*command)
        assert result.status == 0
        assert f"{pool}: 1 row repeats another one; duplicates are ignored" in result.err
        assert f"{conflict}; these rows are used unchanged" in result.err
        strict = run(*command, "--strict")
        assert strict.status == 2
        assert conflict in strict.err
    shown = json.loads(run("run", str(task), "--input", "x", "--json").out)
    assert [each["index"] for each in shown["examples"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ([], "expected prompt files with --test, or --task, or --lambada"),
        (["TASK"], "pass a file of them with --test"),
        (["TASK", "--task", "2D+", "--test", "TEST"], "expected prompt files with --test, or"),
        (["TASK", "TASK", "--test", "TEST"], "another prompt file is named 'living'"),
        (["TASK", "--test", "TEST", "--shots", "one"], "--shots is 'one'; expected a whole number"),
        (["TASK", "--test", "TEST", "--shots", "0,"], "--shots is ''; expected a whole number"),
        (["TASK", "--test", "TEST", "--shots", "9"], "9 shots were requested; its pool has 3"),
        (["TASK", "--test", "TEST", "--select", "kn"], "did you mean 'knn'?"),
        (["TASK", "--test", "TEST", "--order", "up"], "--order is 'up'"),
        (["TASK", "--test", "TEST", "--score", "x"], "--score is 'x'"),
        (["TASK", "--test", "none.jsonl"], "none.jsonl: cannot be read"),
        (["--task", "2D+", "--score", "channel"], "none of these tasks has any"),
        (["--task", "9D"], "there is no task '9D'"),
        (["--task", "RW", "--limit", "9000"], "name a file of more words"),
        (["--lambada", "none.txt"], "none.txt: cannot be read"),
        (["--lambada", "ONE"], "line 1: expected a passage of two words or more"),
        (["--lambada", "ONE", "--report", "x"], "--report cannot be used with --lambada"),
        (["--lambada", "ONE", "--shots", "1"], "--shots cannot be used with --lambada"),
        (["--task", "2D+", "--test", "TEST"], "--test cannot be used with --task"),
        (["TASK", "--test", "TEST", "--words", "ONE"], "--words cannot be used with prompt files"),
    ],
)
def test_what_the_user_can_put_right(run, task, test_file, model, tmp_path, options, error):
    (tmp_path / "one.txt").write_text("word\n")
    names = {"TASK": task, "TEST": test_file, "ONE": str(tmp_path / "one.txt")}
    result = run("eval", *(names.get(each, each) for each in options))
    assert result.status == 2
    assert error in result.err
    assert result.err.count("\n") == 1
