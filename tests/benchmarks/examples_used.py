"""Which example did it use: of 100 TREC questions with eight nearest examples, how often the
example with the largest contribution carries the label that was answered.
(Nearest by TF-IDF.)

    python tests/benchmarks/examples_used.py MODEL [ITEMS [FIRST]]

Reads ../shared/data/classify, or the folder in SHARED_DATA. Prints a line an item and the sums so
far. FIRST goes on at an item, numbered from 0, with new sums.
"""

import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from chatapp.commands.prompt_parts import explain_answer
from chatapp.engine.models.loading import load_model
from chatapp.tasks.answering import Answerer
from chatapp.tasks.files.promptfile import load_prompt
from chatapp.tasks.options import changed, selector_for

DATA = Path(os.environ.get("SHARED_DATA", "../shared/data")) / "classify"
NAMES = {
    "ABBR": "abbreviation",
    "DESC": "description",
    "ENTY": "entity",
    "HUM": "human",
    "LOC": "location",
    "NUM": "number",
}
PROMPT = f"""
input_prefix = "Question: "
output_prefix = "Type:"
separator = "\\n\\n"
labels = {json.dumps(list(NAMES.values()))}
examples_file = "pool.jsonl"

[select]
method = "knn"
k = 8
"""


def rows(name: str) -> list[tuple[str, str]]:
    """Label and question of each line."""
    lines = (DATA / name).read_text(encoding="latin-1").splitlines()
    return [(NAMES[line.split(":")[0]], line.split(" ", 1)[1]) for line in lines if line]


def main(name: str, items: int = 100, first: int = 0) -> None:
    model = load_model(name)
    counts: Counter[str] = Counter()
    chance = 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trec.toml"
        path.write_text(PROMPT)
        pool = [{"input": text, "output": label} for label, text in rows("trec_train.txt")]
        path.with_name("pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pool))
        prompt = changed(load_prompt(path), select="knn:tfidf")
        answerer = Answerer(model, prompt, selector_for(prompt, model, lambda done, of: None))
        for right, text in rows("trec_test.txt")[first : first + items]:
            question = answerer.prepare(text)
            (answer,) = answerer.answer([question])
            parts = explain_answer(answerer, answer)
            examples = [part for part in parts.parts if part.part.startswith("example")]
            labels = [part.text.rsplit("Type:", 1)[1].strip() for part in examples]
            by_occlusion = max(range(len(examples)), key=lambda n: examples[n].occlusion)
            by_gradient = max(range(len(examples)), key=lambda n: examples[n].gradient)
            share = labels.count(answer.output) / len(labels)
            counts.update(
                items=1,
                right=answer.output == right,
                occlusion=labels[by_occlusion] == answer.output,
                gradient=labels[by_gradient] == answer.output,
                same=by_occlusion == by_gradient,
                shown=answer.output in labels,
            )
            chance += share
            print(answer.output, right, labels[by_occlusion], labels[by_gradient], f"{share:.2f}")
            sums = {key: counts[key] for key in ("items", "right", "occlusion", "gradient")}
            sums |= {"same": counts["same"], "shown": counts["shown"]}
            print(json.dumps(sums | {"chance": round(chance, 1)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
