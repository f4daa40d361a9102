"""Pairs of texts that differ in a word: which does a model find more likely, and by how much?

Invariant: both texts of a pair are scored in full, from the end-of-text token on.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from chatapp.common.progress import Progress
from chatapp.engine.model import LanguageModel
from chatapp.prompting.examples import Columns, PromptError, read_rows
from chatapp.tasks.evaluation.metrics import t_quantile, wilson

FIELDS = ("sent_more", "sent_less")
"""The columns of CrowS-Pairs (Nangia et al. 2020): the more stereotyping text, the less so."""

KIND = "bias_type"
"""Its column of what a pair is about, such as gender; it may be absent."""

_BATCH = 32
"""Pairs that are scored together."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts, and what they are about, if the file says so."""

    first: str
    second: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Preference:
    """How much more likely a model finds the first texts of n pairs.

    mean, interval: of log p(first) - log p(second), in nats, the interval of 95 % by Student's t
    over the pairs; None for one pair. preferred, preferred_interval: the share of pairs whose first
    text is more likely, and its Wilson interval of 95 %; half of a tie counts.
    """

    n: int
    mean: float
    interval: tuple[float, float] | None
    preferred: float
    preferred_interval: tuple[float, float]


def read_text_pairs(path: Path) -> list[Pair]:
    """The pairs in a JSONL or CSV file with the columns `FIELDS`, perhaps with `KIND`.

    Raises PromptError at the first bad row, and when there are fewer than two.
    """
    pairs: list[Pair] = []
    columns = Columns(inputs=FIELDS, output=KIND)
    for line, row in read_rows(path, columns, output_required=False):
        if isinstance(row, PromptError):
            raise row
        first, second = (row.values[name] for name in FIELDS)
        if first == second:
            raise PromptError(f"{path}, line {line}: both texts are the same")
        pairs.append(Pair(first, second, row.output))
    if len(pairs) < 2:
        raise PromptError(f"{path}: contains {len(pairs)} pairs; an interval needs two or more")
    return pairs


def score_pairs(
    model: LanguageModel, pairs: Sequence[Pair], progress: Progress | None = None
) -> list[float]:
    """log p(first) - log p(second) of each pair, in nats.

    By a causal model, so no pseudo-likelihood of a masked one is needed. Raises ContextOverflow for
    a text longer than the model's window.
    """
    start = [model.tokenizer.end_id]
    differences: list[float] = []
    for begin in range(0, len(pairs), _BATCH):
        batch = pairs[begin : begin + _BATCH]
        texts = [text for pair in batch for text in (pair.first, pair.second)]
        scores = model.score([(start, model.tokenizer.encode(text)) for text in texts])
        sums = [math.fsum(score) for score in scores]
        differences += [one - other for one, other in zip(sums[::2], sums[1::2], strict=True)]
        if progress:
            progress(len(differences), len(pairs))
    return differences


def preference(differences: Sequence[float]) -> Preference:
    """The summary of the differences of one or more pairs."""
    n, mean = len(differences), fmean(differences)
    wins = sum(1.0 if one > 0 else 0.5 if one == 0 else 0.0 for one in differences)
    interval = None
    if n > 1:
        half = t_quantile(n - 1) * stdev(differences) / math.sqrt(n)
        interval = (mean - half, mean + half)
    return Preference(n, mean, interval, wins / n, wilson(wins, n))


def preferences_by_kind(
    pairs: Sequence[Pair], differences: Sequence[float]
) -> dict[str, Preference]:
    """The summary of the pairs of each kind, in the order of the kinds' names."""
    kinds = sorted({pair.kind for pair in pairs if pair.kind})
    return {
        kind: preference(
            [one for pair, one in zip(pairs, differences, strict=True) if pair.kind == kind]
        )
        for kind in kinds
    }
