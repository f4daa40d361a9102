"""Demonstrations near the query beside random ones: types of question (TREC, coarse and its 50 fine
ones) and reviews (MR).

All rows to learn from are the pool: TREC's 5,452 training questions, 9,662 reviews. Run with
`pytest -m benchmark -s tests/benchmarks/test_demonstrations.py`, or write the prompt file and the
items to measure for `chatapp eval FOLDER/TASK.toml --test FOLDER/items.jsonl …` with

    python tests/benchmarks/test_demonstrations.py (trec|trec-fine|mr) FOLDER

Needs the folder of the shared data in SHARED_DATA while the files are written.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from scale import check_finite, is_tiny, sized
from shared_data import Rows, labelled

from finetune.bundled_model.few_shot import TREC_KINDS

LIMIT, SHOTS = sized((100, 8), (2, 1))
NAMES = TREC_KINDS | {"pos": "positive", "neg": "negative"}
PROMPTS = {
    "trec": """description   = "What kind of answer a question asks for"
instruction   = "Say what kind of answer each question asks for."
input_prefix  = "Question: "
output_prefix = "Type:"
labels        = ["person", "place", "number", "description", "thing", "abbreviation"]
""",
    "trec-fine": """description   = "What kind of answer a question asks for, of 50 kinds"
input_prefix  = "Question: "
output_prefix = "Type:"
labels        = [LABELS]
""",
    "mr": """description   = "Whether a sentence of a movie review is positive or negative"
instruction   = "Say whether each review is positive or negative."
input_prefix  = "Review: "
output_prefix = "Sentiment:"
labels        = ["positive", "negative"]
""",
}


def write(task: str, folder: Path) -> None:
    """Write the prompt file, its pool and the items to measure."""

    def lines(rows: Rows) -> str:
        named = (
            {"input": row["text"], "label": NAMES.get(row["label"], row["label"])} for row in rows
        )
        return "".join(json.dumps(row) + "\n" for row in named)

    pool, items = labelled(task)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pool.jsonl").write_text(lines(pool))
    (folder / "items.jsonl").write_text(lines(items))
    labels = ", ".join(f'"{label}"' for label in sorted({row["label"] for row in pool + items}))
    prompt = PROMPTS[task].replace("LABELS", labels)
    (folder / f"{task}.toml").write_text(prompt + 'examples_file = "pool.jsonl"\n')


@pytest.mark.benchmark
def test_near_demonstrations_beat_random_ones(data: None, tmp_path: Path) -> None:
    write("trec", tmp_path)
    command = (
        f"eval {tmp_path}/trec.toml --test {tmp_path}/items.jsonl --limit {LIMIT} --shots {SHOTS}"
    )
    asked = [*command.split(), "--select", "random,knn:tfidf", "--report", f"{tmp_path}/report"]
    subprocess.run([sys.executable, "-m", "chatapp", *asked], check=True)
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    found = {
        each["selection"]: each["mean"]
        for each in report["results"]
        if each["metric"] == "accuracy"
    }
    print(found)
    random, nearest = found.values()
    check_finite(1 + random, 1 + nearest)  # of two answers none may be right
    assert is_tiny() or nearest > random + 0.2  # several times the intervals


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
