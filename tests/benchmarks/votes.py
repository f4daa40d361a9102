"""Does a model add to a vote of the nearest examples' labels? Its likelihood times the vote.

    log P(label) = w · (log p(label | input) - log p̄(label)) + log((votes + a / labels) / (k + a))

p is the model's likelihood without demonstrations, or after the four nearest; p̄ its mean over the
other items, which takes the model's liking of a label away. k, a and w are those with the highest
likelihood on other items of the pool, each predicted without itself (five parts in turn); so is the
k of the vote alone, by its accuracy.
"""

import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from answers import TASKS
from measure import Table, models, sized
from numpy.typing import NDArray
from shared_data import labelled, shared_data

Row = tuple[str, str]
Numbers = NDArray[np.float64]
SETS = TASKS | {
    "news": ("news (AG)", "Say which section each article belongs to.", "Article", "Section"),
    "reviews": (
        "reviews (Amazon, Yelp, apps)",
        "Say whether each review is positive or negative.",
        "Review",
        "Sentiment",
    ),
    "talk": ("topics of talk", "Say what each of these talks is about.", "Talk", "Topic"),
    "books": ("sentences of books", "Say which book each sentence is from.", "Sentence", "Book"),
}
TALK = {"music": "music", "movies": "films", "nfl_football": "football", "disney": "Disney"}
TALK |= {"star_wars": "Star Wars", "baseball": "baseball", "fashion": "fashion"}
BOOKS = {
    "alices-adventures-in-wonderland": "Alice in Wonderland",
    "black-beauty": "Black Beauty",
    "the-adventures-of-sherlock-holmes": "Sherlock Holmes",
    "peter-pan": "Peter Pan",
    "the-jungle-book": "The Jungle Book",
    "the-wonderful-wizard-of-oz": "The Wizard of Oz",
}
HEROES = re.compile("Alice|Beauty|Holmes|Watson|Peter|Wendy|Mowgli|Dorothy|Oz")
APPS = {"Not at all": 1, "No": 2, "Maybe": 3, "Yes": 4, "Definitely": 5}
MOST = (1, 2, 4, 8, 16, 32)
GRID = list(product(MOST, (0.5, 1.0, 2.0), (0.0, 0.125, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)))
"""k, a, w."""

SEEDS = 3
"""Draws of four fifths of the pool that vote."""


def rows_of(name: str) -> list[Row]:
    """The labelled texts of a set, in an order that does not change."""
    if name in TASKS:
        return labelled(name)[0]
    readers = {"news": news, "reviews": reviews, "talk": talk, "books": sentences}
    rows = list(dict(readers[name]()).items())
    random.Random(name).shuffle(rows)
    return rows


def packed(path: str) -> Iterator[dict[str, Any]]:
    with gzip.open(shared_data() / path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def prompts_of(beginning: str) -> Iterator[tuple[str, str, str]]:
    """Template, prompt and completion of the rows of P3 of some templates."""
    for row in packed("instruct/t0_templates_sample.jsonl.gz"):
        if row["template"].startswith(beginning):
            yield row["template"], row["prompt"], row["completion"].strip()


def news() -> Iterator[Row]:
    asked = (
        r"(What label best|Is this a piece|Would you recommend|Which (section|of the fo))[^?]*\?"
    )
    for _, prompt, said in prompts_of("ag_news"):
        text = re.sub(f"{asked}( World News[^?]*[?])?", "", prompt).replace("\\", " ")
        is_business = said.startswith("Business")
        yield " ".join(text.split()), "business" if is_business else "technology"


def reviews() -> Iterator[Row]:
    """Of products, and of places and programs with one, two, four or five stars."""
    asked = r"(Is the review|Is this product|Does this product|Would you say this)[^?]*\?|Answer:"
    for template, prompt, said in prompts_of("amazon"):
        match = re.search("(?:^|\n)(?:Product )?[Rr]eview: (.*)", prompt, re.S)
        is_good = said.lower() in ("yes", "positive", "flattering", "satisfied", "increase")
        if template.endswith("Is_this_review_negative"):
            is_good = said == "No"
        if match:
            text = " ".join(re.sub(asked, "", match[1]).split())
            yield text, "positive" if is_good else "negative"
    ends = r"^Review[^:]*:|(\n===)?\n[^\n]+\n$|My rating for this place is\n$"
    for _, prompt, said in prompts_of("yelp"):
        text = re.sub(ends, "", prompt).replace("\\n", " ").replace("\\", "")
        if said[0] != "3":
            yield " ".join(text.split()), "positive" if said[0] in "45" else "negative"
    for _, prompt, said in prompts_of("app_reviews_c"):
        match = re.search('review.*?"(.*)"', prompt, re.S)
        stars = APPS.get(said, len(said) if "★" in said else said)
        if match and str(stars) in "1245":
            yield " ".join(match[1].split()), "positive" if str(stars) in "45" else "negative"


def talk() -> Iterator[Row]:
    counts: Counter[str] = Counter()
    for row in packed("dialogue/self_dialogue.jsonl.gz"):
        if (label := TALK.get(row["topic"])) and counts[label] < 180:
            counts[label] += 1
            yield " ".join(" ".join(row["turns"][1:3]).split()), label


def sentences() -> Iterator[Row]:
    for file, label in BOOKS.items():
        text = " ".join((shared_data() / "books" / f"{file}.txt").read_text("utf-8").split())
        found = [
            one for one in re.findall(r"[A-Z][^.!?]{60,200}[.!?]", text) if not HEROES.search(one)
        ]
        random.Random(label).shuffle(found)
        yield from ((one, label) for one in found[:400])


def votes_table() -> Table:
    """Accuracy of the model, of the vote, of both, and what the model adds to the vote."""
    from chatapp.engine.models.loading import load_model
    from chatapp.tasks.metrics import accuracy, difference

    head = ("set, model", "n", "model", "calibrated", "vote", "both")
    head += ("both less vote (95 %)", "both less calibrated (95 %)")
    rows: list[tuple[str, ...]] = []
    for name in sized(tuple(SETS), ("mr",)):
        known = rows_of(name)
        drawn = random.Random(1).sample(range(len(known)), min(sized(300, 20), len(known)))
        texts, golds = zip(*(known[number] for number in drawn), strict=True)
        for title, source in models().items():
            model = load_model(source, precision="float32")
            for shots in (0, 4) if title == "bundled" else (0,):
                labels = sorted({label for _, label in known})
                right = [labels.index(gold) for gold in golds]
                runs, logs = [], None
                for seed in range(SEEDS):
                    voters = random.Random(seed).sample(known, len(known) * 4 // 5)
                    if logs is None or shots:
                        logs = likelihoods(model, name, voters, texts, labels, shots)
                    near = neighbours(voters, texts, labels)
                    runs.append(answers_of(logs, near, right))
                ways = [[[labels[i] for i in run[way]] for run in runs] for way in range(4)]
                means = [np.mean([accuracy(run, golds) for run in way]) for way in ways]
                _, calibrated, vote, both = ways
                cells = []
                for other in (vote, calibrated):
                    found = difference("accuracy", both, other, golds)
                    low, high = (f"{100 * bound:+.1f}" for bound in found.interval)
                    cells.append(f"{100 * found.mean:+.1f} ({low} to {high})")
                where = f"{SETS[name][0]}, {title}" + ", after 4 nearest" * (shots > 0)
                rows.append((where, str(len(golds)), *(f"{100 * x:.1f}" for x in means), *cells))
    count = (
        "accuracy in per cent of n items; calibrated: less the model's liking of a label "
        f"elsewhere; intervals over items and {SEEDS} draws of four fifths of the rows"
    )
    return Table(head, rows, count)


def likelihoods(
    model: Any,
    name: str,
    pool: Sequence[Row],
    texts: Sequence[str],
    labels: Sequence[str],
    shots: int,
) -> Numbers:
    """log p of each label for these texts, normalized over the labels: (items, labels)."""
    from chatapp.rows.examples import Pool
    from chatapp.tasks.answering import Answerer, probabilities
    from chatapp.tasks.files.promptfile import PromptFile, selector_for

    _, instruction, asked, answer = SETS[name]
    prompt = PromptFile(
        path=Path(name),
        instruction=instruction,
        input_prefix=f"{asked}: ",
        output_prefix=f"{answer}:",
        labels=tuple(labels),
        pool=Pool(*map(list, zip(*pool, strict=True))),
        generate={"max_tokens": 8},
    )
    prompt = prompt.changed(select="knn:tfidf", shots=shots)
    answerer = Answerer(model, prompt, selector_for(prompt, model) if shots else None)
    answers = answerer.answer([answerer.prepare(text) for text in texts])
    found = []
    for each in answers:
        assert each.likelihoods is not None
        shares = probabilities(each.likelihoods, "direct")
        found.append([max(shares[label], 1e-300) for label in labels])
    return np.log(np.array(found))


def neighbours(voters: Sequence[Row], texts: Sequence[str], labels: list[str]) -> list[list[int]]:
    """The labels of the nearest of the rows that vote, the nearest first; not a text's own."""
    from chatapp.rows.examples import Pool
    from chatapp.tasks.selection.methods import Knn
    from chatapp.tasks.selection.similarity import TfidfIndex

    pool = Pool(*map(list, zip(*voters, strict=True)))
    nearest = Knn(pool, TfidfIndex(pool.inputs))
    return [
        [labels.index(pool.outputs[row]) for row in nearest.select(text, MOST[-1])]
        for text in texts
    ]


def answers_of(logs: Numbers, near: list[list[int]], right: Sequence[int]) -> tuple[list[int], ...]:
    """What the model, the calibrated model, the vote and both together answer to each item, with
    k, a, w and p̄ of the others."""
    size = logs.shape[1]
    votes = {k: np.array([np.bincount(row[:k], minlength=size) for row in near]) for k in MOST}
    winners = {k: [max(row[:k], key=row[:k].count) for row in near] for k in MOST}
    gold, places = np.array(right), np.arange(len(right))
    calibrated, vote, both = ([0] * len(right) for _ in range(3))
    for part in range(5):
        others, own = places[places % 5 != part], places[places % 5 == part]
        liked = np.log(np.exp(logs[others]).mean(0))
        scores = []
        for k, a, w in GRID:
            score = w * (logs - liked) + np.log((votes[k] + a / size) / (k + a))
            scores.append(score - np.logaddexp.reduce(score, axis=1, keepdims=True))
        best = max(scores, key=lambda score: float(score[others, gold[others]].sum()))
        k = max(MOST, key=lambda k: sum(winners[k][i] == right[i] for i in others))
        for i in own:
            both[i], vote[i] = int(best[i].argmax()), winners[k][i]
            calibrated[i] = int((logs[i] - liked).argmax())
    return logs.argmax(1).tolist(), calibrated, vote, both
