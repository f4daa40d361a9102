"""`chatapp models get` and `remove`, with a hub and a catalogue of the test's own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import HubServer

from chatapp.common.paths import fetched_path, models_dir
from chatapp.engine.models import fetching
from chatapp.engine.models.description import gpt2_parameters
from chatapp.engine.models.fetching import Fetched
from chatapp.engine.models.known_models import known_models

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture
def tiny():
    """A model that `models get` has brought."""
    folder = models_dir() / "smollm2"
    folder.mkdir(parents=True)
    (folder / "model.gguf").write_bytes(bytes(1_500_000))
    model = Fetched("smollm2", "package==1", folder, {"model.gguf": 1_500_000}, "Apache-2.0")
    fetching.remember(model)
    return model


def test_the_catalogue(run):
    status, out, err = run("models", "get")
    assert (status, err.count("\n")) == (0, 1)
    assert "estimates" in err
    (line,) = [line for line in out.splitlines() if line.startswith("smollm2 ")]
    assert line.split(maxsplit=1)[1].startswith("269.1 MB (98.4 MB without the hub)")
    assert line.endswith("Apache-2.0          conversation on any machine: fluent, often wrong")
    rows = json.loads(run("models", "get", "--json").out)
    assert {"name", "hub", "bytes", "licence", "purpose"} <= set(rows[0])
    assert len(rows) == len(out.splitlines())
    by_name = {row["name"]: row["estimate"] for row in rows}
    assert by_name["gpt2-xl"]["memory"] > by_name["gpt2"]["memory"] > 250_000_000
    assert by_name["gpt2"]["speed"] > by_name["gpt2-xl"]["speed"] > 0


def test_the_shapes_of_the_catalogue_fit_its_sizes():
    for name, model in known_models().items():
        assert 2 <= model.bytes / model.shape["parameters"] < 4.6, name
    a = known_models()["gpt2"].shape
    layers = a["cached_numbers"] // (2 * a["hidden_size"])
    formula = gpt2_parameters(layers, a["hidden_size"], a["vocabulary"], a["context"])
    assert a["parameters"] == formula + 4 * layers * a["hidden_size"]


def test_what_was_brought_is_told(run, tiny, monkeypatch):
    def fetch(name, **callbacks):
        callbacks["say"]("from \x1b[31mthere")
        callbacks["progress"](1, 2)
        return tiny

    monkeypatch.setattr(fetching, "fetch", fetch)
    status, out, err = run("models", "get", "smollm2")
    assert (status, err) == (0, "chatapp: from ␛[31mthere\n")
    assert out == f"smollm2 is in {tiny.folder}\nchat with it: chatapp --model smollm2\n"
    document = json.loads(run("models", "get", "smollm2", "--json").out)
    assert document == {
        "name": "smollm2",
        "folder": str(tiny.folder),
        "bytes": 1_500_000,
        "licence": "Apache-2.0",
        "source": "package==1",
    }


def test_an_interrupt(run, monkeypatch):
    def fetch(name, **callbacks):
        raise KeyboardInterrupt

    monkeypatch.setattr(fetching, "fetch", fetch)
    status, out, err = run("models", "get", "smollm2")
    assert (status, out, err) == (
        130,
        "",
        "chatapp: interrupted; run the same command again to continue\n",
    )


def test_the_list_shows_what_was_brought(run, tiny):
    (line,) = [line for line in run("models", "list").out.splitlines() if "smollm2" in line]
    assert line.startswith("smollm2")
    assert "folder · 1.5 MB" in line
    (tiny.folder / "model.gguf").unlink()
    (line,) = [line for line in run("models", "list").out.splitlines() if "smollm2" in line]
    assert "is incomplete; `models get smollm2` continues" in line
    fetched_path().write_text("oops")
    status, out, _ = run("models", "list")
    assert status == 0
    assert str(fetched_path()) in out


def test_removing_is_confirmed(run, tiny, monkeypatch):
    status, out, err = run("models", "remove", "smollm2")
    assert (status, out) == (2, "")
    assert err == "chatapp: to remove a model, confirm with --yes\n"
    monkeypatch.setattr("typer.confirm", lambda question, err: False)
    assert run("models", "remove", "smollm2", terminal=True).status == 1
    assert tiny.is_whole
    monkeypatch.setattr("typer.confirm", lambda question, err: True)
    status, _, err = run("models", "remove", "smollm2", terminal=True)
    assert (status, err) == (0, "chatapp: removed smollm2, freeing 1.5 MB\n")
    assert not tiny.folder.exists()
    status, _, err = run("models", "remove", "smollm2", "--yes")
    assert status == 2
    assert "has not downloaded it, so nothing is removed" in err


def test_a_hub_that_breaks_off(tmp_path):
    """Against the hub's own client, which goes on in the middle of a file."""
    weights = os.urandom(12_000_000)  # the client keeps what it has in steps of 10 MiB
    hub = HubServer({"config.json": b"{}", "model.safetensors": weights, "model.bin": b"pickled"})
    hub.cut = {"model.safetensors": [11_000_000]}
    with hub.running():
        environment = os.environ | {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hub"),
            "CHATAPP_HOME": str(tmp_path / "home"),
        }

        def python(*arguments):
            return subprocess.run(
                [sys.executable, *arguments],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
            )

        result = python("-m", "chatapp", "models", "get", "org/tiny", "--json")
        requests = hub.requests
        look = (
            "from chatapp.engine.models.resolving import model_folder;"
            " print(model_folder('org/tiny'))"
        )
        found = python("-c", look).stdout.strip()
        assert hub.requests == requests  # what is here is not asked for again
    assert result.stderr == "chatapp: downloading org/tiny (12.0 MB, licence mit) from the hub\n"
    document = json.loads(result.stdout)
    assert found == document["folder"]
    assert (Path(document["folder"]) / "model.safetensors").read_bytes() == weights
    assert [start for name, start in hub.fetched if name == "model.safetensors"] == [0, 10 << 20]
    assert "model.bin" not in [name for name, _ in hub.fetched]
