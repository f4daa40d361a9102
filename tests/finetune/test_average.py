"""The mean of two stages' weights, in the folder of the later one."""

from pathlib import Path

import pytest
import tiny_finetune as tiny
import torch
from safetensors.torch import load_file, save_file

from finetune.average import write_average
from finetune.config.sections import ConfigError


def stage(folder: Path, factor: float) -> Path:
    """A tiny model, its weights multiplied."""
    tiny.base(folder)
    weights = load_file(folder / "model.safetensors")
    save_file({name: each * factor for name, each in weights.items()}, folder / "model.safetensors")
    return folder


def test_every_weight_is_the_mean_that_was_asked_for(tmp_path: Path) -> None:
    earlier, later = stage(tmp_path / "earlier", 1.0), stage(tmp_path / "later", 2.0)
    write_average([str(earlier), str(later)], tmp_path / "out", share=0.25)
    before = load_file(earlier / "model.safetensors")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == before.keys()
    for name, each in found.items():
        assert each.dtype == torch.float16
        torch.testing.assert_close(each.float(), before[name] * 1.75, rtol=1e-3, atol=1e-4)
    companions = {path.name for path in later.iterdir()}
    assert companions == {path.name for path in (tmp_path / "out").iterdir()}


def test_three_models_have_equal_shares(tmp_path: Path) -> None:
    models = [stage(tmp_path / f"{factor}", factor) for factor in (1.0, 2.0, 6.0)]
    write_average(list(map(str, models)), tmp_path / "out")
    first, found = (load_file(f / "model.safetensors") for f in (models[0], tmp_path / "out"))
    for name, each in found.items():
        torch.testing.assert_close(each.float(), first[name] * 3, rtol=1e-3, atol=1e-4)


def test_what_it_cannot_average_is_refused(tmp_path: Path) -> None:
    earlier = stage(tmp_path / "earlier", 1.0)
    with pytest.raises(ConfigError, match="models of different shapes"):
        write_average(["bundled", str(earlier)], tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")
    with pytest.raises(ConfigError, match="exists already"):
        write_average([str(earlier)] * 2, tmp_path / "out")
