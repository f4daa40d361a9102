"""Pairs of texts that differ in a word: which does a model find more likely, and by how much?

Invariant: both texts of a pair are scored in full, from the end-of-text token on.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from chatapp.engine.model import LanguageModel
from chatapp.evaluation.metrics import t_quantile, wilson
from chatapp.prompting.examples import Columns, PromptError, read_rows

Pair = tuple[str, str]

FIELDS = ("sent_more", "sent_less")
"""The columns of CrowS-Pairs (Nangia et al. 2020): the more stereotyping text, the less so."""


@dataclass(frozen=True, slots=True)
class Preference:
    """How much more likely a model finds the first texts of pairs.

    differences: log p(first) - log p(second) of each pair, in nats. mean, interval: of these, the
    interval of 95 % by Student's t over the pairs. preferred, preferred_interval: the share of
    pairs whose first text is more likely, and its Wilson interval of 95 %; half of a tie counts.
    """

    differences: list[float]
    mean: float
    interval: tuple[float, float]
    preferred: float
    preferred_interval: tuple[float, float]


def read_text_pairs(path: Path) -> list[Pair]:
    """The pairs in a JSONL or CSV file with the columns `FIELDS`.

    Raises PromptError at the first bad row, and when there are fewer than two.
    """
    pairs: list[Pair] = []
    for line, row in read_rows(path, Columns(inputs=FIELDS), output_required=False):
        if isinstance(row, PromptError):
            raise row
        first, second = (row.values[name] for name in FIELDS)
        if first == second:
            raise PromptError(f"{path}, line {line}: both texts are the same")
        pairs.append((first, second))
    if len(pairs) < 2:
        raise PromptError(f"{path}: contains {len(pairs)} pairs; an interval needs two or more")
    return pairs


def measure_preference(model: LanguageModel, pairs: Sequence[Pair]) -> Preference:
    """Score pairs with a causal model: no pseudo-likelihood of a masked one is needed.

    Raises ContextOverflow for a text longer than the model's window.
    """
    start = [model.tokenizer.end_id]
    texts = [(start, model.tokenizer.encode(text)) for pair in pairs for text in pair]
    sums = [math.fsum(scores) for scores in model.score(texts)]
    differences = [first - second for first, second in zip(sums[::2], sums[1::2], strict=True)]
    n = len(differences)
    mean = fmean(differences)
    half = t_quantile(n - 1) * stdev(differences) / math.sqrt(n)
    wins = sum(1.0 if one > 0 else 0.5 if one == 0 else 0.0 for one in differences)
    return Preference(differences, mean, (mean - half, mean + half), wins / n, wilson(wins, n))
