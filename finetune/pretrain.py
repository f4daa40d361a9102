"""`finetune pretrain`: a GPT-2 from random weights on plain text and dialogues.

The objective is L1 of Radford et al. (2018): the mean negative log-likelihood of every token given
those before it, over windows packed from all documents. The run folder is a complete model in
Hugging Face layout, with the template of its dialogues. pretrain.json in it identifies the run: the
configuration without keys that change no step, and under `digests` the digest (SHA-256) of each
source's documents.

Invariant: a run is continued only with the same configuration on the same documents.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from tokenizers import Tokenizer
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PrinterCallback,
    TrainingArguments,
    set_seed,
)

from chatapp.common.userfiles import read_json_object, whole_file
from chatapp.prompting.messages import END_OF_TEXT
from chatapp.prompting.template import DialogueTemplate, named
from finetune.config.sections import ConfigError, PretrainConfig, Source, validated
from finetune.data.corpus import (
    Document,
    Ids,
    cut_windows,
    document_key,
    encode_documents,
    end_id,
    read_documents,
    train_tokenizer,
)
from finetune.data.tables import draw, is_held_out
from finetune.training.callbacks import RunCallback
from finetune.training.checkpoints import last_checkpoint
from finetune.training.export import save_chat, whole_model
from finetune.training.initial_weights import begin
from finetune.training.record import RESULT_FILE, RunLog, check_same_data, write_json
from finetune.training.trainer import FiniteTrainer
from finetune.training.trainer_factory import quiet_transformers

CONFIG_FILE = "pretrain.json"
LOSSES_FILE = "losses.jsonl"


class Windows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Packed windows as Trainer requires them; every token is a label."""

    def __init__(self, ids: Ids) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.from_numpy(self.ids[index].astype(np.int64))
        return {"input_ids": ids, "labels": ids}


def pretrain(config: PretrainConfig, console: Console) -> Path:
    """Start or continue a run; return its folder.

    A folder with checkpoints of the same configuration and documents is resumed from the last one;
    another is refused. Raises ConfigError for wrong input, NotFinite.
    """
    output = Path(config.output)
    template = named(config.data.template)
    _check_shape(config)
    sources = [
        (source, list(read_documents(Path(source.path), template))) for source in config.data.train
    ]
    _claim(output, config, {source.path: _digest(documents) for source, documents in sources})
    tokenizer = _tokenizer(output / "tokenizer.json", config, sources, console)
    windows, held_out = _windows(config, tokenizer, sources, console)

    quiet_transformers()
    set_seed(config.seed)
    model = GPT2LMHeadModel(_gpt2_config(config, tokenizer))
    begin(model)
    console.print(
        f"{model.num_parameters():,} parameters, {len(windows):,} windows of "
        f"{windows.shape[1]} tokens an epoch"
    )
    trainer = _trainer(config, model, windows, held_out)
    checkpoint = last_checkpoint(output)
    if checkpoint:
        console.print(f"resuming from {checkpoint.name}", style="dim")
    display = RunCallback(
        console,
        RunLog(output / LOSSES_FILE, ("loss",)),
        f"pretraining → {output}",
        trainer,
        {"loss": "loss"},
        ("loss",),
    )
    trainer.add_callback(display)
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    finally:
        display.stop()
    _finish(output, config, trainer, tokenizer, template)
    return output


Sources = Sequence[tuple[Source, list[Document]]]


def _check_shape(config: PretrainConfig) -> None:
    if config.shape.hidden % config.shape.heads:
        raise ConfigError(
            f"shape.hidden is {config.shape.hidden}; expected a multiple of shape.heads "
            f"({config.shape.heads})"
        )
    if config.train.window > config.shape.positions or config.train.window == 1:
        raise ConfigError(
            f"train.window is {config.train.window}; expected 2 to shape.positions "
            f"({config.shape.positions}), or 0 for as many"
        )


def _digest(documents: Sequence[Document]) -> str:
    """A digest of documents, segment by segment."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{len(document)}\n".encode())
        for segment in document:
            text = segment.text.encode("utf-8", "replace")
            digest.update(f"{segment.kind} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def _claim(output: Path, config: PretrainConfig, digests: Mapping[str, str]) -> None:
    """Create the run folder, or check that the run in it is this one."""
    free = {"train": {"save_every", "log_every"}}
    wanted = config.model_dump(exclude=free)
    record = output / CONFIG_FILE
    if record.exists():
        saved = read_json_object(record, ConfigError)
        # Validated, so that keys younger than the run have their default.
        keys = {key: saved[key] for key in wanted if key in saved}
        begun = validated(PretrainConfig, keys, str(record)).model_dump(exclude=free)
        for key in wanted:
            if begun[key] != wanted[key]:
                raise ConfigError(
                    f"{output} holds a run with another [{key}]: {begun[key]!r}; "
                    "choose another output folder or remove it"
                )
        if "digests" in saved:  # not recorded by the first versions
            check_same_data(output, saved["digests"], dict(digests))
    output.mkdir(parents=True, exist_ok=True)
    write_json(record, {**wanted, "digests": digests})


def _tokenizer(path: Path, config: PretrainConfig, sources: Sources, console: Console) -> Tokenizer:
    """The tokenizer of the run, trained on its documents the first time."""
    if path.exists():
        return Tokenizer.from_file(str(path))
    console.print("training the tokenizer", style="dim")
    everything = (document for _, documents in sources for document in documents)
    tokenizer = train_tokenizer(everything, config.shape.vocabulary)
    with whole_file(path) as draft:
        tokenizer.save(str(draft))
    return tokenizer


def _windows(
    config: PretrainConfig, tokenizer: Tokenizer, sources: Sources, console: Console
) -> tuple[Ids, Ids]:
    """Windows for training and for evaluation. Raises ConfigError when there is none
    for training."""
    train: list[Ids] = []
    held_out: list[Ids] = []
    for source, documents in sources:
        training, kept_out = _split(documents, config.data.held_out)
        held_out += encode_documents(kept_out, tokenizer)
        drawn = draw(encode_documents(training, tokenizer), source.weight, config.seed)
        train += drawn
        console.print(
            f"{source.path}: {len(documents):,} documents, {sum(map(len, drawn)):,} tokens an "
            f"epoch ({source.weight:g} passes), {len(kept_out):,} documents held out",
            markup=False,
        )
    length = config.train.window or config.shape.positions
    windows = cut_windows(train, length, config.seed)
    if not len(windows):
        raise ConfigError(
            f"data.train: {sum(map(len, train)):,} tokens do not fill one window of {length}"
        )
    return windows, cut_windows(held_out, length, config.seed)


def _split(documents: Sequence[Document], share: float) -> tuple[list[Document], list[Document]]:
    """Documents for training, and held-out ones."""
    sides: tuple[list[Document], list[Document]] = ([], [])
    for document in documents:
        sides[is_held_out(document_key(document), share)].append(document)
    return sides


def _gpt2_config(config: PretrainConfig, tokenizer: Tokenizer) -> GPT2Config:
    end = end_id(tokenizer)
    return GPT2Config(
        vocab_size=tokenizer.get_vocab_size(),
        n_positions=config.shape.positions,
        n_embd=config.shape.hidden,
        n_layer=config.shape.layers,
        n_head=config.shape.heads,
        # GPT-2's own function, in one operation where "gelu_new" takes eight.
        activation_function="gelu_pytorch_tanh",
        # Few passes over much text: dropout would only slow down learning.
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=end,
        eos_token_id=end,
    )


def _trainer(
    config: PretrainConfig,
    model: GPT2LMHeadModel,
    windows: Ids,
    held_out: Ids,
) -> FiniteTrainer:
    settings = config.train
    on_gpu = torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=config.output,
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.05},
        warmup_steps=settings.warmup,
        weight_decay=settings.weight_decay,
        adam_beta2=0.99,
        max_grad_norm=1.0,
        bf16=settings.precision == "bfloat16",
        use_cpu=not on_gpu,
        logging_steps=settings.log_every,
        eval_strategy="steps" if len(held_out) else "no",
        eval_steps=settings.save_every,
        save_steps=settings.save_every,
        save_total_limit=2,
        disable_tqdm=True,
        report_to="none",
        seed=config.seed,
        dataloader_pin_memory=on_gpu,
    )
    trainer = FiniteTrainer(
        optimizer_name=settings.optimizer,
        model=model,
        args=arguments,
        train_dataset=Windows(windows),
        eval_dataset=Windows(held_out) if len(held_out) else None,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _finish(
    output: Path,
    config: PretrainConfig,
    trainer: FiniteTrainer,
    tokenizer: Tokenizer,
    template: DialogueTemplate,
) -> None:
    """Write the complete model: weights in float16, tokenizer, template, and its held-out loss."""
    loss = trainer.evaluate()["eval_loss"] if trainer.eval_dataset is not None else None
    trainer.model.config.use_cache = True  # off during training
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
    with whole_model(output) as aside:
        trainer.model.half().save_pretrained(aside)
        write_json(aside / "tokenizer_config.json", tokenizer_config)
        save_chat(template, aside)
    result = {
        "steps": trainer.state.global_step,
        "held_out_loss": loss,
        "held_out_perplexity": math.exp(loss) if loss is not None else None,
    }
    write_json(output / RESULT_FILE, result)
