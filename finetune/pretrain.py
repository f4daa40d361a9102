"""`finetune pretrain`: a GPT-2 from random weights on plain text and dialogues.

The objective is L1 of Radford et al. (2018): the mean negative log-likelihood of every
token given those before it, over windows packed from all documents. The run folder is a
complete model in Hugging Face layout, with the template its dialogues were rendered in.
"""

import json
import math
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
from transformers.utils import logging as transformers_logging

from chatapp.prompting.segments import END_OF_TEXT
from chatapp.prompting.template import named, save_template
from finetune.callbacks import LogCallback, ProgressCallback, StopOnNaN
from finetune.config import ConfigError, PretrainConfig
from finetune.data.corpus import (
    Ids,
    draw,
    encode_documents,
    end_id,
    is_held_out,
    pack,
    read_documents,
    train_tokenizer,
)
from finetune.initial import begin
from finetune.trainer import CheckpointingTrainer, last_checkpoint

CONFIG_FILE = "pretrain.json"


class Windows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Packed windows as Trainer wants them; every token is a label."""

    def __init__(self, ids: Ids) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.from_numpy(self.ids[index].astype(np.int64))
        return {"input_ids": ids, "labels": ids}


def pretrain(config: PretrainConfig, console: Console) -> Path:
    """Run or go on with a run; returns its folder.

    A folder that holds checkpoints of the same configuration is resumed from the last
    one; of another configuration it is refused. Raises ConfigError for wrong input.
    """
    output = Path(config.output)
    template = named(config.data.template)
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
    _claim(output, config)

    tokenizer_file = output / "tokenizer.json"
    sources = [
        (source, list(read_documents(Path(source.path), template))) for source in config.data.train
    ]
    if tokenizer_file.exists():
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
    else:
        console.print("training the tokenizer", style="dim")
        everything = (document for _, documents in sources for document in documents)
        tokenizer = train_tokenizer(everything, config.shape.vocabulary)
        tokenizer.save(str(tokenizer_file))

    train: list[Ids] = []
    held_out: list[Ids] = []
    for source, documents in sources:
        kept = [d for d in documents if not is_held_out(d, config.data.held_out)]
        encoded = encode_documents(kept, tokenizer)
        aside = [d for d in documents if is_held_out(d, config.data.held_out)]
        held_out += encode_documents(aside, tokenizer)
        drawn = draw(encoded, source.weight, config.seed)
        train += drawn
        console.print(
            f"{source.path}: {len(documents):,} documents, {sum(map(len, drawn)):,} tokens an "
            f"epoch ({source.weight:g} passes), {len(aside):,} documents held out",
            markup=False,
        )
    length = config.train.window or config.shape.positions
    windows = pack(train, length, config.seed)
    held_out_windows = pack(held_out, length, config.seed)
    if not len(windows):
        raise ConfigError(
            f"data.train: {sum(map(len, train)):,} tokens do not fill one window of {length}"
        )

    # The run has its own progress bar and its own words.
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    set_seed(config.seed)
    model = GPT2LMHeadModel(_gpt2_config(config, tokenizer))
    begin(model)
    console.print(
        f"{model.num_parameters():,} parameters, {len(windows):,} windows of "
        f"{length} tokens an epoch"
    )
    trainer = _trainer(config, model, windows, held_out_windows)
    checkpoint = last_checkpoint(output)
    if checkpoint:
        console.print(f"going on from {checkpoint.name}", style="dim")
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    _finish(output, config, trainer, tokenizer)
    save_template(template, output)
    return output


def _claim(output: Path, config: PretrainConfig) -> None:
    """Make the run folder, or see that the run in it is this one."""
    wanted = config.model_dump(exclude={"train": {"save_every", "log_every"}})
    record = output / CONFIG_FILE
    if record.exists():
        saved = json.loads(record.read_text())
        for key in wanted:
            if saved.get(key) != wanted[key]:
                raise ConfigError(
                    f"{output} holds a run with another [{key}]: {saved.get(key)!r}; "
                    "choose another output folder or remove it"
                )
    output.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(wanted, indent=2) + "\n")


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
        # Few passes over much text: dropout would only slow learning.
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
) -> CheckpointingTrainer:
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
    length = settings.window or config.shape.positions
    tokens = settings.batch_size * settings.accumulate * length
    trainer = CheckpointingTrainer(
        model=model,
        args=arguments,
        train_dataset=Windows(windows),
        eval_dataset=Windows(held_out) if len(held_out) else None,
        callbacks=[
            ProgressCallback(tokens),
            LogCallback(
                Path(config.output) / "losses.jsonl", ("loss", "learning_rate", "grad_norm")
            ),
            StopOnNaN(),
        ],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _finish(
    output: Path, config: PretrainConfig, trainer: CheckpointingTrainer, tokenizer: Tokenizer
) -> None:
    """Write the complete model: weights in float16, tokenizer, and what was measured."""
    loss = trainer.evaluate()["eval_loss"] if trainer.eval_dataset is not None else None
    trainer.model.config.use_cache = True  # off while training
    trainer.model.half().save_pretrained(output)
    end = END_OF_TEXT.text
    tokenizer_config: dict[str, Any] = {
        # The class that takes tokenizer.json as it stands; GPT2Tokenizer would put
        # GPT-2's own splitting of digits in its place.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end,
        "eos_token": end,
        "unk_token": end,
        "model_max_length": config.shape.positions,
        "clean_up_tokenization_spaces": False,
    }
    (output / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n")
    measured = {
        "steps": trainer.state.global_step,
        "held_out_loss": loss,
        "held_out_perplexity": math.exp(loss) if loss is not None else None,
    }
    (output / "result.json").write_text(json.dumps(measured, indent=2) + "\n")
