"""What is said of a model's sizes, for every architecture that transformers has a configuration of:
what is not known is not known, and never nothing."""

import json

import numpy as np
import pytest
import transformers
from safetensors.numpy import save_file

from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.models.description import describe, memory_needed

WITHOUT_ATTENTION = {"falcon_mamba", "fnet", "mamba", "mamba2", "rwkv", "xlstm"}


def described(folder, values):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    save_file({"weight": np.zeros((2, 3), np.float32)}, folder / "model.safetensors")
    return describe(ModelFiles.read(folder))


def usual(family):
    """A configuration as transformers writes it when nothing is chosen; no more than the family's
    name where it has none."""
    try:
        config = transformers.CONFIG_MAPPING[family]()
    except Exception:
        return {"model_type": family}
    values = json.loads(config.to_json_string(use_diff=False))
    return values


def test_no_architecture_breaks_off_or_has_a_size_of_nothing(tmp_path):
    known, refused, families = 0, 0, [*transformers.CONFIG_MAPPING.keys()]
    for family in families:
        try:
            info = described(tmp_path / family, usual(family))
        except ModelError:
            refused += 1  # transformers cannot read again what it has written
            continue
        sizes = (info.layers, info.hidden_size, info.vocabulary, info.context)
        assert 0 not in sizes, family
        assert (info.heads == 0) == (family in WITHOUT_ATTENTION), family
        assert (info.cached_numbers == 0) == (family in WITHOUT_ATTENTION), family
        assert memory_needed(info, "float32") > 0
        known += None not in sizes
    assert refused < len(families) / 50
    assert known > len(families) / 3  # the others see, hear, or have several parts


@pytest.mark.parametrize(
    ("family", "layers", "heads", "width", "vocabulary"),
    [
        ("gpt_neo", 24, 16, 2048, 50257),
        ("xlnet", 24, 16, 1024, 32000),
        ("t5", 6, 8, 512, 32128),
        ("mamba", 32, 0, 768, 50280),
        ("gemma4", 30, 8, 2304, 262144),
        ("musicgen", 24, 16, 1024, 2048),
        ("blt", None, None, None, 260),
        ("clip_vision_model", 12, 12, 768, None),
    ],
)
def test_sizes(tmp_path, family, layers, heads, width, vocabulary):
    info = described(tmp_path, usual(family))
    found = (info.layers, info.heads, info.hidden_size, info.vocabulary)
    assert found == (layers, heads, width, vocabulary)


def test_blocks_that_are_unlike_cache_what_each_of_them_does(tmp_path):
    values = usual("gemma4_text")
    config = transformers.CONFIG_MAPPING["gemma4_text"]()
    head_sizes = [block.head_dim for block in config.per_layer_config]
    assert len(set(head_sizes)) > 1
    cached = sum(
        2 * block.num_key_value_heads * size
        for block, size in zip(config.per_layer_config, head_sizes, strict=True)
    )
    assert described(tmp_path, values).cached_numbers == cached
