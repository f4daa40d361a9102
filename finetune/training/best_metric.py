"""The held-out figure by which a run keeps its best weights, where its loss does not tell it.

Keep: answers are made by the code that `finetune eval` and `finetune predict` make them by.
"""

from collections.abc import Callable
from itertools import islice
from typing import cast

from chatapp.engine.backends.transformers_model import TransformersModel
from chatapp.evaluation.metrics import exact_match
from finetune.config.sections import ConfigError, Metric
from finetune.data.packing import Rows
from finetune.data.preparation import HELD_OUT
from finetune.objectives.grpo import Grpo
from finetune.objectives.head_rows import HeadRows
from finetune.objectives.heads import Classifier, HeadObjective, head_figures
from finetune.objectives.l3 import L3
from finetune.training.run_setup import Material
from finetune.training.sample_replies import greedy_replies, questions

Figures = Callable[[], dict[str, float]]

REPLIES = 100
"""Held-out rows that are replied to, at most."""


def metrics_of(material: Material) -> tuple[Metric, ...]:
    """Those that a run can be measured by."""
    objective = material.objective
    if isinstance(objective, Grpo):
        return ("loss",)  # minus the mean reward
    if not isinstance(objective, HeadObjective):
        is_supervised = isinstance(objective, L3)
        return ("loss", "accuracy", "exact_match") if is_supervised else ("loss", "accuracy")
    spec = objective.spec
    if spec.scale:
        return "loss", "pearson", "spearman"
    return ("loss", "accuracy", "macro_f1") if spec.labels else ("loss", "accuracy")


def best_figure(material: Material) -> Figures | None:
    """What computes train.metric_for_best_model; None where the objective's own metrics have it.

    Raises ConfigError for a metric that there is not.
    """
    metric, known = material.config.train.metric_for_best_model, metrics_of(material)
    if metric not in known:
        raise ConfigError(
            f"train.metric_for_best_model is {metric}, which this run does not have; expected "
            f"{', '.join(known)}"
        )
    held_out = material.data.held_out
    if metric in ("loss", "accuracy") or not held_out:
        return None
    rows = held_out.get(HELD_OUT) or next(iter(held_out.values()))
    if metric == "exact_match":
        return _exact_match(material, cast(Rows, rows))
    return _of_head(material, cast(HeadRows, rows), metric)


def _exact_match(material: Material, rows: Rows) -> Figures:
    assert material.template is not None
    template, longest = material.template, material.config.samples.max_tokens
    model = TransformersModel(
        material.model, material.tokenizer, name=material.config.model, start=material.start
    )
    found = questions(rows.examples, material.tokenizer, model.context, len(material.start))
    asked = list(islice(found, REPLIES))
    if not asked:
        raise ConfigError("train.metric_for_best_model is exact_match, but no held-out row asks")

    def figures() -> dict[str, float]:
        material.model.eval()
        model.forget()
        prompts = [each.ids for each in asked]
        replies = [each.text for each in greedy_replies(model, template.stop, prompts, longest)]
        model.forget()
        return {"exact_match": exact_match(replies, [each.reference for each in asked])}

    return figures


def _of_head(material: Material, rows: HeadRows, metric: str) -> Figures:
    assert isinstance(material.objective, HeadObjective)
    spec = material.objective.spec
    classifier = Classifier(
        material.model, spec, material.tokenizer, material.start, max(rows.lengths)
    )

    def figures() -> dict[str, float]:
        outputs = classifier.outputs(rows.examples)
        return {metric: head_figures(spec, outputs, rows.examples)[metric]}

    return figures
