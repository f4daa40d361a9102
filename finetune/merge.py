"""`finetune merge`: converts a run with an adapter to a whole model.

Invariant: the written model answers like the run. It has all other files of the run, and its
weights in the base's types.
"""

import shutil
from pathlib import Path

import torch

from chatapp.engine.backends.head import HEAD_FILE, HEAD_WEIGHTS
from chatapp.engine.backends.transformers_loading import load_network
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.models.resolving import find_model
from finetune.config.sections import ConfigError
from finetune.training.adapters import copy_companions, require_new_folder
from finetune.training.export import whole_model
from finetune.training.record import CARD_FILE

_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def merge(run: str, out: Path) -> None:
    """Write an adapter and its base model as one whole model, with tokenizer, template and head.

    The weights are merged in float32 and written in the base's type. Raises ConfigError and
    ModelError.
    """
    files = find_model(run)
    if files.base is None:
        raise ConfigError(f"{run}: expected a run with an adapter; this is a whole model already")
    require_new_folder(out)
    model = load_network(files).to(_type_of(files.base))
    with whole_model(out) as aside:
        model.save_pretrained(aside)
        copy_companions(files, aside)
        for name in (HEAD_FILE, HEAD_WEIGHTS, CARD_FILE):
            if (files.path / name).is_file():
                shutil.copyfile(files.path / name, aside / name)


def _type_of(files: ModelFiles) -> torch.dtype:
    """The type of a model's weights; float32 if there are several, or only GGUF has it."""
    if files.is_gguf:
        return torch.float32
    types = {_TYPES.get(header.dtype, torch.float32) for header in files.headers}
    return types.pop() if len(types) == 1 else torch.float32
