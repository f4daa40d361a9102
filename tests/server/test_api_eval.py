"""An evaluation through a server that is killed halfway and started again is the local one."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from api_server import on_a_thread
from completions_server import closed_port
from typer.testing import CliRunner

from chatapp.cli import app
from chatapp.engine.models.loading import load_model

MODEL = "bundled"
QUESTIONS = {
    "person": "Who wrote {} ?",
    "place": "Where can I see {} ?",
    "number": "How many people know {} ?",
    "thing": "What is {} ?",
}
TOPICS = "the Iliad,Mount Fuji,a comet,old maps,the tide,black tea,a fugue,salt".split(",")
PROMPT = """instruction = "Which kind of answer does the question want?"
input_prefix = "Question: "
output_prefix = "Kind:"
labels = ["person", "place", "number", "thing"]
[select]
method = "fixed"
k = 4
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A prompt file, its pool and its test items: TREC in small."""
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    rows = [
        {"input": question.format(topic), "output": label}
        for topic in TOPICS
        for label, question in QUESTIONS.items()
    ]
    for name, part in (("pool", rows[:4]), ("test", rows[4:])):
        text = "".join(json.dumps(row) + "\n" for row in part)
        (tmp_path / f"{name}.jsonl").write_text(text)
    (tmp_path / "kind.toml").write_text(f'examples_file = "pool.jsonl"\n{PROMPT}')
    return tmp_path


def evaluate(folder, model, report):
    options = ["--test", str(folder / "test.jsonl"), "--report", str(folder / report)]
    prompt = str(folder / "kind.toml")
    return CliRunner().invoke(app, ["eval", prompt, *options, "--model", model, "--json"])


def rows(folder, report):
    path = folder / report / "answers.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()[1:]] if path.exists() else []


def kill_halfway(server, folder):
    while len(rows(folder, "served")) < 6 and server.poll() is None:
        time.sleep(0.01)
    os.kill(server.pid, signal.SIGKILL if os.name != "nt" else signal.SIGTERM)


def test_a_server_that_is_killed_halfway_loses_no_item(folder):
    port = closed_port()
    url = f"http://127.0.0.1:{port}/v1"
    command = [sys.executable, "-m", "chatapp", "api", "--model", MODEL, "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            local = evaluate(folder, MODEL, "local")
            assert local.exit_code == 0, local.output
            while f"Serving {MODEL}" not in (line := server.stderr.readline()):
                assert line, server.poll()
            killer = threading.Thread(target=kill_halfway, args=(server, folder))
            killer.start()
            broken = evaluate(folder, url, "served")
            killer.join()
        finally:
            server.kill()
    known = rows(folder, "served")
    assert 6 <= len(known) < len(rows(folder, "local"))
    assert broken.exit_code != 0
    assert url in f"{broken.stderr} {broken.exception}"
    with on_a_thread(load_model(MODEL, precision="float32"), name=MODEL, port=port):
        whole = evaluate(folder, url, "served")
    assert whole.exit_code == 0, whole.output
    assert rows(folder, "served")[: len(known)] == known
    for own, expected in zip(rows(folder, "served"), rows(folder, "local"), strict=True):
        assert own["log_likelihoods"]["direct"] == pytest.approx(
            expected["log_likelihoods"]["direct"],
            abs=1e-3,  # float32 rounds by more than 1e-4 in this model
        )
        for name in ("line", "input", "gold", "output", "examples", "tokens"):
            assert own[name] == expected[name]
    served, expected = (
        [(row["metric"], row["mean"], row["n"]) for row in json.loads(one.stdout)["results"]]
        for one in (whole, local)
    )
    assert served == expected
