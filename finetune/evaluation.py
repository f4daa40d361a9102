"""`finetune eval`: what a model makes of rows it was not trained on, one model or two.

Keep: a model is measured in its own template with its own tokenizer, and replies
are made by the code that chats.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

import torch

from chatapp.engine.backends.transformers_loading import load_causal
from chatapp.engine.model import LanguageModel, PieceTokenizer
from chatapp.evaluation.metrics import estimate
from chatapp.models.loading import load_model
from chatapp.prompting.files.promptfile import Measure
from finetune.measuring.evaluated_models import Subject, on_shared_rows, open_subject
from finetune.measuring.results import Answer, Evaluation, Measured
from finetune.objectives.objective import Question
from finetune.training.sample_replies import greedy_replies

Progress = Callable[[str, int, int], None]
"""Called with what is done, how many of it, and of how many."""

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
    evaluator, text = subject.evaluator, subject.evaluator.text
    network = load_causal(subject.files)
    evaluator.extend(network)
    on_gpu = device != "cpu" and torch.cuda.is_available()
    network.to("cuda" if on_gpu else "cpu").eval()
    questions = {
        name: list(islice(evaluator.questions(rows), replies))
        for name, rows in subject.sets.items()
    }
    speaker = load_model(text.name, device=device) if any(questions.values()) else None
    measured = {}
    for name, rows in subject.sets.items():

        def tell(what: str, done: int, name: str = name, total: int = len(rows)) -> None:
            progress(f"{what}, {name}", done, total)

        figures = evaluator.measure(network, rows, tell)
        answers = []
        if speaker is not None:
            tell_reply = partial(progress, f"replies, {name}")
            answers = _answers(subject, speaker, questions[name], max_tokens, tell_reply)
        scores, intervals = _scores(answers)
        measured[name] = Measured(
            len(rows),
            figures.values | scores,
            answers,
            figures.intervals | intervals,
            subject.left_out.get(name, 0),
            figures.predictions,
        )
    # A head's figures are a row's, not a token's, so models may cut text as they like.
    vocabulary = _vocabulary(text.tokenizer) if text.template else 0
    return Evaluation(text.name, evaluator.title, measured, vocabulary)


def _answers(
    subject: Subject,
    speaker: LanguageModel,
    questions: Sequence[Question],
    max_tokens: int,
    tell: Callable[[int, int], None],
) -> list[Answer]:
    """Greedy replies to questions, beside the rows' own."""
    evaluator = subject.evaluator
    stop = (*evaluator.text.chat_template.stop, *evaluator.config.objective.stops)
    replies = greedy_replies(speaker, stop, (each.ids for each in questions), max_tokens)
    answers: list[Answer] = []
    for question, reply in zip(questions, replies, strict=True):
        tell(len(answers), len(questions))
        answers.append(Answer(question.text, question.reference, reply))
    return answers


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


def _vocabulary(tokenizer: PieceTokenizer) -> int:
    """Equal for tokenizers that have the same pieces."""
    return hash(tuple(tokenizer.piece(id) for id in range(tokenizer.size)))
