"""A trained model into its run folder or a checkpoint, complete: weights, tokenizer, template.

Keep: everything is written aside first, and config.json (or the adapter's) is moved in last, so
a folder that looks like a model is one.
"""

import json
import os
import shutil
from pathlib import Path

from chatapp.common.paths import CHAT_TEMPLATE
from chatapp.common.userfiles import read_json_object
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ADAPTER_CONFIG, CONFIG
from chatapp.models.resolving import BUNDLED
from chatapp.prompting.chat_template import Template
from chatapp.prompting.template import DialogueTemplate, as_jinja, save_template
from finetune.training.adapters import copy_companions
from finetune.training.checkpoints import flush
from finetune.training.run_setup import Material
from finetune.training.trainer import ObjectiveTrainer


def publish(material: Material, trainer: ObjectiveTrainer, output: Path) -> None:
    """Write the model as it is now; called by all processes, files come from the first."""
    aside = output / "unfinished"
    if trainer.is_world_process_zero():
        shutil.rmtree(aside, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    # Training had it off; whoever loads the model wants the cache.
    material.model.config.use_cache = True
    trainer.save_model(str(aside))
    if trainer.is_world_process_zero():
        # Neither is of use to a reader: a pickle, and peft's blank model card.
        for name in ("training_args.bin", "README.md"):
            (aside / name).unlink(missing_ok=True)
        complete(material, aside)
        files = sorted(aside.iterdir(), key=lambda path: path.name in (CONFIG, ADAPTER_CONFIG))
        for file in files:
            flush(file)
            os.replace(file, output / file.name)
        flush(output)
        aside.rmdir()
    trainer.accelerator.wait_for_everyone()


def complete(material: Material, folder: Path) -> None:
    """Put tokenizer and template beside the weights that were written into a folder."""
    copy_companions(material.files, folder)
    if material.template:
        start = "".join(map(material.tokenizer.piece, material.start))
        save_chat(material.template, folder, start)
    if (folder / ADAPTER_CONFIG).exists():
        _name_base(folder / ADAPTER_CONFIG, material)


def save_chat(template: Template, folder: Path, start: str = "") -> None:
    """Write the template of a run into a folder; one of our own also in Jinja, in which other
    programs chat. start: see `as_jinja`."""
    save_template(template, folder)
    if isinstance(template, DialogueTemplate):
        (folder / CHAT_TEMPLATE).write_text(as_jinja(template, start), encoding="utf-8")


def _name_base(path: Path, material: Material) -> None:
    """Let the adapter name its base model as the user did, files by their absolute path."""
    name = material.config.model
    if name != BUNDLED and Path(name).expanduser().exists():
        name = str(material.files.path.absolute())
    config = read_json_object(path, ModelError)
    config["base_model_name_or_path"] = name
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
