"""The decoder on a GPU; where there is none, which device is chosen, and the step it records."""

import threading

import numpy as np
import pytest
import torch
from random_models import logits_of

from chatapp.engine.backends.local import LocalModel, load_decoder
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.kernels import linear, machine
from chatapp.engine.kernels.machine import device_for
from chatapp.engine.model import Request, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.lab.traces import DecoderTrace

IDS = [(7 * n * n + 3) % 340 for n in range(60)]
LARGE = 124_000_000
GPUS = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}


def pretend(monkeypatch, *there, free=2**34):
    monkeypatch.setattr(machine, "_works", lambda name: name in there)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 2**34))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)


@pytest.mark.parametrize(("wanted", "kind"), [("cuda", "bfloat16"), ("mps", "float32")])
def test_a_large_model_takes_the_gpu_there_is(monkeypatch, wanted, kind):
    pretend(monkeypatch, wanted)
    assert device_for("auto", "auto", LARGE).type == wanted
    assert device_for(wanted, "auto", 3_000_000).type == wanted
    assert device_for("auto", "auto", 3_000_000).type == "cpu"
    assert device_for("auto", "int8", LARGE).type == "cpu"
    assert device_for("cpu", "auto", LARGE).type == "cpu"
    assert linear.precision_for("auto", LARGE, torch.device(wanted)) == kind


def test_a_gpu_without_room_for_a_model_is_left_alone(monkeypatch):
    pretend(monkeypatch, "cuda", free=4 * LARGE)
    assert device_for("auto", "auto", LARGE).type == "cpu"
    assert device_for("cuda", "auto", LARGE).type == "cuda"


def test_a_gpu_that_is_not_there_is_not_replaced_in_silence(monkeypatch, gpt2):
    pretend(monkeypatch)
    assert device_for("auto", "auto", LARGE).type == "cpu"
    for name in ("cuda", "mps"):
        with pytest.raises(ModelError, match=f"device is '{name}'.*choose cpu"):
            load_model(str(gpt2[0]), device=name)
    with pytest.raises(ModelError, match="device is 'tpu'; expected one of auto, cpu"):
        load_model(str(gpt2[0]), device="tpu")
    pretend(monkeypatch, "cuda")
    with pytest.raises(ModelError, match="int8 is multiplied on the CPU"):
        device_for("cuda", "int8", LARGE)


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_on_a_gpu(make_gpt2, name):
    if not GPUS[name]:
        pytest.skip(f"there is no {name} device here")
    folder, theirs = make_gpt2(n_embd=256)
    wanted = logits_of(theirs, IDS)
    here, there = (
        LocalModel.load(ModelFiles.read(folder), device=place) for place in ("cpu", name)
    )

    def steps(model):
        """A pass, then steps in two caches by turns, half of them from another thread."""
        caches = [model.new_cache() for _ in range(2)]
        found = [[model.forward(IDS[:30], cache, all_positions=True) for cache in caches][-1]]

        def go_on(ids):
            for id in ids:
                found.append(
                    [model.forward([id], cache, all_positions=True) for cache in caches][-1]
                )

        thread = threading.Thread(target=go_on, args=(IDS[30:45],))
        thread.start()
        thread.join()
        go_on(IDS[45:])
        return torch.cat(found)

    assert torch.allclose(steps(there.decoder), wanted, atol=1e-3)
    pairs = [(IDS[:20], IDS[20:22]), (IDS[:20], IDS[30:35]), (IDS[5:9], [7])]
    for ours, exact in zip(there.score(pairs), here.score(pairs), strict=True):
        assert ours == pytest.approx(exact, abs=1e-3)
    assert np.allclose(there.embed(IDS), here.embed(IDS), atol=1e-3)
    rows = [DecoderTrace(m.decoder, IDS, m.piece).attention(40) for m in (there, here)]
    assert np.allclose(*rows, atol=1e-3)
    sampling = Sampling(seed=1, max_tokens=30)
    texts = [
        "".join(event.text for event in model.generate(Request(IDS[:9], sampling)))
        for model in (here, there, there)
    ]
    assert texts[1] == texts[2]
    rounded = load_decoder(ModelFiles.read(folder), device=name, precision="bfloat16")
    passed = rounded.forward(IDS, all_positions=True)
    assert torch.allclose(steps(rounded), passed, atol=0.1)
    assert torch.allclose(passed, wanted, atol=1.0)
