"""What a model takes of the memory, and what is said where there is too little."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.models import loading
from chatapp.engine.models.description import memory_needed, read_sizes
from chatapp.engine.models.loading import load_model

ROOT = Path(__file__).parents[3]

MEASURE = """
import sys, psutil
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.description import memory_needed, read_sizes
from chatapp.engine.model import Request, Sampling
model = load_model(sys.argv[1])
list(model.generate(Request([5] * 900, Sampling(max_tokens=4))))
print(psutil.Process().memory_info().rss)
"""


def test_the_formula_against_a_measurement(make_gpt2):
    folder, _ = make_gpt2(n_layer=8, n_embd=768, n_head=12, n_positions=1024)
    measured = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    needed = memory_needed(read_sizes(ModelFiles.read(folder)), "float32")
    assert needed == pytest.approx(int(measured.stdout), rel=0.25)


def test_the_formula(make_gpt2):
    folder, _ = make_gpt2(n_layer=3, n_embd=48)
    sizes = read_sizes(ModelFiles.read(folder))
    assert sizes.cached_numbers == 2 * 3 * 48
    cache = 64 * 2 * 3 * 48 * 4
    program = memory_needed(sizes, "float32") - int(sizes.parameters * 4 * 1.25) - cache
    embedding = sizes.vocabulary * sizes.hidden_size
    assert memory_needed(sizes, "int8") == (
        int((sizes.parameters + 2 * embedding) * 1.25) + cache + program
    )
    assert memory_needed(sizes, "int4") == (
        int((0.625 * (sizes.parameters - embedding) + 3 * embedding) * 1.25) + cache + program
    )


def machine(monkeypatch, total, available):
    memory = SimpleNamespace(total=total, available=available)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


def test_a_model_larger_than_the_machine_is_refused(make_gpt2, monkeypatch):
    folder, _ = make_gpt2()
    machine(monkeypatch, 200_000_000, 200_000_000)
    monkeypatch.setattr(loading, "find_model", lambda name: ModelFiles.read(folder))
    monkeypatch.setattr("chatapp.engine.backends.local.LocalModel.load", None)  # it is not loaded
    with pytest.raises(ModelError) as error:
        load_model("tiny")
    assert str(error.value) == (
        "tiny takes about 250.2 MB of memory, and this machine has 200.0 MB"
    )


def test_a_model_larger_than_what_is_free_is_told_of_and_loaded(make_gpt2, monkeypatch):
    folder, _ = make_gpt2()
    machine(monkeypatch, 8_000_000_000, 100_000_000)
    said = []
    model = load_model(str(folder), say=said.append)
    assert said == [
        f"{folder} takes about 250.2 MB of memory, and 100.0 MB are free. It may be slow, "
        "or be killed for lack of memory."
    ]
    assert model.name == str(folder)
    machine(monkeypatch, 8_000_000_000, 7_000_000_000)
    load_model(str(folder), say=said.append)
    assert len(said) == 1
