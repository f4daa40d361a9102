"""Generated training text: right answers, and nothing in it that is kept for measuring."""

import random
import re
from pathlib import Path

import pytest

from chatapp.prompting.messages import text_of
from chatapp.rows.examples import Pool
from chatapp.tasks.evaluation.gpt3_tasks import generate, own_words
from chatapp.tasks.files.layout import continuation, render
from chatapp.tasks.files.promptfile import PromptFile
from finetune.bundled_model import chats, demonstrations, last_look
from finetune.bundled_model.demonstrations import LABELS_KEPT_OUT, draw_layout, few_shot_row
from finetune.bundled_model.questions import all_tasks, in_more_words, in_most_words
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
SHOTS = [("one dog", "a b"), ("two cats", "b"), ("three dogs", "a b"), ("a cat", "b")]


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


@each_task
def test_every_question_is_filled_in_and_answered(task):
    draw = random.Random(2)
    for _ in range(50):
        problem = task.training(draw)
        assert problem.answer == problem.answer.strip() != ""
        assert not re.search(r"\{\w\}", problem.question + problem.answer)
        assert "\n" not in problem.answer


# --- sums of the GPT-3 paper -------------------------------------------------------------


def test_no_row_has_a_problem_of_an_evaluation():
    text = "".join("".join(row["parts"]) for row in demonstrations.arithmetic_rows(1000, 0))
    taught = set(re.findall(r"Q: [^?]*\?\n\nA:", text))
    assert len(taught) > 5000
    for name in demonstrations.SHARES:
        assert not taught & {item.input for item in generate(name, 500, 0)}


# --- few-shot prompts --------------------------------------------------------------------


def test_a_row_is_the_prompt_that_is_asked_later():
    draw = random.Random(0)
    for _ in range(60):
        layout = draw_layout(draw, ["a b", "b"])
        row = few_shot_row(layout, SHOTS, guessable=True)
        assert row is not None
        pool = Pool([given for given, _ in SHOTS[:3]], [answer for _, answer in SHOTS[:3]])
        prompt = PromptFile(
            path=Path("x"),
            instruction=layout.instruction,
            input_prefix=layout.input_prefix,
            output_prefix=layout.output_prefix,
            separator=layout.separator,
            pool=pool,
        )
        asked = text_of(render(prompt, range(3), SHOTS[3][0])) + continuation(prompt, SHOTS[3][1])
        assert "".join(row["parts"]) == asked
        assert [part.strip() for part in row["parts"][1::2]] == [answer for _, answer in SHOTS]
        # Where the answer ends is learnt as well.
        assert all(part.endswith("\n") for part in row["parts"][1:-1:2])
        assert len(row["parts"]) == 8
        assert all(row["parts"])


# --- in-context tuning -------------------------------------------------------------------


def test_training_rows_hold_no_held_out_label_topic_or_sentence():
    rows = list(demonstrations.training_rows(GROUPINGS, WORDS, 150, seed=0, most=8))
    assert rows == list(demonstrations.training_rows(GROUPINGS, WORDS, 150, seed=0, most=8))
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


# --- chats and repetitions ---------------------------------------------------------------


def test_follow_ups_ask_for_nothing_that_is_kept_out():
    draw = random.Random(0)
    asides = chats.Asides([(("Hello",), ("Hi!",))], list(TASKS.values()))
    texts = {text for _ in range(400) for text in chats.follow_ups(draw, asides)}
    texts |= {text for _ in range(400) for text in chats.close_talk(draw)}
    measured = {
        name: TASKS[name].held_out(400, seed=0, unseen=False)
        for name in ("spell", "reverse", "upper", "capital", "sum")
    }
    for name in ("capital", "sum"):
        assert not texts & {problem.question for problem in measured[name]}
    for name in ("spell", "reverse", "upper"):
        # A short word backwards may be another word.
        answers = {each.answer for each in measured[name] if len(each.given) > 4}
        assert not texts & answers


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


def test_an_opener_gets_a_reply_that_fits_it():
    fitting = chats.replies_to("I was out. Do you like old trains? Hm.")
    assert fitting
    assert any("old trains" in reply for reply in fitting)
    assert chats.replies_to("Hello!") == []
    draw = random.Random(0)
    answered = [(("I love old trains.",), ["So do I."])]
    turns = [
        chats.openers(draw, answered, [(("Who are you?",), ("A program.",))]) for _ in range(50)
    ]
    assert all(turn[:2] == ["I love old trains.", "So do I."] for turn in turns)
    assert any(turn[-1] == "A program." for turn in turns)


# --- the last look -----------------------------------------------------------------------


def test_the_last_look_has_wordings_and_subjects_of_its_own():
    taught = {subject for names in chats.subjects().values() for subject in names}
    look = table("last_look")
    assert not taught & set(look["stories"]["subjects"])
    assert not set(look["stories"]["ask"]) & {
        *table("subjects")["ask"],
        *table("subjects")["again"],
    }
    for measured, task, wide in zip(
        last_look.tasks(), all_tasks(), in_most_words(all_tasks()), strict=True
    ):
        assert not set(measured.unseen) & {*task.unseen, *wide.ask}
        assert not set(task.unseen) & set(wide.ask)
        assert measured.held_out(5, 1, unseen=True)
    assert not set(look["openers"]) & set(table("first_messages")["said"])
