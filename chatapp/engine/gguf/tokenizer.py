"""What a GGUF file says of its tokenizer besides the vocabulary: named tokens, chat templates.

Keep: it is said in the words of a tokenizer_config.json, which the rest of the program knows.
"""

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import processors

from chatapp.engine.errors import ModelError
from chatapp.engine.gguf.file import GGUFFile
from chatapp.engine.gguf.vocabulary import begins_texts, gguf_tokenizer
from chatapp.userfiles import shown

CHAT_TEMPLATE = "tokenizer.chat_template"
"""The key of the chat template; others of a model stand below it by their names."""

NAMED_TOKENS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
"""The tokens that have a name in a tokenizer_config.json, and the keys of their ids."""


def tokenizer_config(file: GGUFFile) -> dict[str, Any]:
    """The named tokens, the chat templates, and whether texts begin with a token.

    Raises ModelError when a token's id is none, or there is no end-of-text token.
    """
    tokens = file.metadata.get("tokenizer.ggml.tokens") or []
    config: dict[str, Any] = {}
    for name, key in NAMED_TOKENS.items():
        id = file.metadata.get(key)
        if id is None and name != "eos_token":
            continue
        if not isinstance(id, int) or not 0 <= id < len(tokens):
            raise ModelError(f"{file.path}: {key} is {shown(id)}; expected a token's id")
        config[name] = tokens[id]
    begins = file.metadata.get("tokenizer.ggml.add_bos_token", begins_texts(file.metadata))
    config["add_bos_token"] = bool(begins) and "bos_token" in config
    if templates := _chat_templates(file.metadata):
        config["chat_template"] = templates
    return config


def tokenizer_of(file: GGUFFile) -> tokenizers.Tokenizer:
    """The tokenizer, with the token that texts begin with, if they do. Raises ModelError."""
    tokenizer, config = gguf_tokenizer(file.metadata, str(file.path)), tokenizer_config(file)
    if config["add_bos_token"]:
        start = config["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[start, "$A"], special_tokens=[(start, tokenizer.token_to_id(start))]
        )
    return tokenizer


def _chat_templates(metadata: Mapping[str, Any]) -> str | list[dict[str, Any]] | None:
    own = metadata.get(CHAT_TEMPLATE)
    others = [
        {"name": key.removeprefix(f"{CHAT_TEMPLATE}."), "template": template}
        for key, template in metadata.items()
        if key.startswith(f"{CHAT_TEMPLATE}.")
    ]
    if not others or own is None:
        return own
    return [{"name": "default", "template": own}, *others]
