"""GGUF's matrices of four bits become int4 without having been floats."""

import gguf
import numpy as np
import pytest
import torch
from gguf_files import (
    GPT2_KEYS,
    IDS,
    LLAMA_KEYS,
    gpt2_tensors,
    llama_tensors,
    tiny_gpt2,
    tiny_llama,
    vocabulary,
    write_file,
)

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.decoder import decoder
from chatapp.engine.files.gguf.reader import GGUFFile
from chatapp.engine.files.gguf.tensors import KINDS, gguf_tensors, groups_of
from chatapp.engine.kernels.rounding import to_float
from chatapp.engine.models.loading import load_model

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))


def any_blocks(kind, rows, columns):
    """Any bytes, but scales that are numbers of a usual size."""
    number = gguf.GGMLQuantizationType[kind]
    per_block, size = gguf.GGML_QUANT_SIZES[number]
    draw = np.random.default_rng(3)
    blocks = draw.integers(0, 256, (rows, columns // per_block, size), dtype=np.uint8)
    for start in range(0, 2 if kind == "Q4_0" else 4, 2):
        scales = draw.normal(0, 0.1, blocks.shape[:2]).astype(np.float16)
        blocks[..., start : start + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_groups_are_the_weights_that_the_gguf_package_reads(kind):
    data = any_blocks(kind, 48, 768)
    wanted = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
    found = to_float(torch.from_numpy(groups_of(data, kind)))
    assert np.allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("architecture", "stored", "is_turned"),
    [
        ("llama", "blk.0.attn_q.weight", False),
        ("llama", "blk.0.attn_k.weight", False),
        ("llama", "blk.0.ffn_up.weight", False),
        ("gptneox", "blk.0.attn_qkv.weight", False),
        ("gpt2", "blk.0.attn_qkv.weight", True),
    ],
)
def test_rows_are_in_the_order_of_the_model(architecture, stored, is_turned, tmp_path, bpe):
    weight = {stored: torch.randn(96, 64, generator=torch.Generator().manual_seed(0))}
    keys = {"general.architecture": architecture}
    file = GGUFFile(write_file(tmp_path / "a.gguf", keys, weight, "Q4_1", more=vocabulary(bpe)))
    [(_, read)] = gguf_tensors(file, HEADS, ())
    [(_, read_groups)] = gguf_tensors(file, HEADS, (), four_bits=True)
    wanted = read().t() if is_turned else read()
    assert torch.allclose(to_float(read_groups()), wanted, atol=1e-5)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_model_in_int4_is_the_file(architecture, kind, tmp_path, bpe, monkeypatch):
    of_llama = architecture == "llama"
    tensors = dict(llama_tensors(tiny_llama()) if of_llama else gpt2_tensors(tiny_gpt2()))
    keys = LLAMA_KEYS if of_llama else GPT2_KEYS
    path = write_file(tmp_path / "a.gguf", keys, tensors, kind, more=vocabulary(bpe))
    exact = load_model(str(path), precision="float32")
    as_floats = []
    read = GGUFFile.array
    monkeypatch.setattr(
        GGUFFile, "array", lambda file, name: as_floats.append(name) or read(file, name)
    )
    rounded = load_model(str(path), precision="int4")
    assert not [name for name in as_floats if "blk" in name and tensors[name].ndim > 1]
    assert distance(rounded, exact) < 0.02
    # Kept on disk, it is the same again.
    assert torch.equal(load_model(str(path), precision="int4").logits(IDS), rounded.logits(IDS))


def test_what_is_stored_in_other_ways_beside_it_is_rounded(tmp_path, bpe):
    """Files of four bits have some matrices in more, the values of attention for one."""
    tensors = dict(llama_tensors(tiny_llama()))
    path = write_file(tmp_path / "a.gguf", LLAMA_KEYS, tensors, "Q4_1", more=vocabulary(bpe))
    exact = load_model(str(path), precision="float32")
    values = {name: tensor for name, tensor in tensors.items() if "attn_v" in name}
    mixed = write_mixed(tmp_path / "b.gguf", tensors, values, bpe)
    assert distance(load_model(str(mixed), precision="int4"), exact) < 0.2


def write_mixed(path, tensors, floats, bpe):
    """As `write_file` in Q4_1, but with some matrices in float32."""
    flat = {name: tensor for name, tensor in tensors.items() if name not in floats}

    def more(writer):
        vocabulary(bpe)(writer)
        for name, tensor in floats.items():
            writer.add_tensor(name, tensor.detach().contiguous().numpy())

    return write_file(path, LLAMA_KEYS, flat, "Q4_1", more=more)


def distance(found, wanted):
    """How far logits are from others, beside how unlike these are."""
    assert isinstance(found, LocalModel)
    assert isinstance(found.decoder, decoder.Decoder)
    assert found.decoder.precision in ("int4", "float32")
    a, b = found.logits(IDS), wanted.logits(IDS)
    return float((a - b).norm() / (b - b.mean()).norm())
