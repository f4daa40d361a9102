"""The public data sets that comparisons take, in the folder that SHARED_DATA names.

`books` has fairy tales with questions, `classify` movie reviews (MR) and types of question (TREC),
`instruct` 1,100 instructions and prompts of the P3 collection.
"""

import gzip
import json
import os
import random
from pathlib import Path

ITEMS = 500

Rows = list[dict[str, str]]

TREC_KINDS = {
    "HUM": "person",
    "LOC": "place",
    "NUM": "number",
    "DESC": "description",
    "ENTY": "thing",
    "ABBR": "abbreviation",
}


def shared_data() -> Path:
    return Path(os.environ.get("SHARED_DATA", "nowhere"))


def labelled(task: str) -> tuple[Rows, Rows]:
    """The rows to learn from and those to measure, in an order that does not change."""
    folder = shared_data() / "classify"
    if task == "mr":
        rows = [
            {"text": line.strip(), "label": label}
            for label in ("pos", "neg")
            for line in (folder / f"mr_{label}.txt").read_text("latin-1").split("\n")
            if line.strip()
        ]
        random.Random(0).shuffle(rows)
        return rows[2 * ITEMS :], rows[:ITEMS]
    sets = []
    for name in ("train", "test"):
        lines = (folder / f"trec_{name}.txt").read_text("latin-1").strip().split("\n")
        pairs = (line.split(" ", 1) for line in lines)
        sets.append([{"text": text, "label": label.split(":")[0]} for label, text in pairs])
    return sets[0], sets[1]


def write_tiny_data(folder: Path) -> Path:
    """Write files in the same formats, with a few rows each; returns `folder`."""
    for name in ("books", "classify", "instruct"):
        (folder / name).mkdir(parents=True)
    questions = [f"{label}:x What is {n} ?" for n in range(12) for label in ("NUM", "LOC")]
    (folder / "classify" / "trec_train.txt").write_text("\n".join(questions))
    (folder / "classify" / "trec_test.txt").write_text("\n".join(questions[:6]))
    for label in ("pos", "neg"):
        lines = (f"It is {label} {n} ." for n in range(ITEMS + 20))
        (folder / "classify" / f"mr_{label}.txt").write_text("\n".join(lines))
    rows = [{"instruction": f"Say {n}.", "input": "", "output": f"{n}."} for n in range(24)]
    (folder / "instruct" / "raschka_1100.json").write_text(json.dumps(rows))
    pairs = [{"prompt": f"Say {n}.", "completion": f"{n}."} for n in range(24)]
    tales = [
        {
            "text": f"The king number {n} had {n} grey cats. They ate all day.",
            "questions": [{"question": f"What had king {n}?", "answer": f"{n} grey cats"}],
        }
        for n in range(4)
    ]
    for path, content in (("instruct/t0_templates_sample", pairs), ("books/fairytale_qa", tales)):
        with gzip.open(folder / f"{path}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in content))
    return folder
