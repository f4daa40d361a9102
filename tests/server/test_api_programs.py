"""Programs that others wrote, as clients; each test skips where its program is not installed."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import chatapp

MESSAGES = [{"role": "user", "content": "Hi"}]
FIELDS = {"max_tokens": 6, "temperature": 0}


@pytest.fixture
def reply(address):
    """The reply to `MESSAGES`."""
    body = json.dumps({"messages": MESSAGES, **FIELDS}).encode()
    with urllib.request.urlopen(f"{address}/v1/chat/completions", body, timeout=60) as response:
        answer = json.load(response)
    return str(answer["choices"][0]["message"]["content"])


def run(module, *arguments, **variables):
    """The output of a program in Python."""
    own = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, env=own, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_llm(address, reply, tmp_path):
    pytest.importorskip("llm", reason="the package llm is not installed")
    model = _example("yaml").replace("http://127.0.0.1:8080", address).replace("bundled", "tiny")
    (tmp_path / "extra-openai-models.yaml").write_text(model)
    options = ["-o", "temperature", "0", "-o", "max_tokens", "6", "--key", "none"]
    for stream in ([], ["--no-stream"]):
        written = run("llm", "-m", "mine", *options, *stream, "Hi", LLM_USER_PATH=str(tmp_path))
        assert written.strip() == reply.strip()


def test_the_notebook_of_the_guide(address, capsys):
    pytest.importorskip("openai", reason="the package openai is not installed")
    code = _example("python").replace("http://127.0.0.1:8080", address).replace("bundled", "tiny")
    exec(code, {})
    assert "[None, -" in capsys.readouterr().out


def test_the_script_of_the_guide(address):
    if shutil.which("curl") is None or os.name == "nt":
        pytest.skip("curl or a shell is missing")
    code = _example("sh").replace("http://127.0.0.1:8080", address).replace("bundled", "tiny")
    done = subprocess.run(["sh", "-c", code], capture_output=True, text=True)
    assert json.loads(done.stdout)["choices"], done.stderr


def _example(language):
    """The only block of a language in the guide on servers."""
    guide = Path(chatapp.__file__).parent / "docs" / "servers.md"
    (code,) = re.findall(rf"```{language}\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL)
    return str(code)


def test_litellm(address, reply):
    litellm = pytest.importorskip("litellm", reason="the package litellm is not installed")
    to = {"api_base": f"{address}/v1", "api_key": "none", **FIELDS}
    answer = litellm.completion(model="openai/tiny", messages=MESSAGES, **to)
    assert answer.choices[0].message.content == reply
    parts = litellm.completion(model="openai/tiny", messages=MESSAGES, stream=True, **to)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == reply
    text = litellm.text_completion(model="text-completion-openai/tiny", prompt="To be", **to)
    assert text.choices[0].text
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(model="openai/other", messages=MESSAGES, **to)


def test_schemathesis(address, tmp_path, monkeypatch):
    pytest.importorskip("schemathesis", reason="the package schemathesis is not installed")
    monkeypatch.chdir(tmp_path)  # it keeps what it finds
    options = ["--checks", "not_a_server_error", "--max-examples", "5", "--seed", "41"]
    written = run("schemathesis.cli", "run", f"{address}/openapi.json", *options, "--no-color")
    assert "Server error" not in written
    assert "/v1/chat/completions" not in written.partition("FAILURES")[2]
