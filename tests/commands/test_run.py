"""`chatapp run`: one input, many, continued after any end, and what is refused."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes import ScriptedModel
from tiny import write_tiny_gpt2

from chatapp.engine.models import loading

SPAM = """
instruction   = "Classify each email."
input_prefix  = "Email: "
output_prefix = "Class:"
labels        = ["spam", "ham"]
examples      = [
  {input = "Win a prize", output = "spam"},
  {input = "See you at noon", output = "ham"},
  {input = "A free prize for you", output = "spam"},
]
[select]
method  = "knn"
encoder = "tfidf"
k       = 2
"""
FRENCH = """
input_prefix  = "English: "
output_prefix = "French:"
stop          = ["\\n"]
examples      = [{input = "cheese", output = "fromage"}]
"""


@pytest.fixture
def spam(tmp_path):
    path = tmp_path / "spam.toml"
    path.write_text(SPAM)
    return str(path)


@pytest.fixture
def french(tmp_path):
    path = tmp_path / "french.toml"
    path.write_text(FRENCH)
    return str(path)


@pytest.fixture
def model(use_model):
    """Each token of a label costs it a nat: of these, both are one token."""
    return use_model(ScriptedModel([" pomme"]))


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_label_on_standard_output_and_probabilities_beside_it(run, spam, model):
    result = run("run", spam, "--input", "A free prize")
    assert (result.status, result.out) == (0, "spam\n")
    lines = [line.split() for line in result.err.splitlines()]
    assert lines[0] == "over the labels over the vocabulary".split()
    assert lines[1:3] == [["spam", "0.5000", "0.3679"], ["ham", "0.5000", "0.3679"]]  # e to the -1


def test_json(run, spam, model):
    result = run("run", spam, "--input", "A free prize", "--json")
    made = json.loads(result.out)
    assert result.err == ""
    assert made["label_probabilities"] == {"spam": 0.5, "ham": 0.5}
    assert made["log_likelihoods"]["direct"] == {"spam": -1.0, "ham": -1.0}
    assert [each["index"] for each in made["examples"]] == [2, 0]
    assert made["examples"][0]["similarity"] > made["examples"][1]["similarity"] > 0
    assert made["dropped"] == []
    assert made["prompt"] == (
        "Classify each email.\n\nEmail: Win a prize\nClass: spam\n\n"
        "Email: A free prize for you\nClass: spam\n\nEmail: A free prize\nClass:"
    )
    assert made["prompt_tokens"] == len(model.tokenizer.encode(made["prompt"]))
    assert made["seconds"] >= 0


def test_a_pool_without_a_prompt_file_proposes_one(run, spam, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pool = [{"email": f"prize {n}", "class": ("ham", "spam")[n % 2]} for n in range(6)]
    Path("mail.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pool))
    proposed = run("run", "--pool", "mail.jsonl")
    assert proposed.status == 0
    assert "save it as mail.toml" in proposed.err
    Path("mail.toml").write_text(proposed.out)
    saved = run("run", "mail.toml", "--input", "prize 3", "--json")
    at_once = run("run", "other", "--pool", "mail.jsonl", "--input", "prize 3", "--json")
    assert "save it as other.toml" in at_once.err
    assert proposed.out in at_once.err
    assert json.loads(saved.out)["prompt"] == json.loads(at_once.out)["prompt"]
    assert json.loads(saved.out)["prompt"].endswith("\n\nEmail: prize 3\nClass:")


def test_a_prompt_file_takes_another_pool(run, spam, model, tmp_path):
    pool = tmp_path / "other.csv"
    pool.write_text("input,output\nTwo prizes,spam\nLunch,ham\n")
    made = json.loads(run("run", spam, "--pool", str(pool), "--input", "A prize", "--json").out)
    assert "Email: Two prizes\nClass: spam" in made["prompt"]
    pool.write_text("input,output\nTwo prizes,eggs\n")
    refused = run("run", spam, "--pool", str(pool), "--input", "A prize")
    assert refused.status == 2
    assert "other.csv, line 2" in refused.err
    text = tmp_path / "text.txt"
    text.write_text("Once")
    assert "--pool" in run("run", str(text), "--pool", str(pool)).err


def test_options_stand_above_the_file(run, spam, model):
    def examples(*options):
        result = run("run", spam, "--input", "See you", "--json", *options)
        return [each["index"] for each in json.loads(result.out)["examples"]]

    assert examples() == [1, 2]
    assert examples("--shots", "1") == [1]
    assert examples("--shots", "0") == []
    assert examples("--select", "fixed", "--shots", "3") == [0, 1, 2]
    drawn = {
        tuple(examples("--select", "random", "--seed", str(seed), "--shots", "2"))
        for seed in range(6)
    }
    assert len(drawn) > 2
    nearest_first = run("run", spam, "--input", "A prize", "--json", "--order", "nearest-first")
    text = json.loads(nearest_first.out)["prompt"]
    assert text.index("free prize") > text.index("Win a prize")
    for scoring, kind in (("calibrated", "content_free"), ("channel", "channel")):
        made = json.loads(run("run", spam, "--input", "x", "--json", "--score", scoring).out)
        assert made["log_likelihoods"][kind]
    voted = json.loads(run("run", spam, "--input", "prize", "--select", "vote", "--json").out)
    assert voted["output"] == "spam"
    assert voted["log_likelihoods"] is None


def test_show_prompt(run, spam, model):
    result = run("run", spam, "--input", "[red]free\x1b[31m prize", "--show-prompt")
    assert result.out == "spam\n"
    assert "Email: A free prize for you\nClass: spam\n" in result.err
    assert "Email: [red]free␛[31m prize\nClass:" in result.err
    assert "example 2 shown, similarity 0." in result.err


def test_text_is_generated_where_there_are_no_labels(run, french, model):
    result = run("run", french, "--input", "apple")
    assert (result.status, result.out) == (0, "pomme\n")
    assert model.prompts == ["English: cheese\nFrench: fromage\n\nEnglish: apple\nFrench:"]
    assert model.samplings[0].temperature == 0
    made = json.loads(run("run", french, "--input", "apple", "--json").out)
    assert (made["output"], made["finish_reason"]) == ("pomme", "stop")
    assert made["reply_tokens"] == 1
    assert made["label_probabilities"] == {}


def test_a_failing_model(run, french, use_model):
    use_model(ScriptedModel([RuntimeError("out of memory")]))
    result = run("run", french, "--input", "apple")
    assert result.status == 1
    assert "out of memory" in result.err


def test_a_prompt_of_the_library_by_its_name(run, model):
    for name in ("spam", "spam.toml", "prompts/spam.toml"):
        result = run("run", name, "--input", "You have won", "--select", "fixed")
        assert result.out in ("spam\n", "ham\n")
    result = run("run", "unicorns")
    assert result.status == 0


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_lies_here_hides_no_prompt_of_the_library(run, model, tmp_path, monkeypatch, kind):
    here = tmp_path / "spam"
    if kind == "folder":
        here.mkdir()
    else:
        here.write_text("not = [")
    monkeypatch.chdir(tmp_path)
    result = run("run", "spam", "--input", "You have won", "--select", "fixed")
    assert result.out in ("spam\n", "ham\n")
    assert "spam is a prompt of the library, which is used; ./spam is what lies here" in result.err
    assert run("run", "./spam", "--input", "x").status == 2


def test_labels_are_scored_in_float32_whatever_the_chat_multiplies_in(run, spam, monkeypatch):
    asked = []

    def load_model(name, *, precision, device, **options):
        asked.append(precision)
        return ScriptedModel([" spam"])

    monkeypatch.setattr(loading, "load_model", load_model)
    assert run("run", spam, "--input", "x").status == 0
    assert asked == ["float32"]


def test_without_a_file_the_library_is_listed(run):
    result = run("run")
    assert result.status == 0
    listed = {line.split()[0]: line.split(maxsplit=1)[1] for line in result.out.splitlines()}
    assert "Spam" in listed["spam"]
    made = json.loads(run("run", "--json").out)
    assert {each["name"]: each["description"] for each in made} == listed
    result = run("run", "--input", "x")
    assert result.status == 2
    assert "there is no prompt file" in result.err


def test_a_full_disk(run, spam, model, tmp_path):
    path, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    path.write_text("one\ntwo\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        result = run("run", spam, "--inputs", str(path), "--output", str(output))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert result.status == 1
    assert "out.jsonl: cannot be written: " in result.err
    assert run("run", spam, "--inputs", str(path), "--output", str(output)).status == 0
    assert [row["input"] for row in rows(output)] == ["one", "two"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ([], "there is no input"),
        (["--input", " "], "--input is empty"),
        (["--input", "x", "--inputs", "y"], "not both"),
        (["--input", "x", "--output", "y"], "--output needs"),
        (["--inputs", "y", "--json"], "--json is for one input"),
        (["--inputs", "y", "--show-prompt"], "--show-prompt is for one input"),
        (["--inputs", "none.txt"], "none.txt: cannot be read"),
        (["--inputs", "none.jsonl"], "none.jsonl: cannot be read"),
        (["--input", "x", "--select", "nearest"], "--select is 'nearest', which is not known"),
        (["--input", "x", "--select", "knn:"], "expected an encoder after the colon"),
        (
            ["--input", "x", "--select", "bm25:lm"],
            "only knn, mmr, knn-balanced, knn-block, coverage, vote take an encoder",
        ),
        (["--input", "x", "--order", "nearest"], "--order is 'nearest'"),
        (["--input", "x", "--score", "direkt"], "did you mean 'direct'?"),
        (["--input", "x", "--select", "knn:nowhere/at/all"], "nowhere/at/all"),
    ],
)
def test_what_the_user_can_put_right(run, spam, model, options, error):
    result = run("run", spam, *options)
    assert result.status == 2
    assert error in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""


def test_a_file_of_inputs(run, spam, model, tmp_path):
    inputs, output = tmp_path / "in.csv", tmp_path / "out.jsonl"
    inputs.write_text('text\n"one\nprize"\ntwo\n')
    result = run("run", spam, "--inputs", str(inputs), "--output", str(output))
    assert (result.status, result.out, result.err) == (0, "", "")
    assert [(row["line"], row["input"]) for row in rows(output)] == [(2, "one\nprize"), (4, "two")]
    assert all(row["output"] == "spam" for row in rows(output))
    assert set(rows(output)[0]) >= {"label_probabilities", "examples", "dropped", "prompt", "run"}


def test_inputs_from_standard_input_and_answers_on_standard_output(run, spam, model):
    result = run("run", spam, "--inputs", "-", stdin=b"one\n\ntwo\n")
    assert [json.loads(line)["input"] for line in result.out.splitlines()] == ["one", "two"]
    result = run("run", spam, "--inputs", "-", stdin=b'{"input": "one"}\n{"input": "two"}\n')
    assert [json.loads(line)["input"] for line in result.out.splitlines()] == ["one", "two"]


def test_a_model_that_fails_on_one_input(run, french, use_model, tmp_path):
    use_model(ScriptedModel([" un", RuntimeError("broken"), " trois"]))
    output = tmp_path / "out.jsonl"
    result = run(
        "run", french, "--inputs", "-", "--output", str(output), stdin=b"one\ntwo\nthree\n"
    )
    assert result.status == 1
    assert "line 2: broken" in result.err
    assert [row.get("output") for row in rows(output)] == ["un", None, "trois"]


def test_an_output_of_another_run_is_refused(run, spam, model, tmp_path):
    inputs, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    inputs.write_text("one\ntwo\nthree\n")
    command = ("run", spam, "--inputs", str(inputs), "--output", str(output))
    run(*command)
    before = output.read_bytes()

    def refused(*options):
        result = run(*command, *options)
        assert result.status == 2
        assert output.read_bytes() == before
        return result.err

    assert "another prompt, model or option" in refused("--shots", "1")
    assert "another prompt, model or option" in refused("--score", "channel")
    model.name = "another"
    assert "another prompt, model or option" in refused()
    model.name = "scripted"
    inputs.write_text("one\n2\nthree\n")
    assert "its row for line 2 does not match these inputs" in refused()
    inputs.write_text("one\n")
    assert "more rows than there are inputs" in refused()
    inputs.write_text("one\ntwo\nthree\nfour\n")
    assert run(*command).status == 0
    assert [row["input"] for row in rows(output)] == ["one", "two", "three", "four"]
    notes = tmp_path / "notes.txt"
    notes.write_text("my notes")
    result = run("run", spam, "--inputs", str(inputs), "--output", str(notes))
    assert result.status == 2
    assert notes.read_text() == "my notes"


def environment(tmp_path):
    return {**os.environ, "CHATAPP_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}


def test_killed_after_a_third_no_row_is_lost_and_none_done_twice(spam, tmp_path):
    model = write_tiny_gpt2(tmp_path / "model")
    inputs, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    texts = [f"mail {n} has a prize" for n in range(1000)]
    inputs.write_text("\n".join(texts))
    command = [
        *(sys.executable, "-m", "chatapp", "run", spam, "--model", str(model)),
        *("--inputs", str(inputs), "--output", str(output)),
    ]
    process = subprocess.Popen(command, env=environment(tmp_path))
    while not output.exists() or output.read_bytes().count(b"\n") < 333:
        assert process.poll() is None
        time.sleep(0.002)
    process.kill()
    process.wait()
    first = output.read_bytes()
    assert 333 <= first.count(b"\n") < 1000
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert output.read_bytes().startswith(first[: first.rfind(b"\n") + 1])
    assert [row["input"] for row in rows(output)] == texts
    assert [row["line"] for row in rows(output)] == list(range(1, 1001))


def test_interrupted_it_says_how_to_go_on(spam, tmp_path):
    model = write_tiny_gpt2(tmp_path / "model")
    inputs, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    inputs.write_text("\n".join(f"mail {n}" for n in range(100_000)))
    command = [
        *(sys.executable, "-m", "chatapp", "run", spam, "--model", str(model)),
        *("--inputs", str(inputs), "--output", str(output)),
    ]
    process = subprocess.Popen(
        command,
        env=environment(tmp_path),
        stderr=subprocess.PIPE,
        # What runs in the background of a script inherits that Ctrl+C is not heard.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not output.exists() or b"\n" not in output.read_bytes():
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == 130
    assert error.decode() == (
        f"chatapp: interrupted; run the same command again to continue {output}\n"
    )
