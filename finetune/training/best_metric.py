"""The held-out figure by which a run selects its best weights, if the loss does not give it.

Invariant: answers come from the same code as in `finetune eval` and `finetune predict`.
"""

from collections.abc import Callable
from itertools import islice

from chatapp.engine.backends.transformers_model import TransformersModel
from chatapp.evaluation.metrics import exact_match
from finetune.config.sections import ConfigError
from finetune.data.batches import TrainingRows
from finetune.data.preparation import HELD_OUT
from finetune.training.run_setup import RunSetup
from finetune.training.sample_replies import greedy_replies

Figures = Callable[[], dict[str, float]]

REPLIES = 100
"""The most held-out rows that get replies."""


def best_figure(setup: RunSetup) -> Figures | None:
    """Computes train.metric_for_best_model; None if the objective's own metrics include it.

    Raises ConfigError for an unknown metric.
    """
    metric, known = setup.config.train.metric_for_best_model, setup.objective.best_metrics
    if metric not in known:
        raise ConfigError(
            f"train.metric_for_best_model is {metric}, which this run does not have; expected "
            f"{', '.join(known)}"
        )
    held_out = setup.data.held_out
    if metric in ("loss", "accuracy") or not held_out:
        return None
    rows = held_out.get(HELD_OUT) or next(iter(held_out.values()))
    if metric == "exact_match":
        return _exact_match(setup, rows)

    def figures() -> dict[str, float]:
        return {metric: setup.objective.answer_figures(setup.model, rows, setup.text)[metric]}

    return figures


def _exact_match(setup: RunSetup, rows: TrainingRows) -> Figures:
    model = TransformersModel(
        setup.model, setup.tokenizer, name=setup.config.model, start=setup.start
    )
    asks = setup.objective.questions(rows, setup.tokenizer, model.context, len(setup.start))
    questions = list(islice(asks, REPLIES))
    if not questions:
        raise ConfigError("train.metric_for_best_model is exact_match, but no held-out row asks")
    longest = setup.config.samples.max_tokens

    def figures() -> dict[str, float]:
        setup.model.eval()
        model.forget()
        prompts = [question.ids for question in questions]
        replies = [reply.text for reply in greedy_replies(model, setup.stops, prompts, longest)]
        model.forget()
        return {"exact_match": exact_match(replies, [question.reference for question in questions])}

    return figures
