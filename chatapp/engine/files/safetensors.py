"""The safetensors files of a model or adapter, and the headers of their tensors."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chatapp.common.userfiles import read_json_object
from chatapp.engine.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """A tensor of a model before it is read.

    name: as in Hugging Face's checkpoints. dtype: in the words of the file: "F16", "Q4_1" …
    """

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

# Masks and rotary frequencies that old checkpoints saved with their weights.
_BUFFER = re.compile(
    r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)"
    r"|(gpt_neox\.)?layers\.\d+\.attention\.(bias|masked_bias)"
    r"|(\w+\.)*layers\.\d+\.(attention|self_attn)\.rotary_emb\.inv_freq"
    r"|final_logits_bias"
)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model or adapter, sorted by name.

    Raises ModelError when there are none, with a hint when there are pickled weights, which are
    never loaded because unpickling runs code.
    """
    for name in (WEIGHTS, ADAPTER_WEIGHTS):
        if (folder / name).is_file():
            return [folder / name]
    if (folder / INDEX).is_file():
        return _shards(folder)
    pickles = [path for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern)]
    if pickles:
        raise ModelError(
            f"{min(pickles)}: only safetensors weights are loaded, because loading pickled "
            "weights can run any code"
        )
    raise ModelError(f"{folder}: there are no weights; expected {WEIGHTS} or {INDEX}")


def _shards(folder: Path) -> list[Path]:
    """The files that the index of a sharded checkpoint names."""
    index = folder / INDEX
    shards = read_json_object(index, ModelError).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(s, str) for s in shards.values()):
        raise ModelError(f"{index}: expected a key 'weight_map' from tensor to file name")
    files = [folder / name for name in sorted(set(shards.values()))]
    for file in files:
        if file.parent != folder or not file.is_file():
            raise ModelError(f"{file}: this part of the weights, named in {INDEX}, is missing")
    return files


@contextmanager
def open_weights(file: Path, framework: str) -> Iterator[Any]:
    """Open a safetensors file. Raises ModelError when it is broken or truncated."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework=framework) as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{file}: the weights are damaged or truncated; download the file again ({error})"
        ) from None


def is_buffer(name: str) -> bool:
    """Whether a tensor of a checkpoint is a buffer, which is never trained."""
    return _BUFFER.fullmatch(name) is not None


def read_tensors(folder: Path) -> Iterator[tuple[TensorHeader, Callable[[], "Tensor"]]]:
    """Yield each tensor of a model folder with its reader, to be called before the next one."""
    for file in weight_files(folder):
        with open_weights(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                yield _header(file, tensors, name), partial(tensors.get_tensor, name)


def tensor_headers(folder: Path) -> list[TensorHeader]:
    """The header of each tensor of a model folder; reads no weights."""
    headers = []
    for file in weight_files(folder):
        with open_weights(file, "numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                headers.append(_header(file, tensors, name))
    return headers


def _header(file: Path, tensors: Any, name: str) -> TensorHeader:
    tensor = tensors.get_slice(name)
    return TensorHeader(file, name, tuple(tensor.get_shape()), tensor.get_dtype())
