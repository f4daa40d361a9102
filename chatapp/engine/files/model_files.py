"""The facts of a model, read once: whole or adapter, family, base, tokenizer, template, and the
generation defaults of its authors.

A foreign folder can contain a pipe that never answers, a link to an endless device, a JSON file of
gigabytes, and sizes that no memory holds.

Invariants: no other module derives any of this from a model's folder or opens a GGUF file again,
and reading it reads no weights. No import of torch. Only regular files of sane sizes reach a
library, and every number of a configuration is compared with the weights before it becomes the size
of an allocation. The generation defaults are optional, so a fault in them is skipped and reported
in a sentence; it never prevents loading the model.
"""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chatapp.common.parameters import PARAMETERS, Values
from chatapp.common.paths import CHAT_TEMPLATE, RUN_RECORD, TEMPLATE_FILE, TOKENIZER_CONFIG
from chatapp.common.userfiles import open_regular, read_json_object, shown
from chatapp.engine.decoder.families import DECODERS, read_architecture
from chatapp.engine.decoder.families.architecture import Architecture
from chatapp.engine.errors import ModelError
from chatapp.engine.files.safetensors import TensorHeader, tensor_headers

if TYPE_CHECKING:
    from chatapp.engine.files.gguf.reader import GGUFFile


_MOST_BYTES = {
    "*config.json": 16 * 2**20,
    CHAT_TEMPLATE: 2**20,
    TEMPLATE_FILE: 2**20,
    "special_tokens_map.json": 16 * 2**20,
    "added_tokens.json": 16 * 2**20,
    "*.safetensors.index.json": 64 * 2**20,
    "tokenizer*": 256 * 2**20,
    "vocab.*": 256 * 2**20,
    "encoder.json": 256 * 2**20,
    "merges.txt": 256 * 2**20,
    "*.json": 256 * 2**20,
    "*.model": 256 * 2**20,
    "*.safetensors": 2**63,
    "*.gguf": 2**63,
}
"""The largest sizes of a model's files, by name pattern; the first match counts. The largest known
tokenizers have 35 MB.
"""

_LAYERS = re.compile(r"(^|_)layers?$")
_ID = re.compile(r"_ids?$")
"""Token numbers, which are compared with the vocabulary and never become a size."""

_MOST_LAYERS = 10_000
_LARGEST = 10**10
"""The largest number of a configuration; an unlimited window is written as 10⁹ at most."""


def check_files(path: Path) -> None:
    """Raises ModelError for a file of a model's folder, or a GGUF file, that is irregular or too
    large.
    """
    try:
        entries = [path / name for name in os.listdir(path)] if path.is_dir() else [path]
    except OSError:
        return  # reading it reports the fault
    for entry in entries:
        most = next((most for end, most in _MOST_BYTES.items() if fnmatch(entry.name, end)), None)
        if most is None and entry != path:
            continue
        try:
            status = entry.stat()
        except (OSError, ValueError):
            continue  # a broken link counts as a missing file
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise ModelError(f"{entry}: is not a regular file; expected one, or a link to one")
        if most is not None and status.st_size > most:
            raise ModelError(
                f"{entry}: has {status.st_size:,} bytes; expected at most {most:,} of such a file"
            )


def check_numbers(config: Mapping[str, Any], file: Path, within: str = "") -> None:
    """Raises ModelError for a number of a configuration larger than in any real model."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            check_numbers(value, file, f"{within}{key}.")
        elif isinstance(value, int) and not isinstance(value, bool) and not _ID.search(key):
            most = _MOST_LAYERS if _LAYERS.search(key) else _LARGEST
            if abs(value) > most:
                raise ModelError(
                    f"{file}: {within}{key} is {shown(value)[:60]}; expected at most {most:,}"
                )


CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
GENERATION_CONFIG = "generation_config.json"
GGUF_SUFFIX = ".gguf"
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)

COMPANIONS = (
    *(CHAT_TEMPLATE, GENERATION_CONFIG, TEMPLATE_FILE, "tokenizer*", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.*", "merges.txt", "encoder.json", "*.model"),
)
"""Files of a model other than its configuration and weights, as name patterns."""


SEQ_TO_SEQ = "ForConditionalGeneration"
"""The suffix of transformers' classes with an encoder and a decoder."""

MASKED = ("ForMaskedLM", "ForPreTraining")
"""The suffixes of transformers' classes that fill masks, such as those of BERT."""


@dataclass(frozen=True)
class TokenizerFiles:
    """The files of a tokenizer: a folder, or the GGUF file that contains it.

    model: the config.json in that folder, which may name the end-of-text token.
    """

    path: Path
    model: Mapping[str, Any] = field(default_factory=dict)
    gguf: "GGUFFile | None" = field(default=None, compare=False, repr=False)

    @classmethod
    def read(cls, path: Path) -> "TokenizerFiles":
        """A tokenizer with or without its model. Raises ModelError."""
        check_files(path)
        if (file := _gguf_file(path)) is not None:
            return cls(file, gguf=_open_gguf(file))
        config = path / CONFIG
        return cls(path, read_config(config) if config.is_file() else {})

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The contents of tokenizer_config.json; empty when there is none. Raises ModelError."""
        if self.gguf is not None:
            from chatapp.engine.files.gguf.vocabulary import tokenizer_config

            return tokenizer_config(self.gguf)
        try:
            return read_json_object(self.path / TOKENIZER_CONFIG, ModelError)
        except FileNotFoundError:
            return {}


@dataclass(frozen=True)
class ModelFiles:
    """A whole model, or a PEFT adapter and its base model.

    path: the folder, or the GGUF file, of several parts the first. config: the contents of its
    config.json or adapter_config.json, or the metadata of a GGUF file with the keys of a
    config.json. base: the whole model that an adapter was trained on; None for a whole model.
    tokenizer: possibly the base's. template: the file of the dialogue template that it was trained
    with; None when there is none. An adapter with the base's tokenizer has its template too, unless
    it has its own. gguf: the file, open; None for a folder.
    """

    path: Path
    config: dict[str, Any]
    base: "ModelFiles | None"
    tokenizer: TokenizerFiles
    template: Path | None
    gguf: "GGUFFile | None" = field(default=None, compare=False, repr=False)

    @classmethod
    def read(cls, path: Path, find_base: "Callable[[str], Path] | None" = None) -> "ModelFiles":
        """Read the model in a folder, or in a GGUF file.

        find_base: maps an adapter's base to a folder; by default only a path is found. Raises
        ModelError, also when an adapter's base is missing.
        """
        check_files(path)
        if (file := _gguf_file(path)) is not None:
            return cls._of_gguf(_open_gguf(file))
        template = path / TEMPLATE_FILE if (path / TEMPLATE_FILE).is_file() else None
        if not _is_adapter(path):
            _refuse_unfinished(path)
            config = read_config(path / CONFIG)
            return cls(path, config, None, TokenizerFiles(path, config), template)
        config = read_config(path / ADAPTER_CONFIG)
        base = _base_of(path / ADAPTER_CONFIG, config, find_base or _folder_at)
        if (path / TOKENIZER_CONFIG).is_file():
            return cls(path, config, base, TokenizerFiles(path), template)
        return cls(path, config, base, base.tokenizer, template or base.template)

    @classmethod
    def _of_gguf(cls, file: "GGUFFile") -> "ModelFiles":
        # The gguf package imports numpy, which a listing of folders does not need.
        from chatapp.engine.files.gguf.reader import read_config as read_gguf_config

        tokenizer = TokenizerFiles(file.path, gguf=file)
        config = read_gguf_config(file)
        check_numbers(config, file.path)
        return cls(file.path, config, None, tokenizer, None, file)

    @property
    def is_adapter(self) -> bool:
        """Whether these are the weights of an adapter, which needs its base."""
        return self.base is not None

    @property
    def is_gguf(self) -> bool:
        """Whether the whole model is in one GGUF file."""
        return self.gguf is not None

    @property
    def whole(self) -> "ModelFiles":
        """The model itself, or the base of an adapter."""
        return self.base or self

    @property
    def config_file(self) -> Path:
        """The file that `config` comes from, for messages."""
        if self.is_gguf:
            return self.path
        return self.path / (ADAPTER_CONFIG if self.is_adapter else CONFIG)

    @property
    def family(self) -> str:
        """The architecture in one word, transformers' model type."""
        return str(self.whole.config.get("model_type") or "")

    @cached_property
    def headers(self) -> list[TensorHeader]:
        """The headers of the tensors in its own files, by their names there. Raises ModelError."""
        return tensor_headers(self.path) if self.gguf is None else self.gguf.headers()

    @cached_property
    def architecture(self) -> Architecture:
        """The architecture for this program's decoder, for an adapter that of its base.

        Raises ModelError for wrong values, NoDecoder for a model that needs transformers.
        """
        return read_architecture(self.whole.config, self.whole.config_file)

    @property
    def has_decoder(self) -> bool:
        """Whether this program's own decoder computes it, if it supports the details."""
        return not self.is_adapter and self.family in DECODERS

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether an encoder reads the prompt and a decoder writes the reply."""
        return is_encoder_decoder(self.whole.config)

    @property
    def is_masked(self) -> bool:
        """Whether it predicts masked tokens from both sides, and writes nothing."""
        names = architectures(self.whole.config)
        return bool(names) and all(name.endswith(MASKED) for name in names)

    def refuse_masked(self) -> None:
        """Raises ModelError for a model that writes no replies, and names what it can do."""
        if self.is_masked:
            raise ModelError(
                f"{self.path}: a masked model ({self.family}) fills gaps and writes no replies; "
                '`chatapp inspect "… [MASK] …"` shows what it fills in, and `finetune train` '
                'teaches it with objective.kind = "masked" or a [head]'
            )

    def digest(self) -> str:
        """Twelve hex digits over everything that affects answers, including an adapter's base.

        Reads each file whole. The location of the folder does not matter.
        """
        digest = hashlib.sha256()
        if self.base is not None:
            digest.update(self.base.digest().encode())
        patterns = (self.config_file.name, "*.safetensors", "*.safetensors.index.json", *COMPANIONS)
        matches = {file for pattern in patterns for file in self.path.glob(pattern)}
        for file in gguf_parts(self.path) if self.is_gguf else sorted(matches):
            if file.is_file():
                digest.update(file.name.encode("utf-8", "surrogateescape") + b"\0")
                with open_regular(file) as content:
                    digest.update(hashlib.file_digest(content, "sha256").digest())
        return digest.hexdigest()[:12]


def architectures(config: dict[str, Any]) -> list[str]:
    """The classes of transformers that a config.json names."""
    names = config.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []


def _is_adapter(folder: Path) -> bool:
    return (folder / ADAPTER_CONFIG).is_file() and not (folder / CONFIG).is_file()


def _refuse_unfinished(folder: Path) -> None:
    """Raises ModelError for a run of finetune whose model is not written yet."""
    if (folder / RUN_RECORD).is_file() and not (folder / CONFIG).is_file():
        raise ModelError(
            f"{folder}: this run is not finished; continue it with `finetune resume {folder}`"
        )


def _holds_gguf(path: Path) -> bool:
    """Whether a path is a GGUF file, whatever its name, or a folder with only one of them."""
    if path.is_file() or (path.suffix == GGUF_SUFFIX and not path.is_dir()):
        return True
    is_other = (path / CONFIG).is_file() or (path / ADAPTER_CONFIG).is_file()
    return not is_other and any(path.glob(f"*{GGUF_SUFFIX}"))


def _gguf_file(path: Path) -> Path | None:
    """The GGUF file of a model; None when it is a folder of files.

    Raises ModelError when a folder has several.
    """
    if not _holds_gguf(path):
        return None
    parts = path.glob(f"*{GGUF_SUFFIX}") if path.is_dir() else [path]
    files = sorted({next(gguf_parts(file)) for file in parts})
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ModelError(f"{path}: there are {len(files)} GGUF files, {names}; name one of them")
    return files[0]


def _open_gguf(file: Path) -> "GGUFFile":
    from chatapp.engine.files.gguf.reader import GGUFFile

    parts = list[Path]()
    for part in gguf_parts(file):
        check_files(part)
        if parts and not part.is_file():
            raise ModelError(f"{file}: its part {part.name} is missing; all have to be beside it")
        parts.append(part)
    return GGUFFile(*parts)


def gguf_parts(path: Path) -> Iterator[Path]:
    """The files of a GGUF model that is in parts, by the path of any of them, the first one first;
    of another file, itself.
    """
    match = _PART.fullmatch(path.name)
    if match is None or not 1 <= int(match[2]) <= int(match[3]):
        yield path
        return
    for number in range(1, int(match[3]) + 1):
        yield path.with_name(f"{match[1]}-{number:05}-of-{match[3]}{GGUF_SUFFIX}")


def gguf_stem(path: Path) -> str:
    """The name of a GGUF file without its suffix, and without the number of its part."""
    match = _PART.fullmatch(path.name)
    return match[1] if match else path.stem


def read_config(path: Path) -> dict[str, Any]:
    """Read a config.json, or an adapter_config.json. Raises ModelError."""
    check_files(path)
    try:
        config = read_json_object(path, ModelError)
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such file") from None
    check_numbers(config, path)
    return config


def _folder_at(path: str) -> Path:
    """The folder at a path. Raises ModelError."""
    if not (folder := Path(os.path.expanduser(path))).is_dir():
        raise ModelError(f"{path}: there is no such folder")
    return folder


def _base_of(path: Path, config: dict[str, Any], find: Callable[[str], Path]) -> ModelFiles:
    """The model that an adapter_config.json names as its base."""
    name = config.get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ModelError(
            f"{path}: base_model_name_or_path is {name!r}; expected a folder or hub id"
        )
    try:
        folder = find(name)
    except ModelError as error:
        raise ModelError(f"{path}: the base model cannot be found: {error}") from None
    if _is_adapter(folder):
        raise ModelError(f"{path}: the base model {name} is an adapter; expected a whole model")
    return ModelFiles.read(folder)


_PATTERN_KEYS = ("alpha_pattern", "rank_pattern", "modules_to_save", "layers_pattern")
_PATTERNS_IF_TEXTS = ("target_modules", "exclude_modules")
"""Whose lists are ends of names, not patterns."""

_MOST_SECONDS, _MOST_MEMORY = 5.0, 500 * 10**6


def check_patterns(files: ModelFiles, names: Sequence[str]) -> None:
    """Refuse an adapter with patterns that take too long to match names, or are none: peft matches
    them without a limit.

    names: of its base's modules, as peft has them. Raises ModelError with the file and the key.
    """
    from chatapp.common.limited_process import LimitedProcess, LimitPassedError

    trial = LimitedProcess(__name__, "match_patterns", memory=_MOST_MEMORY)
    for key in (*_PATTERN_KEYS, *_PATTERNS_IF_TEXTS):
        given = files.config.get(key) or ()
        if isinstance(given, str):
            given = [given]
        elif key in _PATTERNS_IF_TEXTS or not isinstance(given, list | dict):
            continue
        patterns = [pattern for pattern in given if isinstance(pattern, str)]
        if len(patterns) < 500 and all(re.fullmatch(r"[\w.-]*", text) for text in patterns):
            continue  # plain names
        try:
            fault = trial.ask([patterns, names], _MOST_SECONDS)
        except LimitPassedError:
            fault = f"cannot be matched with the names of layers in {_MOST_SECONDS:.0f} seconds"
        if fault:
            raise ModelError(f"{files.config_file}: {key} {fault}")


def match_patterns(request: tuple[Sequence[str], Sequence[str]]) -> Iterator[str]:
    """Why patterns cannot match names; "" if they can. Called in a limited process."""
    patterns, names = request
    try:
        for pattern in patterns:
            form = re.compile(rf"(.*\.)?({pattern})$")  # as peft has it
            for name in names:
                form.match(name)
        yield ""
    except re.error as error:
        yield f"has a pattern that is not a regular expression: {error}"


def has_model(path: Path) -> bool:
    """Whether a path is a GGUF file, of several parts the first, or a folder that contains any kind
    of model.
    """
    if path.is_file():
        return path.suffix == GGUF_SUFFIX and next(gguf_parts(path)) == path
    return (
        os.path.isfile(path / CONFIG)
        or os.path.isfile(path / ADAPTER_CONFIG)
        or any(path.glob(f"*{GGUF_SUFFIX}"))
    )


def is_encoder_decoder(config: Mapping[str, Any]) -> bool:
    """Whether a config.json describes an encoder and a decoder."""
    return config.get("is_encoder_decoder") is True


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
