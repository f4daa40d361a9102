"""The prompts of the library in numbers of lm-evaluation-harness, item by item.

The harness has an environment of its own, whose Python the variable LM_EVAL_PYTHON names. It gets
every prompt as the answerer renders it, and runs the model itself or asks a `chatapp api`.
"""

import json
import os
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from api_server import on_a_thread
from measure import Table

from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import model_folder
from chatapp.prompting.messages import text_of
from chatapp.tasks.answering import Answerer
from chatapp.tasks.evaluation.inputs import Item, read_test
from chatapp.tasks.files.promptfile import PromptFile, load_prompt
from chatapp.tasks.selection.select import build_selector

PYTHON = os.environ.get("LM_EVAL_PYTHON", "")
PROMPTS = Path(__file__).parents[2] / "prompts" / "papers"
FILES = (
    *("copa.jsonl", "story_cloze.csv", "race.jsonl", "hellaswag.jsonl", "piqa.jsonl"),
    *("arc.jsonl", "boolq.jsonl", "wic.jsonl", "triviaqa.json"),
)
HEAD = """task: own_{name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
doc_to_text: "{{{{context}}}}"
"""
CHOICES = """output_type: multiple_choice
doc_to_choice: "{{choices}}"
doc_to_target: 0
target_delimiter: " "
metric_list:
  - metric: acc
"""
TEXT = """output_type: generate_until
doc_to_target: "{{gold}}"
generation_kwargs:
  until: STOP
  max_gen_toks: MOST
  do_sample: false
metric_list:
  - metric: exact_match
"""

Task = tuple[PromptFile, list[Item]]
Answers = list[list[float] | str]
"""For each item the log-likelihood of each choice, or the generated text."""


def harness_table() -> Table:
    """How far apart likelihoods are, and how many answers are the same, here and there.

    Raises ValueError where LM_EVAL_PYTHON names no Python.
    """
    if not PYTHON:
        raise ValueError("expected in LM_EVAL_PYTHON a Python that has lm-eval")
    model = load_model("bundled", precision="float32")
    cells: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as name, on_a_thread(model, name="bundled") as address:
        tasks = tasks_of_the_library()
        for shots, server in ((0, ""), (2, ""), (0, address)):
            folder = Path(name, f"{shots}{bool(server)}")
            folder.mkdir()
            own, theirs = compare("bundled", tasks, shots, folder, server)
            for task in own:
                cells.setdefault(task, []).append(agreement(own[task], theirs[task]))
    count = "largest difference of a choice, in nats, and same answers of n items of the library"
    rows = [(task, *ways) for task, ways in cells.items()]
    return Table(("task", "0 demonstrations", "2", "0, asked of `chatapp api`"), rows, count)


def agreement(own: Answers, theirs: Answers) -> str:
    """By how much likelihoods differ at most, and how many answers are the same."""
    gaps, same = [0.0], 0
    for one, other in zip(own, theirs, strict=True):
        if isinstance(one, str) or isinstance(other, str):
            same += one == other
            continue
        gaps += [abs(a - b) for a, b in zip(one, other, strict=True)]
        same += one.index(max(one)) == other.index(max(other))
    return f"{max(gaps):.1e}, {same} of {len(own)}"


def compare(
    name: str, tasks: dict[str, Task], shots: int, folder: Path, address: str = ""
) -> tuple[dict[str, Answers], dict[str, Answers]]:
    """The answers of a model by task, here and there. address: of a server that has the model."""
    model = load_model(name, precision="float32")
    own: dict[str, Answers] = {}
    for task, (file, items) in tasks.items():
        prompt = replace(file, select=file.select.model_copy(update={"k": shots}))
        answerer = Answerer(model, prompt, build_selector(prompt.pool, prompt.select))
        answers = answerer.answer([answerer.prepare(item) for item in items])
        own[task] = [
            list(answer.likelihoods.direct.values()) if answer.likelihoods else answer.output
            for answer in answers
        ]
        rows = [
            {
                "context": text_of(answer.question.segments),
                "choices": list(answer.likelihoods.direct) if answer.likelihoods else [],
                "gold": item.output,
            }
            for item, answer in zip(items, answers, strict=True)
        ]
        data = folder / f"{task}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        most = str(prompt.generate.get("max_tokens", 0))
        kind = CHOICES if prompt.choices or prompt.labels else TEXT.replace("MOST", most)
        yaml = HEAD.format(name=task, data=data) + kind.replace("STOP", json.dumps(prompt.stop))
        (folder / f"{task}.yaml").write_text(yaml)
    return own, answer_there(name, list(own), folder, address)


def answer_there(model: str, tasks: list[str], folder: Path, address: str) -> dict[str, Answers]:
    arguments = f"pretrained={model_folder(model)},dtype=float32"
    if address:
        arguments = f"model={model},base_url={address}/v1/completions,max_length=1023"
    elif ggufs := list(model_folder(model).glob("*.gguf")):
        arguments += f",gguf_file={ggufs[0].name}"
    names = ",".join(f"own_{task}" for task in tasks)
    kind = ["--model", "local-completions"] if address else ["--model", "hf", "--device", "cpu"]
    options = [*kind, "--model_args", arguments, "--tasks", names]
    options += ["--include_path", folder, "--log_samples", "--output_path", folder / "out"]
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    own |= {"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}
    subprocess.run([PYTHON, "-m", "lm_eval", "run", *options], check=True, env=own)
    answers: dict[str, Answers] = {}
    for task in tasks:
        (samples,) = (folder / "out").rglob(f"samples_own_{task}_*.jsonl")
        rows = sorted(map(json.loads, samples.open()), key=lambda row: row["doc_id"])
        answers[task] = [_answer(row["filtered_resps"]) for row in rows]
    return answers


def _answer(replies: list[str] | list[list[str]]) -> list[float] | str:
    first = replies[0]
    return first.strip() if isinstance(first, str) else [float(pair[0]) for pair in replies]


def tasks_of_the_library() -> dict[str, Task]:
    """The library's tasks with its own items."""
    prompts = {file: load_prompt(PROMPTS / f"{file.partition('.')[0]}.toml") for file in FILES}
    return {
        file.partition(".")[0]: (prompt, read_test(PROMPTS / file, prompt.columns))
        for file, prompt in prompts.items()
    }
