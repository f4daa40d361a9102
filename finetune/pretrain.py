"""`finetune pretrain`: a model from random weights on plain text and dialogues.

The objective is L1 of Radford et al. (2018): the mean negative log-likelihood of every token given
those before it, over windows packed from all documents; of BERT, the masked loss. The run folder is
a complete model in Hugging Face layout, with the template of its dialogues; pretrain.json in it
identifies the run.
"""

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from tokenizers import Tokenizer
from torch.utils.data import default_collate
from transformers import set_seed

from chatapp.common.userfiles import whole_file
from chatapp.engine.models.loading import load_model
from chatapp.prompting.template import ShippedTemplate, named
from finetune.config.sections import ConfigError, DocumentSource, PretrainConfig, validated
from finetune.data.batches import Shuffled, Windows
from finetune.data.corpus import (
    MASK,
    Document,
    Ids,
    cut_windows,
    document_key,
    encode_documents,
    end_id,
    in_lanes,
    read_documents,
    split_off,
    train_tokenizer,
)
from finetune.data.preparation import HELD_OUT
from finetune.data.split import draw
from finetune.measuring.learning import WINDOWS, Watch
from finetune.objectives.l3 import L3
from finetune.objectives.masked import Masked
from finetune.objectives.objective import Objective
from finetune.run import take_steps
from finetune.training.answers import read_tasks
from finetune.training.architectures import Segments, build_network, parameter_formula
from finetune.training.building import RunDisplay, check_trackers, quiet_transformers, steps_of_run
from finetune.training.checkpoints import claim, whole_model, write_pretrained
from finetune.training.loop import Loop, Plan
from finetune.training.record import (
    LOSSES_FILE,
    PRETRAIN_RECORD,
    RESULT_FILE,
    RunLog,
    check_same_configuration,
    check_unchanged,
    read_record,
    without_places,
    write_json,
    write_record,
)
from finetune.training.setup import is_first_process, processes, products_precision, training_device


def pretrain(config: PretrainConfig, console: Console) -> Path:
    """Start or continue a run; return its folder.

    A folder with checkpoints of the same configuration and documents is resumed from the last one;
    another is refused. Raises ConfigError for wrong input, NotFinite.
    """
    output = Path(config.output)
    template = named(config.data.template)
    _check(config)
    precision = products_precision(config.train.precision, training_device("auto"))
    steps = config.train.model_copy(update={"precision": precision})
    config = config.model_copy(update={"train": steps})
    sources = [
        (source, list(read_documents(Path(source.path), template))) for source in config.data.train
    ]
    with claim(output):
        _claim(output, config, {source.path: _digest(documents) for source, documents in sources})
        tokenizer = _tokenizer(output / "tokenizer.json", config, sources, console)
        windows, held_out = _windows(config, tokenizer, sources, console)

        quiet_transformers()
        set_seed(config.seed)
        model = build_network(config.shape, tokenizer.get_vocab_size(), end_id(tokenizer))
        loop = _loop(config, model, tokenizer, windows, held_out)
        save = partial(_save, config, loop, tokenizer, template)
        display = RunDisplay(
            console,
            RunLog(output / LOSSES_FILE, ("loss",)),
            f"pretraining → {output}",
            {"loss": "loss"},
            ("loss",),
            watch=_watch(config, save, held_out),
        )
        loop.answers = [*loop.answers, *_task_figures(config, save, template, held_out)]
        size = (
            f"{model.num_parameters():,} parameters, {len(windows):,} windows of "
            f"{windows.shape[1]} tokens an epoch; products in {precision}"
        )
        take_steps(loop, display, [size], "finetune pretrain, the same configuration")
        _finish(output, config, loop, template)
        return output


def _is_masked(config: PretrainConfig) -> bool:
    return config.shape.architecture == "bert"


Sources = Sequence[tuple[DocumentSource, list[Document]]]


def _check(config: PretrainConfig) -> None:
    """Refuse what cannot be trained, before the run folder is claimed. Raises ConfigError."""
    shape, window = config.shape, config.train.window
    if shape.hidden % shape.heads:
        raise ConfigError(
            f"shape.hidden is {shape.hidden}; expected a multiple of shape.heads ({shape.heads})"
        )
    if shape.architecture == "transformer-xl" and (shape.hidden % 2 or processes() > 1):
        raise ConfigError(
            "shape.architecture is transformer-xl; expected an even shape.hidden, and one process"
        )
    if window > shape.positions or window == 1:
        raise ConfigError(
            f"train.window is {window}; expected 2 to shape.positions ({shape.positions}), or 0 "
            "for as many"
        )
    metric, known = config.train.metric_for_best_model, ["loss"]
    known += [task.name for task in config.tasks]
    if metric not in known:
        raise ConfigError(f"train.metric_for_best_model is {metric}; expected {', '.join(known)}")
    if config.tasks and _is_masked(config):
        raise ConfigError("tasks are for models that reply; shape.architecture is bert")
    read_tasks(config.tasks, has_held_out=config.data.held_out > 0)
    check_trackers(config.train.report_to)


def _digest(documents: Sequence[Document]) -> str:
    """A digest of documents, segment by segment."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{len(document)}\n".encode())
        for segment in document:
            text = segment.text.encode("utf-8", "replace")
            digest.update(f"{segment.kind} {len(text)}\n".encode() + text)
    return digest.hexdigest()


_FREE_KEYS = (
    *("output", "samples"),
    *("train.save_every", "train.log_every", "train.report_to", "train.early_stop", "train.watch"),
)
"""Keys that may change in a run that is continued: none of them affects a step already taken."""


def _claim(output: Path, config: PretrainConfig, digests: Mapping[str, str]) -> None:
    """Create the run folder, or check that the run in it is this one."""
    free: tuple[str, ...] = _FREE_KEYS
    if config.train.schedule in ("wsd", "constant"):
        free += ("train.epochs", "train.max_steps")  # the steps before the decay stay as they were
    record = {
        "config": config.model_dump(mode="json"),
        "folder": os.getcwd(),
        "data": dict(digests),
        "precision": config.train.precision,
        "processes": processes(),
    }
    if (output / PRETRAIN_RECORD).exists():
        before = read_record(output, PRETRAIN_RECORD, untouched=True)
        # Validated, so that keys younger than the run have their default.
        begun = validated(PretrainConfig, before["config"], str(output / PRETRAIN_RECORD))
        check_same_configuration(output, without_places(begun), without_places(config), free)
        check_unchanged(output, before, record)
    output.mkdir(parents=True, exist_ok=True)
    write_record(output, PRETRAIN_RECORD, record)


def _tokenizer(path: Path, config: PretrainConfig, sources: Sources, console: Console) -> Tokenizer:
    """The tokenizer of the run, trained on its documents the first time."""
    if path.exists():
        return Tokenizer.from_file(str(path))
    console.print("training the tokenizer", style="dim")
    everything = (document for _, documents in sources for document in documents)
    has_mask = _is_masked(config)
    tokenizer = train_tokenizer(everything, config.shape.vocabulary, has_mask=has_mask)
    with whole_file(path) as draft:
        tokenizer.save(str(draft))
    return tokenizer


def _windows(
    config: PretrainConfig, tokenizer: Tokenizer, sources: Sources, console: Console
) -> tuple[Ids, Ids]:
    """Windows for training and for evaluation. Raises ConfigError when there is none
    for training.
    """
    train: list[Ids] = []
    held_out: list[Ids] = []
    length = config.train.window or config.shape.positions
    for source, documents in sources:
        encoded = encode_documents(documents, tokenizer)
        keys = map(document_key, documents)
        training, kept_out = split_off(encoded, keys, config.data.held_out, _LONG * length)
        held_out += kept_out
        drawn = draw(training, source.weight, config.seed)
        train += drawn
        console.print(
            f"{source.path}: {len(documents):,} documents, {sum(map(len, drawn)):,} tokens an "
            f"epoch ({source.weight:g} passes), {sum(map(len, kept_out)):,} tokens held out",
            markup=False,
        )
    windows = cut_windows(train, length, config.seed)
    if not len(windows):
        raise ConfigError(
            f"data.train: {sum(map(len, train)):,} tokens do not fill one window of {length}"
        )
    held_out_windows = cut_windows(held_out, length, config.seed)
    if config.data.held_out and not len(held_out_windows):
        console.print(
            f"nothing is measured: data.held_out = {config.data.held_out:g} holds out "
            f"{sum(map(len, held_out)):,} tokens, which do not fill one window of {length}"
        )
    return windows, held_out_windows


_MASKED = 0.15
"""The share of the tokens that a masked model predicts."""

_LONG = 10
"""A document of more windows than these is long: its own end is held out."""


Save = Callable[[Path], None]
"""Writes the whole model, with its current weights, into a folder."""


def _save(
    config: PretrainConfig,
    loop: Loop,
    tokenizer: Tokenizer,
    template: ShippedTemplate,
    folder: Path,
) -> None:
    model = loop.model
    with loop.averaged():
        halves = {name: weight.half() for name, weight in model.state_dict().items()}
        write_pretrained(folder, model, halves, config, template)
    tokenizer.save(str(folder / "tokenizer.json"))


def _task_figures(
    config: PretrainConfig, save: Save, template: ShippedTemplate, held_out: Ids
) -> list[Callable[[], dict[str, float]]]:
    """Measure the tasks of a run with the model as chats load it. Raises ConfigError."""
    if not config.tasks:
        return []
    measure = read_tasks(config.tasks, has_held_out=len(held_out) > 0)

    def figures() -> dict[str, float]:
        with TemporaryDirectory() as folder:
            save(Path(folder))
            return measure(load_model(folder), template)

    return [figures]


def _watch(config: PretrainConfig, save: Save, held_out: Ids) -> Watch | None:
    if not config.train.watch or _is_masked(config) or not is_first_process():
        return None
    samples, windows = config.samples, held_out[:WINDOWS].tolist()
    return Watch(Path(config.output), save, windows, samples.prompts, samples.max_tokens)


def _loop(
    config: PretrainConfig, model: Any, tokenizer: Tokenizer, windows: Ids, held_out: Ids
) -> Loop:
    """The loop of the architecture. Raises ConfigError for too little text."""
    settings, seed = config.train, config.seed
    objective: Objective = L3(aux_weight=0.0)  # the L2 of every token is L1
    order = Shuffled(len(windows), seed)
    if _is_masked(config):
        mask, vocabulary = tokenizer.token_to_id(MASK), tokenizer.get_vocab_size()
        assert mask is not None, "a masked model's vocabulary is made with it"
        special = frozenset({mask, end_id(tokenizer)})
        objective = Masked(_MASKED, seed, mask, special, vocabulary)
    if config.shape.architecture == "transformer-xl":
        objective, windows = Segments(aux_weight=0.0), in_lanes(windows, settings.batch_size)
        order = Shuffled(len(windows), None)  # each batch continues the one before it
        if not len(windows):
            raise ConfigError("data.train: there are fewer windows than train.batch_size")
    steps = steps_of_run(settings, len(windows))
    loop = Loop(
        model,
        objective,
        Windows(windows),
        order,
        default_collate,
        settings=settings,
        plan=Plan(
            output=Path(config.output),
            steps=steps,
            warmup=ceil(settings.warmup * steps),
            device=training_device("auto"),
            precision=settings.precision,
            seed=seed,
            log_every=settings.log_every,
            measure_every=settings.save_every if len(held_out) else 0,
            save_every=settings.save_every,
            metric=settings.metric_for_best_model,
            figures=("loss",),
            beta2=0.99,
            average=settings.ema,
            counts_steps=True,
        ),
        held_out={HELD_OUT: Windows(held_out)} if len(held_out) else {},
    )
    if isinstance(objective, Segments) and len(held_out):
        measure = partial(objective.loss_with_memory, loop.called, held_out, settings.batch_size)
        loop.answers = [lambda: {"memory_loss": measure()}]
    return loop


def _finish(
    output: Path,
    config: PretrainConfig,
    loop: Loop,
    template: ShippedTemplate,
) -> None:
    """Write the complete model: weights in float16, tokenizer, template, and its held-out loss.

    With early_stop, or the figure of a task that selects them, the weights are those of the best
    measurement.
    """
    selects = config.train.early_stop or config.train.metric_for_best_model != "loss"
    best = loop.load_best() if selects else loop.progress.step
    loss = loop.evaluate()["eval_loss"] if loop.held_out else None
    if not is_first_process():
        return
    with loop.averaged(), whole_model(output) as aside:
        write_pretrained(aside, loop.model.half(), None, config, template)
    result = {
        "steps": loop.progress.step,
        "best_step": best,
        "parameters": loop.model.num_parameters(),
        "formula": parameter_formula(config.shape, loop.model.config.vocab_size),
        "held_out_loss": loss,
        "held_out_perplexity": math.exp(loss) if loss is not None else None,
    }
    write_json(output / RESULT_FILE, result)
