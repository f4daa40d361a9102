"""What `chatapp bench` prints; how large the figures are is up to the machine."""

import json

import pytest
from fakes import ScriptedModel
from tiny import write_tiny_gpt2


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


def test_what_cannot_be_measured(run, use_model, model):
    status, out, err = run("bench", "--model", str(model), "--precision", "int3")
    assert (status, out) == (2, "")
    assert err == (
        "chatapp: --precision: precision is 'int3'; "
        "expected one of auto, float32, bfloat16, int8, int4\n"
    )
    use_model(ScriptedModel("Hello"))
    status, out, err = run("bench")
    assert (status, out) == (2, "")
    assert "does not run on this machine" in err
