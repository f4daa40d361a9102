"""Reads a GGUF file with the gguf package: its metadata, its tensors, and its configuration, with
the keys of a config.json, and back.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf import GGUFReader, GGUFValueType
from gguf.gguf_reader import ReaderField
from gguf.quants import dequantize
from numpy.typing import NDArray

from chatapp.common.userfiles import did_you_mean, reason, shown, suggestion
from chatapp.engine.decoder.families import FAMILIES, family_in_gguf
from chatapp.engine.decoder.families.architecture import Family
from chatapp.engine.decoder.families.gguf_row import (
    ARCHITECTURE,
    FACTORS,
    Config,
    Keys,
    rotary_metadata,
    spell_out_rotary,
)
from chatapp.engine.errors import ModelError, one_sentence
from chatapp.engine.files.safetensors import TensorHeader

if TYPE_CHECKING:
    from torch import Tensor


class _Reader(GGUFReader):
    """The package's reader, with arrays read whole.

    It makes two objects of each of the hundreds of thousands of strings in a vocabulary, which
    takes seconds. This overrides a private method; checked on gguf 0.19.
    """

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        data = self.data.data
        kind, length = struct.unpack_from("<IQ", data, orig_offs)
        start = orig_offs + 12
        if kind == GGUFValueType.STRING:
            end = start
            for _ in range(length):
                end += 8 + struct.unpack_from("<Q", data, end)[0]
        else:
            end = start + length * self.gguf_scalar_to_np[GGUFValueType(kind)]().itemsize
        if end > len(data):
            raise ValueError("an array reaches beyond the end of the file")
        types = [GGUFValueType.ARRAY, GGUFValueType(kind)]
        return end - orig_offs, [self.data[start:end]], [0], types


class GGUFFile:
    """An open GGUF file, or one in several parts, whose metadata are in the first.

    Raises ModelError when it is invalid or truncated, and when parts are missing or of another
    model.
    """

    def __init__(self, path: Path, *others: Path) -> None:
        self.path = path
        self._reader = self._open(path)
        readers = [self._reader, *map(self._open, others)]
        self._tensors = {tensor.name: tensor for reader in readers for tensor in reader.tensors}
        parts = self.metadata.get("split.count") or 1
        count = self.metadata.get("split.tensors.count", len(self._tensors))
        if parts != len(readers) or count != len(self._tensors):
            raise ModelError(
                f"{path}: is one of {shown(parts)} parts with {shown(count)} tensors, and there "
                f"are {len(readers)} with {len(self._tensors)}; expected all beside each other, "
                "with names like NAME-00001-of-00002.gguf"
            )

    def _open(self, path: Path) -> "_Reader":
        try:
            return _Reader(path)
        except OSError as error:
            raise ModelError(f"{path}: cannot be read: {reason(error)}") from None
        except (ValueError, KeyError, IndexError, struct.error, OverflowError) as error:
            if kind := re.search(
                r"(?<!\d)(\d+)\)? is not a valid GGMLQuantizationType", str(error)
            ):
                raise ModelError(
                    f"{path}: a tensor is stored as type {kind[1]}, which is not known here"
                ) from None
            raise ModelError(
                f"{path}: is not a GGUF file, or is truncated; download it again ({reason(error)})"
            ) from None

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The keys of the file with their values; lists for arrays."""
        return _Metadata(self._reader.fields)

    def headers(self) -> list[TensorHeader]:
        """The weights' headers, by their names in the file. Raises ModelError if there are none."""
        if not self._tensors:
            raise ModelError(f"{self.path}: contains a vocabulary but no weights; expected a model")
        return [
            TensorHeader(self.path, name, self.shape(name), self.kind(name))
            for name in self._tensors
            if name != FACTORS  # follows from the configuration
        ]

    @property
    def names(self) -> list[str]:
        """The names of the tensors."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, the rows of a matrix first. Raises ModelError for an unknown one."""
        return tuple(int(size) for size in reversed(self._tensor(name).shape))

    def kind(self, name: str) -> str:
        """The storage of a tensor: F32, F16, Q4_1, … Raises ModelError for an unknown one."""
        return str(self._tensor(name).tensor_type.name)

    def read(self, name: str) -> "Tensor":
        """A tensor in float32. Raises ModelError when it cannot be read."""
        import torch

        return torch.from_numpy(self.array(name))

    def array(self, name: str) -> NDArray[np.float32]:
        """Like `read`, without torch."""
        tensor = self._tensor(name)
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            raise ModelError(
                f"{self.path}: tensor {name!r} is stored as {self.kind(name)}, which cannot be read"
            ) from None
        return np.array(values, dtype=np.float32).reshape(self.shape(name))

    def blocks(self, name: str) -> tuple[NDArray[np.uint8], str]:
        """A matrix as stored, (rows, bytes of a row), and its kind."""
        return self._tensor(name).data, self.kind(name)

    def _tensor(self, name: str) -> Any:
        try:
            return self._tensors[name]
        except KeyError:
            near = did_you_mean(name, self._tensors)
            raise ModelError(f"{self.path}: tensor {name!r} is missing{near}") from None


class _Metadata(Mapping[str, Any]):
    """Values by their keys. Lists are created on each access: a vocabulary's strings
    are not kept."""

    def __init__(self, fields: Mapping[str, ReaderField]) -> None:
        self._fields = fields

    def __getitem__(self, key: str) -> Any:
        return _value(self._fields[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def _value(field: ReaderField) -> Any:
    if field.types[0] != GGUFValueType.ARRAY:
        return field.contents()
    data = field.parts[field.data[0]]
    if field.types[1] == GGUFValueType.STRING:
        return list(_strings(data.tobytes()))
    return data.view(_Reader.gguf_scalar_to_np[field.types[1]]).tolist()


def _strings(data: bytes) -> Iterator[str]:
    start = 0
    while start < len(data):
        (length,) = struct.unpack_from("<Q", data, start)
        start += 8 + length
        yield data[start - length : start].decode("utf-8", "replace")


OTHER_ENDS = ("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
"""The keys of tokens that end a reply, in addition to the end of a text."""


def read_config(file: GGUFFile) -> Config:
    """The configuration of the model in a file, as its config.json would have it.

    Of a file without tensors only the family. Raises ModelError for an unknown architecture, and
    for keys that are missing or cannot be mapped.
    """
    architecture = file.metadata.get(ARCHITECTURE)
    if not isinstance(architecture, str):
        raise ModelError(
            f"{file.path}: {ARCHITECTURE} is {shown(architecture)}; expected a name such as 'llama'"
        )
    family = family_in_gguf(architecture)
    if family is None:
        return _config_by_transformers(file, architecture)
    row, keys = family.gguf, Keys(file)
    config: Config = {
        "model_type": family.model_type,
        "architectures": [family.class_name],
        **row.fixed,
    }
    if not file.names:
        return config
    for key, name in row.fields.items():
        config[name] = keys.number(key)
    for key, name in row.optional.items():
        if keys.value(key) is not None:
            config[name] = keys.number(key)
    with one_sentence(f"{file.path}: its keys and tensors are not those of a model"):
        config["vocab_size"] = file.shape("token_embd.weight")[0]
        config["tie_word_embeddings"] = "output.weight" not in file.names
        row.read(keys, config)
    return config | _end_tokens(file)


def _end_tokens(file: GGUFFile) -> Config:
    """The ids of the tokens that begin and end a text, with the keys of a config.json."""
    metadata = file.metadata
    named = [metadata.get(key) for key in ("tokenizer.ggml.eos_token_id", *OTHER_ENDS)]
    ends = list(dict.fromkeys(id for id in named if isinstance(id, int)))
    return {
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }


def _config_by_transformers(file: GGUFFile, architecture: str) -> Config:
    """The configuration of an architecture that only transformers maps."""
    from transformers import modeling_gguf_pytorch_utils

    known = {family.gguf.architecture for family in FAMILIES.values()}
    known |= {*modeling_gguf_pytorch_utils.GGUF_SUPPORTED_ARCHITECTURES}
    known -= {"general", "tokenizer"}
    if architecture not in known:
        raise ModelError(
            f"{file.path}: {ARCHITECTURE} is {shown(architecture)}, which is not known here"
            f"{suggestion(architecture, sorted(known))}"
        )
    try:
        loaded = modeling_gguf_pytorch_utils.load_gguf_checkpoint(str(file.path))
    except Exception as error:  # transformers raises many types
        raise ModelError(f"{file.path}: its configuration cannot be read: {error}") from None
    config: Config = loaded["config"]
    return config


def writable_family(config: Config, origin: str) -> Family:
    """The family of a model to be written. Raises ModelError when it is unknown.

    config: as transformers has it, including defaults. origin: for messages.
    """
    kind = config["model_type"]
    if kind not in FAMILIES:
        raise ModelError(
            f"{origin}: model_type is {kind!r}; what can be written as GGUF is "
            f"{', '.join(FAMILIES)}"
        )
    return FAMILIES[kind]


def spelled_out(family: Family, config: Config, origin: str) -> Config:
    """Convert a transformers configuration to the keys of the family's row.

    Raises ModelError for positions that a GGUF file cannot express.
    """
    values = dict(config)
    spell_out_rotary(values, origin)
    family.gguf.spell_out(values)
    return values


def config_metadata(family: Family, values: Config) -> dict[str, Any]:
    """The GGUF keys of a spelled-out configuration."""
    row = family.gguf
    metadata: dict[str, Any] = {}
    for key, name in {**row.fields, **row.optional}.items():
        if values.get(name) is not None:
            metadata[f"{row.architecture}.{key}"] = values[name]
    if "head_dim" in values:
        for key in ("rope.dimension_count", "attention.key_length", "attention.value_length"):
            metadata.setdefault(f"{row.architecture}.{key}", values["head_dim"])
    return metadata | rotary_metadata(row.architecture, values["rope_parameters"])
