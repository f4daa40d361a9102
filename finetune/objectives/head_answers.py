"""What a head answers, as plain data, and how right its answers are.

Keep: figures are computed from the same outputs that are given out, and by the names that they
have in `chatapp eval`.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chatapp.engine.head import HeadSpec
from chatapp.evaluation.metrics import macro_f1
from finetune.objectives.head_rows import HeadExample

Output = Sequence[float]
"""Probabilities of the labels or choices of one row; of regression the number alone."""


def answer_document(spec: HeadSpec, output: Output, choices: Sequence[str] = ()) -> dict[str, Any]:
    """An answer as plain data: `output` and `label_probabilities`, or the `score` of regression.

    choices: of a row of multiple choice; two may be alike, so its probabilities are a list.
    """
    if spec.scale:
        return {"score": output[0]}
    best = int(np.argmax(output))
    if spec.task == "multiple-choice":
        return {"output": choices[best] if choices else best, "label_probabilities": list(output)}
    probabilities = dict(zip(spec.labels, output, strict=True))
    return {"output": spec.labels[best], "label_probabilities": probabilities}


def head_figures(
    spec: HeadSpec, outputs: Sequence[Output], examples: Sequence[HeadExample]
) -> dict[str, float]:
    """Of classes: loss in nats a row, accuracy, the share of the most frequent label, and, where
    rows have labels in common, macro-F1. Of regression: mse, Pearson's and Spearman's correlation.
    """
    golds = [example.label for example in examples]
    if spec.scale:
        numbers, wanted = np.array([output[0] for output in outputs]), np.array(golds)
        return {
            "mse": float(np.square(numbers - wanted).mean()),
            "pearson": _correlation(numbers, wanted),
            "spearman": _correlation(_ranks(numbers), _ranks(wanted)),
        }
    answers = [int(np.argmax(output)) for output in outputs]
    chosen = [output[int(gold)] for output, gold in zip(outputs, golds, strict=True)]
    figures = {
        "loss": fmean(-float(np.log(max(probability, 1e-30))) for probability in chosen),
        "accuracy": fmean(answer == gold for answer, gold in zip(answers, golds, strict=True)),
        "majority": max(map(golds.count, set(golds))) / len(golds),
    }
    if spec.labels:  # the choices of multiple choice have no names in common
        figures["macro_f1"] = macro_f1(list(map(str, answers)), list(map(str, golds)))
    return figures


def _correlation(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Pearson's; 0 where one of them is constant and has no correlation."""
    first, second = first - first.mean(), second - second.mean()
    scale = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / scale if scale else 0.0


def _ranks(values: NDArray[Any]) -> NDArray[Any]:
    """From 1; equal values share the mean of theirs, as Spearman's correlation has it."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[which]
