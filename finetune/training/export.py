"""Writes a complete model into a folder: weights, tokenizer, template.

Invariant: everything is written elsewhere first, and config.json (or the adapter's) is moved in
last, so a folder that looks like a model is one.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from chatapp.common.paths import CHAT_TEMPLATE
from chatapp.common.userfiles import read_json_object, write_whole
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ADAPTER_CONFIG, CONFIG
from chatapp.engine.models.resolving import BUNDLED
from chatapp.prompting.chat_template import Template
from chatapp.prompting.messages import END_OF_TEXT
from chatapp.prompting.template import DialogueTemplate, as_jinja, save_template
from finetune.config.sections import ConfigError, PretrainConfig
from finetune.data.corpus import MASK
from finetune.training.adapters import copy_companions
from finetune.training.checkpoints import UNFINISHED, flush
from finetune.training.loop import Loop
from finetune.training.record import write_json
from finetune.training.setup import RunSetup


def publish(setup: RunSetup, loop: Loop, output: Path) -> None:
    """Write the model; called by all processes, the first one writes the files."""
    is_first = loop.accelerator.is_main_process
    with whole_model(output) if is_first else nullcontext(output / UNFINISHED) as aside:
        loop.accelerator.wait_for_everyone()
        # Training works without the cache; other programs need it.
        setup.model.config.use_cache = True
        loop.learner.save_weights(aside)
        if is_first:
            (aside / "README.md").unlink(missing_ok=True)  # peft's model card, which is blank
            complete(setup, aside)
    loop.accelerator.wait_for_everyone()


@contextmanager
def whole_model(output: Path) -> Iterator[Path]:
    """A temporary folder for the files of a model, which move into `output` when the block has
    ended, the config last. After an error none has moved.
    """
    aside = output / UNFINISHED
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        for file in sorted(aside.iterdir(), key=lambda path: path.name in (CONFIG, ADAPTER_CONFIG)):
            flush(file)
            os.replace(file, output / file.name)
        flush(output)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def complete(setup: RunSetup, folder: Path) -> None:
    """Add tokenizer and template to the weights in a folder."""
    copy_companions(setup.files, folder)
    if setup.template:
        start = "".join(map(setup.tokenizer.piece, setup.start))
        save_chat(setup.template, folder, start)
    if (folder / ADAPTER_CONFIG).exists():
        _name_base(folder / ADAPTER_CONFIG, setup)


def save_chat(template: Template, folder: Path, start: str = "") -> None:
    """Write the template of a run into a folder; one of our own also in Jinja, for chats in other
    programs. start: see `as_jinja`.
    """
    save_template(template, folder)
    if isinstance(template, DialogueTemplate):
        write_whole(folder / CHAT_TEMPLATE, as_jinja(template, start))


def write_pretrained(
    folder: Path,
    model: Any,
    weights: Mapping[str, torch.Tensor] | None,
    config: PretrainConfig,
    template: DialogueTemplate,
) -> None:
    """Write a model's files except the tokenizer's own. weights: in place of the model's."""
    end = END_OF_TEXT.text
    tokenizer_config: dict[str, Any] = {
        # The class that uses tokenizer.json unchanged; GPT2Tokenizer would replace its splitting of
        # digits by GPT-2's.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end,
        "eos_token": end,
        "unk_token": end,
        "model_max_length": config.shape.positions,
        "clean_up_tokenization_spaces": False,
    }
    if config.shape.architecture == "bert":
        tokenizer_config |= {"mask_token": MASK, "cls_token": end, "sep_token": end}
    model.save_pretrained(folder, state_dict=weights)
    settings = read_json_object(folder / CONFIG, ConfigError)
    # Training works without the cache; other programs need it.
    write_json(folder / CONFIG, settings | {"use_cache": True, "dtype": "float16"})
    write_json(folder / "tokenizer_config.json", tokenizer_config)
    save_chat(template, folder)


def _name_base(path: Path, setup: RunSetup) -> None:
    """Store the user's name of the base model in the adapter, files by their absolute path."""
    name = setup.config.model
    if name != BUNDLED and Path(name).expanduser().exists():
        name = str(setup.files.path.absolute())
    config = read_json_object(path, ModelError)
    config["base_model_name_or_path"] = name
    write_json(path, config)
