"""The held-out figure by which a run keeps its best weights, where its loss does not tell it.

Keep: answers are made by the code that `finetune eval` and `finetune predict` make them by.
"""

from collections.abc import Callable
from itertools import islice
from typing import cast

from chatapp.engine.backends.head import HeadModel
from chatapp.engine.backends.transformers_model import TransformersModel
from chatapp.evaluation.metrics import exact_match
from finetune.config.sections import ConfigError, Metric
from finetune.data.packing import Rows
from finetune.data.preparation import HELD_OUT
from finetune.objectives.grpo import Grpo
from finetune.objectives.head_rows import HeadRows
from finetune.objectives.heads import HeadObjective, head_figures
from finetune.objectives.l3 import L3
from finetune.training.run_setup import RunSetup
from finetune.training.sample_replies import greedy_replies, questions

Figures = Callable[[], dict[str, float]]

REPLIES = 100
"""Held-out rows that are replied to, at most."""


def metrics_of(setup: RunSetup) -> tuple[Metric, ...]:
    """Those that a run can be measured by."""
    objective = setup.objective
    if isinstance(objective, Grpo):
        return ("loss",)  # minus the mean reward
    if not isinstance(objective, HeadObjective):
        is_supervised = isinstance(objective, L3)
        return ("loss", "accuracy", "exact_match") if is_supervised else ("loss", "accuracy")
    spec = objective.spec
    if spec.scale:
        return "loss", "pearson", "spearman"
    return ("loss", "accuracy", "macro_f1") if spec.labels else ("loss", "accuracy")


def best_figure(setup: RunSetup) -> Figures | None:
    """What computes train.metric_for_best_model; None where the objective's own metrics have it.

    Raises ConfigError for a metric that there is not.
    """
    metric, known = setup.config.train.metric_for_best_model, metrics_of(setup)
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
        return _exact_match(setup, cast(Rows, rows))
    return _of_head(setup, cast(HeadRows, rows), metric)


def _exact_match(setup: RunSetup, rows: Rows) -> Figures:
    assert setup.template is not None
    template, longest = setup.template, setup.config.samples.max_tokens
    model = TransformersModel(
        setup.model, setup.tokenizer, name=setup.config.model, start=setup.start
    )
    found = questions(rows.examples, setup.tokenizer, model.context, len(setup.start))
    asked = list(islice(found, REPLIES))
    if not asked:
        raise ConfigError("train.metric_for_best_model is exact_match, but no held-out row asks")

    def figures() -> dict[str, float]:
        setup.model.eval()
        model.forget()
        prompts = [each.ids for each in asked]
        replies = [each.text for each in greedy_replies(model, template.stop, prompts, longest)]
        model.forget()
        return {"exact_match": exact_match(replies, [each.reference for each in asked])}

    return figures


def _of_head(setup: RunSetup, rows: HeadRows, metric: str) -> Figures:
    assert isinstance(setup.objective, HeadObjective)
    spec, model = setup.objective.spec, setup.model
    head = HeadModel(
        setup.config.model,
        setup.files.path,
        spec,
        model,
        model.task_head,
        setup.tokenizer,
        setup.start,
    )

    def figures() -> dict[str, float]:
        outputs = head.outputs([each.sequences for each in rows.examples])
        return {metric: head_figures(spec, outputs, rows.examples)[metric]}

    return figures
