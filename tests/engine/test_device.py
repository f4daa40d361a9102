"""The decoder on a GPU; where there is none, which device is chosen, and the step it records."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import MakeGPT2, logits_of

from chatapp.engine import precision
from chatapp.engine.device import device_for
from chatapp.engine.gpt2 import GPT2
from chatapp.engine.load import ModelError, load_model
from chatapp.engine.local import LocalModel
from chatapp.engine.model import Sampling
from chatapp.engine.step import Step

IDS = [(7 * n * n + 3) % 340 for n in range(60)]
LARGE = 124_000_000
GPUS = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}


def pretend(monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "wanted", "kind"),
    [(True, False, "cuda", "bfloat16"), (False, True, "mps", "float32")],
)
def test_a_large_model_takes_the_gpu_there_is(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, wanted: str, kind: str
) -> None:
    pretend(monkeypatch, cuda, mps)
    assert device_for("auto", "auto", LARGE).type == wanted
    assert device_for(wanted, "auto", 3_000_000).type == wanted
    assert device_for("auto", "auto", 3_000_000).type == "cpu"
    assert device_for("auto", "int8", LARGE).type == "cpu"
    assert device_for("cpu", "auto", LARGE).type == "cpu"
    assert precision.precision_for("auto", LARGE, torch.device(wanted)) == kind


def test_a_gpu_that_is_not_there_is_not_replaced_in_silence(
    monkeypatch: pytest.MonkeyPatch, gpt2: tuple[Path, Any]
) -> None:
    pretend(monkeypatch, False, False)
    assert device_for("auto", "auto", LARGE).type == "cpu"
    for name in ("cuda", "mps"):
        with pytest.raises(ModelError, match=f"device is '{name}'.*choose cpu"):
            load_model(str(gpt2[0]), device=name)
    with pytest.raises(ModelError, match="'tpu' is unknown; expected one of auto, cpu"):
        load_model(str(gpt2[0]), device="tpu")
    pretend(monkeypatch, True, False)
    with pytest.raises(ModelError, match="int8 is multiplied on the processor"):
        device_for("cuda", "int8", LARGE)


def test_a_step_is_a_pass_of_one_token(gpt2: tuple[Path, Any]) -> None:
    folder, theirs = gpt2
    wanted = logits_of(theirs, IDS)
    ours = GPT2.load(folder)
    cache = ours.new_cache(4)
    # Whatever lay in this memory before, it is masked.
    for layer in cache.layers:
        layer.fill_(torch.nan)
    ours.forward(IDS[:20], cache)
    step = Step(cache, ours._logits_after)
    for place in range(20, 40):
        with torch.inference_mode():
            logits = step(IDS[place], place)
        cache.commit([IDS[place]])
        assert torch.allclose(logits, wanted[place], atol=2e-4)
    # What steps wrote is what passes read.
    assert torch.allclose(ours.forward(IDS[40:], cache), wanted[-1], atol=2e-4)
    # A step after going back overwrites what came later.
    other = [*IDS[:10], 5]
    cache.rewind(other)
    with torch.inference_mode():
        assert torch.allclose(step(5, 10), logits_of(theirs, other)[-1], atol=2e-4)


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_on_a_gpu(make_gpt2: MakeGPT2, name: str) -> None:
    if not GPUS[name]:
        pytest.skip(f"there is no {name} device here")
    folder, theirs = make_gpt2(n_embd=64)
    wanted = logits_of(theirs, IDS)
    here, there = (LocalModel.load(folder, device=place) for place in ("cpu", name))
    cache = there.gpt2.new_cache()
    passed = there.gpt2.forward(IDS[:30], cache, every=True)
    stepped = torch.stack([there.gpt2.forward([id], cache) for id in IDS[30:]])
    assert torch.allclose(torch.cat([passed, stepped]), wanted, atol=1e-3)
    pairs = [(IDS[:20], IDS[20:22]), (IDS[:20], IDS[30:35]), (IDS[5:9], [7])]
    for ours, theirs_ in zip(there.score(pairs), here.score(pairs), strict=True):
        assert ours == pytest.approx(theirs_, abs=1e-3)
    assert np.allclose(there.embed(IDS), here.embed(IDS), atol=1e-3)
    assert np.allclose(there.inspect(IDS).attention(40), here.inspect(IDS).attention(40), atol=1e-3)
    sampling = Sampling(seed=1, max_tokens=30)
    texts = [
        "".join(event.text for event in model.generate(IDS[:9], sampling))
        for model in (here, there, there)
    ]
    assert texts[1] == texts[2]
    rounded = LocalModel.load(folder, device=name, precision="bfloat16")
    assert torch.allclose(rounded.gpt2.forward(IDS), wanted[-1], atol=0.5)
