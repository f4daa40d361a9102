"""The public data sets that comparisons take, in the folder that SHARED_DATA names.

`books` has fairy tales with questions, `classify` movie reviews (MR) and types of question (TREC),
`instruct` 1,100 instructions and prompts of the P3 collection.
"""

import gzip
import json
import os
from pathlib import Path

ITEMS = 500

Rows = list[tuple[str, str]]


def shared_data() -> Path:
    return Path(os.environ.get("SHARED_DATA", "nowhere"))


def labelled(task: str) -> tuple[Rows, Rows]:
    """The texts to learn from and those to measure with their labels, as the card's report."""
    from finetune.bundled_model.report import reviews, trec

    made = {"trec": trec, "mr": reviews}[task](shared_data() / "classify", ITEMS)
    pool = made.prompt.pool
    items = [(item.input, item.output) for item in made.items]
    return list(zip(pool.inputs, pool.outputs, strict=True)), items


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
