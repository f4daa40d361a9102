"""Movie reviews (MR) and types of question (TREC), as this project's comparisons take them.

Needs the folder of the shared data in SHARED_DATA.
"""

import os
import random
from pathlib import Path

DATA = Path(os.environ.get("SHARED_DATA", "nowhere"))
ITEMS = 500

Rows = list[dict[str, str]]


def labelled(task: str) -> tuple[Rows, Rows]:
    """The rows to learn from and those to measure, in an order that does not change."""
    folder = DATA / "classify"
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
