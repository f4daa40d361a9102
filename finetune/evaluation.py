"""`finetune eval`: what a model makes of rows it was not trained on, one model or two.

Keep: a model is measured in its own template with its own tokenizer, and replies
are made by the code that chats.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, cast

import torch

from chatapp.engine.backends.head import HeadModel, HeadSpec
from chatapp.engine.backends.transformers_loading import load_causal
from chatapp.engine.model import PieceTokenizer
from chatapp.evaluation.metrics import estimate
from chatapp.models.loading import load_model
from chatapp.prompting.files.promptfile import Measure
from finetune.config.objectives import GrpoSettings, L3Settings
from finetune.data.batches import ByLength, collate, loader
from finetune.data.encoding import Encoded
from finetune.data.packing import Rows, response_labels
from finetune.data.preferences import EncodedJudged
from finetune.measuring.evaluated_models import Subject, on_shared_rows, open_subject
from finetune.measuring.preference_metrics import Judge, preferred
from finetune.measuring.results import Answer, Evaluation, Measured
from finetune.objectives.head_rows import HeadExample
from finetune.objectives.heads import Output, answer_document, head_figures, load_head
from finetune.objectives.l3 import L3
from finetune.objectives.rows import with_start
from finetune.training.sample_replies import greedy_replies, questions, stops

BATCH = 8
STRETCH = 256
Progress = Callable[[str, int, int], None]
"""Told what is done, how many of it, and of how many."""

_SCORES: tuple[Measure, ...] = ("exact_match", "rouge_l")


def evaluate(
    model: str,
    source: str,
    data_file: str,
    replies: int,
    max_tokens: int,
    progress: Progress,
    device: str = "auto",
    overrides: Sequence[str] = (),
) -> Evaluation:
    """Measure a model in its own template; one that has none, in that of the run.

    source, data_file, overrides: see `open_subject`.
    replies: how many greedy replies a set, of at most `max_tokens` tokens.
    device: as in `load_model`.
    Raises ConfigError and ModelError.
    """
    subject = open_subject(model, source, data_file, overrides)
    return _evaluate(subject, replies, max_tokens, progress, device)


def compare(
    models: Sequence[str],
    data_file: str,
    replies: int,
    max_tokens: int,
    progress: Progress,
    device: str = "auto",
    overrides: Sequence[str] = (),
) -> list[Evaluation]:
    """Measure models on the rows of the first one that all can hold; else as `evaluate`."""
    subjects = [open_subject(model, models[0], data_file, overrides) for model in models]
    if len(subjects) > 1:
        subjects = on_shared_rows(subjects)
    return [
        _evaluate(subject, replies, max_tokens, partial(_named, progress, subject.name), device)
        for subject in subjects
    ]


def _named(progress: Progress, name: str, what: str, done: int, total: int) -> None:
    progress(f"{name}: {what}", done, total)


def _evaluate(
    subject: Subject, replies: int, max_tokens: int, progress: Progress, device: str
) -> Evaluation:
    if subject.head is not None and subject.head.task != "reward":
        return _evaluate_head(subject, progress, device)
    network = load_causal(subject.files)
    if subject.head is not None:
        load_head(network, subject.files.path)
        replies = 0
    assert subject.template is not None
    speaker = load_model(subject.name, device=device) if replies else None
    on_gpu = device != "cpu" and torch.cuda.is_available()
    network.to("cuda" if on_gpu else "cpu").eval()
    measured = {}
    for name, rows in subject.sets.items():
        examples, figures, known = _measured_rows(subject, network, name, progress)
        answers: list[Answer] = []
        if speaker is not None:
            asked = list(islice(questions(examples, subject.tokenizer, subject.window), replies))
            prompts = (question.ids for question in asked)
            stop = stops(subject.template, subject.config.objective)
            made = greedy_replies(speaker, stop, prompts, max_tokens)
            for question, reply in zip(asked, made, strict=True):
                progress(f"replies, {name}", len(answers), len(asked))
                answers.append(Answer(question.text, question.reference, reply))
        scores, intervals = _scores(answers)
        left_out = subject.left_out.get(name, 0)
        intervals = known | intervals
        measured[name] = Measured(len(rows), figures | scores, answers, intervals, left_out)
    return Evaluation(subject.name, subject.template.name, measured, _vocabulary(subject.tokenizer))


def _measured_rows(
    subject: Subject, network: Any, name: str, progress: Progress
) -> tuple[list[Encoded], dict[str, float], dict[str, tuple[float, float]]]:
    """The rows that can be asked again, and the figures of a set with their intervals."""
    rows = subject.sets[name]
    if isinstance(subject.config.objective, L3Settings | GrpoSettings):
        examples = cast(list[Encoded], list(rows))
        return examples, _losses(network, examples, subject, name, progress), {}
    judged = cast(list[EncodedJudged], list(rows))
    judge = Judge(subject.config, subject.tokenizer.end_id, subject.start)

    def tell(what: str, done: int) -> None:
        progress(f"{what}, {name}", done, len(rows))

    made = judge.rows_of(judged, partial(tell, "the reference"))
    figures, intervals = judge.figures(network, judged, made, partial(tell, "pairs"))
    return preferred(judged), figures, intervals


def _scores(
    answers: Sequence[Answer],
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Exact match and ROUGE-L of the replies that came to an end, and their intervals."""
    whole = [answer for answer in answers if not answer.reply.error]
    if not whole:
        return {}, {}
    texts, references = [a.reply.text for a in whole], [a.reference for a in whole]
    found = {measure: estimate(measure, [texts], references) for measure in _SCORES}
    return (
        {name: each.mean for name, each in found.items()},
        {name: each.interval for name, each in found.items()},
    )


@torch.inference_mode()
def _losses(
    model: Any, examples: Sequence[Encoded], subject: Subject, name: str, progress: Progress
) -> dict[str, float]:
    """Loss, perplexity and accuracy over all response tokens, and the loss a byte of replies."""
    rows, objective = Rows(with_start(list(examples), subject.start), "prompt"), L3(aux_weight=0.0)
    pad = partial(collate, pad_id=subject.tokenizer.end_id)
    batches = loader(rows, ByLength(rows.lengths), BATCH, pad)
    counts = objective.count(batches, model, model)
    total = torch.zeros(len(objective.names), dtype=torch.float64)
    for number, batch in enumerate(batches):
        progress(f"loss, {name}", number * BATCH, len(rows))
        here = {key: value.to(model.device) for key, value in batch.items()}
        total += objective.losses(model, model, here, counts, 0.0).cpu()
    metrics = objective.metrics(dict(zip(objective.names, total.tolist(), strict=True)), 0.0)
    size = sum(_reply_bytes(each, subject.tokenizer) for each in examples)
    figures = {"token_accuracy" if key == "accuracy" else key: metrics[key] for key in metrics}
    return figures | {"loss_per_byte": figures["loss"] * float(counts[0]) / max(1, size)}


def _reply_bytes(example: Encoded, tokenizer: PieceTokenizer) -> int:
    learnt = example.ids[response_labels(example)].tolist()
    return len(tokenizer.decode(learnt).strip().encode())


def _vocabulary(tokenizer: PieceTokenizer) -> int:
    """Equal for tokenizers that have the same pieces."""
    return hash(tuple(tokenizer.piece(id) for id in range(tokenizer.size)))


def _evaluate_head(subject: Subject, progress: Progress, device: str) -> Evaluation:
    """Accuracy, macro-F1 and loss of a head, beside the share of the most frequent label."""
    head = HeadModel.load(subject.name, subject.files, device)
    measured = {}
    for name, rows in subject.sets.items():
        examples = cast(Sequence[HeadExample], rows)
        outputs = _outputs(head, examples, name, progress)
        measured[name] = Measured(
            len(rows),
            head_figures(head.spec, outputs, examples),
            left_out=subject.left_out.get(name, 0),
            predictions=[
                {**_gold(head.spec, example), **answer_document(head.spec, output)}
                for example, output in zip(examples, outputs, strict=True)
            ],
        )
    return Evaluation(subject.name, f"head: {head.spec.task}", measured)


def _gold(spec: HeadSpec, example: HeadExample) -> dict[str, str | float]:
    return {"label": spec.labels[int(example.label)] if spec.labels else example.label}


def _outputs(
    head: HeadModel, examples: Sequence[HeadExample], name: str, progress: Progress
) -> list[Output]:
    outputs: list[Output] = []
    for start in range(0, len(examples), STRETCH):
        progress(f"labels, {name}", start, len(examples))
        outputs += head.outputs([each.sequences for each in examples[start : start + STRETCH]])
    return outputs
