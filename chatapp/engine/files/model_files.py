"""What a model is, asked once: whole or adapter, its family, base, tokenizer, template, digest.

Keep: no other module decides any of this by looking into a model's folder, and finding it out
reads no weights. Free of torch.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chatapp.engine.errors import ModelError
from chatapp.engine.hub import cached_folder, cached_hub_models, downloaded_folder
from chatapp.engine.known_models import known_models
from chatapp.engine.model import LanguageModel
from chatapp.engine.other_programs import (
    file_of_other_program,
    files_of_other_programs,
    is_of_other_program,
)
from chatapp.engine.servers import is_address
from chatapp.engine.used_models import used_models
from chatapp.paths import CHAT_TEMPLATE, RUN_RECORD, TEMPLATE_FILE, TOKENIZER_CONFIG, models_dir
from chatapp.userfiles import did_you_mean, missing_path, read_json_object

BUNDLED = "bundled"
_BUNDLED_FOLDER = Path(__file__).parent.parent / "bundled"

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
GENERATION_CONFIG = "generation_config.json"
GGUF_SUFFIX = ".gguf"

COMPANIONS = (
    "tokenizer*",
    CHAT_TEMPLATE,
    "vocab.*",
    "merges.txt",
    "encoder.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.model",
    GENERATION_CONFIG,
    TEMPLATE_FILE,
)
"""What a model has beside its configuration and weights, as patterns of file names."""

_CAUSAL = ("ForCausalLM", "LMHeadModel")
"""How transformers calls the classes of causal language models."""

SEQ_TO_SEQ = "ForConditionalGeneration"
"""How it calls those of an encoder and a decoder."""

DECODERS = ("gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "gemma3_text")
"""The families this program has a decoder of; transformers computes all others."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A whole model, or a PEFT adapter and the model it belongs to.

    path: the folder, or the GGUF file. config: what its config.json, or adapter_config.json,
        says; what the metadata of a GGUF file say, in the words of a config.json.
    base: the whole model that an adapter was trained on; None for a whole model.
    tokenizer: the folder of its tokenizer, which may be the base's, or the GGUF file.
    template: the file of the dialogue template it was trained in, which may be the base's;
        None when there is none.
    """

    path: Path
    config: dict[str, Any]
    base: "ModelFiles | None"
    tokenizer: Path
    template: Path | None

    @classmethod
    def read(cls, path: Path, find_base: "Callable[[str], Path] | None" = None) -> "ModelFiles":
        """The model in a folder, or in a GGUF file.

        find_base: gives the folder of an adapter's base by its name; by default only a name that
            is a path is found.
        Raises ModelError, also when an adapter's base is missing.
        """
        if (file := gguf_file(path)) is not None:
            return cls(file, _gguf_config(file), None, file, None)
        template = path / TEMPLATE_FILE if (path / TEMPLATE_FILE).is_file() else None
        if not _is_adapter(path):
            _refuse_unfinished(path)
            return cls(path, _read_config(path / CONFIG), None, path, template)
        config = _read_config(path / ADAPTER_CONFIG)
        base = _base_of(path / ADAPTER_CONFIG, config, find_base or _folder_at)
        tokenizer = path if (path / TOKENIZER_CONFIG).is_file() else base.path
        return cls(path, config, base, tokenizer, template or base.template)

    @property
    def is_adapter(self) -> bool:
        """Whether these are the weights of an adapter, which its base is needed for."""
        return self.base is not None

    @property
    def is_gguf(self) -> bool:
        """Whether all of it is in one GGUF file."""
        return self.path.is_file()

    @property
    def whole(self) -> "ModelFiles":
        """The model itself, or the one that an adapter was trained on."""
        return self.base or self

    @property
    def config_file(self) -> Path:
        """Where `config` was read, for messages."""
        if self.is_gguf:
            return self.path
        return self.path / (ADAPTER_CONFIG if self.is_adapter else CONFIG)

    @property
    def family(self) -> str:
        """The architecture in one word, which transformers calls the model type."""
        return str(self.whole.config.get("model_type") or "")

    @property
    def has_decoder(self) -> bool:
        """Whether this program's own decoder computes it, if its details allow."""
        return not self.is_adapter and self.family in DECODERS

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether an encoder reads the prompt and a decoder writes the reply."""
        return _is_encoder_decoder(self.whole.config)

    def digest(self) -> str:
        """Twelve hex digits over all that an answer can depend on, an adapter's base included.

        Reads each file whole. Where the folder lies does not matter.
        """
        digest = hashlib.sha256()
        if self.base is not None:
            digest.update(self.base.digest().encode())
        patterns = (self.config_file.name, "*.safetensors", "*.safetensors.index.json", *COMPANIONS)
        found = {file for pattern in patterns for file in self.path.glob(pattern)}
        for file in [self.path] if self.is_gguf else sorted(found):
            if file.is_file():
                digest.update(file.name.encode("utf-8", "surrogateescape") + b"\0")
                with file.open("rb") as content:
                    digest.update(hashlib.file_digest(content, "sha256").digest())
        return digest.hexdigest()[:12]


def find_model(name: str) -> ModelFiles:
    """What the model of a name is, downloaded if need be. Raises ModelError."""
    return ModelFiles.read(model_folder(name), model_folder)


def find_local_model(name: str) -> ModelFiles:
    """What the model of a name is; never downloads. Raises ModelError when it is not here."""
    return ModelFiles.read(folder_here(name), folder_here)


def model_folder(name: str) -> Path:
    """The folder of a model, downloaded if need be, without loading it, or its GGUF file.

    Raises ModelError.
    """
    known = known_models().get(name)
    return local_folder(name) or downloaded_folder(known.hub if known else name)


def local_folder(name: str) -> Path | None:
    """The folder of a model on this machine; None when only the hub may have it.

    Raises ModelError for a name that no model on the hub could have.
    """
    if name == BUNDLED:
        if not has_bundled():
            raise ModelError("this installation carries no bundled model; name another one")
        return _BUNDLED_FOLDER
    if is_address(name):
        raise ModelError(f"{name}: the files of a model on a server are not on this machine")
    if is_of_other_program(name):
        if (file := file_of_other_program(name)) is None:
            raise ModelError(f"{name}: is not here{did_you_mean(name, files_of_other_programs())}")
        return file
    path = os.path.expanduser(name)  # unlike Path, takes any text without an error
    if os.path.isdir(path):
        return Path(path)
    if os.path.exists(path):
        if path.endswith(GGUF_SUFFIX):
            return Path(path)
        raise ModelError(f"{name}: this is a file; expected the folder of a model, or a GGUF file")
    if path.endswith(GGUF_SUFFIX):
        raise ModelError(f"{name}: there is no such file")
    if name in _kept_models():
        return models_dir() / name
    if problem := missing_path(name, "folder"):
        raise ModelError(problem)
    known = known_models().get(name)
    return cached_folder(name) or (cached_folder(known.hub) if known else None)


def folder_here(name: str) -> Path:
    """The folder of a model on this machine. Raises ModelError when it is not here."""
    if (folder := local_folder(name)) is None:
        raise ModelError(f"{name}: is not on this machine")
    return folder


def has_bundled() -> bool:
    """Whether this installation carries the bundled model."""
    return (_BUNDLED_FOLDER / CONFIG).is_file()


def local_models() -> list[str]:
    """Names of the models on this machine, each of which `load_model` takes; reads no weights.

    The bundled one, those in the folder of models, those in ./runs and those made or used before,
    runs that are not finished among them, language models in the hub's cache, and GGUF files of
    other programs.
    """
    names = [BUNDLED] if has_bundled() else []
    names += _kept_models()
    by_place: dict[Path, Path] = {}
    for place in (*sorted(Path("runs").glob("*")), *used_models()):
        if _has_model(place) or (place / RUN_RECORD).is_file():
            by_place.setdefault(place.resolve(), place)
    names += map(_short, by_place.values())
    return [*names, *cached_hub_models(_writes_text), *files_of_other_programs()]


def model_identity(model: LanguageModel) -> str:
    """A short text that differs where a model's answers may: twelve hex digits over its files,
    and what it is computed in. A model without files on this machine goes by its name.
    """
    if model.folder is None:
        return model.name
    return f"{ModelFiles.read(model.folder, model_folder).digest()}-{model.precision}"


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
            f"{folder}: this run is not finished; `finetune resume {folder}` goes on with it"
        )


def _holds_gguf(path: Path) -> bool:
    """Whether a path is a GGUF file, whatever its name, or a folder with one and no other model."""
    if path.is_file() or (path.suffix == GGUF_SUFFIX and not path.is_dir()):
        return True
    is_other = (path / CONFIG).is_file() or (path / ADAPTER_CONFIG).is_file()
    return not is_other and any(path.glob(f"*{GGUF_SUFFIX}"))


def gguf_file(path: Path) -> Path | None:
    """The GGUF file that a model is in; None when it is in a folder of files.

    Raises ModelError when a folder holds several.
    """
    if not _holds_gguf(path):
        return None
    files = sorted(path.glob(f"*{GGUF_SUFFIX}")) if path.is_dir() else [path]
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ModelError(f"{path}: there are {len(files)} GGUF files, {names}; name one of them")
    return files[0]


def _gguf_config(file: Path) -> dict[str, Any]:
    # The gguf package brings numpy, which a listing of folders can do without.
    from chatapp.engine.gguf.config import read_config
    from chatapp.engine.gguf.file import GGUFFile

    return read_config(GGUFFile(file))


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path, ModelError)
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such file") from None


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


def _kept_models() -> list[str]:
    """Names of the models in the folder of models."""
    return sorted(folder.name for folder in models_dir().glob("[!.]*") if _has_model(folder))


def _has_model(path: Path) -> bool:
    """Whether a path is a GGUF file, or a folder that holds a model of any kind."""
    if path.is_file():
        return path.suffix == GGUF_SUFFIX
    return (
        os.path.isfile(path / CONFIG)
        or os.path.isfile(path / ADAPTER_CONFIG)
        or any(path.glob(f"*{GGUF_SUFFIX}"))
    )


def _short(path: Path) -> str:
    """A path as one would type it: from the current folder on, if it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _writes_text(folder: Path) -> bool:
    """Whether a snapshot in the hub's cache is a language model with its weights."""
    try:
        config = _read_config(folder / CONFIG)
    except (ModelError, OSError):
        return False
    names = architectures(config)
    tasks = (*_CAUSAL, SEQ_TO_SEQ) if _is_encoder_decoder(config) else _CAUSAL
    writes = any(name.endswith(tasks) for name in names) or (
        not names and config.get("model_type") in DECODERS
    )
    return writes and any(folder.glob("*.safetensors"))


def _is_encoder_decoder(config: dict[str, Any]) -> bool:
    return config.get("is_encoder_decoder") is True
