"""Variants of a prompt file, each with the same test items: what do its demonstrations contribute?

Invariant: the variants of a task show the same demonstrations to every item, and differ in one
thing only: their order, or their labels.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations

from chatapp.prompting.examples import Pool, PromptError, normalise
from chatapp.tasks.evaluation.evaluate import Task
from chatapp.tasks.evaluation.gpt3_tasks import own_words
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
            "are no test items"
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
