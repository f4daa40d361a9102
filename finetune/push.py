"""`finetune push`: uploads a finished run, or a merged model, as a repository of the hub.

Invariant: only files needed to load the model and its card are uploaded, with safetensors as the
only weights: no checkpoint, no pickle, and no path of this machine.
"""

from pathlib import Path
from typing import Any, Protocol

from chatapp.engine.backends.head import HEAD_FILE
from chatapp.engine.errors import first_line
from chatapp.engine.files.model_files import ADAPTER_CONFIG, COMPANIONS, CONFIG, ModelFiles
from chatapp.engine.models.resolving import BUNDLED, find_model
from finetune.config.sections import ConfigError
from finetune.training.record import CARD_FILE

FILES = (
    CONFIG,
    ADAPTER_CONFIG,
    "*.safetensors",
    "*.safetensors.index.json",
    HEAD_FILE,
    CARD_FILE,
    *COMPANIONS,
)
"""The uploaded files, as name patterns."""


class Hub(Protocol):
    """The methods of huggingface_hub's HfApi that are used."""

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> Any: ...

    def upload_folder(
        self, *, repo_id: str, folder_path: Path, allow_patterns: list[str], commit_message: str
    ) -> Any: ...


def push(run: str, repository: str, hub: Hub, *, private: bool = False) -> list[str]:
    """Create a repository, if there is none of that name, and upload a model into it.

    Returns the names of the files. Raises ConfigError and ModelError, also when the hub refuses.
    """
    files = find_model(run)
    if files.is_gguf:
        raise ConfigError(f"{run}: is a GGUF file; expected the folder of a run")
    _refuse_local_base(run, files)
    names = sorted({file.name for pattern in FILES for file in files.path.glob(pattern)})
    try:
        hub.create_repo(repository, private=private, exist_ok=True)
        hub.upload_folder(
            repo_id=repository,
            folder_path=files.path,
            allow_patterns=names,
            commit_message=f"{files.path.name}, trained with chatapp",
        )
    except Exception as error:  # the library raises many types of errors
        raise ConfigError(f"{repository}: the hub did not take it: {first_line(error)}") from None
    return names


def _refuse_local_base(run: str, files: ModelFiles) -> None:
    """Raises ConfigError for an adapter whose base has a local name that others cannot use."""
    if files.base is None:
        return
    base = str(files.config.get("base_model_name_or_path"))
    if base == BUNDLED or Path(base).expanduser().exists():
        raise ConfigError(
            f"{run}: its base, {base}, is not on the hub; make a whole model of both first: "
            f"finetune merge {run} OUT, then finetune push OUT"
        )
