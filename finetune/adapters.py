"""What of a model is trained, and adapters: made, merged.

Keep: every parameter outside the chosen part has requires_grad off, so that the optimizer, the
checkpoint and the count of trained parameters agree on what is learned.
"""

import shutil
import warnings
from pathlib import Path
from typing import Any

from torch import nn
from transformers.activations import NewGELUActivation
from transformers.pytorch_utils import Conv1D

from chatapp.engine.checkpoint import ADAPTER_CONFIG, CONFIG
from chatapp.engine.load import base_folder, model_folder
from chatapp.engine.transformers_model import load_weights, merge_adapter
from finetune.config import Adapter, ConfigError, Train

LOW_RANK = ("lora", "dora", "rslora")


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds a PEFT adapter and no whole model."""
    return (folder / ADAPTER_CONFIG).is_file() and not (folder / CONFIG).is_file()


def load_causal(folder: Path) -> Any:
    """A causal language model in float32; an adapter is merged into its base model.

    Raises ModelError.
    """
    if is_adapter(folder):
        return merge_adapter(load_weights(base_folder(folder)), folder)
    return load_weights(folder)


def choose_trained(model: Any, train: Train, adapter: Adapter, *, base: str) -> Any:
    """The model with only the chosen part trainable; of a low-rank method, wrapped by peft.

    base: the model's name. Raises ConfigError.
    """
    if train.method in LOW_RANK:
        return _with_adapter(model, train, adapter, base)
    # All of it: the base of a merged adapter comes frozen.
    model.requires_grad_(train.method == "full")
    if train.method == "full":
        return model
    if train.method == "embeddings-and-head":
        parts = [model.get_input_embeddings(), model.get_output_embeddings()]
    else:
        blocks, after = _blocks(model)
        if train.last_blocks > len(blocks):
            raise ConfigError(
                f"train.last_blocks is {train.last_blocks}; the model has {len(blocks)} blocks"
            )
        parts = [*blocks[-train.last_blocks :], *after]
    for part in parts:
        part.requires_grad_(True)
    return model


def fuse_activations(model: nn.Module) -> None:
    """Compute GPT-2's GELU in one kernel: the same function, and one tensor kept, not eight."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))


def trained_parameters(model: nn.Module) -> int:
    """How many numbers are learned; tied ones count once."""
    return sum(each.numel() for each in model.parameters() if each.requires_grad)


def _with_adapter(model: Any, train: Train, adapter: Adapter, base: str) -> Any:
    import peft

    folder = model_folder(base)
    if is_adapter(folder):
        raise ConfigError(
            f"train.method is {train.method}, but {base} is an adapter already: merge it first "
            f"(finetune merge {base} OUT) and train on OUT"
        )
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules="all-linear",
        # GPT-2's linear layers hold their weights as (in, out).
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
        use_dora=train.method == "dora",
        use_rslora=train.method == "rslora",
    )
    with warnings.catch_warnings():
        # peft asks transformers by names that are about to go.
        warnings.simplefilter("ignore", FutureWarning)
        wrapped = peft.get_peft_model(model, settings)
    # While it is saved, peft would ask a hub about any other name.
    wrapped.peft_config["default"].base_model_name_or_path = str(folder.absolute())
    return wrapped


def _blocks(model: Any) -> tuple[nn.ModuleList, list[nn.Module]]:
    """The decoder's blocks, first to last, and the modules that come after them."""
    decoder = model.get_decoder()
    children = list(decoder.children())
    count = model.config.get_text_config().num_hidden_layers
    for place, child in enumerate(children):
        if isinstance(child, nn.ModuleList) and len(child) == count:
            return child, [
                each for each in children[place + 1 :] if next(each.parameters(), None) is not None
            ]
    raise ConfigError(
        f"train.method last-blocks: no list of {count} blocks was found in a "
        f"{model.config.model_type} model"
    )


def merge(run: str, out: Path) -> None:
    """Write an adapter and its base model as one whole model, with tokenizer and template.

    Raises ConfigError and ModelError.
    """
    folder = model_folder(run)
    if not is_adapter(folder):
        raise ConfigError(f"{run}: expected a run with an adapter; this is a whole model already")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: exists already; name a new folder")
    model = load_causal(folder)
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    copy_companions(base_folder(folder), out)
    copy_companions(folder, out)


def copy_companions(source: Path, target: Path) -> None:
    """Copy what a model folder has beside config and weights: tokenizer, template, card."""
    companions = ("tokenizer*", "vocab.*", "merges.txt", "encoder.json", "special_tokens_map.json")
    others = ("*.model", "added_tokens.json", "generation_config.json", "chatapp_template.json")
    for pattern in (*companions, *others):
        for file in source.glob(pattern):
            shutil.copyfile(file, target / file.name)
