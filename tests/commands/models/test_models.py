"""What a model consists of, read from its files."""

import json
import re
from types import SimpleNamespace

import psutil
import pytest
import torch
from fakes import reworded
from safetensors.torch import save_file
from tiny import write_tiny_gpt2

from chatapp.prompting.template import CHAT, save_template

# L = 2, H = 16, V = 108, n = 64
FORMULA = 12 * 2 * 16**2 + (9 * 2 + 108 + 64) * 16 + 2 * 16


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = write_tiny_gpt2(tmp_path_factory.mktemp("models") / "tiny", context=64)
    save_template(reworded(CHAT, name="mine"), folder)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Tiny\n")
    return folder


def test_info_shows_parameters_counted_and_calculated(run, model):
    status, out, err = run("models", "info", str(model))
    assert (status, err) == (0, "")
    assert f"{FORMULA + 4 * 2 * 16:,} counted in the checkpoint\n" in out
    assert f"{FORMULA:,} by N = 12LH² + (9L + V + n)H + 2H\n" in out
    for line in (
        "layers (L)       2\n",
        "heads            2\n",
        "hidden size (H)  16\n",
        "vocabulary (V)   108 tokens\n",
        "context (n)      64 tokens\n",
        "computed in      float32, unless another precision is chosen\n",
        "in memory        about 250.1 MB\n",
        "template         mine\n",
        "licence          mit\n",
    ):
        assert line in out


def test_the_shape_of_gpt(run):
    status, out, err = run("models", "info", "--shape", "12,768,40478,512")
    assert (status, err) == (0, "")
    assert "116,497,920 by N = 12LH² + (9L + V + n)H\n" in out  # its norms follow each part
    assert "116,499,456 by N = 12LH² + (9L + V + n)H + 2H\n" in out


@pytest.mark.parametrize(
    "arguments",
    [(), ("--shape", "12,768"), ("--shape", "a,b,c,d"), ("bundled", "--shape", "1,2,3,4")],
)
def test_wrong_shapes(run, arguments):
    result = run("models", "info", *arguments)
    assert (result.status, "--shape" in result.err) == (2, True)


def test_info_says_what_is_not_known(run, tmp_path):
    parts = {"model_type": "blt", "vocab_size": 260}
    (tmp_path / "config.json").write_text(json.dumps(parts))
    save_file({"weight": torch.zeros(2, 3)}, tmp_path / "model.safetensors")
    status, out, err = run("models", "info", str(tmp_path))
    assert (status, err) == (0, "")
    assert (
        "not known       layers (L), heads, hidden size (H): the configuration has no "
        "single value for the whole model\n"
    ) in out
    assert "vocabulary (V)  260 tokens\n" in out
    assert not re.search(r"\b0\n", out)
    document = json.loads(run("models", "info", str(tmp_path), "--json").out)
    assert (document["layers"], document["heads"], document["vocabulary"]) == (None, None, 260)


def test_info_as_json(run, model):
    document = json.loads(run("models", "info", str(model), "--json").out)
    assert document["name"] == document["folder"] == str(model)
    assert document["parameters_by_formula"] == FORMULA
    assert document["parameters"] == FORMULA + 4 * 2 * 16
    assert (document["template"], document["licence"], document["context"]) == ("mine", "mit", 64)


def test_info_tells_what_replies_are_drawn_with(run, tmp_path):
    folder = write_tiny_gpt2(tmp_path / "model")
    (folder / "generation_config.json").write_text('{"do_sample": false, "top_k": -3}')
    status, out, err = run("models", "info", str(folder))
    assert status == 0
    assert "sampling         temperature 0.0 (model)\n" in out
    assert err.endswith(
        f"chatapp: {folder}/generation_config.json: top_k is -3; expected 0 (off) or more; "
        "the value is ignored\n"
    )
    document = json.loads(run("models", "info", str(folder), "--json").out)
    assert document["sampling"]["temperature"] == {"value": 0.0, "from": "model"}


def test_the_list_shows_kept_models_and_what_is_wrong_with_them(
    run, model, home, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    kept = home / "data" / "models"
    kept.mkdir(parents=True)
    (kept / "good").symlink_to(model)
    (kept / "broken").mkdir()
    (kept / "broken" / "config.json").write_text("{")
    status, out, _ = run("models", "list")
    assert status == 0
    good = next(line for line in out.splitlines() if line.startswith("good "))
    assert good.endswith(f"template mine · 64 tokens · {FORMULA + 128:,} parameters")
    assert " MB in memory · " in good
    documents = {row["name"]: row for row in json.loads(run("models", "list", "--json").out)}
    assert documents["good"]["parameters"] == FORMULA + 128
    assert "config.json" in documents["broken"]["error"]


def test_too_little_memory_is_told_before_a_model_is_loaded(run, model, monkeypatch):
    memory = SimpleNamespace(total=8_000_000_000, available=100_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    takes = f"chatapp: {model} takes about 250.1 MB of memory, and "
    status, _, err = run("complete", "Hi", "--model", str(model), "--max-tokens", "2")
    assert (status, err) == (
        0,
        f"{takes}100.0 MB are free. It may be slow, or be killed for lack of memory.\n",
    )
    memory.total = 200_000_000
    status, out, err = run("complete", "Hi", "--model", str(model))
    assert (status, out, err) == (2, "", f"{takes}this machine has 200.0 MB\n")


def test_models_that_were_used_before_are_listed(run, model, home):
    assert str(model) not in run("models", "list").out
    run("complete", "Hi", "--model", str(model), "--max-tokens", "2")
    assert f"{model}  folder · " in run("models", "list").out
