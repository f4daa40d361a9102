"""Generated training text holds nothing that is kept for measuring; its bytes are pinned beside."""

import random
import re

import pytest

from chatapp.tasks.evaluation.gpt3_tasks import own_words
from finetune.bundled_model import chats, demonstrations
from finetune.bundled_model.demonstrations import LABELS_KEPT_OUT
from finetune.bundled_model.questions import all_tasks, in_more_words
from finetune.bundled_model.tables import is_kept_out, table

TASKS = {task.name: task for task in all_tasks()}
WORDS = own_words()
each_task = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)

# Sentences that differ by their group and by nothing else.
GROUPINGS = {
    "animal": {
        animal: [f"The {animal} and the {word} were friends for a year." for word in WORDS[:800]]
        for animal in ("dog", "cat", "cow", "pig", "hen")
    }
}


# --- single questions --------------------------------------------------------------------


@each_task
def test_what_is_kept_out_is_never_taught(task):
    draw = random.Random(1)
    (wide,) = in_more_words([task])
    taught = {each.training(draw).question for each in (task, wide) for _ in range(200)}
    for unseen in (False, True):
        measured = task.held_out(10, seed=0, unseen=unseen)
        assert measured
        assert not taught & {problem.question for problem in measured}
        assert measured == task.held_out(10, seed=0, unseen=unseen)


def test_a_follow_up_asks_for_no_held_out_problem_and_answers_it_right():
    draw, sums = random.Random(1), TASKS["sum"]
    for _ in range(300):
        chat = chats.close_talk(draw)
        if chat[0].startswith(("What is", "Add")):
            x, y = re.findall(r"\d+", chat[0])
            z = int(re.findall(r"\d+", chat[2])[0])
            results = [int(x) + int(y), int(x) + int(y) + z, int(x) + int(y) + z - 1]
            assert chat[1::2] == [str(result) for result in results][: len(chat) // 2]
            assert not sums.keeps_out({"x": x, "y": y}, "")
        else:
            word = chat[1].replace("-", "")
            assert {*chat[3::2]} <= {word[::-1], str(len(word)), word.upper(), word[0]}
            assert not TASKS["spell"].keeps_out({"x": word}, "")


# --- in-context tuning -------------------------------------------------------------------


def test_training_rows_hold_no_held_out_label_topic_or_sentence():
    draw, groups = random.Random(0), demonstrations.one_side(GROUPINGS, 20)
    shown = demonstrations.all_sentences(groups)
    drawn = [demonstrations.in_context(draw, groups, shown, WORDS, most=8) for _ in range(300)]
    rows = [row for row in drawn if row]
    text = "\n".join("".join(row["parts"]) for row in rows)
    labels = {part.strip() for row in rows for part in row["parts"][1::2]}
    never = set(table("layouts")["evaluation_labels"].split())
    assert len(labels) > 100
    assert not {label.lower() for label in labels} & never
    assert not [each for each in labels if each.islower() and is_kept_out(each, LABELS_KEPT_OUT)]
    sentences = [each for group in GROUPINGS["animal"].values() for each in group]
    assert sum(each in text for each in sentences) > 50
    assert not [each for each in sentences if is_kept_out(each, 0.1) and f" {each}\n" in text]
    for word in ("trumpet", "rudder", "toffee", "headache"):
        assert word in " ".join(table("topics")["held_out"].values())
        assert word not in re.findall(r"\w+", text)


def test_twenty_tasks_are_for_measuring():
    tasks = demonstrations.held_out_tasks(GROUPINGS, WORDS, items=10, seed=0)
    assert len(tasks) == 20
    for task in tasks:
        labels = set(task.prompt.labels)
        assert labels == set(task.prompt.pool.outputs)
        assert {item.output for item in task.items} <= labels
        assert all(is_kept_out(label, LABELS_KEPT_OUT) for label in labels)
        assert len(task.prompt.pool) > demonstrations.MOST_SHOTS
        assert "{x}" not in "".join(task.prompt.pool.inputs)
    texts = [text for task in tasks[15:] for text in task.prompt.pool.inputs]
    assert all(is_kept_out(text, demonstrations.SENTENCES_KEPT_OUT) for text in texts)


# --- what cannot be known, and small talk ------------------------------------------------


def test_wordings_kept_for_measuring_are_not_taught():
    kinds = table("abstention")["kinds"].values()
    taught = {wording.lower() for kind in kinds for wording in kind["ask"]}
    kept = {wording.lower() for kind in kinds for wording in kind["unseen"]}
    assert not taught & kept
    questions = chats.held_out_questions(150, seed=0)
    assert len(set(questions)) == 150
    draw = random.Random(1)
    said = {chats.declined(draw)[0].lower().rstrip("?.") for _ in range(5000)}
    assert not said & {question.lower().rstrip("?.") for question in questions}
