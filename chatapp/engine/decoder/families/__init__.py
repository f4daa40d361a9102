"""The known families of models, by transformers' model type.

Invariant: this room does not import torch, and only a family's file has facts of its own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chatapp.engine.decoder.families.architecture import Architecture, Checkpoint, Family
from chatapp.engine.decoder.families.config_fields import ConfigFields
from chatapp.engine.decoder.families.gemma import GEMMA, GEMMA2, GEMMA3
from chatapp.engine.decoder.families.gpt2 import GPT2
from chatapp.engine.decoder.families.gpt_neox import GPT_NEOX
from chatapp.engine.decoder.families.llama import LLAMA, MISTRAL
from chatapp.engine.decoder.families.qwen import QWEN2, QWEN3
from chatapp.engine.decoder.families.transfo_xl import TRANSFO_XL
from chatapp.engine.errors import NoDecoder

FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in (GPT2, GPT_NEOX, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA3, GEMMA, GEMMA2)
}

_CHECKPOINTS: Mapping[str, Checkpoint] = {
    **{name: family.checkpoint for name, family in FAMILIES.items() if family.checkpoint},
    "transfo-xl": TRANSFO_XL,  # which neither GGUF nor the present transformers knows
}

DECODERS = tuple(_CHECKPOINTS)
"""The families that this program's decoder computes; transformers computes all others."""

# Of several families with one name in GGUF files, such as Llama and Mistral, the first.
_BY_GGUF_NAME = {family.gguf.architecture: family for family in reversed(list(FAMILIES.values()))}


def family_in_gguf(architecture: str) -> Family | None:
    """The family of an architecture of GGUF files; None for one that only transformers knows."""
    return _BY_GGUF_NAME.get(architecture)


def checkpoint_of(family: str, file: Path) -> Checkpoint:
    """The checkpoint description of a family. file: of the config, for messages. Raises
    NoDecoder."""
    checkpoint = _CHECKPOINTS.get(family)
    if checkpoint is None:
        raise NoDecoder(
            f"{file}: model_type is {family!r}; this program's own decoder computes "
            f"{', '.join(DECODERS)}"
        )
    return checkpoint


def read_architecture(config: Mapping[str, Any], file: Path) -> Architecture:
    """Read a config.json into an architecture. file: its path, for messages.

    Raises ModelError for wrong values, NoDecoder for an unsupported model.
    """
    checkpoint = checkpoint_of(str(config.get("model_type") or ""), file)
    fields = ConfigFields(file, config, checkpoint.defaults)
    if fields.is_set("quantization_config"):
        raise fields.unsupported("quantization_config")
    return checkpoint.read(fields)
