"""The public data sets that comparisons take, in the folder that SHARED_DATA names.

`classify` has movie reviews (MR) and types of question (TREC), `gpt2_bpe` GPT-2's vocabulary,
`instruct` and `preference` 1,100 instructions and pairs of replies to them.
"""

import json
import os
import random
from pathlib import Path

ITEMS = 500

Rows = list[dict[str, str]]


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
        is_fine = task == "trec-fine"
        sets.append(
            [
                {"text": text, "label": label if is_fine else label.split(":")[0]}
                for label, text in pairs
            ]
        )
    return sets[0], sets[1]


def write_tiny_data(folder: Path) -> Path:
    """Write files in the same formats, with a few rows each; returns `folder`."""
    from tokenizers.pre_tokenizers import ByteLevel

    for name in ("classify", "gpt2_bpe", "instruct", "preference"):
        (folder / name).mkdir()
    questions = [f"{label}:x What is {n} ?" for n in range(12) for label in ("NUM", "LOC")]
    (folder / "classify" / "trec_train.txt").write_text("\n".join(questions))
    (folder / "classify" / "trec_test.txt").write_text("\n".join(questions[:6]))
    names = [*sorted(ByteLevel.alphabet()), "<|endoftext|>"]
    vocabulary = json.dumps({name: id for id, name in enumerate(names)})
    (folder / "gpt2_bpe" / "encoder.json").write_text(vocabulary)
    (folder / "gpt2_bpe" / "vocab.bpe").write_text("#version: 0.2\n")
    rows = [{"instruction": f"Say {n}.", "input": "", "output": f"{n}."} for n in range(24)]
    pairs = [row | {"chosen": row["output"], "rejected": "No, never."} for row in rows]
    (folder / "instruct" / "raschka_1100.json").write_text(json.dumps(rows))
    (folder / "preference" / "raschka_1100_preference.json").write_text(json.dumps(pairs))
    return folder
