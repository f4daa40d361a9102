"""What a model's makers say of its generation: end tokens and sampling values, in a file of theirs.

Keep: the file is foreign and nothing depends on it, so whatever is wrong in it is left out and
named in a sentence; a model never fails to load because of it.
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
    """What the file of a model says.

    ends: ids of tokens that end a reply, besides the tokenizer's own. sampling: the values that
    replies are drawn with unless the user has chosen others. ignored: what could not be used, a
    sentence each.
    """

    ends: frozenset[int] = frozenset()
    sampling: Values = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def read_generation_config(files: ModelFiles | None) -> GenerationConfig:
    """What the makers of a model say, or those of an adapter's base; nothing without files.

    As in transformers, its config.json names the end tokens where there is no such file.
    """
    if files is None:
        return GenerationConfig()
    own, base = (each.path / GENERATION_CONFIG for each in (files, files.whole))
    path = own if own.is_file() else base
    if not path.is_file():
        return GenerationConfig(_ends(files.whole.config, files.whole.config_file)[0])
    try:
        document = read_json_object(path, ModelError)
    except ModelError as error:
        return GenerationConfig(ignored=(f"{error}; the file is ignored",))
    ends, problems = _ends(document, path)
    sampling: dict[str, float | int | None] = {}
    for name, value in _values(document):
        try:
            sampling[name] = PARAMETERS[name].checked(value)
        except ValueError as error:
            problems += (f"{path}: {error}; the value is ignored",)
    return GenerationConfig(ends, sampling, problems)


def _ends(document: Mapping[str, Any], path: Path) -> tuple[frozenset[int], tuple[str, ...]]:
    """The ids that `eos_token_id` names, a number or a list, and what is wrong with it."""
    value = document.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    ends = frozenset(id for id in ids if isinstance(id, int) and not isinstance(id, bool))
    if len(ends) == len(set(map(repr, ids))):
        return ends, ()
    problem = f"{path}: eos_token_id is {shown(value)}; expected a token's id, or a list of them"
    return ends, (f"{problem}; other values are ignored",)


def _values(document: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """The sampling values by our names; one without sampling is greedy."""
    for name, parameter in PARAMETERS.items():
        value = document.get(parameter.config_field) if parameter.config_field else None
        if name == "temperature" and document.get("do_sample") is False:
            value = 0.0
        if value is not None:
            yield name, value
