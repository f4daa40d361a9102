"""`chatapp api` as a process: what it serves, whom it refuses, how it ends."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from completions_server import closed_port
from typer.testing import CliRunner

from chatapp.cli import app
from chatapp.commands.serving import api as serving

ROOT = Path(__file__).parent.parent.parent


def test_it_serves_until_it_is_ended(home):
    port = closed_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "chatapp", "api", "--port", str(port)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while "Serving bundled" not in (line := process.stderr.readline()):
            assert line, process.poll()
        body = {"messages": [{"role": "user", "content": "What is a cat?"}], "max_tokens": 8}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert answer["choices"][0]["message"]["content"]
        assert answer["model"] == "bundled"
        assert "POST /v1/chat/completions 200" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        assert process.wait(60) == 0, time.monotonic() - started
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()


def chatapp(*arguments):
    command = [sys.executable, "-m", "chatapp", *arguments]
    return subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("open_to", ["", "--host 0.0.0.0 --expose --key-env API_KEY"])
def test_a_server_in_the_background(home, monkeypatch, open_to):
    monkeypatch.setenv("API_KEY", "secret")
    port = str(closed_port())
    started = chatapp("api", "--background", "--port", port, *open_to.split())
    try:
        assert started.returncode == 0, started.stderr
        assert f"http://127.0.0.1:{port}/v1" in started.stdout
        answer = chatapp("ask", "What is a cat?", "--max-tokens", "5")
        assert answer.stdout.strip(), answer.stderr
        again = chatapp("api", "--background")
        assert again.returncode == 2
        assert f"already, on port {port}" in again.stderr
        log = (home / "log" / "api.log").read_text()
        assert "POST /v1/chat/completions 200" in log
    finally:
        stopped = chatapp("api", "--stop")
    assert stopped.returncode == 0, stopped.stderr
    assert not (home / "data" / "background.json").exists()
    assert "no server runs" in chatapp("api", "--stop").stderr


def test_of_two_servers_at_once_the_second_names_the_first_and_ends(home):
    ports = [str(closed_port()) for _ in range(2)]
    starting = [
        subprocess.Popen(
            [sys.executable, "-m", "chatapp", "api", "--background", "--port", port],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for port in ports
    ]
    try:
        ends = [process.communicate(timeout=120) for process in starting]
        assert sorted(process.returncode for process in starting) == [0, 2], ends
        first = [process.returncode for process in starting].index(0)
        assert f"already, on port {ports[first]}" in ends[1 - first][1]
    finally:
        stopped = chatapp("api", "--stop")
    assert stopped.returncode == 0, stopped.stderr


def test_a_background_server_that_cannot_start_says_why(home):
    failed = chatapp("api", "--background", "--model", "no-such-model")
    assert failed.returncode == 2
    assert "no-such-model" in failed.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "--expose with --key-env"),
        (["--host", "0.0.0.0", "--expose"], "--expose with --key-env"),
        (["--key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY is empty"),
        (["--model", "bundled", "--model", "bundled"], "twice"),
        (["--model", "no-such-model"], "no-such-model"),
    ],
)
def test_refusals(home, arguments, words):
    result = CliRunner().invoke(app, ["api", *arguments])
    assert result.exit_code != 0
    assert words in f"{result.stderr} {result.exception}"


STUCK = """
import signal, sys
sys.argv = ["chatapp", "api", "--port", sys.argv[1]]
from chatapp.server.server import APIServer
async def stuck(self, request):  # nothing else runs any more, no signal's function either
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.pause()
APIServer._health = stuck
from chatapp.cli import main
main()
"""


def test_a_stuck_server_is_ended_all_the_same(home, monkeypatch, capsys):
    port = closed_port()
    command = [sys.executable, "-c", STUCK, str(port)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        while "Serving bundled" not in (line := process.stderr.readline()):
            assert line, process.poll()
        with pytest.raises(TimeoutError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
        monkeypatch.setattr(serving, "_END_SECONDS", 0.4)
        serving._stop()
        assert process.wait(10) == -signal.SIGKILL
    assert capsys.readouterr().out == "The server did not end within 0 seconds, and was killed.\n"
    assert not (home / "data" / "background.json").exists()


ENDLESS = """
import sys, time
from chatapp.server.worker import Worker
Worker._run = lambda self: time.sleep(600)
sys.argv = ["chatapp", "api", "--port", sys.argv[1]]
from chatapp.cli import main
main()
"""


def test_one_signal_ends_it_although_a_computation_goes_on(home):
    port = closed_port()
    command = [sys.executable, "-c", ENDLESS, str(port)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        while "Serving bundled" not in (line := process.stderr.readline()):
            assert line, process.poll()
        process.terminate()
        assert process.wait(30) == 0
