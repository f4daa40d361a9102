"""`finetune eval`: what a model makes of rows it was not trained on, one model or two.

Keep: a model is measured in its own template with its own tokenizer, and replies
are made by the code that chats.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from chatapp.dialogue.template_choice import own_template
from chatapp.engine.folder import ModelFiles, find_model, model_folder
from chatapp.engine.load import load_model
from chatapp.engine.tokenizer_files import chat_tokenizer
from chatapp.engine.transformers_model import context_of, load_causal
from chatapp.evaluation.metrics import exact_match, macro_f1, rouge_l
from finetune.config import ConfigError, Data, FinetuneConfig, validated
from finetune.data.batches import ByLength, TrainingRows, collate, loader
from finetune.data.encoding import Encoded
from finetune.data.packing import Rows
from finetune.data.preparation import HELD_OUT, choose_template, prepare
from finetune.display import one_line
from finetune.objectives.chat_rows import with_start
from finetune.objectives.head_module import Classifier, load_head
from finetune.objectives.head_rows import HEAD_FILE, HeadRows, prepare_labelled
from finetune.objectives.l3 import L3
from finetune.record import RECORD_FILE, read_record
from finetune.replies import Reply, greedy_reply, questions

BATCH = 8
Progress = Callable[[str, int, int], None]
"""Told what is done, how many of it, and of how many."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy reply beside what the row has."""

    prompt: str
    reference: str
    reply: Reply

    def document(self) -> dict[str, str]:
        """Plain data for --json; an error only where the reply failed."""
        plain = {"prompt": self.prompt, "reference": self.reference, "reply": self.reply.text}
        return plain | ({"error": self.reply.error} if self.reply.error else {})


@dataclass(frozen=True, slots=True)
class Measured:
    """A model on one set of rows. figures: by name; losses in nats a token."""

    examples: int
    figures: dict[str, float]
    answers: list[Answer] = field(default_factory=list)

    @property
    def failed(self) -> list[Answer]:
        """The answers whose generation broke off, which no figure counts."""
        return [answer for answer in self.answers if answer.reply.error]

    def document(self) -> dict[str, Any]:
        """Plain data for --json."""
        return {
            "examples": self.examples,
            **self.figures,
            **({"failed_replies": len(self.failed)} if self.failed else {}),
            "replies": [answer.document() for answer in self.answers],
        }


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A model on every set."""

    model: str
    template: str
    sets: dict[str, Measured]

    def document(self) -> dict[str, Any]:
        """Plain data for --json."""
        return {
            "model": self.model,
            "template": self.template,
            "sets": {name: measured.document() for name, measured in self.sets.items()},
        }


def evaluate(
    model: str,
    source: str,
    data_file: str,
    replies: int,
    max_tokens: int,
    progress: Progress,
    device: str = "auto",
) -> Evaluation:
    """Measure a model in its own template; one that has none, in that of the run.

    source: the run whose held-out rows are used when there is no `data_file`.
    replies: how many greedy replies a set, of at most `max_tokens` tokens.
    device: as in `load_model`.
    Raises ConfigError and ModelError.
    """
    files = find_model(model)
    folder = files.path
    config = _configuration(source, data_file)
    if (folder / HEAD_FILE).is_file():
        return _evaluate_head(model, files, config, bool(data_file), progress)
    if config.head:
        raise ConfigError(f"{model} has no head; {source} has one for {config.head.task}")
    tokenizer, start = chat_tokenizer(files)
    special = tokenizer.special
    template = own_template(folder, special) or choose_template(config.data, folder, special)
    network = load_causal(files)
    window = context_of(network.config) - len(start)
    data = config.data.model_copy(update={"max_length": None})
    prepared = prepare(data, template, tokenizer, window, config.seed, start)
    sets: Mapping[str, list[Encoded]] = prepared.held_out
    if data_file:
        sets = {Path(data_file).name: prepared.train}
    if not sets:
        raise ConfigError(f"{source}: the run held no rows out; name rows with --data")
    speaker = load_model(model, device=device) if replies else None
    on_gpu = device != "cpu" and torch.cuda.is_available()
    network.to("cuda" if on_gpu else "cpu").eval()
    measured = {}
    for name, examples in sets.items():
        figures = _losses(network, with_start(examples, start), tokenizer.end_id, name, progress)
        asked = islice(questions(examples, tokenizer, window), replies)
        answers: list[Answer] = []
        for question in asked:
            assert speaker is not None
            progress(f"replies, {name}", len(answers), min(replies, len(examples)))
            reply = greedy_reply(speaker, template, question.ids, max_tokens)
            answers.append(Answer(question.text, question.reference, reply))
        measured[name] = Measured(len(examples), figures | _scores(answers), answers)
    return Evaluation(model, template.name, measured)


def _scores(answers: Sequence[Answer]) -> dict[str, float]:
    """Exact match and ROUGE-L of the replies that came to an end."""
    whole = [answer for answer in answers if not answer.reply.error]
    if not whole:
        return {}
    texts, references = [a.reply.text for a in whole], [a.reference for a in whole]
    return {"exact_match": exact_match(texts, references), "rouge_l": rouge_l(texts, references)}


def _configuration(source: str, data_file: str) -> FinetuneConfig:
    """The run's own configuration; with a data file, its rows in place of the run's."""
    folder = model_folder(source)
    if (folder / RECORD_FILE).is_file():
        config = validated(FinetuneConfig, read_record(folder)["config"], str(folder / RECORD_FILE))
    elif data_file:
        config = validated(FinetuneConfig, {"output": "-", "data": {"train": data_file}}, source)
    else:
        raise ConfigError(f"{source} is no run of finetune; name rows with --data")
    if not data_file:
        return config
    kept = {key: getattr(config.data, key) for key in ("too_long", "template")}
    data = Data.model_validate({"train": data_file, "held_out": 0.0, **kept})
    return config.model_copy(update={"data": data})


@torch.inference_mode()
def _losses(
    model: Any, examples: list[Encoded], pad_id: int, name: str, progress: Progress
) -> dict[str, float]:
    """Loss, perplexity and accuracy over all response tokens."""
    rows, objective = Rows(examples, "prompt"), L3(aux_weight=0.0)
    batches = loader(rows, ByLength(rows.lengths), BATCH, partial(collate, pad_id=pad_id))
    counts = objective.count(batches)
    total = torch.zeros(len(objective.names), dtype=torch.float64)
    for number, batch in enumerate(batches):
        progress(f"loss, {name}", number * BATCH, len(rows))
        here = {key: value.to(model.device) for key, value in batch.items()}
        total += objective.losses(model, model, here, counts, 0.0).cpu()
    metrics = objective.metrics(dict(zip(objective.names, total.tolist(), strict=True)), 0.0)
    return {"token_accuracy" if key == "accuracy" else key: metrics[key] for key in metrics}


def _evaluate_head(
    model: str, files: ModelFiles, config: FinetuneConfig, all_rows: bool, progress: Progress
) -> Evaluation:
    """Accuracy, macro-F1 and loss of a head, beside the share of the most frequent label."""
    if config.head is None:
        raise ConfigError(f"{model} has a head; compare it with another head's run")
    tokenizer, start = chat_tokenizer(files)
    network = load_causal(files)
    spec = load_head(network, files.path)
    window = context_of(network.config) - len(start)
    head = config.head.model_copy(update={"labels": list(spec.labels)})
    _, prepared = prepare_labelled(
        config.model_copy(update={"head": head}), tokenizer, window, start
    )
    sets = {HELD_OUT: prepared.train} if all_rows else prepared.held_out
    if not sets:
        raise ConfigError(f"{model}: the run held no rows out; name rows with --data")
    classifier = Classifier(network, spec, tokenizer, start, window + len(start))
    return Evaluation(
        model,
        f"head: {spec.task}",
        {name: _measure_head(classifier, rows, name, progress) for name, rows in sets.items()},
    )


def _measure_head(
    classifier: Classifier, rows: TrainingRows, name: str, progress: Progress
) -> Measured:
    assert isinstance(rows, HeadRows)
    losses, answers, golds = [], [], []
    for number, example in enumerate(rows.examples):
        progress(f"labels, {name}", number, len(rows))
        probabilities = classifier.probabilities(example)
        losses.append(-float(np.log(max(probabilities[example.label], 1e-30))))
        answers.append(str(int(np.argmax(probabilities))))
        golds.append(str(example.label))
    figures = {
        "loss": fmean(losses),
        "accuracy": fmean(a == g for a, g in zip(answers, golds, strict=True)),
        "majority": max(map(golds.count, set(golds))) / len(golds),
    }
    if classifier.spec.labels:  # the choices of multiple choice have no names in common
        figures["macro_f1"] = macro_f1(answers, golds)
    return Measured(len(rows), figures)


def show(evaluations: Sequence[Evaluation], replies: int) -> RenderableType:
    """Tables of one model, or of two side by side, with some of their replies."""
    parts: list[RenderableType] = []
    for name in evaluations[0].sets:
        columns = [(each, each.sets[name]) for each in evaluations if name in each.sets]
        parts.append(_figures(name, columns))
        for evaluation, measured in columns:
            if measured.failed:
                reason = f"not scored, failed: {measured.failed[0].reply.error}"
                parts.append(
                    Text(one_line(f"{evaluation.model}: {len(measured.failed):,} replies {reason}"))
                )
        for number in range(min(replies, *(len(each.answers) for _, each in columns))):
            parts += [_replies(number, columns), Text("")]
    return Group(*parts)


Columns = Sequence[tuple[Evaluation, Measured]]
"""The models that have a set of rows, and what was measured of each."""


def _figures(name: str, columns: Columns) -> Table:
    first = columns[0][1]
    table = Table(title=Text(one_line(f"{name}: {first.examples:,} rows")))
    table.add_column("")
    for evaluation, _ in columns:
        label = Text(one_line(f"{evaluation.model} ({evaluation.template})"))
        table.add_column(label, justify="right")
    for figure in first.figures:
        cells = (each.figures.get(figure) for _, each in columns)
        table.add_row(
            figure.replace("_", " "), *("" if cell is None else f"{cell:.4f}" for cell in cells)
        )
    return table


def _replies(number: int, columns: Columns) -> Table:
    """One prompt, the row's answer, and each model's."""
    first = columns[0][1].answers[number]
    block = Table.grid(padding=(0, 1))
    block.add_column()
    block.add_column(overflow="fold")
    block.add_row(Text("prompt", "dim"), Text(one_line(first.prompt), "bold"))
    block.add_row(Text("row", "dim"), Text(one_line(first.reference), "green"))
    for evaluation, measured in columns:
        reply = Text(one_line(str(measured.answers[number].reply)))
        block.add_row(Text(one_line(evaluation.model), "dim"), reply)
    return block
