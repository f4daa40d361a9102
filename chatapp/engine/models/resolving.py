"""From a name to a model's files, and the names of the models on this machine.

Invariant: an adapter's base is looked up here, once, when the adapter's files are read. The record
of used models is a convenience: if it cannot be read or written, models are not remembered, and
nothing else fails. The folders of other programs (Ollama, LM Studio) are only read, and their
broken files are left out. A name in servers.toml wins over a folder or a hub model of its name.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from chatapp.common.foreign import parse_json
from chatapp.common.paths import RUN_RECORD, SERVERS, config_dir, models_dir, used_models_path
from chatapp.common.userfiles import (
    change_whole,
    did_you_mean,
    is_path,
    missing_path,
    read_json_object,
    read_regular,
    read_toml,
)
from chatapp.engine.backends.remote.http import Server, is_address, server_url
from chatapp.engine.decoder.families import DECODERS
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import (
    CONFIG,
    GGUF_SUFFIX,
    SEQ_TO_SEQ,
    ModelFiles,
    architectures,
    gguf_parts,
    gguf_stem,
    has_model,
    is_encoder_decoder,
    read_config,
)
from chatapp.engine.model import LanguageModel
from chatapp.engine.models.hub import cached_folder, cached_hub_models, downloaded_folder
from chatapp.engine.models.known_models import known_models

_MOST = 200


def note_model(name: str | Path) -> None:
    """Remember the location of a model, if the name is a folder or a file, but no step of a run."""
    path = os.path.expanduser(name)  # unlike Path, accepts any text without an error
    if os.path.exists(path) and step_of(path) is None:
        place = str(next(gguf_parts(Path(os.path.abspath(path)))))
        if place not in map(str, used_models()):
            with suppress(OSError, UnicodeError):
                change_whole(
                    used_models_path(),
                    lambda: json.dumps([place, *map(str, used_models())][:_MOST], indent=2),
                )


def used_models() -> list[Path]:
    """The remembered folders and files that still exist, the latest first."""
    try:
        names = parse_json(read_regular(used_models_path()))
        return [Path(name) for name in names if os.path.exists(name)]
    except (OSError, ValueError, TypeError):
        return []


BUNDLED = "bundled"
BUNDLED_FOLDER = Path(__file__).parents[2] / "bundled"


_CAUSAL = ("ForCausalLM", "LMHeadModel")
"""Suffixes of transformers' classes of causal language models."""


def find_model(name: str) -> ModelFiles:
    """The files of a model by name, downloaded if necessary. Raises ModelError."""
    return ModelFiles.read(model_folder(name), model_folder)


def find_local_model(name: str) -> ModelFiles:
    """The files of a model by name; never downloads. Raises ModelError when it is not here."""
    return ModelFiles.read(folder_here(name), folder_here)


def model_folder(name: str) -> Path:
    """The folder or GGUF file of a model, downloaded if necessary, without loading it.

    Raises ModelError.
    """
    if (folder := local_folder(name)) is not None:
        return folder
    known = known_models()
    try:
        return downloaded_folder(known[name].hub if name in known else name)
    except ModelError as error:
        short = [key for key, model in known.items() if name in (key, model.hub)]
        if short:
            raise ModelError(
                f"{name} is not on this machine; `chatapp models get {short[0]}` downloads it "
                f"({error})"
            ) from None
        hint = did_you_mean(name, [BUNDLED, *known, *_kept_models()])
        raise ModelError(f"{error}; and there is no such folder{hint}") from None


def local_folder(name: str) -> Path | None:
    """The folder of a model on this machine; None when only the hub may have it.

    Raises ModelError for an impossible name on the hub.
    """
    if name == BUNDLED:
        if not has_bundled():
            raise ModelError("this installation has no bundled model; choose another one")
        return BUNDLED_FOLDER
    if is_address(name):
        raise ModelError(f"{name}: the files of a model on a server are not on this machine")
    if is_of_other_program(name):
        if (file := file_of_other_program(name)) is None:
            raise ModelError(f"{name}: not found{did_you_mean(name, files_of_other_programs())}")
        return file
    if is_known_name(name):
        return _folder_of_known(name)
    path = os.path.expanduser(name)  # unlike Path, accepts any text without an error
    if os.path.isdir(path):
        return Path(path)
    if os.path.exists(path):
        if path.endswith(GGUF_SUFFIX):
            return Path(path)
        raise ModelError(f"{name}: this is a file; expected the folder of a model, or a GGUF file")
    if path.endswith(GGUF_SUFFIX):
        raise ModelError(f"{name}: there is no such file")
    if problem := missing_path(name, "folder"):
        raise ModelError(problem)
    return cached_folder(name)


def is_known_name(name: str) -> bool:
    """Whether a name stands for a model whatever lies in the current folder.

    Such are the names of the models that the user keeps, the short names, and the ids of the models
    in the hub's cache. A folder of such a name here is meant by ./NAME.
    """
    if is_path(name):
        return False
    if name == BUNDLED or name in known_models() or name in _kept_models():
        return True
    # Without a folder here there is nothing to be told apart from.
    return os.path.exists(name) and _is_cached(name)


def note_on_folder(name: str) -> str:
    """A sentence on a folder or file here that has the name of a known model; "" without."""
    if not (is_known_name(name) and os.path.exists(name)):
        return ""
    return f"{name} is a known model, which is used; ./{name} is the path in this folder"


def _folder_of_known(name: str) -> Path | None:
    if name in _kept_models():
        return models_dir() / name
    known = known_models().get(name)
    return cached_folder(name) or (cached_folder(known.hub) if known else None)


def _is_cached(name: str) -> bool:
    try:
        return cached_folder(name) is not None
    except ModelError:  # no name that a model of the hub could have
        return False


def folder_here(name: str) -> Path:
    """The folder of a model on this machine. Raises ModelError when it is not here."""
    if (folder := local_folder(name)) is None:
        raise ModelError(f"{name}: is not on this machine")
    return folder


def has_bundled() -> bool:
    """Whether this installation includes the bundled model."""
    return (BUNDLED_FOLDER / CONFIG).is_file()


def local_models() -> list[str]:
    """Names of the models on this machine, all accepted by `load_model`; reads no weights.

    The bundled one, those in the folder of models, those in ./runs and those trained or used
    before, including unfinished runs, language models in the hub's cache, and GGUF files of other
    programs.
    """
    kept = _kept_models()
    names = [BUNDLED, *kept] if has_bundled() else kept
    known = {(models_dir() / name).resolve() for name in kept}
    by_place: dict[Path, Path] = {}
    for place in (*sorted(Path("runs").glob("*")), *used_models()):
        if has_model(place) or (place / RUN_RECORD).is_file():
            by_place.setdefault(place.resolve(), place)
    names += [_short(path) for place, path in by_place.items() if place not in known]
    return [*names, *cached_hub_models(_writes_text), *files_of_other_programs()]


def model_identity(model: LanguageModel) -> str:
    """A short text that differs if a model's answers may differ: twelve hex digits over its files,
    and its precision. A model without files on this machine is identified by its name.
    """
    return model.name if model.files is None else f"{model.files.digest()}-{model.precision}"


def _kept_models() -> list[str]:
    """Names of the models in the folder of models."""
    return sorted(folder.name for folder in models_dir().glob("[!.]*") if has_model(folder))


def _short(path: Path) -> str:
    """A path relative to the current folder, if it is below it."""
    here = Path.cwd()
    short = str(path.relative_to(here) if path.is_relative_to(here) else path)
    return os.path.join(".", short) if is_known_name(short) else short


def _writes_text(folder: Path) -> bool:
    """Whether a snapshot in the hub's cache is a language model with its weights."""
    try:
        config = read_config(folder / CONFIG)
    except (ModelError, OSError):
        return False
    names = architectures(config)
    tasks = (*_CAUSAL, SEQ_TO_SEQ) if is_encoder_decoder(config) else _CAUSAL
    writes = any(name.endswith(tasks) for name in names) or (
        not names and config.get("model_type") in DECODERS
    )
    return writes and any(folder.glob("*.safetensors"))


OLLAMA = "ollama:"
LM_STUDIO = "lmstudio:"
"""The prefixes of these models' names. No name on the hub has a colon."""

_SERVICE_MODELS = Path("/usr/share/ollama/.ollama/models")
_REGISTRY = "registry.ollama.ai"
_LIBRARY = "library"
_DEFAULT_TAG = ":latest"
_MODEL_LAYER = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")

_PROJECTOR = "mmproj"  # in the name of a file that turns images into vectors


def is_of_other_program(name: str) -> bool:
    """Whether a name has one of these prefixes."""
    return name.startswith((OLLAMA, LM_STUDIO))


def files_of_other_programs() -> dict[str, Path]:
    """All of them, by names that `load_model` takes: ollama:NAME[:TAG] and lmstudio:FILE."""
    return dict(sorted(_ollama())) | dict(sorted(_lm_studio()))


def file_of_other_program(name: str) -> Path | None:
    """The file of a name, if it exists. Ollama's default tag is optional."""
    bare = name.removesuffix(_DEFAULT_TAG) if name.startswith(OLLAMA) else name
    return files_of_other_programs().get(bare)


def _ollama() -> Iterator[tuple[str, Path]]:
    """Names and files by the manifests: manifests/HOST/NAMESPACE/NAME/TAG."""
    for models in _ollama_folders():
        for manifest in _matches(models, "manifests/*/*/*/*"):
            host, namespace, model, tag = manifest.parts[-4:]
            parts = [model]
            if (host, namespace) != (_REGISTRY, _LIBRARY):
                parts = [namespace, model] if host == _REGISTRY else [host, namespace, model]
            if (blob := _blob(models, manifest)) is not None:
                yield OLLAMA + f"{'/'.join(parts)}:{tag}".removesuffix(_DEFAULT_TAG), blob


def _ollama_folders() -> list[Path]:
    """Ollama's folders of models: the user's own, and on Linux those of its service."""
    if chosen := os.environ.get("OLLAMA_MODELS"):
        return [Path(chosen).expanduser()]
    return [_SERVICE_MODELS, Path.home() / ".ollama" / "models"]


def _blob(models: Path, manifest: Path) -> Path | None:
    """The file of a manifest's weights; None when the manifest or the file cannot be used."""
    try:
        layers = read_json_object(manifest, ModelError)["layers"]
        digests = [layer["digest"] for layer in layers if layer["mediaType"] == _MODEL_LAYER]
        (digest,) = digests  # a model of safetensors has one for each tensor
        match = _DIGEST.fullmatch(digest)
    except (ModelError, OSError, KeyError, TypeError, ValueError):
        return None
    blob = models / "blobs" / f"sha256-{match[1]}" if match else None
    return blob if blob is not None and os.path.isfile(blob) else None


def _lm_studio() -> Iterator[tuple[str, Path]]:
    """Names and files of PUBLISHER/REPOSITORY/FILE.gguf: the file name alone if it is unique."""
    home = Path.home()
    taken = set()
    for models in (home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"):
        for file in _matches(models, "*/*/*.gguf"):
            if _PROJECTOR not in file.name.lower() and has_model(file):
                name = gguf_stem(file)
                if name in taken:
                    name = file.relative_to(models).with_name(name).as_posix()
                taken.add(name)
                yield LM_STUDIO + name, file


def _matches(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


STEPS_FOLDER = "steps"


def step_folder(run: Path, step: int) -> Path:
    """Where the model of a step is."""
    return run / STEPS_FOLDER / str(step)


def kept_steps(run: Path) -> list[int]:
    """The steps whose models a run kept, in order."""
    folder = run / STEPS_FOLDER
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdecimal())


def step_of(model: str) -> int | None:
    """The step of a model's name, such as RUN/steps/64; None for any other."""
    path = Path(model)
    return int(path.name) if path.parent.name == STEPS_FOLDER and path.name.isdecimal() else None


def step_beside(model: str, move: int) -> str | None:
    """The name of the model `move` kept steps after that of a model's name, which is a run or one
    of its steps. The run itself comes after its last step. None where there is no such model.
    """
    path = Path(model).expanduser()
    run = path if step_of(model) is None else path.parent.parent
    names = [step_folder(run, step) for step in kept_steps(run)]
    if names and has_model(run):
        names.append(run)
    place = names.index(path) + move if path in names else -1
    return str(names[place]) if 0 <= place < len(names) else None


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def server_of(name: str) -> Server | None:
    """The server for a name or an address; None for any other name.

    name: ends with `#` and one of the server's models if it has several. The key and context of a
    named server also apply to its bare address. Raises ModelError for an invalid address or an
    unusable file of names.
    """
    address, _, model = name.partition("#")
    servers = named_servers()
    server = servers.get(address)
    if server is None and is_address(address):
        url = server_url(address)
        server = next(
            (candidate for candidate in servers.values() if candidate.url == url), Server(url)
        )
    return replace(server, model=model) if server is not None and model else server


def named_servers() -> dict[str, Server]:
    """The servers in the user's file, by their names. Raises ModelError."""
    path = config_dir() / SERVERS
    try:
        tables = read_toml(path, ModelError)
    except FileNotFoundError:
        return {}
    return {name: _server(table, f"{path}, server {name!r}") for name, table in tables.items()}


def _server(table: object, origin: str) -> Server:
    """One table of the file. Raises ModelError that begins with `origin`."""
    from chatapp.common.validation import strict_model, validated

    checked = validated(strict_model(Server), table, ModelError, origin=origin, what="server")
    server = Server(**dict(checked))
    try:
        server = replace(server, url=server_url(server.url))
    except ModelError as error:
        raise ModelError(f"{origin}: {error}") from None
    if server.key and not _NAME.fullmatch(server.key):
        raise ModelError(
            f"{origin}: 'key' must name an environment variable; put the key itself into "
            "that variable"
        )
    if server.context < 0 or server.context == 1:
        raise ModelError(f"{origin}: 'context' is {server.context}, expected 2 tokens or more")
    return server
