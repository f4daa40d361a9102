"""GGUF files: metadata and tensors as they were written, and sentences for broken ones."""

import inspect

import gguf
import numpy as np
import pytest
import torch

from chatapp.engine.errors import ModelError
from chatapp.engine.files.gguf.reader import GGUFFile


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_array("words", ["a", "", "日本", "line\n"])
    writer.add_array("scores", [0.5, -1.0])
    writer.add_array("flags", [True, False])
    writer.add_chat_template("{{ messages }}")
    draw = np.random.default_rng(0)
    writer.add_tensor("plain", draw.normal(size=(2, 3)).astype(np.float32))
    writer.add_tensor("half", draw.normal(size=(4,)).astype(np.float16))
    matrix = draw.normal(size=(8, 64)).astype(np.float32)
    for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1):
        packed = gguf.quants.quantize(matrix, kind)
        writer.add_tensor(kind.name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_what_was_written_is_read(path):
    file = GGUFFile(path)
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.block_count"] == 3
    assert file.metadata["words"] == ["a", "", "日本", "line\n"]
    assert file.metadata["scores"] == [0.5, -1.0]
    assert file.metadata["flags"] == [True, False]
    assert file.metadata["tokenizer.chat_template"] == "{{ messages }}"
    assert file.names == ["plain", "half", "Q8_0", "Q4_1"]
    draw = np.random.default_rng(0)
    plain = torch.from_numpy(draw.normal(size=(2, 3)).astype(np.float32))
    assert file.shape("plain") == (2, 3)
    assert file.read("plain").equal(plain)
    half = draw.normal(size=(4,)).astype(np.float16)
    assert file.read("half").equal(torch.from_numpy(half.astype(np.float32)))
    matrix = torch.from_numpy(draw.normal(size=(8, 64)).astype(np.float32))
    for kind, error in (("Q8_0", 0.03), ("Q4_1", 0.3)):
        assert file.kind(kind) == kind
        assert file.read(kind).shape == (8, 64)
        assert 0 < (file.read(kind) - matrix).abs().max() < error


def test_an_unknown_tensor_is_named(path):
    with pytest.raises(ModelError, match=r"tiny.gguf: tensor 'plane' is missing; did you mean"):
        GGUFFile(path).read("plane")


def test_every_cut_of_a_file_is_told(path):
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"tiny.gguf: (is not a GGUF file|cannot be read)"):
            GGUFFile(path)


def test_another_file_is_told(tmp_path):
    for content in (b"", b"GGUF", b"not a model at all" * 10, b"GGUF" + b"\xff" * 100):
        file = tmp_path / "x.gguf"
        file.write_bytes(content)
        with pytest.raises(ModelError, match=r"x\.gguf: "):
            GGUFFile(file)
    with pytest.raises(ModelError, match="cannot be read"):
        GGUFFile(tmp_path / "none.gguf")


def test_the_overridden_method_is_what_the_package_calls():
    """By another name of it, a vocabulary would take seconds to read, and nothing would say so."""
    assert "self._get_field_parts(" in inspect.getsource(gguf.GGUFReader)
