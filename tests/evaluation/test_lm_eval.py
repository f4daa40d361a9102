"""The tasks in numbers of lm-evaluation-harness: the same prompts, item by item.

The harness has an environment of its own, whose Python the variable LM_EVAL_PYTHON names.
"""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from chatapp.evaluation.inputs import read_test
from chatapp.fewshot.answering import Answerer
from chatapp.models.loading import load_model
from chatapp.models.resolving import model_folder
from chatapp.prompting.files.promptfile import load_prompt
from chatapp.prompting.messages import text_of
from chatapp.prompting.selection.select import build_selector

PYTHON = os.environ.get("LM_EVAL_PYTHON", "")
PROMPTS = Path(__file__).parents[2] / "prompts" / "papers"
FILES = (
    *("copa.jsonl", "story_cloze.csv", "race.jsonl", "hellaswag.jsonl", "piqa.jsonl"),
    *("arc.jsonl", "boolq.jsonl", "wic.jsonl"),
)
TASK = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
target_delimiter: " "
metric_list:
  - metric: acc
"""

Scores = dict[str, list[list[float]]]
"""By task, for each item the log-likelihood of each choice."""


@pytest.mark.skipif(not PYTHON, reason="LM_EVAL_PYTHON names no Python with lm-eval")
@pytest.mark.parametrize("shots", [0, 2])
def test_each_choice_is_as_likely_as_lm_eval_says(tmp_path: Path, shots: int) -> None:
    own = score_here(tmp_path, shots)
    theirs = score_there(tmp_path, list(own))
    assert own.keys() == theirs.keys()
    for name, items in own.items():
        for item, other in zip(items, theirs[name], strict=True):
            assert item == pytest.approx(other, abs=1e-3), name


def score_here(folder: Path, shots: int) -> Scores:
    """Scores, after the items were written as tasks of the harness with the prompts as they are."""
    model = load_model("bundled", precision="float32")
    scores: Scores = {}
    for file in FILES:
        name = file.partition(".")[0]
        prompt = load_prompt(PROMPTS / f"{name}.toml")
        prompt = replace(prompt, select=prompt.select.model_copy(update={"k": shots}))
        answerer = Answerer(model, prompt, build_selector(prompt.pool, prompt.select))
        items = read_test(PROMPTS / file, prompt.labels, prompt.columns)
        answers = answerer.answer([answerer.prepare(item) for item in items])
        likelihoods = [answer.likelihoods.direct for answer in answers if answer.likelihoods]
        scores[name] = [list(direct.values()) for direct in likelihoods]
        rows = [
            {"context": text_of(answer.question.segments), "choices": list(direct)}
            for answer, direct in zip(answers, likelihoods, strict=True)
        ]
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / f"{name}.yaml").write_text(TASK.format(name=f"own_{name}", data=data))
    return scores


def score_there(folder: Path, names: list[str]) -> Scores:
    model = f"pretrained={model_folder('bundled')},dtype=float32"
    tasks = ",".join(f"own_{name}" for name in names)
    options = ["--model", "hf", "--model_args", model, "--tasks", tasks, "--include_path", folder]
    options += ["--device", "cpu", "--log_samples", "--output_path", folder / "out"]
    subprocess.run([PYTHON, "-m", "lm_eval", "run", *options], check=True, env=_environment(folder))
    scores: Scores = {}
    for name in names:
        (samples,) = (folder / "out").rglob(f"samples_own_{name}_*.jsonl")
        rows = map(json.loads, samples.read_text().splitlines())
        by_item = {
            row["doc_id"]: [float(pair[0]) for pair in row["filtered_resps"]] for row in rows
        }
        scores[name] = [by_item[item] for item in sorted(by_item)]
    return scores


def _environment(folder: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return own | {"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}
