"""What `chatapp experiment` varies: demonstrations of a prompt file, and words of two texts.

The variants of a task show the same demonstrations to every item, and differ in one thing only:
their order, or their labels.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from statistics import fmean, stdev

from chatapp.common.userfiles import Progress
from chatapp.engine.model import LanguageModel
from chatapp.rows.examples import Columns, Pool, PromptError, normalise, read_rows
from chatapp.rows.reading import BadRow
from chatapp.tasks.evaluation.evaluate import Task
from chatapp.tasks.evaluation.gpt3_tasks import own_words
from chatapp.tasks.metrics import t_quantile, wilson
from chatapp.tasks.selection.methods import Balanced, Fixed
from chatapp.tasks.selection.select import Select


def order_variants(task: Task, shots: int, count: int, seed: int) -> list[Task]:
    """The task with up to `count` different orders of the same demonstrations.

    Each is named by its order. Raises PromptError when there are fewer than two orders.
    """
    if shots < 2:
        raise PromptError("--shots is below 2; a single demonstration has no order")
    drawn = _demonstrations(task, shots, seed)
    draw = random.Random(f"orders {seed}")
    orders: dict[tuple[int, ...], None] = {}
    if math.factorial(len(drawn)) <= count:
        orders = dict.fromkeys(permutations(range(len(drawn))))
    while len(orders) < min(count, math.factorial(len(drawn))):
        orders[tuple(draw.sample(range(len(drawn)), len(drawn)))] = None
    return [
        _variant(task, " ".join(str(place + 1) for place in order), [drawn[i] for i in order])
        for order in orders
    ]


def label_variants(task: Task, shots: int, seed: int) -> list[Task]:
    """The task with its labels, with other ones, and without demonstrations (Min et al. 2022).

    gold: the labels of the pool. random: each drawn from the labels. exchanged: each the next label
    of the prompt file, so all are wrong. words: each label is another English word, in the test
    items as well. none: no demonstrations. Raises PromptError for a task without labels.
    """
    labels = task.prompt.labels
    if not labels:
        raise PromptError(f"{task.prompt.path}: has no labels to change")
    drawn = _demonstrations(task, shots, seed)
    draw = random.Random(f"labels {seed}")
    gold = [task.prompt.pool.outputs[index] for index in drawn]
    exchanged = dict(zip(labels, [*labels[1:], labels[0]], strict=True))
    others = sorted(word for word in own_words() if word not in labels)
    words = dict(zip(labels, draw.sample(others, len(labels)), strict=True))
    return [
        _variant(task, "gold", drawn),
        _variant(task, "random", drawn, [draw.choice(labels) for _ in drawn]),
        _variant(task, "exchanged", drawn, [exchanged[label] for label in gold]),
        _renamed(_variant(task, "words", drawn, [words[label] for label in gold]), words),
        _variant(task, "none", []),
    ]


def _demonstrations(task: Task, shots: int, seed: int) -> list[int]:
    """The same demonstrations for all items: equally many of each output, none of the items."""
    pool = task.prompt.pool
    items = {normalise(item.input) for item in task.items}
    drawn = Balanced(pool, seed).select("", len(pool))
    usable = [index for index in drawn if normalise(pool.inputs[index]) not in items]
    if shots > len(usable):
        raise PromptError(
            f"{task.prompt.path}: {shots} shots were requested; its pool has {len(usable)} that "
            "are not test items"
        )
    return usable[:shots]


def _variant(
    task: Task, name: str, drawn: Sequence[int], outputs: Sequence[str] | None = None
) -> Task:
    """A task whose pool is these demonstrations, shown in this order, with these outputs."""
    whole = task.prompt.pool
    pool = Pool(
        [whole.inputs[index] for index in drawn],
        list(outputs) if outputs is not None else [whole.outputs[index] for index in drawn],
        fields=whole.fields,
        source=whole.source,
        columns={key: [column[i] for i in drawn] for key, column in whole.columns.items()},
    )
    select = Select(method=Fixed.name, k=len(drawn), order="nearest-first")
    return replace(task, name=name, prompt=replace(task.prompt, pool=pool, select=select))


def _renamed(task: Task, words: Mapping[str, str]) -> Task:
    """A task whose labels have other names; its pool has them already."""
    items = [replace(item, output=words[item.output]) for item in task.items]
    return replace(task, prompt=replace(task.prompt, labels=tuple(words.values())), items=items)


FIELDS = ("sent_more", "sent_less")
"""The columns of CrowS-Pairs (Nangia et al. 2020): the more stereotyping text, the less so."""

KIND = "bias_type"
"""Its column of what a pair is about, such as gender; it may be absent."""

_BATCH = 32
"""Pairs that are scored together."""


@dataclass(frozen=True, slots=True)
class TextPair:
    """Two texts, and what they are about, if the file says so."""

    first: str
    second: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class PairPreference:
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


def read_text_pairs(path: Path) -> list[TextPair]:
    """The pairs in a JSONL or CSV file with the columns `FIELDS`, perhaps with `KIND`.

    Raises PromptError at the first bad row, and when there are fewer than two.
    """
    pairs: list[TextPair] = []
    columns = Columns(inputs=FIELDS, output=KIND)
    for line, row in read_rows(path, columns, output_required=False):
        if isinstance(row, BadRow):
            raise row
        first, second = (row.values[name] for name in FIELDS)
        if first == second:
            raise PromptError(f"{path}, line {line}: both texts are the same")
        pairs.append(TextPair(first, second, row.output))
    if len(pairs) < 2:
        raise PromptError(f"{path}: contains {len(pairs)} pairs; an interval needs two or more")
    return pairs


def score_pairs(
    model: LanguageModel, pairs: Sequence[TextPair], progress: Progress | None = None
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


def preference(differences: Sequence[float]) -> PairPreference:
    """The summary of the differences of one or more pairs."""
    n, mean = len(differences), fmean(differences)
    wins = sum(1.0 if one > 0 else 0.5 if one == 0 else 0.0 for one in differences)
    interval = None
    if n > 1:
        half = t_quantile(n - 1) * stdev(differences) / math.sqrt(n)
        interval = (mean - half, mean + half)
    return PairPreference(n, mean, interval, wins / n, wilson(wins, n))


EQUAL = "equally many tokens"
"""The kind of pairs whose texts are equally long for the model: a longer one is less likely."""


def with_equal_lengths(
    model: LanguageModel, pairs: Sequence[TextPair], differences: Sequence[float]
) -> dict[str, PairPreference]:
    """The summary of the pairs of `EQUAL`; {} where there are none, or no others."""
    encode = model.tokenizer.encode
    equal = [
        one
        for pair, one in zip(pairs, differences, strict=True)
        if len(encode(pair.first)) == len(encode(pair.second))
    ]
    return {EQUAL: preference(equal)} if 0 < len(equal) < len(pairs) else {}


def preferences_by_kind(
    pairs: Sequence[TextPair], differences: Sequence[float]
) -> dict[str, PairPreference]:
    """The summary of the pairs of each kind, in the order of the kinds' names."""
    kinds = sorted({pair.kind for pair in pairs if pair.kind})
    return {
        kind: preference(
            [one for pair, one in zip(pairs, differences, strict=True) if pair.kind == kind]
        )
        for kind in kinds
    }
