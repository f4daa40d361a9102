"""The description of a family, as each file of this folder gives it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chatapp.engine.decoder.families.architecture import Architecture, WeightPart
from chatapp.engine.decoder.families.config_fields import ConfigFields
from chatapp.engine.decoder.families.gguf_row import GGUFRow

if TYPE_CHECKING:
    from torch import Tensor

Arrange = Callable[[Architecture, WeightPart, "Tensor"], "Tensor"]


def as_stored(architecture: Architecture, part: WeightPart, tensor: "Tensor") -> "Tensor":
    """A tensor in the layout of most checkpoints: matrices (out, in)."""
    return tensor


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How to read a folder in Hugging Face layout into a decoder.

    defaults: transformers' values for keys that a config.json lacks. read: converts a config to an
    architecture. Raises ModelError. prefix: of most names; a checkpoint saved without the output
    matrix's class may lack it. tensors: a checkpoint's names of each part, without ".weight" or
    ".bias": one name, or those of the tensors that the decoder stacks. "{n}" is the number of the
    block. is_transposed: whether a checkpoint's matrices in blocks are (in, out). arrange: reorders
    the rows of a tensor (out, …) for the decoder. has_plain_tokenizer: whether its tokenizer is
    always GPT-2's, whatever the folder claims, with no token before a text.
    """

    defaults: Mapping[str, Any]
    read: Callable[[ConfigFields], Architecture]
    prefix: str
    tensors: Mapping[str, str | tuple[str, ...]]
    is_transposed: bool = False
    arrange: Arrange = as_stored
    has_plain_tokenizer: bool = False

    def stored_names(self, part: str) -> tuple[str, ...]:
        """The checkpoint's names of a tensor of the decoder, or of those stacked in it."""
        name, _, kind = part.rpartition(".")
        number = ""
        if name.startswith("blocks."):
            _, number, inside = name.split(".", 2)
            name = f"blocks.{{n}}.{inside}"
        names = self.tensors[name]
        names = (names,) if isinstance(names, str) else names
        return tuple(f"{stored.format(n=number)}.{kind}" for stored in names)


@dataclass(frozen=True, slots=True)
class Family:
    """One family of models.

    model_type, class_name: its names in transformers. checkpoint: None for a family that
    transformers computes, from a folder and from a GGUF file.
    """

    model_type: str
    class_name: str
    gguf: GGUFRow
    checkpoint: Checkpoint | None = None
