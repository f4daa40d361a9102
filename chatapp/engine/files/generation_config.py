"""The generation defaults of a model's authors: end tokens and sampling values.

Invariant: the file is foreign and optional, so a fault in it is skipped and reported in a sentence;
it never prevents loading the model.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chatapp.common.parameters import PARAMETERS, Values
from chatapp.common.userfiles import read_json_object, shown
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import GENERATION_CONFIG, ModelFiles


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """The contents of a model's generation_config.json.

    ends: ids of tokens that end a reply, in addition to the tokenizer's. sampling: the authors'
    values, used unless the user has chosen others. ignored: a sentence on each unusable value.
    """

    ends: frozenset[int] = frozenset()
    sampling: Values = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def read_generation_config(files: ModelFiles | None) -> GenerationConfig:
    """Read the defaults of a model, or of an adapter's base; empty without files.

    As in transformers, config.json names the end tokens if that file is missing.
    """
    if files is None:
        return GenerationConfig()
    own, base = (model.path / GENERATION_CONFIG for model in (files, files.whole))
    path = own if own.is_file() else base
    document: Mapping[str, Any]
    if path.is_file():
        try:
            document = read_json_object(path, ModelError)
        except ModelError as error:
            return GenerationConfig(ignored=(f"{error}; the file is ignored",))
        ends, problems = _ends(document, path)
    else:
        path, document = files.whole.config_file, _of_gguf(files.whole)
        ends, problems = _ends(files.whole.config, path)[0], ()
    sampling: dict[str, float | int | None] = {}
    for name, value in _values(document):
        try:
            sampling[name] = PARAMETERS[name].checked(value)
        except ValueError as error:
            problems += (f"{path}: {error}; the value is ignored",)
    return GenerationConfig(ends, sampling, problems)


GGUF_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
"""Where a GGUF file has the sampling values of that name; llama.cpp reads them as defaults, too."""


def _of_gguf(files: ModelFiles) -> Mapping[str, Any]:
    """The sampling values in a GGUF file, in the names of generation_config.json."""
    metadata = files.gguf.metadata if files.gguf is not None else {}
    values = {PARAMETERS[name].config_field: metadata.get(key) for name, key in GGUF_KEYS.items()}
    # A file has them in single precision.
    return {key: round(v, 6) if isinstance(v, float) else v for key, v in values.items()}


def _ends(document: Mapping[str, Any], path: Path) -> tuple[frozenset[int], tuple[str, ...]]:
    """The ids in `eos_token_id`, a number or a list, and a sentence on each fault."""
    value = document.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    ends = frozenset(id for id in ids if isinstance(id, int) and not isinstance(id, bool))
    if len(ends) == len(set(map(repr, ids))):
        return ends, ()
    problem = f"{path}: eos_token_id is {shown(value)}; expected a token's id, or a list of them"
    return ends, (f"{problem}; other values are ignored",)


def _values(document: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """The sampling values by our names; a model without sampling is greedy."""
    for name, parameter in PARAMETERS.items():
        value = document.get(parameter.config_field) if parameter.config_field else None
        if name == "temperature" and document.get("do_sample") is False:
            value = 0.0
        if value is not None:
            yield name, value
