"""Checkpoints and models that are complete or absent.

Invariant: a folder named checkpoint-N is complete. It is written elsewhere and renamed, so a killed
process or a full disk leaves the last one untouched. Of a model, config.json (or the adapter's) is
moved in last, so a folder that looks like a model is one.
"""

import os
import random
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import (
    DistributedType,
    load_fsdp_model,
    load_fsdp_optimizer,
    save_fsdp_model,
    save_fsdp_optimizer,
)
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from transformers.trainer_pt_utils import safe_globals

from chatapp.common.foreign import parse_json
from chatapp.common.paths import CHAT_TEMPLATE
from chatapp.common.userfiles import (
    UserError,
    locked,
    open_regular,
    read_json_object,
    read_regular,
    reason,
    write_whole,
)
from chatapp.engine.errors import first_line
from chatapp.engine.files.model_files import ADAPTER_CONFIG, CONFIG
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.messages import END_OF_TEXT
from chatapp.prompting.template import ShippedTemplate, as_jinja, save_template
from finetune.config.sections import ConfigError, PretrainConfig
from finetune.data.corpus import MASK
from finetune.objectives.objective import Objective, has_adapter
from finetune.training.record import write_json
from finetune.training.setup import is_first_process

_KEPT = 2
"""The last checkpoints that stay."""

# Free bytes of a disk that counts as full.
_NO_ROOM = 2**24


OPTIMIZER_FILE = "optimizer.pt"

LOCK_FILE = ".lock"
"""Held by the process that writes a run; deleted at its end."""

_INSTEAD = "remove {} to continue from the checkpoint before it"
_NUMBERED = re.compile(r"checkpoint-\d+")

UNFINISHED = "unfinished"
"""The folder, within a run's, in which models and checkpoints are written before they are moved."""


class SaveError(OSError):
    """A checkpoint could not be written. The one before it is complete."""


@contextmanager
def whole_checkpoint(
    final: Path, accelerator: Accelerator, step: int, best: int | None
) -> Iterator[Path]:
    """A folder for the files of a checkpoint, which is flushed to the disk and renamed when the
    block has ended in all processes. The last `_KEPT` stay, and the one of the best step.

    final: the folder of the run. Raises SaveError.
    """
    aside, name = final / UNFINISHED, f"checkpoint-{step}"
    if accelerator.is_main_process:
        shutil.rmtree(aside, ignore_errors=True)
        (aside / name).mkdir(parents=True)
    accelerator.wait_for_everyone()
    try:
        yield aside / name
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            for file in (aside / name).rglob("*"):
                if file.is_file():
                    flush(file)
            shutil.rmtree(final / name, ignore_errors=True)
            (aside / name).rename(final / name)
            flush(final)
            aside.rmdir()
    except Exception as error:  # torch and safetensors have their own for a full disk
        reason = _reason(error, final)
        shutil.rmtree(aside, ignore_errors=True)
        last = last_checkpoint(final)
        raise SaveError(
            f"{final}: the checkpoint of step {step} could not be written: {reason}; "
            f"{last.name + ' is whole' if last else 'there is none yet'}"
        ) from error
    if accelerator.is_main_process:
        for old in checkpoints_of(final)[:-_KEPT]:
            if old.name != f"checkpoint-{best}":
                shutil.rmtree(old)
    accelerator.wait_for_everyone()


@dataclass(frozen=True, slots=True)
class Learner:
    """A model in training, and its optimizer; all processes call its methods.

    called: the model as it is called, which may be wrapped for several processes.
    """

    model: Any
    called: Any
    optimizer: Any
    objective: Objective
    accelerator: Accelerator

    @property
    def is_sharded(self) -> bool:
        """Whether each process has only a part of the weights."""
        return bool(self.accelerator.distributed_type == DistributedType.FSDP)

    def _adds(self, name: str) -> bool:
        """Whether a tensor is of the module that the objective adds."""
        added = self.objective.added
        return bool(added) and name.startswith(f"{added}.")

    def save_weights(self, folder: Path) -> None:
        """Write the model's own weights in its files, and the objective's module beside them."""
        added = self.objective.added
        state = self.accelerator.get_state_dict(self.called) if self.is_sharded else None
        if added:
            state = self.model.state_dict() if state is None else state
            state = {key: value for key, value in state.items() if not self._adds(key)}
        if self.accelerator.is_main_process:
            with warnings.catch_warnings():
                # A base that is a GGUF file has none; it is read only for a resized vocabulary.
                warnings.filterwarnings("ignore", "Could not find a config file")
                self.model.save_pretrained(folder, state_dict=state)
            self.objective.save(self.model, folder)

    def save_optimizer(self, folder: Path) -> None:
        """Write the state of the optimizer; of a sharded model also its weights by their shards."""
        if self.is_sharded:
            place = self.accelerator.state.fsdp_plugin, self.accelerator
            adapter = has_adapter(self.model)
            save_fsdp_model(*place, self.called, str(folder), adapter_only=adapter)
            save_fsdp_optimizer(*place, self.optimizer, self.called, str(folder))
        elif self.accelerator.is_main_process:
            torch.save(self.optimizer.state_dict(), folder / OPTIMIZER_FILE)

    def load_weights(self, folder: Path) -> None:
        """Read the weights of a checkpoint."""
        model = self.model
        if self.is_sharded:
            place = self.accelerator.state.fsdp_plugin, self.accelerator
            load_fsdp_model(*place, self.called, str(folder), adapter_only=has_adapter(model))
        elif has_adapter(model):
            model.load_adapter(str(folder), model.active_adapter, is_trainable=True)
        else:
            own = model.state_dict()
            left_out = set(model._keys_to_ignore_on_save or ())
            wanted = {name: weight for name, weight in own.items() if name not in left_out}
            missing = {weight.data_ptr() for name, weight in wanted.items() if not self._adds(name)}
            for file in sorted(folder.glob("model*.safetensors")):
                weights = load_file(file)
                if not weights.keys() <= own.keys():  # transformers stores some by older names
                    again, report = type(model).from_pretrained(
                        folder, use_safetensors=True, output_loading_info=True
                    )
                    drawn = report["missing_keys"]  # at random, because the files lack them
                    weights = {n: w for n, w in again.state_dict().items() if n not in drawn}
                model.load_state_dict(weights, strict=False)  # tied ones are stored once
                missing -= {own[name].data_ptr() for name in weights if name in own}
            if missing:
                raise ValueError("it does not have all weights")
        self.objective.load(model, folder)

    def load_optimizer(self, folder: Path) -> None:
        """Read what `save_optimizer` wrote of the optimizer."""
        if self.is_sharded:
            place = self.accelerator.state.fsdp_plugin, self.accelerator
            load_fsdp_optimizer(*place, self.optimizer, self.called, str(folder))
            return
        state = torch.load(folder / OPTIMIZER_FILE, map_location="cpu", weights_only=True)
        settings = [{**group, "params": None} for group in self.optimizer.param_groups]
        for group, own in zip(state["param_groups"], settings, strict=True):
            group.update({**own, "params": group["params"]})  # the run's, whatever stands there
        self.optimizer.load_state_dict(state)
        for weight, kept in self.optimizer.state.items():
            if any(value.dim() and value.shape != weight.shape for value in kept.values()):
                raise ValueError("the optimizer's state has other shapes")


def save_random_state(folder: Path, accelerator: Accelerator) -> None:
    """Write the state of every generator that this process draws from."""
    states = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.random.get_rng_state(),
    }
    if accelerator.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(accelerator.device)
    torch.save(states, _random_file(folder, accelerator))


def load_random_state(folder: Path, accelerator: Accelerator) -> None:
    """Read what `save_random_state` wrote."""
    with safe_globals():
        states = torch.load(_random_file(folder, accelerator), weights_only=True)
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.random.set_rng_state(states["cpu"])
    if accelerator.device.type == "cuda" and "cuda" in states:
        here = states["cuda"]  # of all devices, in checkpoints of older versions
        here = here[accelerator.local_process_index] if isinstance(here, list) else here
        torch.cuda.set_rng_state(here, accelerator.device)


def _random_file(folder: Path, accelerator: Accelerator) -> Path:
    process = f"_{accelerator.process_index}" if accelerator.num_processes > 1 else ""
    return folder / f"rng_state{process}.pth"


def checkpoints_of(folder: Path) -> list[Path]:
    """The checkpoints of a run, the oldest first; a folder with another name is not ours."""
    found = [path for path in folder.glob("checkpoint-*") if _NUMBERED.fullmatch(path.name)]
    return sorted((path for path in found if path.is_dir()), key=step_of)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run, or None."""
    return next(reversed(checkpoints_of(folder)), None)


def check_whole(checkpoint: Path) -> None:
    """Read the files of a checkpoint. Raises ConfigError that names a damaged one."""
    if not any(checkpoint.glob("optimizer*")):
        raise ConfigError(
            f"{checkpoint}: the state of the optimizer is not kept with it; train another run from "
            "it as a model"
        )
    for file in sorted(checkpoint.iterdir()):
        try:
            match file.suffix:
                case ".json":
                    parse_json(read_regular(file))
                case ".safetensors":
                    with open_regular(file), safe_open(file, "pt"):
                        pass
                case ".pt" | ".pth":
                    with open_regular(file) as opened, ZipFile(opened) as archive:
                        if damaged := archive.testzip():
                            raise BadZipFile(f"{damaged} does not match its checksum")
        except (OSError, ValueError, BadZipFile, SafetensorError) as error:
            raise ConfigError(
                f"{file}: is damaged: {reason(error)}; {_INSTEAD.format(checkpoint.name)}"
            ) from None


@contextmanager
def fits(checkpoint: Path) -> Iterator[None]:
    """Raises ConfigError for whatever goes wrong in the block, where a whole checkpoint is read."""
    try:
        yield
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # torch, peft and the optimizers have many for a state of another
        has_code = isinstance(error, UnpicklingError)  # whose words advise to run it
        why = "it has objects that no checkpoint has" if has_code else first_line(error)
        raise ConfigError(
            f"{checkpoint}: is not of this run: {why}; {_INSTEAD.format(checkpoint.name)}"
        ) from None


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Hold the folder of a run, which is made if need be, until the block ends or the process does.

    Of several processes of one run the first holds it. Raises ConfigError when another run does.
    """
    if not is_first_process():
        yield
        return
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder / LOCK_FILE, 0.0))
        except TimeoutError:
            raise ConfigError(f"{folder}: another process is writing this run") from None
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from None
        yield


def drop_optimizer_states(folder: Path) -> None:
    """Remove the optimizer states of a finished run, which are twice the size of its model, except
    the last, from which it can be continued.
    """
    for checkpoint in checkpoints_of(folder)[:-1]:
        (checkpoint / OPTIMIZER_FILE).unlink(missing_ok=True)


def _reason(error: Exception, folder: Path) -> str:
    """Why a file could not be written, in words; torch reports a full disk in its own."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if shutil.disk_usage(folder).free < _NO_ROOM:
        return "the disk is full"
    return first_line(error)


def step_of(checkpoint: Path) -> int:
    """The number in its name."""
    return int(checkpoint.name.rpartition("-")[2])


def flush(path: Path) -> None:
    """Flush a file or folder to the disk."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def save_chat(template: ChatTemplate, folder: Path, start: str = "") -> None:
    """Write the template of a run into a folder; one of our own also in Jinja, for chats in other
    programs. start: see `as_jinja`.
    """
    save_template(template, folder)
    if isinstance(template, ShippedTemplate):
        write_whole(folder / CHAT_TEMPLATE, as_jinja(template, start))


def write_pretrained(
    folder: Path,
    model: Any,
    weights: Mapping[str, torch.Tensor] | None,
    config: PretrainConfig,
    template: ShippedTemplate,
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
