"""Variants of a prompt file: the same demonstrations in other orders, and with other labels."""

from pathlib import Path

import pytest

from chatapp.prompting.messages import text_of
from chatapp.rows.examples import Pool, PromptError
from chatapp.tasks.evaluation.evaluate import Task
from chatapp.tasks.evaluation.experiments import label_variants, order_variants
from chatapp.tasks.evaluation.inputs import Item
from chatapp.tasks.files.layout import render
from chatapp.tasks.files.promptfile import PromptFile

POOL = Pool(
    ["a fox", "an oak", "a wolf", "grass", "a cat", "a rose"],
    ["animal", "plant", "animal", "plant", "animal", "plant"],
)
ITEMS = [Item("A fox", "animal", 1), Item("moss", "plant", 2)]
LABELS = ("animal", "plant")


def task(labels=LABELS, pool=POOL):
    return Task("living", PromptFile(path=Path("living.toml"), labels=labels, pool=pool), ITEMS)


def test_orders_are_different_and_of_the_same_demonstrations():
    variants = order_variants(task(), 4, 10, 0)
    assert len({variant.name for variant in variants}) == len(variants) == 10
    sets = {frozenset(variant.prompt.pool.inputs) for variant in variants}
    assert len(sets) == 1
    assert len(set(next(iter(sets)))) == 4
    assert "a fox" not in next(iter(sets)), "a test item shows its answer"
    for variant in variants:
        pool = variant.prompt.pool
        assert pool.outputs == [POOL.outputs[POOL.inputs.index(shown)] for shown in pool.inputs]
        text = text_of(render(variant.prompt, range(4), "moss"))
        places = [text.index(f"Input: {shown}") for shown in pool.inputs]
        assert places == sorted(places)
    assert [v.name for v in order_variants(task(), 4, 10, 0)] == [v.name for v in variants]


def test_few_demonstrations_have_few_orders():
    assert [variant.name for variant in order_variants(task(), 2, 10, 1)] == ["1 2", "2 1"]
    with pytest.raises(PromptError, match="has no order"):
        order_variants(task(), 1, 10, 0)
    with pytest.raises(PromptError, match=r"living\.toml: 6 shots .* its pool has 5"):
        order_variants(task(), 6, 10, 0)


def test_labels_are_kept_drawn_exchanged_renamed_and_left_out():
    variants = {variant.name: variant for variant in label_variants(task(), 4, 0)}
    assert list(variants) == ["gold", "random", "exchanged", "words", "none"]
    gold = variants["gold"].prompt.pool
    for name in ("gold", "random", "exchanged", "words"):
        assert variants[name].prompt.pool.inputs == gold.inputs
    other = {"animal": "plant", "plant": "animal"}
    assert variants["exchanged"].prompt.pool.outputs == [other[label] for label in gold.outputs]
    assert set(variants["random"].prompt.pool.outputs) <= set(LABELS)
    drawn = {tuple(label_variants(task(), 4, seed)[1].prompt.pool.outputs) for seed in range(9)}
    assert len(drawn) > 2
    words = variants["words"].prompt
    renamed = dict(zip(LABELS, words.labels, strict=True))
    assert len({*LABELS, *words.labels}) == 4
    assert words.pool.outputs == [renamed[label] for label in gold.outputs]
    assert [item.output for item in variants["words"].items] == list(words.labels)
    assert [item.input for item in variants["words"].items] == [item.input for item in ITEMS]
    assert len(variants["none"].prompt.pool) == 0


def test_a_task_without_labels_has_none_to_change():
    with pytest.raises(PromptError, match="has no labels to change"):
        label_variants(task(labels=()), 2, 0)
