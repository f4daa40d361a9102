"""The documents of the bundled model, from small sources."""

import gzip
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from finetune.bundled_model import sources as texts
from finetune.config.sections import FinetuneConfig, PretrainConfig, load_config

# What the recipe of the shipped weights (commit 3a4b0150) made of these sources: documents, texts.
# The files that it does not make byte for byte have to be like them.
AS_SHIPPED = {
    "abstention": (300, 1510),
    "calls": (300, 1072),
    "close": (200, 1100),
    "everyday": (200, 986),
    "few_shot_tasks": (120, 1288),
    "follow_ups": (120, 1248),
    "openers": (200, 628),
    "people": (200, 2062),
    "phrased_questions": (800, 4292),
    "subjects": (240, 666),
}

ROOT = Path(__file__).parents[3]
WORDS = [f"{a}{b}ing" for a in "bcdfghklmnprst" for b in ("ar", "el", "in", "op", "um")]


def sources(folder):
    """The folder, with a little of each source."""
    (folder / "books").mkdir()
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


def packed(path, rows):
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A folder that the command wrote."""
    data, out = sources(tmp_path_factory.mktemp("data")), tmp_path_factory.mktemp("out")
    (out / "answers.jsonl").write_text(
        "".join(
            json.dumps({"question": q, "answer": f"{q} A.", "thing": thing, "logprob": -0.5}) + "\n"
            for q, thing in [*((f"What is a {w}?", f"a {w}") for w in WORDS), ("Why is it?", "")]
        )
    )
    command = [sys.executable, "-m", "finetune.bundled_model", str(data), str(out), "--seed", "3"]
    done = subprocess.run([*command, "--scale", "0.01"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return out


def test_the_command_writes_these_bytes(out):
    written = sorted(out.rglob("*.jsonl"))
    assert len(written) == 35
    as_shipped, drawn_anew = hashlib.sha256(), hashlib.sha256()
    for path in written:
        text = path.read_text(encoding="utf-8")
        rows = [json.loads(line) for line in text.splitlines()]
        keys = {key for row in rows for key in row}
        assert path.stem == "answers" or keys <= {"text", "messages", "parts"}
        if path.stem in AS_SHIPPED:
            drawn_anew.update(text.encode())
            documents, texts = AS_SHIPPED[path.stem]
            assert len(rows) == documents
            of_row = [len(row.get("messages") or row["parts"]) for row in rows]
            assert sum(of_row) == pytest.approx(texts, rel=0.1)
        elif "in_context" not in path.name:  # which texts are nearest may hang on a last decimal
            as_shipped.update(text.encode())
    # The weights are fixed, and this is how they were made: a change here is one of the recipe.
    kept = "d2e82e0f82f24f4aa75cf55ac2b3feb835ae44ebbae49193cffb7a10da3e9c00"
    assert as_shipped.hexdigest() == kept
    anew = "911f6e5d549285d1cabfc462fcc2acb93b7169fce4459d0d4b84f4baff0fedf2"
    assert drawn_anew.hexdigest() == anew
    solved = json.loads((out / "grade_school.jsonl").read_text())
    assert solved["messages"][1]["content"] == "<<1+1=2>>2\nThe answer is 2"


def test_both_stages_are_valid_and_learn_from_all_that_is_written(out):
    written = {f"data/{path.name}" for path in out.glob("*.jsonl")} - {"data/answers.jsonl"}
    recipe = ROOT / "finetune" / "bundled_model"
    first = load_config(PretrainConfig, recipe / "pretrain.toml", [])
    second = load_config(FinetuneConfig, recipe / "tune.toml", [])
    assert {source.path for source in first.data.train} == written
    assert {source.path for source in second.data.train} <= written
    assert len(list(recipe.iterdir())) <= 20


def test_talks_with_the_same_first_message_are_on_the_same_side(tmp_path):
    rows = [
        {"turns": [form.format(number), "Yes."]}
        for number in range(200)
        for form in ("Do you like {}?", "do you like {}")
    ]
    path = tmp_path / "a.gz"
    packed(path, rows)
    asked = {
        kept_out: [
            row["messages"][0]["content"].rstrip("?.")
            for row in texts.talks(path, ["Ida", "Leo"], seed=0, kept_out=kept_out)
        ]
        for kept_out in (True, False)
    }
    assert len(asked[True]) + len(asked[False]) == 400
    assert not set(asked[True]) & set(asked[False])
    assert 40 <= len(asked[True]) <= 80


def test_stories_are_cut_at_sentences_and_kept_out_by_their_title(tmp_path):
    text = "A fox ran over a hill and far away. " * 200
    rows = [{"title": f"Fox {number}", "text": text} for number in range(60)]
    path = tmp_path / "a.gz"
    packed(path, rows)
    used, kept = (list(texts.stories(path, kept_out=side)) for side in (False, True))
    assert len(used) + len(kept) == 60 * 3
    assert 0 < len(kept) < 30
    for row in used:
        assert row["text"].startswith("A fox")
        assert row["text"].endswith("away.")
        assert len(row["text"]) < 3200
