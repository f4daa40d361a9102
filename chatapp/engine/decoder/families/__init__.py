"""The families that the decoder computes, by what transformers calls their model type.

Keep: free of torch, and a family's file holds all that is its own.
"""

from chatapp.engine.decoder.families.architecture import Architecture
from chatapp.engine.decoder.families.config_fields import ConfigFields
from chatapp.engine.decoder.families.family import Family
from chatapp.engine.decoder.families.gemma import GEMMA3
from chatapp.engine.decoder.families.gpt2 import GPT2
from chatapp.engine.decoder.families.gpt_neox import GPT_NEOX
from chatapp.engine.decoder.families.llama import LLAMA, MISTRAL
from chatapp.engine.decoder.families.qwen import QWEN2, QWEN3
from chatapp.engine.errors import NoDecoder
from chatapp.engine.files.model_files import ModelFiles

FAMILIES: dict[str, Family] = {
    "gpt2": GPT2,
    "gpt_neox": GPT_NEOX,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "gemma3_text": GEMMA3,
}


def family_of(files: ModelFiles) -> Family:
    """The family of a whole model. Raises NoDecoder."""
    if files.family not in FAMILIES:
        raise NoDecoder(
            f"{files.config_file}: model_type is {files.family!r}; this program's own decoder "
            f"computes {', '.join(FAMILIES)}"
        )
    return FAMILIES[files.family]


def read_architecture(files: ModelFiles) -> Architecture:
    """What a model's config.json says of its decoder.

    Raises ModelError for wrong values, NoDecoder for what this decoder does not compute.
    """
    family = family_of(files)
    fields = ConfigFields(files.config_file, files.config, family.defaults)
    if fields.is_set("quantization_config"):
        raise fields.unsupported("quantization_config")
    return family.read(fields)
