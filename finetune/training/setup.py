"""From a configuration to the parts of a run: model, rows, its identifying record, and the
reference.

Invariant: two runs with equal records train on the same tokens, in the same template, on the same
objective, from the same weights. The reference is computed from the initial weights of the run,
whichever checkpoint follows.
"""

import json
import os
import platform
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from transformers import set_seed

import chatapp
from chatapp.engine.backends.encoder_decoder import EncoderDecoderModel
from chatapp.engine.backends.transformers_loading import context_of, load_network, load_one_stack
from chatapp.engine.backends.transformers_model import NetworkModel, TransformersModel
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.kernels.machine import device_for
from chatapp.engine.model import PieceTokenizer
from chatapp.engine.models.resolving import find_model
from chatapp.engine.tokenizers import chat_tokenizer
from chatapp.prompting.chat_template import ChatTemplate
from finetune.config.sections import ConfigError, FinetuneConfig
from finetune.data.preparation import choose_template
from finetune.objectives.l3 import encoder_end
from finetune.objectives.objective import (
    ModelText,
    Objective,
    RowSets,
    check_causal,
    check_head,
    check_kind,
    check_packing,
    objective_class,
)
from finetune.objectives.rewards import require_permission, withhold_code
from finetune.objectives.rows import REFERENCE_FILE, PairRows, give_reference
from finetune.training.adapters import (
    LOW_RANK,
    RoundedBase,
    choose_trained,
    fuse_activations,
    switch_off_dropout,
)


@dataclass(frozen=True, slots=True)
class RunSetup:
    """Everything that a run needs before its first step.

    files: of the named model, including an adapter's. text: the conversion of rows to its tokens.
    record: plain data that identifies this run, see `finetune.training.record`. device: for
    training, "cpu" or a GPU.
    """

    config: FinetuneConfig
    files: ModelFiles
    model: Any
    text: ModelText
    objective: Objective
    data: RowSets
    record: dict[str, Any]
    device: str

    @property
    def tokenizer(self) -> PieceTokenizer:
        return self.text.tokenizer

    @property
    def start(self) -> list[int]:
        """Special tokens before each sequence."""
        return self.text.start

    @property
    def template(self) -> ChatTemplate | None:
        """None for a head."""
        return self.text.template

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings that end a reply: the template's, and those of the objective."""
        return (*self.text.chat_template.stop, *self.config.objective.stops)

    def speaker(self) -> NetworkModel:
        """The model in training, to generate replies with."""
        kind: Any = TransformersModel
        if (end := encoder_end(self.text)) is not None:
            kind = partial(EncoderDecoderModel, end=end)
        model: NetworkModel = kind(
            self.model, self.tokenizer, name=self.config.model, start=self.start
        )
        return model

    @property
    def precision(self) -> str:
        """The precision of the products: "float32" or "bfloat16"."""
        return str(self.record["precision"])


_PACKAGES = ("torch", "transformers", "tokenizers", "peft", "accelerate")


def set_up_run(
    config: FinetuneConfig,
    device: str = "auto",
    begun: date | None = None,
    *,
    runs_code: bool = False,
) -> RunSetup:
    """Load the model and read the rows. Raises ConfigError and ModelError.

    device: as in `load_model`, except that "auto" takes a GPU for any model. begun: the day of a
    continued run, which its rows contain. runs_code: whether code named in the configuration may
    run, after asking the user.
    """
    if runs_code:
        require_permission(config)
    else:
        config = withhold_code(config)
    device, begun = training_device(device), begun or date.today()
    kind = objective_class(config)
    files = find_model(config.model)
    tokenizer, start = chat_tokenizer(files)
    if not tokenizer.names_end:
        raise ModelError(f"{config.model}: the tokenizer names no end-of-text token to teach")
    template = None
    if kind.uses_template:
        template = choose_template(config.data, files, tokenizer.special)
        template = replace(template, today=begun)
    model = _load(config, files, device)
    _check_model(config, files, model, tokenizer, template)
    fuse_activations(model)
    window = context_of(model.config) - len(start)
    text = ModelText(config.model, files, template, tokenizer, window, start)
    objective, data = kind.build(config, text)
    set_seed(config.seed)  # an adapter's first weights are drawn
    model = choose_trained(model, config.train, config.adapter, files, name=config.model)
    if not objective.dropout:
        switch_off_dropout(model, config)
    objective.extend(model, config.seed)
    record = {
        "config": config.model_dump(mode="json"),
        "folder": os.getcwd(),
        "begun": begun.isoformat(),
        "template": template.to_dict() if template else None,
        "data": data.hashes,
        "weights": files.digest(),
        "precision": products_precision(config.train.precision, device),
        "processes": processes(),
        "versions": {
            "chatapp": chatapp.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in _PACKAGES},
        },
    }
    return RunSetup(config, files, model, text, objective, data, record, device)


def _load(config: FinetuneConfig, files: ModelFiles, device: str) -> Any:
    """The model, rounded if configured. Raises ConfigError and ModelError."""
    precision, method = config.adapter.base_precision, config.train.method
    if precision == "float32":
        return load_network(files)
    if method not in LOW_RANK:
        raise ConfigError(
            f"adapter.base_precision: weights in {precision} cannot learn; train.method is "
            f"{method}, expected one of {', '.join(LOW_RANK)}"
        )
    has_bitsandbytes = device == "cuda" and find_spec("bitsandbytes") is not None
    if precision == "int4" and has_bitsandbytes and not files.whole.is_gguf:
        return _load_in_nf4(files)
    if method == "dora":
        raise ConfigError(
            f"adapter.base_precision is {precision}, and train.method dora needs the lengths of "
            "the base's columns; expected lora or rslora"
        )
    base = RoundedBase(precision, config.adapter.modules_to_save)
    model = load_one_stack(files, take=base.take)
    base.round(model)
    return model


def _load_in_nf4(files: ModelFiles) -> Any:
    from peft import prepare_model_for_kbit_training
    from transformers import BitsAndBytesConfig

    four_bits = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    model = load_one_stack(files, quantization_config=four_bits, device_map={"": 0})
    return prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)


def training_device(wanted: str) -> str:
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device_for(wanted, "float32", 0).type


def products_precision(wanted: str, device: str) -> str:
    """The precision of a run's products; for "auto" bfloat16 if it is faster.

    A CPU takes it with matrix units (AMX) alone. With vector instructions (AVX512_BF16) the gain in
    the products is lost in casting weights where all learn. LoRA on SmolLM2 takes 0.8 of the time,
    but its loss moves by 0.1 to 1 %: a user may choose that, and no default.
    """
    if wanted != "auto":
        return wanted
    if device == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    amx = device == "cpu" and torch.cpu.get_capabilities().get("amx_bf16")
    return "bfloat16" if amx else "float32"


def processes() -> int:
    """The number of processes that torchrun or accelerate started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first_process() -> bool:
    """Whether this process writes the files."""
    return os.environ.get("RANK", "0") == "0"


def _check_model(
    config: FinetuneConfig,
    files: ModelFiles,
    model: Any,
    tokenizer: PieceTokenizer,
    template: ChatTemplate | None,
) -> None:
    """Check that a model can be trained on such rows. Raises ConfigError."""
    entries = model.get_input_embeddings().weight.shape[0]
    if tokenizer.size > entries:
        raise ConfigError(
            f"{config.model}: the tokenizer has {tokenizer.size:,} tokens, the model {entries:,}"
        )
    check_kind(config, files)
    if files.is_encoder_decoder:
        return
    check_head(model)
    if files.is_masked:
        return
    check_causal(model)
    if template is not None and config.data.packing:
        check_packing(model)


def keep_reference(setup: RunSetup, folder: Path, console: Console) -> None:
    """Add the reference's log-probabilities to the rows of a run, stored in the run's folder.

    Each of several processes computes them, and the first one stores them.
    """
    data, record = setup.data, setup.record
    sets = {"train": data.train, **{f"held out, {k}": v for k, v in data.held_out.items()}}
    pairs = cast(dict[str, PairRows], sets)  # no other rows have a reference
    digest = json.dumps([record["data"], record["weights"], record["template"]])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / REFERENCE_FILE if is_first_process() else None
    setup.model.to(setup.device)
    with console.status("the reference") as status:

        def progress(done: int, total: int) -> None:
            status.update(f"log-probabilities of the reference, {done:,} of {total:,} rows")

        give_reference(setup.model, pairs, data.collate, setup.precision, progress, path, digest)
