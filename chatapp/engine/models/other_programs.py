"""GGUF files of other programs on this machine: Ollama and LM Studio.

Invariant: their folders are only read, and broken files are left out, so no other program can break
a list of models.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from chatapp.common.userfiles import read_json_object
from chatapp.engine.errors import ModelError

OLLAMA = "ollama:"
LM_STUDIO = "lmstudio:"
"""The prefixes of these models' names. No name on the hub has a colon."""

_SERVICE_MODELS = Path("/usr/share/ollama/.ollama/models")
_REGISTRY = "registry.ollama.ai"
_LIBRARY = "library"
_DEFAULT_TAG = ":latest"
_MODEL_LAYER = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")

# One of several parts of a model is not a whole file, and a projector turns images into vectors.
_NO_MODEL = re.compile(r"-\d{5}-of-\d{5}\.gguf$|mmproj", re.IGNORECASE)


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
            if not _NO_MODEL.search(file.name) and os.path.isfile(file):
                name = file.stem
                if name in taken:
                    name = file.relative_to(models).with_suffix("").as_posix()
                taken.add(name)
                yield LM_STUDIO + name, file


def _matches(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []
