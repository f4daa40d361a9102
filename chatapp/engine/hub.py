"""Models of the Hugging Face hub: in its cache on this machine, or downloaded.

Keep: only configuration, tokenizer and safetensors files are fetched, never pickled weights or
code, and whatever the hub's client raises becomes a `ModelError` of one sentence.
"""

from collections.abc import Callable
from pathlib import Path

from chatapp.engine.errors import ModelError, first_line

_WANTED = ["*.json", "*.safetensors", "*.txt", "*.bpe", "*.model", "README.md"]


def hub_folder(name: str) -> Path:
    """The folder of a hub model: from the hub's cache on this machine, else downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        folder = Path(snapshot_download(name, local_files_only=True))
        if any(folder.glob("*.safetensors")):
            return folder
    except LocalEntryNotFoundError:
        pass
    except HFValidationError:  # no name that a hub model could have
        raise ModelError(f"{name[:100]!r}: there is no such folder") from None
    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED))
    except RepositoryNotFoundError:
        raise ModelError(f"{name}: there is neither such a folder nor such a hub model") from None
    except Exception as error:  # the hub's client lets many kinds of errors through
        raise ModelError(
            f"{name}: there is no such folder, and the hub cannot be reached: {first_line(error)}"
        ) from None


def cached_hub_models(accepts: Callable[[Path], bool]) -> list[str]:
    """Names of the models in the hub's cache of which some snapshot's folder is accepted."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    return sorted(
        repository.repo_id
        for repository in repositories
        if repository.repo_type == "model"
        and any(accepts(Path(revision.snapshot_path)) for revision in repository.revisions)
    )
