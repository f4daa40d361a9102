"""Heads beside word counts: accuracy on movie reviews (MR) and on types of question (TREC).

Every method learns the same rows, drawn by the seed; 500 reviews, which nobody learns, and TREC's
500 test questions are measured. Word counts are single words in logistic regression and in naive
Bayes, as scikit-learn has them. Needs scikit-learn and the folder of the shared data in
SHARED_DATA. Run with `pytest -m benchmark -s tests/benchmarks/test_head_accuracy.py`, or one
cell of the table as

    python tests/benchmarks/test_head_accuracy.py TASK (counts|MODEL) ROWS SEEDS [key=value …]
"""

import json
import random
import sys
import tempfile
from pathlib import Path
from statistics import fmean, stdev

import pytest
from scale import is_tiny, sized
from shared_data import Rows, labelled

# Chosen on 300 rows that are neither learnt nor measured; reviews want 4 epochs at 3e-4, and 100
# rows some 20 epochs.
EPOCHS, LEARNT, SEEDS = sized((8, 500, 3), (1, 8, 1))
SETTINGS = {"train": {"epochs": EPOCHS, "batch_size": 16, "learning_rate": 1e-3}}


def drawn(rows: Rows, count: int, seed: int) -> Rows:
    return random.Random(f"rows {seed}").sample(rows, count)


def by_counts(train: Rows, test: Rows) -> dict[str, float]:
    """The accuracy of word counts in logistic regression and in naive Bayes."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import MultinomialNB

    words = CountVectorizer(token_pattern=r"\w+|[^\w\s]")
    learnt = words.fit_transform([row["text"] for row in train])
    asked = words.transform([row["text"] for row in test])
    found = {}
    for name, method in (
        ("logistic", LogisticRegression(max_iter=2000)),
        ("bayes", MultinomialNB()),
    ):
        method.fit(learnt, [row["label"] for row in train])
        found[name] = float(method.score(asked, [row["label"] for row in test]))
    return found


def by_head(model: str, train: Rows, test: Rows, seed: int, *overrides: str) -> dict[str, float]:
    """The accuracy of a head on a model, taught by `finetune train`."""
    import finetune

    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for name, rows in (("train", train), ("test", test)):
            paths[name] = Path(folder) / f"{name}.jsonl"
            paths[name].write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = {
            "model": model,
            "output": f"{folder}/run",
            "seed": seed,
            "data": {"train": str(paths["train"]), "held_out": 0.0},
            "head": {"task": "classification"},
            **SETTINGS,
        }
        run = finetune.train(config, "train.save_every=1000000", *overrides)
        (measured,) = finetune.evaluate(run, data=paths["test"])["sets"].values()
        return {"head": measured["accuracy"]}


def accuracies(
    task: str, method: str, count: int, seeds: int, *overrides: str
) -> dict[str, list[float]]:
    """The accuracy of each seed's rows, by what learnt them."""
    rows, test = labelled(task)
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        train = drawn(rows, count, seed)
        one = (
            by_counts(train, test)
            if method == "counts"
            else by_head(method, train, test, seed, *overrides)
        )
        for name, accuracy in one.items():
            found.setdefault(name, []).append(accuracy)
    return found


def tell(task: str, method: str, count: int, seeds: int, *overrides: str) -> dict[str, list[float]]:
    """The accuracies, printed as a mean with its standard deviation."""
    found = accuracies(task, method, count, seeds, *overrides)
    for name, each in found.items():
        spread = f" ± {stdev(each):.3f}" if len(each) > 1 else ""
        print(f"{task} {count} {method} {name} {' '.join(overrides)}: {fmean(each):.3f}{spread}")
    return found


@pytest.mark.benchmark
def test_a_head_on_the_bundled_model_knows_types_of_question_as_well_as_word_counts(
    data: None,
) -> None:
    (head,) = tell("trec", "bundled", LEARNT, SEEDS).values()
    assert all(0 <= accuracy <= 1 for accuracy in head)
    pytest.importorskip("sklearn")
    counts = tell("trec", "counts", LEARNT, SEEDS)
    if is_tiny():
        return
    assert fmean(head) > fmean(counts["bayes"])
    assert fmean(head) > fmean(counts["logistic"]) - 0.03  # about their standard deviation


if __name__ == "__main__":
    tell(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
