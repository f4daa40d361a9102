"""Configuration files: what is wrong is named; nothing unknown passes."""

from pathlib import Path

import pytest

from finetune.config.sections import ConfigError, PretrainConfig, load_config

GOOD = """
output = "run"
[data]
train = [{ path = "text.txt" }]
[train]
epochs = 2
"""


def load(tmp_path, text, *overrides):
    path = tmp_path / "config.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_config(PretrainConfig, path, overrides)


def test_defaults_and_overrides(tmp_path):
    config = load(tmp_path, GOOD, "train.batch_size=2", "shape.layers=3", "output=else where")
    assert (config.train.epochs, config.train.batch_size, config.shape.layers) == (2, 2, 3)
    assert config.output == "else where"
    assert config.data.train[0].weight == 1.0


@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        (GOOD, ["train.epoch=2"], ["config.toml", "'train.epoch'", "'train.epochs'"]),
        (GOOD, ["train.epochs=two"], ["train.epochs", "'two'"]),
        (GOOD, ["train.epochs"], ["key=value"]),
        (GOOD, ["output.x=2"], ["'output' is not a section"]),
        (GOOD, ["train.batch_size=0"], ["train.batch_size", "expected 1 or more"]),
        (GOOD + "epoch = 2", [], ["config.toml, line 7: 'train.epoch'", "'train.epochs'"]),
        ("output = \nseed = 1", [], ["not valid TOML", "line 1"]),
        (b"\xff\xfe", [], ["line 1", "not valid UTF-8"]),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, overrides, words):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, *overrides)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_the_recipe_of_the_bundled_model_is_valid():
    recipe = Path(__file__).parents[3] / "finetune" / "bundled_model" / "pretrain.toml"
    assert load_config(PretrainConfig, recipe, []).shape.positions == 1024
