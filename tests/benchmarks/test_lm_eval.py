"""The prompts of the library in numbers of lm-evaluation-harness, item by item.

The harness has an environment of its own, whose Python the variable LM_EVAL_PYTHON names. It gets
every prompt as the answerer renders it, and runs the model itself or asks a `chatapp api`. With
SHARED_DATA, five tasks have items of public data: SciQ as ARC and as TriviaQA, DREAM as RACE, TREC
and movie reviews. For another model:

    SHARED_DATA=DATA python tests/benchmarks/test_lm_eval.py MODEL SHOTS ITEMS
"""

import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from api_server import on_a_thread
from shared_data import shared_data
from test_demonstrations import write

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


needs_lm_eval = pytest.mark.skipif(not PYTHON, reason="LM_EVAL_PYTHON names no Python with lm-eval")


@needs_lm_eval
@pytest.mark.parametrize("shots", [0, 2])
def test_each_choice_is_as_likely_as_lm_eval_says(tmp_path: Path, shots: int) -> None:
    check(*compare("bundled", tasks_of_the_library(), shots, tmp_path))


@needs_lm_eval
def test_lm_eval_gets_the_same_from_the_server(tmp_path: Path) -> None:
    with on_a_thread(load_model("bundled", precision="float32"), name="bundled") as address:
        check(*compare("bundled", tasks_of_the_library(), 0, tmp_path, address))


def check(own: dict[str, Answers], theirs: dict[str, Answers]) -> None:
    assert len(own) == len(FILES)
    for name, answers in own.items():
        for answer, other in zip(answers, theirs[name], strict=True):
            assert answer == (other if isinstance(answer, str) else pytest.approx(other, abs=1e-3))


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
        file.partition(".")[0]: (prompt, read_test(PROMPTS / file, prompt.labels, prompt.columns))
        for file, prompt in prompts.items()
    }


def tasks_of_public_data(folder: Path, count: int) -> dict[str, Task]:
    """Five tasks with their `count` shortest items."""
    tasks: dict[str, Task] = {}
    for name, (prompt_file, template, convert) in CONVERTED.items():
        is_open = name == "triviaqa"
        # In some rows of SciQ the right answer is none of the choices.
        pairs = [pair for pair in _templates(template) if is_open or f"- {pair[1]}\n" in pair[0]]
        rows = sorted(map(convert, pairs), key=lambda row: len(str(row)))
        path = folder / f"{name}-items.{'json' if is_open else 'jsonl'}"
        text = "".join(json.dumps(row) + "\n" for row in rows[:count])
        path.write_text(json.dumps({"Data": rows[:count]}) if is_open else text)
        prompt = load_prompt(PROMPTS / prompt_file)
        tasks[name] = prompt, read_test(path, prompt.labels, prompt.columns)
    for name in ("trec", "mr"):
        write(name, folder / name)
        prompt = load_prompt(folder / name / f"{name}.toml")
        items = read_test(folder / name / "items.jsonl", prompt.labels, prompt.columns)
        tasks[name] = prompt, sorted(items, key=lambda item: len(item.input))[:count]
    return tasks


def _templates(name: str) -> Iterator[tuple[str, str]]:
    """Prompts and completions of a template of the P3 collection."""
    with gzip.open(shared_data() / "instruct" / "t0_templates_sample.jsonl.gz", "rt") as lines:
        for row in map(json.loads, lines):
            if row["template"] == name:
                yield row["prompt"], row["completion"]


def _options(text: str) -> list[str]:
    return [option.strip() for option in re.findall(r"^- (.*)", text, re.MULTILINE)]


def _sciq(pair: tuple[str, str]) -> dict[str, object]:
    prompt, answer = pair
    options = _options(prompt.rpartition("Choices:")[2])
    choices = [{"text": text, "label": "ABCD"[n]} for n, text in enumerate(options)]
    stem = prompt.removeprefix("Q: ").partition("\n")[0]
    key = "ABCD"[options.index(answer)]
    return {"question": {"stem": stem, "choices": choices}, "answerKey": key}


def _dream(pair: tuple[str, str]) -> dict[str, object]:
    prompt, answer = pair
    article, _, rest = prompt.removeprefix("Dialogue:\n\n").partition("\n\nQuestion: ")
    options = _options(rest)
    key = "ABCD"[options.index(answer)]
    question = rest.partition("\n")[0].strip()
    return {"article": article, "questions": [question], "options": [options], "answers": [key]}


def _closed_book(pair: tuple[str, str]) -> dict[str, object]:
    prompt, answer = pair
    return {"Question": prompt.removeprefix("Q: ").partition("\n")[0], "Answer": {"Value": answer}}


Converter = Callable[[tuple[str, str]], dict[str, object]]
CONVERTED: dict[str, tuple[str, str, Converter]] = {
    "arc": ("arc.toml", "sciq_Multiple_Choice_Question_First", _sciq),
    "race": ("race.toml", "dream_baseline", _dream),
    "triviaqa": ("triviaqa.toml", "sciq_Direct_Question_Closed_Book_", _closed_book),
}


def agreement(own: Answers, theirs: Answers) -> str:
    """How many answers are the same, and by how much likelihoods differ at most."""
    gaps, same = [0.0], 0
    for one, other in zip(own, theirs, strict=True):
        if isinstance(one, str) or isinstance(other, str):
            same += one == other
            continue
        gaps += [abs(a - b) for a, b in zip(one, other, strict=True)]
        same += one.index(max(one)) == other.index(max(other))
    return f"{same} of {len(own)} answers are the same; at most {max(gaps):.1e} nats apart"


if __name__ == "__main__":
    model, shots, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with tempfile.TemporaryDirectory() as name:
        own, theirs = compare(model, tasks_of_public_data(Path(name), count), shots, Path(name))
    for task, answers in own.items():
        print(f"{task}: {agreement(answers, theirs[task])}")
