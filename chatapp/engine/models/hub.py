"""Models of the Hugging Face hub: in its cache on this machine, or downloaded.

Invariant: only configuration, tokenizer and safetensors files are downloaded, never pickled weights
or code, and an error of the hub's client is a `ModelError` with one sentence.
"""

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chatapp.common.userfiles import quoted
from chatapp.engine.errors import ModelError, first_line

WANTED = [
    "*.json",
    "*.jinja",
    "*.safetensors",
    "*.txt",
    "*.bpe",
    "*.model",
    "README.md",
    "LICENSE*",
]
"""The files of a hub repository that a model needs, as name patterns."""

UNWANTED = [f"*/{pattern}" for pattern in WANTED if pattern != "*.jinja"]
"""Files in subfolders of a repository, mostly other formats; only templates are used there."""


class OutOfReachError(ModelError):
    """The hub does not answer. `why`: the client's reason, for another sentence."""

    def __init__(self, sentence: str, why: str) -> None:
        super().__init__(sentence)
        self.why = why


def downloaded_folder(name: str) -> Path:
    """The folder of a hub model in the hub's cache, downloaded if necessary. Raises ModelError."""
    from huggingface_hub import snapshot_download

    with hub_errors(name):
        return Path(snapshot_download(name, allow_patterns=WANTED, ignore_patterns=UNWANTED))


def cached_folder(name: str) -> Path | None:
    """The folder of a hub model with weights in the hub's cache on this machine, or None."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(
            snapshot_download(
                name, allow_patterns=WANTED, ignore_patterns=UNWANTED, local_files_only=True
            )
        )
    except LocalEntryNotFoundError:
        return None
    except HFValidationError:  # an impossible name on the hub
        raise ModelError(f"{name[:100]!r}: there is no such folder") from None
    return folder if any(folder.glob("*.safetensors")) else None


def cached_hub_models(accepts: Callable[[Path], bool]) -> list[str]:
    """Names of the models in the hub's cache whose current snapshot's folder is accepted."""
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
        and (current := repository.refs.get("main")) is not None
        and accepts(Path(current.snapshot_path))
    )


@contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """Convert errors of the hub's client to ModelErrors, and hide its notices."""
    from httpx2 import HTTPError
    from huggingface_hub.errors import DryRunError, LocalEntryNotFoundError, XetDownloadError
    from huggingface_hub.utils import logging as client_log

    verbosity = client_log.get_verbosity()
    client_log.set_verbosity(logging.ERROR)
    try:
        yield
    except (DryRunError, LocalEntryNotFoundError) as error:
        raise _explain(name, error.__cause__ or error) from None
    except (HTTPError, XetDownloadError, OSError, ValueError, RuntimeError) as error:
        raise _explain(name, error) from None
    finally:
        client_log.set_verbosity(verbosity)


def _explain(name: str, error: BaseException) -> ModelError:
    """The meaning of an error of the hub's client, in a sentence."""
    from httpx2 import TransportError
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{name}"
    match error:
        case errors.HFValidationError():
            return ModelError(
                f"{quoted(name)} is not a model id; expected the form organization/model"
            )
        case errors.GatedRepoError():
            return ModelError(
                f"{name}: its licence must be accepted first, at {page}, and this machine "
                "must be signed in to the hub with `hf auth login`"
            )
        case errors.RepositoryNotFoundError():
            return ModelError(f"{name}: there is no such model on the hub, or it is private")
        case errors.OfflineModeIsEnabled():
            return OutOfReachError(
                f"{name}: the hub was not contacted, because HF_HUB_OFFLINE is set in the "
                "environment",
                "HF_HUB_OFFLINE is set",
            )
        case (
            TransportError()
            | TimeoutError()
            | errors.LocalEntryNotFoundError()
            | errors.XetDownloadError()
        ):
            why = first_line(error)
            return OutOfReachError(
                f"{name}: the hub cannot be reached; check the network ({why})", why
            )
        case errors.HfHubHTTPError() if error.response.status_code >= 500:
            why = f"status {error.response.status_code}"
            return OutOfReachError(f"{name}: the hub reports an error ({why})", why)
        case OSError() if error.errno == errno.ENOSPC:
            return ModelError(
                f"{name}: the disk is full; the next attempt continues from what was downloaded"
            )
    return ModelError(f"{name}: cannot be fetched: {first_line(error)}")
