"""In-context tuning: tasks whose labels follow only from the demonstrations.

A task is a few classes of texts, which differ in topic word, in form, in source, or in the sentence
that they resemble; each class gets a label drawn at random. Demonstrations are drawn evenly, at
random, or as the nearest to the query in nearest-last order, as `chatapp` chooses them.

Invariant: classes and label words of held-out tasks, and sentences held out by their hash, are in
no training row.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chatapp.rows.examples import Pool
from chatapp.tasks.files.promptfile import PromptFile
from chatapp.tasks.selection.select import Select, build_selector
from finetune.bundled_model.generators.fewshot import Shot, draw_layout, few_shot_row
from finetune.bundled_model.generators.patterns import HELD_OUT, PATTERNS, Pattern
from finetune.bundled_model.generators.tasks import QuestionTask
from finetune.bundled_model.generators.words import draw_labels, is_kept_out, made_up_word, table

Groups = Mapping[str, Sequence[str]]
"""Sentences by class, for one way to group them."""

# The fraction of held-out sentences.
KEPT_OUT = 0.1
MOST_SHOTS = 16
# Of a repeated text.
_RECALLED_WORDS = 14
# Of dissimilar texts.
_VOTED_WORDS = 30
# Few-shot prompts leave room in a window of 1,024 tokens.
_MOST_WORDS = 450


@dataclass(frozen=True, slots=True)
class Classes:
    """Texts of each class of a task."""

    name: str
    texts: list[list[str]]


def topics(draw: random.Random, lists: Mapping[str, str], classes: int, per_class: int) -> Classes:
    """Words by their kind, alone or in a sentence."""
    chosen = draw.sample(sorted(lists), min(classes, len(lists)))
    frames = draw.sample(table("layouts")["frames"], draw.choice((1, 1, 2, 5)))
    texts = []
    known: set[str] = set()
    for name in chosen:
        # An orange is a fruit and a colour; here it is only one of them.
        words = [word for word in lists[name].split() if word not in known]
        known.update(words)
        words = draw.sample(words, min(per_class, len(words)))
        texts.append([draw.choice(frames).replace("{x}", word) for word in words])
    return Classes("topic: " + ", ".join(chosen), texts)


def pattern(
    draw: random.Random, patterns: Mapping[str, Pattern], words: Sequence[str], per_class: int
) -> Classes:
    """Texts by their form."""
    name = draw.choice(sorted(patterns))
    makers = patterns[name]
    chosen = draw.sample(sorted(makers), min(len(makers), draw.choice((2, 2, 3, 4))))
    sample = draw.sample(words, min(200, len(words)))
    texts = [list(dict.fromkeys(makers[c](draw, sample) for _ in range(per_class))) for c in chosen]
    return Classes(f"pattern: {name}", texts)


def grouped(
    draw: random.Random, groupings: Mapping[str, Groups], classes: int, per_class: int
) -> Classes:
    """Sentences by their source or their beginning."""
    name = draw.choice(sorted(groupings))
    groups = groupings[name]
    chosen = draw.sample(sorted(groups), min(classes, len(groups)))
    texts = [draw.sample(groups[c], min(per_class, len(groups[c]))) for c in chosen]
    return Classes(f"text: {name}: " + ", ".join(chosen), texts)


def longer(task: Classes, sentences: int) -> Classes:
    """Texts of so many sentences of a class each, as news have; classes with few stay short."""
    texts = [
        [" ".join(group[at : at + sentences]) for at in range(0, len(group), sentences)]
        if len(group) >= 4 * sentences
        else group
        for group in task.texts
    ]
    return replace(task, texts=texts)


def look_up(draw: random.Random, words: Sequence[str], classes: int) -> Classes:
    """Things to remember: every class is one thing, repeated unchanged."""
    things = draw.sample(words, classes)
    if draw.random() < 0.5:
        things = [made_up_word(draw, 2) for _ in range(classes)]
    return Classes("lookup", [[thing] for thing in things])


def variations(
    draw: random.Random, sentences: Sequence[str], classes: int, per_class: int
) -> Classes:
    """Each class is one sentence in several versions: words removed, doubled or inserted."""
    originals = draw.sample(sentences, classes)
    others = draw.choice(sentences).split()
    texts = [[_varied(draw, original, others) for _ in range(per_class)] for original in originals]
    return Classes("variations", texts)


def _varied(draw: random.Random, sentence: str, others: Sequence[str]) -> str:
    words = sentence.split()
    if len(words) < 4:
        return sentence
    for _ in range(draw.randint(1, 1 + len(words) // 3)):
        place = draw.randrange(len(words))
        change = draw.random()
        if change < 0.5 and len(words) > 3:
            del words[place]
        elif change < 0.8:
            words[place] = draw.choice(others)
        else:
            words.insert(place, draw.choice(others))
    return " ".join(words)


def shots_of(
    draw: random.Random, task: Classes, labels: Sequence[str], k: int, selection: str, noise: float
) -> list[Shot] | None:
    """k demonstrations and, last, the query. None when the task has too few texts.

    selection: "random", "balanced", "repeated" (texts may repeat) or "nearest", in nearest-last
    order. noise: the fraction of demonstrations with another label.
    """
    texts = [
        (text, label) for group, label in zip(task.texts, labels, strict=True) for text in group
    ]
    query = draw.choice(texts)
    others = [shot for shot in texts if shot[0] != query[0]]
    if selection == "repeated":
        shots = [draw.choice(texts) for _ in range(k)]
    elif len(others) < k:
        return None
    elif selection == "random":
        shots = draw.sample(others, k)
    else:
        pool = Pool([text for text, _ in others], [label for _, label in others])
        method = "knn" if selection == "nearest" else "balanced"
        select = Select.model_validate({"method": method, "seed": draw.randrange(2**32)})
        chosen = build_selector(pool, select).select(query[0], k)
        shots = [others[index] for index in reversed(chosen)]
    wrong = [draw.choice(labels) if draw.random() < noise else label for _, label in shots]
    return [*((text, label) for (text, _), label in zip(shots, wrong, strict=True)), query]


def training_rows(
    groupings: Mapping[str, Groups],
    words: Sequence[str],
    count: int,
    seed: int,
    most: int,
    noises: Sequence[float] = (0.0, 0.0, 0.1, 0.25),
) -> Iterator[dict[str, Any]]:
    """Yield `count` rows of training tasks with at most `most` demonstrations.

    groupings: ways to group sentences. words: any common ones. noises: one of them is the fraction
    of wrong labels if demonstrations are the nearest, so that several count.
    """
    draw = random.Random(seed)
    groupings = _side(groupings, kept_out=False, least=20)
    sentences = [
        text for groups in groupings.values() for texts in groups.values() for text in texts
    ]
    lists = table("topics")["train"]
    made = 0
    while made < count:
        classes = draw.choice((2, 2, 3, 4, 6))
        per_class = draw.choice((6, 10, 20, 40))
        kind = draw.random()
        selection = draw.choice(("random", "random", "balanced", "nearest", "nearest"))
        if kind < 0.2:
            task = topics(draw, lists, classes, per_class)
        elif kind < 0.35:
            task = pattern(draw, PATTERNS, words, per_class)
        elif kind < 0.45:
            task, selection = look_up(draw, words, classes), "repeated"
        elif kind < 0.6:
            task = variations(draw, sentences, classes, 6)
        else:
            task = longer(grouped(draw, groupings, classes, per_class), draw.choice((1, 1, 2, 3)))
            selection = draw.choice(("random", "nearest", "nearest"))
        labels = draw_labels(draw, len(task.texts))
        k = draw.randint(2, most)
        noise = draw.choice(noises) if selection == "nearest" else 0.0
        shots = shots_of(draw, task, labels, k, selection, noise)
        if shots is None or sum(len(text.split()) for text, _ in shots) > _MOST_WORDS:
            continue
        # Demonstrations of one label need only a few examples.
        if len({label for _, label in shots}) == 1 and draw.random() < 0.75:
            continue
        row = few_shot_row(draw_layout(draw, labels), shots, guessable=False)
        if row:
            made += 1
            yield row


def _side(
    groupings: Mapping[str, Groups], *, kept_out: bool, least: int
) -> dict[str, dict[str, list[str]]]:
    """The sentences for training, or the held-out ones, of groups that have enough of them.

    A grouping that leaves fewer than two groups is left out.
    """
    sides = {
        name: {
            group: texts
            for group, all_texts in groups.items()
            if len(texts := [t for t in all_texts if is_kept_out(t, KEPT_OUT) == kept_out]) >= least
        }
        for name, groups in groupings.items()
    }
    return {name: groups for name, groups in sides.items() if len(groups) > 1}


def _to_learn_from(sentences: Sequence[str], words: int) -> list[str]:
    """The sentences of at most so many words that are not held out."""
    return [
        text for text in sentences if len(text.split()) <= words and not is_kept_out(text, KEPT_OUT)
    ]


def recall_rows(
    sentences: Sequence[str], words: Sequence[str], count: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield `count` rows in which a few texts recur, nearly unchanged, each with its label: nothing
    to generalize, only the place to find again.

    Texts are sentences, or one or more words: short ones are found again sooner.
    """
    draw = random.Random(seed)
    sentences = _to_learn_from(sentences, _RECALLED_WORDS)
    made = 0
    while made < count:
        classes = draw.choice((2, 3, 4, 6, 8))
        if draw.random() < 0.5:
            task = variations(draw, sentences, classes, 6)
        else:
            length = draw.choice((1, 1, 2, 3, 4, 6, 8, 10))
            rows = [" ".join(draw.sample(words, length)) for _ in range(classes)]
            task = variations(draw, rows, classes, 6)
        labels = draw_labels(draw, classes)
        k = draw.randint(classes, MOST_SHOTS)
        shots = shots_of(draw, task, labels, k, "repeated", 0.0)
        row = shots and few_shot_row(draw_layout(draw), shots, guessable=False)
        if row:
            made += 1
            yield row


def majority_rows(sentences: Sequence[str], count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield `count` rows of dissimilar texts, most of one label: the answer where no demonstration
    is like the query, or several nearest ones disagree.
    """
    draw = random.Random(seed)
    sentences = _to_learn_from(sentences, _VOTED_WORDS)
    made = 0
    while made < count:
        labels = draw_labels(draw, draw.choice((2, 2, 3, 4, 6)))
        most, share = draw.choice(labels), draw.choice((0.4, 0.6, 0.8))
        shots = [
            (text, most if draw.random() < share else draw.choice(labels))
            for text in draw.sample(sentences, draw.randint(4, MOST_SHOTS) + 1)
        ]
        row = few_shot_row(draw_layout(draw, labels), shots, guessable=False)
        if row:
            made += 1
            yield row


def task_rows(tasks: Sequence[QuestionTask], count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield `count` few-shot prompts of single questions: one task per prompt, complete answers."""
    draw = random.Random(seed)
    made = 0
    while made < count:
        task = draw.choice(tasks)
        problems = [task.training(draw) for _ in range(draw.randint(1, 9))]
        # A prompt file may contain the question in words, or only its changing part.
        bare = not task.taught and draw.random() < 0.5
        shots = [
            (problem.given if bare else problem.question, problem.answer) for problem in problems
        ]
        row = few_shot_row(draw_layout(draw, (), named=0.0), shots, guessable=True)
        if row:
            made += 1
            yield row


# --- held-out tasks ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A held-out task: a prompt with labels and a pool, and items of (input, label)."""

    name: str
    prompt: PromptFile
    items: list[Shot]


def held_out_tasks(
    groupings: Mapping[str, Groups], words: Sequence[str], items: int, seed: int
) -> list[HeldOut]:
    """Twenty tasks with label words, classes and sentences that no training row has.

    Five by topic, five by form, five by the sentence that a text is a version of, and five of
    sentences by their source; of the last only the sentences are held out, not the classes.
    """
    draw = random.Random(f"held out {seed}")
    kept_out = _side(groupings, kept_out=True, least=60)
    sentences = [
        text for groups in kept_out.values() for texts in groups.values() for text in texts
    ]
    lists = table("topics")["held_out"]
    patterns = [*HELD_OUT.items(), *list(HELD_OUT.items())[-1:]]
    made = [
        *(topics(draw, lists, classes, 12) for classes in (2, 2, 3, 3, 4)),
        *(pattern(draw, dict([entry]), words, 60) for entry in patterns),
        *(variations(draw, sentences, classes, 30) for classes in (2, 2, 3, 4, 6)),
        *(grouped(draw, kept_out, classes, 60) for classes in (2, 2, 2, 3, 4)),
    ]
    return [_held_out_task(draw, number, task, items) for number, task in enumerate(made, 1)]


def _held_out_task(draw: random.Random, number: int, task: Classes, items: int) -> HeldOut:
    """A task with labels, in a layout of its own; every text except the query can be shown."""
    labels = draw_labels(draw, len(task.texts), kept_out=True)
    shots = [
        (text, label)
        for group, label in zip(task.texts, labels, strict=True)
        for text in dict.fromkeys(group)
    ]
    draw.shuffle(shots)
    layout = draw_layout(draw, arrows=0.0, named=0.0)
    prompt = replace(
        layout,
        path=Path(f"held out {number}: {task.name}"),
        labels=tuple(labels),
        metrics=("accuracy",),
        pool=Pool([text for text, _ in shots], [label for _, label in shots]),
        select=Select(method="random", k=MOST_SHOTS),
    )
    return HeldOut(f"{number}: {task.name}", prompt, shots[:items])
