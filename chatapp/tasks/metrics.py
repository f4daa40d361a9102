"""Metrics of answers against gold answers, and their confidence intervals."""

import math
import random
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from statistics import fmean, stdev, variance
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from chatapp.common.extras import require

Gold = str | tuple[str, ...]
"""A correct answer, or several of them."""

Score = Callable[[Sequence[str], Sequence[Gold]], float]
"""Maps answers and gold answers, equally many and at least one, to a number from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A measure of answers.

    kind: "proportion" where each answer is right or wrong, "mean" of a number for each answer, or
    "whole" of all answers at once. needs_labels: it only compares labels or choices.
    """

    score: Score
    kind: Literal["proportion", "mean", "whole"]
    needs_labels: bool = False


MEASURES: dict[str, Metric] = {}
"""By the name that prompt files give them in `metrics`: that of the function."""


def _metric(
    kind: Literal["proportion", "mean", "whole"], *, needs_labels: bool = False
) -> Callable[[Score], Score]:
    """Add a function to the metrics. The arguments are the fields of `Metric`."""

    def added(score: Score) -> Score:
        MEASURES[score.__name__] = Metric(score, kind, needs_labels)
        return score

    return added


_RESAMPLES = 1000

Scores = NDArray[np.float64]


@_metric("proportion", needs_labels=True)
def accuracy(answers: Sequence[str], golds: Sequence[Gold]) -> float:
    """The fraction of answers that are the gold label or choice."""
    return _mean_best(lambda answer, gold: float(answer == gold), answers, golds)


@_metric("whole", needs_labels=True)
def macro_f1(answers: Sequence[str], golds: Sequence[Gold]) -> float:
    """The unweighted mean of each label's F1, as scikit-learn's `f1_score(average="macro")`.

    Labels are those that occur as an answer or as gold; one that is never answered correctly counts
    as 0.
    """
    firsts = [_alternatives(gold)[0] for gold in golds]
    pairs = Counter(zip(answers, firsts, strict=True))
    answer_counts, gold_counts = Counter(answers), Counter(firsts)
    return fmean(
        2 * pairs[label, label] / (answer_counts[label] + gold_counts[label])
        for label in answer_counts.keys() | gold_counts.keys()
    )


@_metric("proportion")
def exact_match(answers: Sequence[str], golds: Sequence[Gold]) -> float:
    """The fraction of answers equal to the gold answer, ignoring white space.

    Unlike SQuAD's measure, which drops punctuation: -5 is not 5.
    """
    return _mean_best(lambda answer, gold: answer.split() == gold.split(), answers, golds)


@_metric("proportion")
def squad_match(answers: Sequence[str], golds: Sequence[Gold]) -> float:
    """The fraction of answers equal to the gold answer after SQuAD's normalization (see
    `token_f1`)."""
    return _mean_best(
        lambda answer, gold: _squad_words(answer) == _squad_words(gold), answers, golds
    )


@_metric("proportion")
def numeric_match(answers: Sequence[str], golds: Sequence[Gold]) -> float:
    """The fraction of answers whose last number is that of the gold answer.

    Commas between digits are ignored, and 5.0 is 5. An answer without a number is wrong.
    """
    return _mean_best(_same_number, answers, golds)


@_metric("mean")
def token_f1(answers: Sequence[str], golds: Sequence[Gold]) -> float:
    """The mean F1 of the words of answer and gold as bags (SQuAD, Rajpurkar et al. 2016).

    Words are lower-cased, without ASCII punctuation and the articles a, an and the.
    """
    return _mean_best(_token_f1, answers, golds)


@_metric("whole")
def bleu(answers: Sequence[str], golds: Sequence[Gold]) -> float:
    """BLEU of the whole corpus (Papineni et al. 2002) by sacrebleu's defaults (Post 2018).

    On a scale from 0 to 1, where sacrebleu prints 0 to 100.
    """
    require("sacrebleu")
    from sacrebleu.metrics.bleu import BLEU

    firsts = [_alternatives(gold)[0] for gold in golds]
    return float(BLEU().corpus_score(list(answers), [firsts]).score) / 100


@_metric("mean")
def rouge_l(answers: Sequence[str], golds: Sequence[Gold]) -> float:
    """The mean ROUGE-L F1 (Lin 2004): the longest common subsequence of words.

    Words are runs of letters and digits, case-folded, unstemmed.
    """
    return _mean_best(_rouge_l, answers, golds)


IntervalMethod = Literal["wilson", "bootstrap", "items-seeds"]


def _alternatives(gold: Gold) -> tuple[str, ...]:
    return (gold,) if isinstance(gold, str) else gold


def _mean_best(
    score: Callable[[str, str], float], answers: Sequence[str], golds: Sequence[Gold]
) -> float:
    """The mean score of the answers, each with the gold answer that fits it best."""
    return fmean(
        max(score(answer, right) for right in _alternatives(gold))
        for answer, gold in zip(answers, golds, strict=True)
    )


def _same_number(answer: str, gold: str) -> bool:
    numbers = [re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", "")) for text in (answer, gold)]
    first, second = numbers
    return bool(first and second) and Decimal(first[-1]) == Decimal(second[-1])


def _token_f1(answer: str, gold: str) -> float:
    first, second = _squad_words(answer), _squad_words(gold)
    return _f1(sum((Counter(first) & Counter(second)).values()), len(first), len(second))


def _squad_words(text: str) -> list[str]:
    bare = text.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def _rouge_l(answer: str, gold: str) -> float:
    first, second = (re.findall(r"[^\W_]+", text.casefold()) for text in (answer, gold))
    return _f1(_longest_common_subsequence(first, second), len(first), len(second))


def _f1(common: int, first: int, second: int) -> float:
    """Two empty answers agree."""
    if not first or not second:
        return float(first == second)
    return 2 * common / (first + second)


def _longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    lengths = [0] * (len(second) + 1)
    for word in first:
        diagonal = 0
        for column, other in enumerate(second, start=1):
            above = lengths[column]
            lengths[column] = diagonal + 1 if word == other else max(above, lengths[column - 1])
            diagonal = above
    return lengths[-1]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measure over seeds.

    spread: standard deviation over seeds (n - 1 in the denominator); None for one run.
    interval: of 95 %. interval_of is its kind:
        `wilson`: one run of a proportion, over the items (Wilson 1927).
        `bootstrap`: one run of another measure, over the items: percentiles of 1,000
            resamples (Efron 1979).
        `items-seeds`: several runs, over other items and other seeds: see `crossed_interval`.
    """

    mean: float
    spread: float | None
    interval: tuple[float, float]
    interval_of: IntervalMethod


def estimate(measure: str, runs: Sequence[Sequence[str]], golds: Sequence[Gold]) -> Estimate:
    """Estimate a measure from runs over the same items.

    runs: the answers of each seed; at least one seed and one item.
    """
    values = [MEASURES[measure].score(answers, golds) for answers in runs]
    if len(values) > 1:
        return Estimate(
            fmean(values), stdev(values), crossed_interval(measure, runs, golds), "items-seeds"
        )
    if MEASURES[measure].kind == "proportion":
        interval = wilson(round(values[0] * len(golds)), len(golds))
        return Estimate(values[0], None, interval, "wilson")
    return Estimate(values[0], None, bootstrap(measure, runs[0], golds), "bootstrap")


def wilson(successes: float, n: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson 1927)."""
    z = 1.959963984540054
    share = successes / n
    centre = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def crossed_interval(
    measure: str, runs: Sequence[Sequence[str]], golds: Sequence[Gold]
) -> tuple[float, float]:
    """The 95 % interval of the mean of two or more runs over the same items; from 0 to 1.

    Items and seeds are both taken as drawn at random, and crossed. The variance of the mean is that
    over items, plus what the seeds vary beyond chance:

        V = V_items + max(0, V_seeds - V_rest)

    V_items = var(means of the items) / n; V_seeds = var(means of the seeds) / S; V_rest =
    var(what neither explains) / (n S), which is in both: the analysis of variance of two crossed
    random effects (Searle, Casella and McCulloch 1992, section 4.4). Degrees of freedom are
    Satterthwaite's (1946), and the interval is Student's on the scale of log odds: logit(m) ± t ·
    sqrt(V) / (m (1 - m)), turned back (Brown, Cai and DasGupta 2001). Measures that are not a mean
    over items take V_items and V_rest from resampled items.
    """
    n, seeds = len(golds), len(runs)
    means = [MEASURES[measure].score(answers, golds) for answers in runs]
    mean = fmean(means)
    if n < 2 or not 0 < mean < 1:
        return wilson(round(mean * n), n)
    of_seeds = variance(means) / seeds
    if MEASURES[measure].kind == "whole":
        of_items, rest = _resampled_variances(measure, runs, golds)
    else:
        of_items, rest = _variances(_table(measure, runs, golds))
    half = _half_width(of_items, max(0.0, of_seeds - rest), n, seeds)
    if not half:  # each item scores alike in all runs: as much as one run says
        return wilson(mean * n, n)
    exponent = half / (mean * (1 - mean))
    odds, factor = mean / (1 - mean), math.exp(min(exponent, 700.0))
    low, high = odds / factor, odds * factor
    return low / (1 + low), 1 / (1 + 1 / high)


def _table(measure: str, runs: Sequence[Sequence[str]], golds: Sequence[Gold]) -> Scores:
    """The score of each run and item, (runs, items), of a measure that is a mean over items."""
    score = MEASURES[measure].score
    return np.array([[score([a], [g]) for a, g in zip(run, golds, strict=True)] for run in runs])


def _variances(table: Scores) -> tuple[float, float]:
    """V_items and V_rest of `crossed_interval`; table: (runs, items), two or more of both."""
    seeds, n = table.shape
    left = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    rest = float((left**2).sum()) / ((n - 1) * (seeds - 1)) / (n * seeds)
    return float(table.mean(axis=0).var(ddof=1)) / n, rest


def _half_width(of_items: float, beyond: float, n: int, seeds: int) -> float:
    """Student's half of an interval with the variances of items and of what seeds add to it."""
    whole = of_items + beyond
    if not whole:
        return 0.0
    freedom = whole**2 / (of_items**2 / (n - 1) + beyond**2 / (seeds - 1))
    return t_quantile(max(1, int(freedom))) * math.sqrt(whole)


@dataclass(frozen=True, slots=True)
class Difference:
    """A measure of one model less that of another, on the same items.

    interval: of 95 %: of one run, percentiles of 1,000 resamples of the items, the same for both
    models (the paired bootstrap, Efron and Tibshirani 1993); of several, as `crossed_interval`, of
    the differences. only_first, only_second: items that one model alone has right; p: of so uneven
    a division where both are equally good (the exact McNemar test, McNemar 1947), two-sided. All
    three are None unless one run is right or wrong.
    """

    mean: float
    interval: tuple[float, float]
    only_first: int | None = None
    only_second: int | None = None
    p: float | None = None

    def words(self, first: str, second: str) -> str:
        """A line for two named models."""
        low, high = self.interval
        words = f"{first} less {second}: {self.mean:+.3f} ({low:+.3f} to {high:+.3f})"
        if self.p is None:
            return words
        return (
            f"{words}; right alone: {self.only_first:,} and {self.only_second:,}, McNemar's exact "
            f"p {self.p:.2g}"
        )


def difference(
    measure: str,
    first: Sequence[Sequence[str]],
    second: Sequence[Sequence[str]],
    golds: Sequence[Gold],
) -> Difference:
    """Compare the answers of two models to the same items, each with as many runs."""
    n, seeds = len(golds), len(first)
    score = MEASURES[measure].score
    pairs = list(zip(first, second, strict=True))
    by_run = [score(one, golds) - score(other, golds) for one, other in pairs]
    mean = fmean(by_run)
    if seeds > 1 and n > 1 and MEASURES[measure].kind != "whole":
        of_items, rest = _variances(_table(measure, first, golds) - _table(measure, second, golds))
        half = _half_width(of_items, max(0.0, variance(by_run) / seeds - rest), n, seeds)
        half = half or wilson(0, n)[1]  # they never differ here, and may elsewhere
        return Difference(mean, (max(-1.0, mean - half), min(1.0, mean + half)))
    scores = [[_over_items(measure, run, golds) for run in pair] for pair in pairs]
    interval = _percentiles(
        n, lambda items: fmean(one(items) - other(items) for one, other in scores)
    )
    if interval == (0.0, 0.0):
        interval = (-wilson(0, n)[1], wilson(0, n)[1])
    if seeds > 1 or MEASURES[measure].kind != "proportion":
        return Difference(mean, interval)
    ones, others = (_table(measure, runs, golds)[0] > 0 for runs in (first, second))
    only = int((ones & ~others).sum()), int((others & ~ones).sum())
    return Difference(mean, interval, *only, mcnemar(*only))


def mcnemar(first: int, second: int) -> float:
    """The exact two-sided p of so many items that only the first, and only the second has right:
    that of a fair coin."""
    n = first + second
    tail = sum(math.comb(n, k) for k in range(min(first, second) + 1))
    return min(1.0, float(Fraction(2 * tail, 2**n)))


def _resampled_variances(
    measure: str, runs: Sequence[Sequence[str]], golds: Sequence[Gold]
) -> tuple[float, float]:
    """V_items and V_rest of `crossed_interval` by resampling the items (Efron 1979): the variance
    of the mean over the runs, and what a single run varies beyond it.
    """
    n, seeds = len(golds), len(runs)
    draw = random.Random(0)
    scores = [_over_items(measure, answers, golds) for answers in runs]
    samples = [draw.choices(range(n), k=n) for _ in range(_RESAMPLES // 4)]
    drawn = np.array([[score(sample) for score in scores] for sample in samples])
    of_mean = float(drawn.mean(axis=1).var(ddof=1))
    of_one = float(drawn.var(axis=0, ddof=1).mean())
    return of_mean, max(0.0, of_one - of_mean) / (seeds - 1)


def bootstrap(measure: str, answers: Sequence[str], golds: Sequence[Gold]) -> tuple[float, float]:
    """The 95 % percentile interval of a measure over resampled items (Efron 1979)."""
    return _percentiles(len(golds), _over_items(measure, answers, golds))


def _percentiles(n: int, score: Callable[[Sequence[int]], float]) -> tuple[float, float]:
    """The 2.5th and the 97.5th percentile of a score of n items that are drawn again."""
    draw = random.Random(0)
    values = sorted(score(draw.choices(range(n), k=n)) for _ in range(_RESAMPLES))
    return values[round(0.025 * (_RESAMPLES - 1))], values[round(0.975 * (_RESAMPLES - 1))]


def _over_items(
    measure: str, answers: Sequence[str], golds: Sequence[Gold]
) -> Callable[[Sequence[int]], float]:
    """The measure as a function of the item indices, which may repeat."""
    if measure == "bleu":
        return _bleu_over_items(answers, golds)
    metric = MEASURES[measure]
    if metric.kind == "whole":
        return lambda items: metric.score([answers[i] for i in items], [golds[i] for i in items])
    single = [metric.score([a], [g]) for a, g in zip(answers, golds, strict=True)]
    return lambda items: fmean(single[i] for i in items)


def _bleu_over_items(
    answers: Sequence[str], golds: Sequence[Gold]
) -> Callable[[Sequence[int]], float]:
    """BLEU of a corpus is a function of sums of counts; here they are counted once per item."""
    require("sacrebleu")
    from sacrebleu.metrics.bleu import BLEU

    scorer = BLEU(effective_order=True)
    pairs = zip(answers, golds, strict=True)
    scores = [scorer.sentence_score(answer, [_alternatives(gold)[0]]) for answer, gold in pairs]
    counts = np.array([[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in scores])

    def score(items: Sequence[int]) -> float:
        sums = counts[items].sum(axis=0).tolist()
        result = BLEU.compute_bleu(sums[:4], sums[4:8], sums[8], sums[9], smooth_method="exp")
        return float(result.score) / 100

    return score


def t_quantile(freedom: int) -> float:
    """The value that Student's t with these degrees of freedom exceeds in 2.5 % of cases."""
    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        if _t_within(middle, freedom) < 0.95:
            low = middle
        else:
            high = middle
    return low


def _t_within(t: float, freedom: int) -> float:
    """The probability of a value between -t and t (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for step in range(2 + odd, freedom, 2):
        term *= cosine * cosine * (step - 1) / step
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
