"""The configuration in a GGUF file's metadata, with the keys of a config.json, and back."""

from typing import Any

from chatapp.common.userfiles import shown, suggestion
from chatapp.engine.decoder.families import FAMILIES, family_in_gguf
from chatapp.engine.decoder.families.architecture import Family
from chatapp.engine.decoder.families.gguf_row import (
    ARCHITECTURE,
    Config,
    Keys,
    rotary_metadata,
    spell_out_rotary,
)
from chatapp.engine.errors import ModelError, one_sentence
from chatapp.engine.files.gguf.reader import GGUFFile

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
