"""The documents of the bundled model, from small sources."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from finetune.bundled_model.documents import build
from finetune.config.sections import FinetuneConfig, PretrainConfig, load_config

WORDS = [f"{a}{b}ing" for a in "bcdfghklmnprst" for b in ("ar", "el", "in", "op", "um")]


def sources(folder: Path) -> Path:
    """A folder with a little of each source."""
    (folder / "books").mkdir(parents=True)
    lines = [f"What the {word} saw was a river in the valley." for word in WORDS]
    (folder / "books" / "a.txt").write_text("\n\n".join(lines))
    instruct = folder / "instruct"
    instruct.mkdir()
    rows = [
        {"instruction": f"Explain the word {w} to me.", "input": "", "output": "No."} for w in WORDS
    ]
    (instruct / "raschka_1100.json").write_text(json.dumps(rows))
    (instruct / "self_instruct_seed_175.jsonl").write_text("")
    (instruct / "dolly_3k.jsonl").write_text("")
    (folder / "gsm8k").mkdir()
    problem = {"question": "How many are two cows?", "answer": "<<1+1=2>>2\n#### 2"}
    (folder / "gsm8k" / "train.jsonl").write_text(json.dumps(problem) + "\n")
    dialogue = folder / "dialogue"
    (dialogue / "personality_chat").mkdir(parents=True)
    tone = "Queries_Responses_Friendly_QnAMaker.tsv"
    (dialogue / "personality_chat" / tone).write_text("Question\tAnswer\nAre you fun?\tI try.\n")
    (dialogue / "chatterbot_corpus").mkdir()
    (dialogue / "chatterbot_corpus" / "ai.yml").write_text(
        "conversations:\n- - What is AI?\n  - A field of study.\n"
    )
    services = ("Buses_1", "Hotels_2")
    asked = [
        {
            "services": [services[number % 2]],
            "turns": [["U", f"Please find me a {word} in this town today."], ["S", "Which one?"]],
        }
        for number, word in enumerate(WORDS)
    ]
    packed(dialogue / "sgd_train.jsonl.gz", asked)
    packed(dialogue / "self_dialogue.jsonl.gz", [{"turns": ["i like jazz", "me too"]}] * 2)
    packed(
        dialogue / "persona_chat.jsonl.gz",
        [{"turns": [[1, f"Do you like {word}?"], [2, "I do!"]]} for word in WORDS],
    )
    packed(dialogue / "topical_chat.jsonl.gz", [])
    for name in ("fairytale_qa", "short_stories"):
        tales = [{"title": word, "text": f"There was a {word}. It ran."} for word in WORDS]
        packed(folder / "books" / f"{name}.jsonl.gz", tales)
    return folder


def packed(path: Path, rows: list[dict[str, Any]]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    data = sources(tmp_path / "data")
    for name in ("first", "second"):
        build(data, tmp_path / name, seed=3, scale=0.001)
    first = tmp_path / "first"
    files = sorted(str(path.relative_to(first)) for path in first.rglob("*.jsonl"))
    assert len(files) == 33
    for name in files:
        text = (tmp_path / "first" / name).read_text()
        assert text == (tmp_path / "second" / name).read_text()
        for line in text.splitlines():
            assert set(json.loads(line)) <= {"text", "messages", "parts"}
    solved = json.loads((tmp_path / "first" / "grade_school.jsonl").read_text())
    assert solved["messages"][1]["content"] == "<<1+1=2>>2\nThe answer is 2"


def test_no_opener_is_of_a_talk_kept_out(tmp_path: Path) -> None:
    build(sources(tmp_path / "data"), tmp_path / "out", scale=0.01)

    def first(name: str) -> set[str]:
        rows = (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines()
        return {json.loads(row)["messages"][0]["content"] for row in rows}

    kept_out = first("kept_out/persona_chat")
    assert kept_out
    assert first("openers") <= first("persona_chat") | first("self_dialogue")
    assert not first("openers") & kept_out


def test_both_stages_are_valid_and_learn_from_all_that_is_written(tmp_path: Path) -> None:
    answers = tmp_path / "out" / "answers.jsonl"
    answers.parent.mkdir()
    row = {"question": "What is tea?", "answer": "A drink.", "thing": "tea", "logprob": -0.5}
    answers.write_text(json.dumps(row) + "\n")
    build(sources(tmp_path / "data"), answers.parent, scale=0.001)
    written = {f"data/{path.name}" for path in answers.parent.glob("*.jsonl") if path != answers}
    recipe = Path(__file__).parents[3] / "finetune" / "bundled_model"
    first = load_config(PretrainConfig, recipe / "pretrain.toml", [])
    second = load_config(FinetuneConfig, recipe / "tune.toml", [])
    assert {source.path for source in first.data.train} == written
    assert {source.path for source in second.data.train} <= written
    assert len(list(recipe.iterdir())) <= 20


def test_the_documents_are_built_by_the_package(tmp_path: Path) -> None:
    data = sources(tmp_path / "data")
    command = [sys.executable, "-m", "finetune.bundled_model", str(data), str(tmp_path / "out")]
    done = subprocess.run(
        [*command, "--scale", "0.001"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    build(data, tmp_path / "expected", seed=0, scale=0.001)
    for path in (tmp_path / "expected").glob("*.jsonl"):
        assert (tmp_path / "out" / path.name).read_text() == path.read_text()
