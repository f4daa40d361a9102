"""The tensors of a GGUF file under the names of Hugging Face, as the models there have them.

Names come from the gguf package. What the conversion to GGUF does to a tensor of some families
(other orders of rows, transposed matrices, norms with one added) is undone.

Keep: a tensor is read when it is asked for, one at a time; what `to_gguf` does, reading undoes.
Free of torch until a tensor is read.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from gguf import MODEL_ARCH_NAMES, TensorNameMap, get_tensor_name_map

from chatapp.engine.errors import ModelError
from chatapp.engine.gguf.config import ARCHITECTURE, Config
from chatapp.engine.gguf.file import GGUFFile
from chatapp.engine.gguf.four_bits import KINDS, groups_of
from chatapp.engine.tensor_header import TensorHeader

if TYPE_CHECKING:
    from torch import Tensor

# What follows from the configuration, and so is no weight of the model.
_DERIVED = frozenset(("rope_freqs.weight",))


def gguf_tensors(
    file: GGUFFile, config: Config, expected: Iterable[str], *, four_bits: bool = False
) -> Iterator[tuple[TensorHeader, Callable[[], "Tensor"]]]:
    """Each tensor of a file in turn, and what reads it.

    config: what `read_config` says. expected: the names of Hugging Face that the model may
    have. A tensor that is none of these keeps the name it has in the file.
    four_bits: whether matrices of four bits are read as (out, bytes), see `groups_of`.
    Raises ModelError when the file holds no tensors.
    """
    if not file.names:
        raise ModelError(f"{file.path}: holds a vocabulary and no weights; expected a model")
    names = gguf_names(file.metadata[ARCHITECTURE], config, expected)
    known = {stored: name for name, stored in names.items()}
    undo = _Conversion(file.metadata[ARCHITECTURE], config)
    for stored in file.names:
        if stored in _DERIVED:
            continue
        shape = file.shape(stored)
        if undo.is_transposed(stored):
            shape = shape[::-1]
        header = TensorHeader(file.path, known.get(stored, stored), shape, file.kind(stored))
        as_groups = four_bits and header.dtype in KINDS
        yield header, partial(_read_groups if as_groups else _read, file, stored, undo)


def gguf_names(architecture: str, config: Config, names: Iterable[str]) -> dict[str, str]:
    """What tensors are called in a GGUF file, by their names of Hugging Face.

    A name that the architecture has no tensor for is left out.
    """
    blocks = config.get("num_hidden_layers") or config["n_layer"]
    table = _name_table(architecture, blocks)
    found = ((name, table.get_name(name, (".weight", ".bias"))) for name in names)
    return {name: stored for name, stored in found if stored is not None}


def to_gguf(architecture: str, config: Config, stored: str, tensor: "Tensor") -> "Tensor":
    """A tensor of a model as a GGUF file holds it under the name `stored`."""
    return _Conversion(architecture, config).forth(stored, tensor)


def _read(file: GGUFFile, stored: str, undo: "_Conversion") -> "Tensor":
    return undo.back(stored, file.read(stored))


def _read_groups(file: GGUFFile, stored: str, undo: "_Conversion") -> "Tensor":
    import torch

    return undo.rows_back(stored, torch.from_numpy(groups_of(*file.blocks(stored))))


def _name_table(architecture: str, blocks: int) -> TensorNameMap:
    number = next(key for key, name in MODEL_ARCH_NAMES.items() if name == architecture)
    return get_tensor_name_map(number, blocks)


def _reordered(tensor: "Tensor", rows: tuple[int, int, int], swapped: tuple[int, int]) -> "Tensor":
    """A tensor with its rows in another order: seen as so many dimensions, two are swapped."""
    split = tensor.reshape(*rows, *tensor.shape[1:])
    return split.transpose(*swapped).reshape(tensor.shape)


class _Conversion:
    """What the conversion to GGUF does to the tensors of one model, and back."""

    def __init__(self, architecture: str, config: Config) -> None:
        self._architecture = architecture
        self._config = config

    def is_transposed(self, stored: str) -> bool:
        """Whether the file holds a matrix as (out, in) that the model has as (in, out)."""
        matrices = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")
        return self._architecture == "gpt2" and stored.endswith(matrices)

    def forth(self, stored: str, tensor: "Tensor") -> "Tensor":
        if self.is_transposed(stored):
            return tensor.t()
        if self._has_shifted_norms and stored.endswith("norm.weight"):
            return tensor + 1
        if heads := self._rotated_heads(stored):
            # Halves of each head, which are rotated together, become neighbours.
            return _reordered(tensor, (heads, 2, -1), (1, 2))
        if self._is_interleaved(stored):
            heads = self._config["num_attention_heads"]
            return _reordered(tensor, (heads, 3, -1), (0, 1))
        return tensor

    def back(self, stored: str, tensor: "Tensor") -> "Tensor":
        if self.is_transposed(stored):
            return tensor.t().contiguous()
        if self._has_shifted_norms and stored.endswith("norm.weight"):
            return tensor - 1
        return self.rows_back(stored, tensor)

    def rows_back(self, stored: str, tensor: "Tensor") -> "Tensor":
        """A tensor (out, …) with the order of rows that the model has."""
        if heads := self._rotated_heads(stored):
            return _reordered(tensor, (heads, -1, 2), (1, 2))
        if self._is_interleaved(stored):
            heads = self._config["num_attention_heads"]
            return _reordered(tensor, (3, heads, -1), (0, 1))
        return tensor

    @property
    def _has_shifted_norms(self) -> bool:
        """Gemma's norms multiply by 1 + w; a GGUF file holds the sum."""
        return self._architecture in ("gemma", "gemma2", "gemma3")

    def _rotated_heads(self, stored: str) -> int:
        """The heads of Llama's queries or keys, which llama.cpp rotates in pairs; 0 for others."""
        if self._architecture != "llama":
            return 0
        for part, key in (("attn_q.", "num_attention_heads"), ("attn_k.", "num_key_value_heads")):
            if part in stored:
                return int(self._config[key])
        return 0

    def _is_interleaved(self, stored: str) -> bool:
        """Whether a GPT-NeoX has query, key and value head by head here, where a GGUF file has
        all queries first."""
        return self._architecture == "gptneox" and "attn_qkv." in stored
