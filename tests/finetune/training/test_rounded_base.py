"""An adapter on a base whose matrices stay in int8 or int4."""

import pytest
import tiny_finetune as tiny
import torch
from rich.console import Console
from torch import nn
from torch.nn import functional as F

from chatapp.engine.exporting import write_gguf
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import find_model
from finetune.config.sections import ConfigError
from finetune.run import train
from finetune.training import setup
from finetune.training.adapters import RoundedLinear

QUIET = Console(stderr=True, quiet=True)


@pytest.mark.parametrize(("precision", "step"), [("int8", 0.02), ("int4", 0.25)])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_products_and_gradients_are_those_of_the_rounded_matrix(precision, step, is_mixed):
    torch.manual_seed(0)
    matrix, bias = torch.randn(24, 64), nn.Parameter(torch.randn(24))
    layer = RoundedLinear(matrix, bias, precision)
    rounded = layer.matrix(torch.float32)
    assert float((rounded - matrix).abs().max()) < step
    x = torch.randn(5, 64, requires_grad=True)
    own = torch.randn(5, 64)
    with torch.no_grad():
        own.copy_(x)
    own.requires_grad_(True)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_mixed):
        y, expected = layer(x), F.linear(own, rounded, bias)
    y.float().square().sum().backward()
    expected.float().square().sum().backward()
    assert x.grad is not None
    assert own.grad is not None
    tolerance = 0.03 if is_mixed else 1e-4
    assert torch.allclose(y.float(), expected.float(), rtol=tolerance, atol=10 * tolerance)
    assert torch.allclose(x.grad, own.grad, rtol=tolerance, atol=100 * tolerance)
    stored = sum(part.numel() * part.element_size() for part in (layer.weight, layer.scale))
    assert stored <= (matrix.numel() * 1.1 if precision == "int8" else matrix.numel() * 0.6)


def test_a_row_without_whole_groups_is_int8():
    layer = RoundedLinear(torch.randn(8, 40), None, "int4")
    assert layer.weight.dtype == torch.int8
    assert layer(torch.zeros(1, 40)).tolist() == [[0.0] * 8]


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_file_rounded_while_it_is_read_is_the_folder_rounded_afterwards(tmp_path, precision):
    folder, file = tiny.base(tmp_path / "whole"), tmp_path / "base.gguf"
    write_gguf(find_model(str(folder)), file, "f32", {}, lambda *at: None)
    tiny.pairs(tmp_path / "rows.json")
    sections = {"train": {"method": "lora"}, "adapter": {"base_precision": precision}}
    afterwards, while_read = (
        setup.set_up_run(
            tiny.config(tmp_path, model=str(base), data={"template": "chat"}, **sections), "cpu"
        ).model.state_dict()
        for base in (folder, file)
    )
    assert while_read.keys() == afterwards.keys()
    for name, tensor in afterwards.items():
        assert torch.equal(while_read[name], tensor), name


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("is_gguf", [False, True])
def test_an_adapter_learns_on_it_and_is_chatted_with(tmp_path, precision, is_gguf):
    base = {}
    if is_gguf:
        file = tmp_path / "base.gguf"
        folder = tiny.base(tmp_path / "whole")
        write_gguf(find_model(str(folder)), file, "f32", {}, lambda *at: None)
        tiny.pairs(tmp_path / "rows.json")
        base = {"model": str(file), "data": {"template": "chat"}}
    settings = {"method": "lora", "max_steps": 12, "learning_rate": 0.05}
    adapter = {"base_precision": precision, "rank": 4}
    config = tiny.config(tmp_path, train=settings, adapter=adapter, **base)
    made = setup.set_up_run(config, "cpu")
    kinds = {
        type(module.base_layer) for module in made.model.modules() if hasattr(module, "lora_A")
    }
    assert kinds == {RoundedLinear}
    run = train(config, QUIET)
    losses = list(tiny.trace(run).values())
    assert losses[-1] < losses[0] - 0.1
    assert load_model(str(run)).files == find_model(str(run))


def test_dora_needs_the_whole_matrix(tmp_path):
    settings = {"train": {"method": "dora"}}
    config = tiny.config(tmp_path, adapter={"base_precision": "int8"}, **settings)
    with pytest.raises(ConfigError, match="expected lora or rslora"):
        train(config, QUIET)
