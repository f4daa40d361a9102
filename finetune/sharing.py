"""A finished run for others: `finetune merge` makes a whole model of a run with an adapter, and
`finetune push` uploads a model as a repository of the hub.

Invariant: a merged model answers like the run. Only files needed to load a model and its card are
uploaded, with safetensors as the only weights: no checkpoint, no pickle, and no path of this
machine.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from chatapp.engine.backends.head import HEAD_FILE, HEAD_WEIGHTS
from chatapp.engine.backends.transformers_loading import load_network
from chatapp.engine.errors import first_line
from chatapp.engine.files.model_files import ADAPTER_CONFIG, COMPANIONS, CONFIG
from chatapp.engine.models.resolving import BUNDLED, find_model
from finetune.config.sections import ConfigError
from finetune.training.adapters import copy_companions
from finetune.training.checkpoints import whole_model
from finetune.training.record import CARD_FILE

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

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


def merge(run: str, out: Path) -> None:
    """Write an adapter and its base model as one whole model, with tokenizer, template and head.

    The weights are merged in float32 and written in the base's type, in float32 if it has several
    or is a GGUF file. Raises ConfigError and ModelError.
    """
    files = find_model(run)
    if files.base is None:
        raise ConfigError(f"{run}: expected a run with an adapter; this is a whole model already")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: exists already; name a new folder")
    types = {_TYPES.get(header.dtype, torch.float32) for header in files.base.headers}
    mixed = files.base.is_gguf or len(types) > 1
    model = load_network(files).to(torch.float32 if mixed else types.pop())
    with whole_model(out) as aside:
        model.save_pretrained(aside)
        copy_companions(files, aside)
        for name in (HEAD_FILE, HEAD_WEIGHTS, CARD_FILE):
            if (files.path / name).is_file():
                shutil.copyfile(files.path / name, aside / name)


def push(run: str, repository: str, hub: "HfApi", *, private: bool = False) -> list[str]:
    """Create a repository, if there is none of that name, and upload a model into it.

    Returns the names of the files. Raises ConfigError and ModelError, also when the hub refuses.
    """
    files = find_model(run)
    if files.is_gguf:
        raise ConfigError(f"{run}: is a GGUF file; expected the folder of a run")
    base = str(files.config.get("base_model_name_or_path"))
    if files.base is not None and (base == BUNDLED or Path(base).expanduser().exists()):
        raise ConfigError(
            f"{run}: its base, {base}, is not on the hub; make a whole model of both first: "
            f"finetune merge {run} OUT, then finetune push OUT"
        )
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
