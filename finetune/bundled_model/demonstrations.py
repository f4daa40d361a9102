"""Few-shot prompts as training rows: demonstrations and a query in one sequence.

MetaICL's layout (Min et al. 2022), with a loss on the answer of every demonstration that the ones
before it explain, not only on the last. In the tasks of in-context tuning labels follow only from
the demonstrations: a task is a few classes of texts, which differ in topic word, in form, in
source, or in the sentence that they resemble; each class gets a label drawn at random.

A model that continues a sequence as before (an induction head, Olsson et al. 2022) can copy a
label; rows that repeat themselves teach it from many labels per row.

Invariants: the text is rendered by chatapp.tasks.files.layout, so the tokens are those of `chatapp
run` and `eval`. Classes and label words of held-out tasks, those of the evaluation sets, sentences
held out by their hash, and problems of the paper's evaluations are in no training row.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from chatapp.prompting.messages import Segment
from chatapp.rows.examples import Pool
from chatapp.tasks.evaluation.evaluate import Task
from chatapp.tasks.evaluation.gpt3_tasks import generate, own_words, task_prompt
from chatapp.tasks.evaluation.inputs import Item
from chatapp.tasks.files.layout import continuation, render
from chatapp.tasks.files.promptfile import PromptFile
from chatapp.tasks.selection.select import Select, build_selector
from finetune.bundled_model.questions import QuestionTask
from finetune.bundled_model.sources import Row
from finetune.bundled_model.tables import filled, is_kept_out, made_up_word, table

Shot = tuple[str, str]
"""An input and its output."""

Groups = Mapping[str, Sequence[str]]
"""Sentences by class, for one way to group them."""

LABELS_KEPT_OUT, SENTENCES_KEPT_OUT = 0.15, 0.1  # fractions
MOST_SHOTS = 16
_MOST_WORDS = 450  # few-shot prompts leave room in a window of 1,024 tokens


# --- layouts and labels ------------------------------------------------------------------


def draw_layout(
    draw: random.Random, labels: Sequence[str] = (), named: float = 0.2, arrows: float = 0.2
) -> PromptFile:
    """A prompt file without examples: prefixes, separator and instruction drawn.

    named: how often the instruction lists the labels. arrows: how often an output is on the line of
    its input.
    """
    layouts = table("layouts")
    instruction = ""
    chance = draw.random()
    if labels and chance < named:
        label_list = ", ".join(labels[:-1]) + " or " + labels[-1]
        instruction = draw.choice(layouts["labels_named"]).replace("{labels}", label_list)
    elif chance < 0.6:
        instruction = draw.choice(layouts["instructions"])
    if draw.random() < arrows:
        prefix, marker, separator = "", draw.choice(layouts["arrows"]), "\n"
    else:
        prefix, marker = draw.choice(layouts["inputs"]), draw.choice(layouts["outputs"])
        separator = "\n\n" if draw.random() < 0.8 else "\n"
    return PromptFile(
        path=Path("task"),
        instruction=instruction,
        input_prefix=prefix,
        output_prefix=marker,
        separator=separator,
    )


def few_shot_row(layout: PromptFile, shots: Sequence[Shot], *, guessable: bool) -> Row | None:
    """One row of `parts`: demonstrations, and the last of `shots` as the query.

    guessable: whether an output can be known without demonstrations. If not, an answer is trained
    only if the same one occurs before it, because unknowable answers must not be learned. None when
    nothing would be trained.
    """
    *demonstrations, (query, answer) = shots
    pool = pool_of(demonstrations)
    prompt = replace(layout, pool=pool)
    segments = render(prompt, range(len(pool)), query)
    segments.append(Segment("assistant", continuation(prompt, answer)))
    texts = [segment.text for segment in segments]
    # Inputs and outputs of demonstrations alternate.
    answers = [index for index, piece in enumerate(segments) if piece.kind == "example"][1::2]
    for index in answers:
        # The line break that ends an answer is trained with it.
        if texts[index + 1].startswith("\n"):
            texts[index] += "\n"
            texts[index + 1] = texts[index + 1][1:]
    answers.append(len(texts) - 1)
    outputs = dict(zip(answers, [*pool.outputs, answer], strict=True))

    parts: list[str] = []
    context = ""
    before: set[str] = set()
    for index, text in enumerate(texts):
        output = outputs.get(index)
        if output is not None and (guessable or output in before or output in layout.instruction):
            parts += [context, text]
            context = ""
        else:
            context += text
        if output is not None:
            before.add(output)
    return {"parts": parts} if parts else None


def pool_of(shots: Sequence[Shot]) -> Pool:
    """Inputs with their outputs as a pool of examples."""
    return Pool([text for text, _ in shots], [output for _, output in shots])


@cache
def _label_words(kept_out: bool) -> list[str]:
    topics = table("topics")
    topic_words = " ".join([*topics["train"].values(), *topics["held_out"].values()]).split()
    never = set(table("layouts")["evaluation_labels"].split())
    words = sorted({*own_words(), *(word.lower() for word in topic_words)} - never)
    return [word for word in words if is_kept_out(word, LABELS_KEPT_OUT) == kept_out]


def draw_labels(draw: random.Random, count: int, *, kept_out: bool = False) -> list[str]:
    """`count` different labels of one kind: words, made-up words, letters or numbers.

    kept_out: held-out labels, which are only words.
    """
    chance = 0.0 if kept_out else draw.random()
    if chance < 0.6:
        return draw.sample(_label_words(kept_out), count)
    if chance < 0.7:
        return [word.capitalize() for word in draw.sample(_label_words(False), count)]
    if chance < 0.85:
        words: set[str] = set()
        while len(words) < count:
            word = made_up_word(draw, draw.choice((1, 1, 2)))
            if not is_kept_out(word, LABELS_KEPT_OUT):
                words.add(word)
        return draw.sample(sorted(words), count)
    if chance < 0.95:
        return draw.sample("ABCDEFGHIJKLMNOPQRSTUVWXYZ", count)
    return [str(number) for number in draw.sample(range(10), count)]


# --- classes of texts --------------------------------------------------------------------


Classes = list[list[str]]
"""The texts of each class of a task."""


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
    return texts


@cache
def patterns(side: str) -> dict[str, dict[str, str]]:
    """The form of each class by pattern. side: "training" or "held_out"."""
    return {
        name: {x: filled(classes["each"], {"x": x}) for x in classes["of"].split()}
        if "of" in classes
        else classes
        for name, classes in table("patterns")[side].items()
    }


def text_of_form(draw: random.Random, words: Sequence[str], form: str) -> str:
    """A text of a form of tables/patterns.toml."""

    def some(least: int, most: int) -> str:
        return " ".join(draw.choice(words) for _ in range(draw.randint(least, most)))

    def drawn(place: re.Match[str]) -> str:
        match place[1].split():
            case ["w", *changed]:
                text = some(1, 4)
                return str(getattr(text, changed[0])()) if changed else text
            case ["v"]:
                return some(1, 2)
            case ["one"]:
                return draw.choice(words)
            case ["same"]:
                return " ".join([draw.choice(words)] * 2)
            case ["two"]:
                return " ".join(draw.sample(words, 2))
            case ["first" | "last" as end, letters]:
                at = 0 if end == "first" else -1
                return draw.choice([w for w in words if w[at] in letters] or [letters[at]])
            case [least, "to", most, *by]:
                return str(draw.randrange(int(least), int(most), int(by[1]) if by else 1))
        return some(int(place[1]), int(place[1]))

    return re.sub(r"\{([^{}]+)\}", drawn, form)


def pattern(
    draw: random.Random,
    forms: Mapping[str, Mapping[str, str]],
    words: Sequence[str],
    per_class: int,
) -> Classes:
    """Texts by their form."""
    classes = forms[draw.choice(sorted(forms))]
    chosen = draw.sample(sorted(classes), min(len(classes), draw.choice((2, 2, 3, 4))))
    sample = draw.sample(words, min(200, len(words)))
    return [
        list(dict.fromkeys(text_of_form(draw, sample, classes[c]) for _ in range(per_class)))
        for c in chosen
    ]


def grouped(
    draw: random.Random, groupings: Mapping[str, Groups], classes: int, per_class: int
) -> Classes:
    """Sentences by their source or their beginning."""
    groups = groupings[draw.choice(sorted(groupings))]
    chosen = draw.sample(sorted(groups), min(classes, len(groups)))
    return [draw.sample(groups[c], min(per_class, len(groups[c]))) for c in chosen]


def longer(task: Classes, sentences: int) -> Classes:
    """Texts of so many sentences of a class each, as news have; classes with few stay short."""
    return [
        [" ".join(group[at : at + sentences]) for at in range(0, len(group), sentences)]
        if len(group) >= 4 * sentences
        else group
        for group in task
    ]


def look_up(draw: random.Random, words: Sequence[str], classes: int) -> Classes:
    """Things to remember: every class is one thing, repeated unchanged."""
    things = draw.sample(words, classes)
    if draw.random() < 0.5:
        things = [made_up_word(draw, 2) for _ in range(classes)]
    return [[thing] for thing in things]


def variations(
    draw: random.Random, sentences: Sequence[str], classes: int, per_class: int
) -> Classes:
    """Each class is one sentence in several versions: words removed, doubled or inserted."""
    originals = draw.sample(sentences, classes)
    others = draw.choice(sentences).split()
    return [[_varied(draw, original, others) for _ in range(per_class)] for original in originals]


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
    order, as `chatapp` chooses them. noise: the fraction of demonstrations with another label.
    """
    texts = _labelled(task, labels)
    query = draw.choice(texts)
    others = [shot for shot in texts if shot[0] != query[0]]
    if selection == "repeated":
        shots = [draw.choice(texts) for _ in range(k)]
    elif len(others) < k:
        return None
    elif selection == "random":
        shots = draw.sample(others, k)
    else:
        method = "knn" if selection == "nearest" else "balanced"
        select = Select.model_validate({"method": method, "seed": draw.randrange(2**32)})
        chosen = build_selector(pool_of(others), select).select(query[0], k)
        shots = [others[index] for index in reversed(chosen)]
    wrong = [draw.choice(labels) if draw.random() < noise else label for _, label in shots]
    return [*((text, label) for (text, _), label in zip(shots, wrong, strict=True)), query]


def _labelled(task: Classes, labels: Sequence[str]) -> list[Shot]:
    pairs = zip(task, labels, strict=True)
    return [(text, label) for texts, label in pairs for text in texts]


# --- rows --------------------------------------------------------------------------------


def one_side(
    groupings: Mapping[str, Groups], least: int, *, kept_out: bool = False
) -> dict[str, dict[str, list[str]]]:
    """The sentences for training, or the held-out ones, of groups that have enough of them.

    A grouping that leaves fewer than two groups is left out.
    """
    sides: dict[str, dict[str, list[str]]] = {}
    for name, groups in groupings.items():
        kept = {group: to_learn_from(texts, kept_out=kept_out) for group, texts in groups.items()}
        sides[name] = {group: texts for group, texts in kept.items() if len(texts) >= least}
    return {name: groups for name, groups in sides.items() if len(groups) > 1}


def to_learn_from(
    sentences: Sequence[str], most: int = 1000, *, kept_out: bool = False
) -> list[str]:
    """The sentences of at most so many words that are for training, or held out."""
    short = [text for text in sentences if len(text.split()) <= most]
    return [text for text in short if is_kept_out(text, SENTENCES_KEPT_OUT) == kept_out]


def all_sentences(groupings: Mapping[str, Groups]) -> list[str]:
    """The sentences of all groups of all groupings."""
    return [text for groups in groupings.values() for texts in groups.values() for text in texts]


def in_context(
    draw: random.Random,
    groupings: Mapping[str, Groups],
    sentences: Sequence[str],
    words: Sequence[str],
    most: int,
    noises: Sequence[float] = (0.0, 0.0, 0.1, 0.25),
) -> Row | None:
    """A row of a training task with at most `most` demonstrations.

    groupings: of `one_side`; sentences: all of them. words: any common ones. noises: one of
    them is the fraction of wrong labels if demonstrations are the nearest, so that several count.
    """
    classes = draw.choice((2, 2, 3, 4, 6))
    per_class = draw.choice((6, 10, 20, 40))
    kind = draw.random()
    selection = draw.choice(("random", "random", "balanced", "nearest", "nearest"))
    if kind < 0.2:
        task = topics(draw, table("topics")["train"], classes, per_class)
    elif kind < 0.35:
        task = pattern(draw, patterns("training"), words, per_class)
    elif kind < 0.45:
        task, selection = look_up(draw, words, classes), "repeated"
    elif kind < 0.6:
        task = variations(draw, sentences, classes, 6)
    else:
        task = longer(grouped(draw, groupings, classes, per_class), draw.choice((1, 1, 2, 3)))
        selection = draw.choice(("random", "nearest", "nearest"))
    labels = draw_labels(draw, len(task))
    k = draw.randint(2, most)
    noise = draw.choice(noises) if selection == "nearest" else 0.0
    shots = shots_of(draw, task, labels, k, selection, noise)
    if shots is None or sum(len(text.split()) for text, _ in shots) > _MOST_WORDS:
        return None
    # Demonstrations of one label need only a few examples.
    if len({label for _, label in shots}) == 1 and draw.random() < 0.75:
        return None
    return few_shot_row(draw_layout(draw, labels), shots, guessable=False)


def recall(draw: random.Random, sentences: Sequence[str], words: Sequence[str]) -> Row | None:
    """A row in which a few texts recur, nearly unchanged, each with its label: nothing to
    generalize, only the place to find again.

    Texts are sentences, or one or more words: short ones are found again sooner.
    """
    classes = draw.choice((2, 3, 4, 6, 8))
    texts = sentences
    if draw.random() >= 0.5:
        length = draw.choice((1, 1, 2, 3, 4, 6, 8, 10))
        texts = [" ".join(draw.sample(words, length)) for _ in range(classes)]
    task = variations(draw, texts, classes, 6)
    labels = draw_labels(draw, classes)
    shots = shots_of(draw, task, labels, draw.randint(classes, MOST_SHOTS), "repeated", 0.0)
    return few_shot_row(draw_layout(draw), shots, guessable=False) if shots else None


def majority(draw: random.Random, sentences: Sequence[str]) -> Row | None:
    """A row of dissimilar texts, most of one label: the answer where no demonstration is like the
    query, or several nearest ones disagree.
    """
    labels = draw_labels(draw, draw.choice((2, 2, 3, 4, 6)))
    most, share = draw.choice(labels), draw.choice((0.4, 0.6, 0.8))
    shots = [
        (text, most if draw.random() < share else draw.choice(labels))
        for text in draw.sample(sentences, draw.randint(4, MOST_SHOTS) + 1)
    ]
    return few_shot_row(draw_layout(draw, labels), shots, guessable=False)


def few_shot_task(draw: random.Random, tasks: Sequence[QuestionTask]) -> Row | None:
    """A few-shot prompt of single questions of one task, with complete answers."""
    task = draw.choice(tasks)
    problems = [task.training(draw) for _ in range(draw.randint(1, 9))]
    # A prompt file may contain the question in words, or only its changing part.
    bare = not task.taught and draw.random() < 0.5
    shots = [(each.given if bare else each.question, each.answer) for each in problems]
    return few_shot_row(draw_layout(draw, (), named=0.0), shots, guessable=True)


# --- sums of the GPT-3 paper -------------------------------------------------------------

# How often each task of the paper is drawn: those that so small a model learns.
SHARES = {"2D+": 12, "2D-": 12, "2Dx": 4, "1DC": 4, "3D+": 4, "3D-": 4}
_TESTED = 700


@cache
def tested() -> frozenset[str]:
    """The held-out inputs of all tasks: a problem of "up to three digits" may be one of two."""
    return frozenset(item.input for name in SHARES for item in generate(name, _TESTED, 0))


def arithmetic(draw: random.Random) -> Row | None:
    """A few-shot prompt of 1 to 24 problems: of one task, or, equally often, of several."""
    shots = draw.choice((1, 2, 4, 8, 16, 24))
    one = draw.random() < 0.6
    chosen = draw.choices(list(SHARES), list(SHARES.values()), k=1 if one else shots)
    problems: list[Shot] = []
    for name in chosen * (shots if one else 1):
        item = generate(name, 1, draw.randrange(1, 2**32))[0]
        while item.input in tested():
            item = generate(name, 1, draw.randrange(1, 2**32))[0]
        problems.append((item.input, item.output))
    return few_shot_row(task_prompt(chosen[0], ()), problems, guessable=True)


# --- texts that repeat themselves --------------------------------------------------------


def repetition(draw: random.Random, words: Sequence[str], sentences: Sequence[str]) -> Row:
    """A row of `parts`, random, so that only the repetition predicts them."""
    once = draw.random() < 0.6
    return {"parts": _repeated(draw, words, sentences) if once else _looked_up(draw, words)}


def _repeated(draw: random.Random, words: Sequence[str], sentences: Sequence[str]) -> list[str]:
    """Words, made-up words, numbers or a sentence, twice or more: one prompt and one answer."""
    count, kinds = (
        draw.randint(3, 24),
        ("words", "words", "made up", "numbers", "sentence", "mixed"),
    )
    match draw.choice(kinds):
        case "words":
            items = [draw.choice(words) for _ in range(count)]
        case "made up":
            items = [made_up_word(draw, draw.choice((1, 2))) for _ in range(count // 2 + 2)]
        case "numbers":
            items = [str(draw.randrange(10 ** draw.randint(1, 4))) for _ in range(count // 2 + 2)]
        case "sentence":
            items = draw.choice(sentences).split()
        case _:
            items = [draw.choice((draw.choice(words), made_up_word(draw))) for _ in range(count)]
    between = draw.choice((" ", " ", "\n", ", "))
    gap = draw.choice(("\n", "\n\n", between))
    once = between.join(items)
    times = draw.choice((1, 1, 2, 3))
    return [once, (gap.rstrip(" ") + (" " if gap.endswith(" ") else "") + once) * times]


def _looked_up(draw: random.Random, words: Sequence[str]) -> list[str]:
    """Pairs to remember, then the same in another order, each to be completed from its first
    element.
    """
    count = draw.randint(2, 8)
    keys = draw.sample(words, count)
    if draw.random() < 0.3:
        keys = sorted({made_up_word(draw, 2) for _ in keys})
    values = draw.sample(words, draw.choice((2, 3, len(keys))))
    pairs = [(key, draw.choice(values)) for key in keys]
    mark, end = draw.choice((":", " =", " ->", " =>", "\nA:")), draw.choice(("\n", "\n", "\n\n"))
    prompt = "".join(f"{key}{mark} {value}{end}" for key, value in pairs)
    parts: list[str] = []
    for _ in range(draw.randint(1, 3)):
        for key, value in draw.sample(pairs, len(pairs)):
            parts += [f"{prompt}{key}{mark}", f" {value}\n"]
            prompt = end[1:]
    return parts


# --- held-out tasks ----------------------------------------------------------------------


def held_out_tasks(
    groupings: Mapping[str, Groups], words: Sequence[str], items: int, seed: int
) -> list[Task]:
    """Twenty tasks with label words, classes and sentences that no training row has.

    Five by topic, five by form, five by the sentence that a text is a version of, and five of
    sentences by their source; of the last only the sentences are held out, not the classes.

    items: the most of a task.
    """
    draw = random.Random(f"held out {seed}")
    kept_out = one_side(groupings, 60, kept_out=True)
    sentences, lists = all_sentences(kept_out), table("topics")["held_out"]
    forms = [*patterns("held_out").items()]
    made = [
        *(("topic", topics(draw, lists, classes, 12)) for classes in (2, 2, 3, 3, 4)),
        *(("form", pattern(draw, dict([entry]), words, 60)) for entry in (*forms, forms[-1])),
        *(("version", variations(draw, sentences, classes, 30)) for classes in (2, 2, 3, 4, 6)),
        *(("source", grouped(draw, kept_out, classes, 60)) for classes in (2, 2, 2, 3, 4)),
    ]
    tasks = []
    for number, (kind, classes) in enumerate(made, 1):
        labels = draw_labels(draw, len(classes), kept_out=True)
        shots = _labelled([list(dict.fromkeys(texts)) for texts in classes], labels)
        draw.shuffle(shots)
        prompt = replace(
            draw_layout(draw, arrows=0.0, named=0.0),
            path=Path(f"held out {number}: {kind}"),
            labels=tuple(labels),
            metrics=("accuracy",),
            pool=pool_of(shots),  # every text except the query can be shown
            select=Select(method="random", k=MOST_SHOTS),
        )
        tasks.append(as_task(f"{number}: {kind}", prompt, shots[:items]))
    return tasks


def as_task(name: str, prompt: PromptFile, shots: Sequence[Shot]) -> Task:
    """A task whose items are inputs with their outputs."""
    return Task(name, prompt, [Item(*shot, line) for line, shot in enumerate(shots, 1)])
