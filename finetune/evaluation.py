"""`finetune eval`: evaluates one model or several on rows that they were not trained on."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from chatapp.common.paths import RUN_RECORD
from chatapp.dialogue.writers.choosing import own_template
from chatapp.engine.backends.head import HEAD_FILE, REWARD, HeadSpec
from chatapp.engine.backends.transformers_loading import context_of, load_network, read_config
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import LanguageModel
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import find_model, model_folder
from chatapp.engine.tokenizers import chat_tokenizer
from chatapp.tasks.metrics import estimate
from finetune.config.sections import ConfigError, FinetuneConfig, TrainSource, lay_over, validated
from finetune.data.preparation import LONGEST, choose_template
from finetune.measuring.results import SCORES, GreedyAnswer, ModelResult, SetResult
from finetune.objectives.objective import Evaluator, ModelText, RowPrompt, objective_class
from finetune.training.answers import greedy_replies
from finetune.training.record import begun_on, configuration_of, read_record

Progress = Callable[[str, int, int], None]
"""Called with the current work, the finished number, and the total."""


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """A model with its rows.

    evaluator: evaluates it. sets: rows by name. left_out: the number of rows per set that another
    model cannot hold.
    """

    files: ModelFiles
    evaluator: Evaluator
    sets: Mapping[str, Sequence[Any]]
    left_out: Mapping[str, int]

    @property
    def name(self) -> str:
        return self.evaluator.text.name


def open_evaluated(
    model: str, run: str, data_file: str = "", overrides: Sequence[str] = ()
) -> EvaluatedModel:
    """Open a model in its own template; without one, in that of the run.

    run: its held-out rows are used when there is no `data_file`; the file is read with the settings
    of its rows. overrides: key=value of its data and head. Rows that another model than the run
    cannot hold are left out, not refused. Raises ConfigError and ModelError.
    """
    files = find_model(model)
    tokenizer, start = chat_tokenizer(files)
    window = context_of(read_config(files)) - len(start)
    config = _configuration(run, data_file, overrides)
    if model != run:  # the same rows, as far as its window holds them
        data = config.data
        changes = {
            "max_length": min(window, data.max_length or LONGEST),
            "too_long": "drop" if data.too_long == "raise" else data.too_long,
        }
        config = config.model_copy(update={"data": data.model_copy(update=changes)})
    kind = objective_class(config)
    template = None
    if kind.uses_template:
        template = own_template(files, tokenizer.special)
        template = template or choose_template(config.data, files, tokenizer.special)
        template = replace(template, today=_begun(run) or date.today())
    text = ModelText(model, files, template, tokenizer, window, start)
    evaluator = kind.evaluator(config, text)
    train, held_out = evaluator.read_rows()
    sets = {Path(data_file).name: train} if data_file else held_out
    if not sets:
        raise ConfigError(f"{run}: the run held no rows out; name rows with --data")
    return EvaluatedModel(files, evaluator, sets, {})


def on_shared_rows(candidates: Sequence[EvaluatedModel]) -> list[EvaluatedModel]:
    """Restrict the models to the rows that each of them holds completely, in the same order."""
    shared: dict[str, Collection[str]] = {}
    left_out = {}
    for name in candidates[0].sets:
        if all(name in candidate.sets for candidate in candidates):
            keys = [{row.key for row in candidate.sets[name]} for candidate in candidates]
            whole = [
                {row.key for row in s.sets[name] if s.evaluator.is_whole(row)} for s in candidates
            ]
            shared[name] = set.intersection(*whole)
            left_out[name] = len(set.union(*keys)) - len(shared[name])
    shared = {name: keys for name, keys in shared.items() if keys}
    if not shared:
        names = " and ".join(candidate.name for candidate in candidates)
        raise ConfigError(f"there is no row that {names} can both hold")
    return [
        replace(
            candidate,
            left_out=left_out,
            sets={
                name: [row for row in candidate.sets[name] if row.key in keys]
                for name, keys in shared.items()
            },
        )
        for candidate in candidates
    ]


def _configuration(run: str, data_file: str, overrides: Sequence[str]) -> FinetuneConfig:
    """The run's own configuration; with a data file, its rows instead of the run's."""
    folder = model_folder(run)
    if (folder / RUN_RECORD).is_file():
        config = configuration_of(folder, read_record(folder))
    elif data_file:
        bare = {"output": "-", "data": {"train": data_file}, **_head_of(folder)}
        config = validated(FinetuneConfig, bare, run)
    else:
        raise ConfigError(f"{run} is not a run of finetune; name rows with --data")
    if data_file:
        source = {**_common(config.data.train), "path": data_file}
        rows = {
            "train": [TrainSource.model_validate(source)],
            "held_out": 0.0,
            "held_out_clusters": [],
        }
        config = config.model_copy(update={"data": config.data.model_copy(update=rows)})
    for override in overrides:
        if not override.startswith(("data.", "head.")):
            raise ConfigError(f"{override!r}: eval takes keys of data and head alone")
    return lay_over(config, overrides)


def _head_of(folder: Path) -> dict[str, Any]:
    """The sections of a configuration that stand for the head of a merged model, if it has one.

    Raises ModelError.
    """
    if not (folder / HEAD_FILE).is_file():
        return {}
    spec = HeadSpec.load(folder)
    if spec.task == REWARD:
        return {"objective": {"kind": "reward"}}
    kind = "regression" if spec.scale else "single_label_classification"
    head: dict[str, Any] = {"task": spec.task, "problem_type": kind, "labels": list(spec.labels)}
    return {"head": head | ({"delimiter": spec.delimiter} if spec.delimiter else {})}


def _begun(run: str) -> date | None:
    folder = model_folder(run)
    return begun_on(read_record(folder)) if (folder / RUN_RECORD).is_file() else None


def _common(sources: Sequence[TrainSource]) -> dict[str, Any]:
    """The settings for rows on which all sources agree."""
    first, *others = (source.model_dump(include={"columns", "template"}) for source in sources)
    return {
        key: value for key, value in first.items() if all(other[key] == value for other in others)
    }


def evaluate(
    model: str,
    source: str,
    data_file: str,
    replies: int,
    max_tokens: int,
    progress: Progress,
    device: str = "auto",
    overrides: Sequence[str] = (),
) -> ModelResult:
    """Evaluate a model in its own template; without one, in that of the run.

    source, data_file, overrides: see `open_evaluated`. replies: number of greedy replies per set,
    of at most `max_tokens` tokens. device: as in `load_model`. Raises ConfigError and ModelError.
    """
    candidate = open_evaluated(model, source, data_file, overrides)
    return _evaluate(candidate, replies, max_tokens, progress, device)


def compare(
    models: Sequence[str],
    data_file: str,
    replies: int,
    max_tokens: int,
    progress: Progress,
    device: str = "auto",
    overrides: Sequence[str] = (),
) -> list[ModelResult]:
    """Evaluate models on the rows of the first one that fit all of them; else like `evaluate`."""
    candidates = [open_evaluated(model, models[0], data_file, overrides) for model in models]
    if len(candidates) > 1:
        candidates = on_shared_rows(candidates)
    evaluations = []
    for candidate in candidates:

        def named(what: str, done: int, total: int, name: str = candidate.name) -> None:
            progress(f"{name}: {what}", done, total)

        evaluations.append(_evaluate(candidate, replies, max_tokens, named, device))
    return evaluations


def _evaluate(
    candidate: EvaluatedModel, replies: int, max_tokens: int, progress: Progress, device: str
) -> ModelResult:
    evaluator, text = candidate.evaluator, candidate.evaluator.text
    network = load_network(candidate.files)
    evaluator.extend(network)
    on_gpu = device != "cpu" and torch.cuda.is_available()
    network.to("cuda" if on_gpu else "cpu").eval()
    questions = {
        name: list(islice(evaluator.questions(rows), replies))
        for name, rows in candidate.sets.items()
    }
    speaker = load_model(text.name, device=device) if any(questions.values()) else None
    results = {}
    for name, rows in candidate.sets.items():

        def tell(what: str, done: int, name: str = name, total: int = len(rows)) -> None:
            progress(f"{what}, {name}", done, total)

        figures = evaluator.measure(network, rows, tell)
        answers = []
        if speaker is not None:
            tell_reply = partial(progress, f"replies, {name}")
            answers = _answers(candidate, speaker, questions[name], max_tokens, tell_reply)
        scores, intervals = _scores(answers)
        results[name] = SetResult(
            len(rows),
            figures.values | scores,
            answers,
            figures.intervals | intervals,
            candidate.left_out.get(name, 0),
            figures.predictions,
        )
    # A head's figures are per row, not per token, so tokenizers may differ.
    pieces = map(text.tokenizer.piece, range(text.tokenizer.size)) if text.template else ()
    return ModelResult(text.name, evaluator.title, results, hash(tuple(pieces)))


def _answers(
    candidate: EvaluatedModel,
    speaker: LanguageModel,
    questions: Sequence[RowPrompt],
    max_tokens: int,
    tell: Callable[[int, int], None],
) -> list[GreedyAnswer]:
    """Greedy replies to questions, with the rows' own."""
    evaluator = candidate.evaluator
    stop = (*evaluator.text.chat_template.stop, *evaluator.config.objective.stops)
    replies = greedy_replies(speaker, stop, (prompt.ids for prompt in questions), max_tokens)
    answers: list[GreedyAnswer] = []
    for question, reply in zip(questions, replies, strict=True):
        tell(len(answers), len(questions))
        answers.append(GreedyAnswer(question.text, question.reference, reply))
    return answers


def _scores(
    answers: Sequence[GreedyAnswer],
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Exact match and ROUGE-L of the finished replies, and their intervals."""
    whole = [answer for answer in answers if not answer.reply.error]
    if not whole:
        return {}, {}
    texts, references = [a.reply.text for a in whole], [a.reference for a in whole]
    estimates = {measure: estimate(measure, [texts], references) for measure in SCORES}
    return (
        {name: estimate.mean for name, estimate in estimates.items()},
        {name: estimate.interval for name, estimate in estimates.items()},
    )
