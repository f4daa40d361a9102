"""What `chatapp bench` prints; how large the figures are is up to the machine."""

import json
import os
import platform
import re
import sys

import pytest
from tiny import write_tiny_gpt2

from chatapp import __version__


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_gpt2(tmp_path_factory.mktemp("bench") / "tiny", context=100)


# 2 blocks of 12 H² and the output matrix, with H = 16 and V = 108.
MATRICES = 2 * 12 * 16**2 + 108 * 16


@pytest.mark.parametrize(
    ("precision", "width"), [(None, 4), ("float32", 4), ("bfloat16", 2), ("int8", 1)]
)
def test_the_figures(run, model, precision, width):
    chosen = ["--precision", precision] if precision else []
    status, out, err = run("bench", "--model", str(model), *chosen, "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["model"] == str(model)
    assert found["precision"] == (precision or "float32")
    assert found["matrix_bytes"] == MATRICES * width
    # A window of 100 tokens: all but one as a prompt, or half and half.
    assert (found["prefill_tokens"], found["decode_tokens"]) == (99, 50)
    for name in ("load_seconds", "threads", "prefill", "decode", "bandwidth", "limit_share"):
        assert found[name] > 0
    assert found["limit_share"] == pytest.approx(
        found["decode"] * found["matrix_bytes"] / found["bandwidth"]
    )


def test_the_table(run, model):
    status, out, err = run("bench", "--model", str(model))
    assert (status, err) == (0, "")
    names = [line.split()[0] for line in out.splitlines()]
    assert names == ["model", "load", "prefill", "decode", "kernels", "memory", "limit"]
    assert f"{model}, float32, " in out
    assert "50 tokens after 50\n" in out


FAKE_LLAMA_CPP = """
import json, pathlib, sys, types

class CommonParams(types.SimpleNamespace):
    def __init__(self):
        super().__init__(model=types.SimpleNamespace(), **{
            name: types.SimpleNamespace() for name in ("cpuparams", "cpuparams_batch")
        })

class Server:
    def __init__(self, options):
        print("loading, on standard output")
        assert pathlib.Path(options.model.path).read_bytes()[:4] == b"GGUF"
        self.threads = options.cpuparams.n_threads
        if self.threads == THREADS_THAT_FAIL:
            sys.exit(1)

    def handle_completions(self, request):
        assert request["temperature"] == 0 and not request["cache_prompt"]
        return {"timings": {
            "prompt_ms": len(request["prompt"]) / self.threads,
            "predicted_per_token_ms": 2.0 * self.threads,
        }}
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a package named xllamacpp where this process and its children find it."""

    def install(failing=0):
        monkeypatch.setattr("os.cpu_count", lambda: 4)
        monkeypatch.setattr("chatapp.tasks.evaluation.peer._PAUSE", 0.0)
        code = FAKE_LLAMA_CPP.replace("THREADS_THAT_FAIL", str(failing))
        (tmp_path / "xllamacpp.py").write_text(code)
        about = tmp_path / "xllamacpp-9.8.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: xllamacpp\nVersion: 9.8\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))

    return install


def test_beside_llama_cpp_the_faster_number_of_threads_counts(run, install, model):
    install()
    status, out, err = run("bench", "--against", "llama.cpp", "--model", str(model), "--json")
    assert (status, err) == (0, "")
    peer = json.loads(out)["peer"]
    # A prompt is four times as fast on four threads, and a token takes four times as long.
    assert peer == {
        "version": "9.8",
        "kind": "f32",
        "prefill": pytest.approx(4000),
        "decode": pytest.approx(500),
    }


def test_one_line_says_all_that_another_machine_needs(run, install, model):
    install()
    chosen = ["--model", str(model), "--precision", "int8"]
    status, out, _ = run("bench", "--against", "llama.cpp", *chosen)
    assert status == 0
    line = out.splitlines()[-1]
    assert line.startswith(f"against  llama.cpp (xllamacpp 9.8, q8_0): {model}, int8, ")
    ours, theirs, times = re.search(r"decode ([\d,.]+) : ([\d,.]+) = ([\d.]+) ×", line).groups()
    assert float(times) == pytest.approx(float(ours.replace(",", "")) / float(theirs), abs=0.01)
    assert f"4 cores, {platform.system()}; chatapp {__version__}, torch " in line


@pytest.mark.parametrize(
    ("against", "precision", "failing", "words"),
    [
        ("ollama", "float32", None, "--against: expected llama.cpp"),
        ("llama.cpp", "float32", None, "pip install xllamacpp"),
        ("llama.cpp", "bfloat16", 0, "in float32, int8, int4, not in bfloat16"),
        ("llama.cpp", "float32", 4, "llama.cpp (xllamacpp 9.8) cannot run this model"),
    ],
)
def test_a_peer_that_cannot_be_measured(
    run, install, model, monkeypatch, against, precision, failing, words
):
    if failing is None:
        monkeypatch.setattr("chatapp.tasks.evaluation.peer.PACKAGE", "no-such-package")
        words = words.replace("xllamacpp", "no-such-package") if "pip" in words else words
    else:
        install(failing)
    chosen = ["--model", str(model), "--precision", precision]
    status, out, err = run("bench", "--against", against, *chosen)
    assert (status, out) == (2, "")
    assert words in err
