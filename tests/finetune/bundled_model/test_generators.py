"""Generated training text: right answers, and nothing in it that is kept for measuring."""

import random
import re
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from chatapp.prompting.examples import Pool
from chatapp.prompting.messages import text_of
from chatapp.tasks.evaluation.gpt3_tasks import generate, own_words
from chatapp.tasks.files.layout import continuation, render
from chatapp.tasks.files.promptfile import PromptFile
from finetune.bundled_model.generators import (
    abstention,
    arithmetic,
    dialogues,
    everyday,
    incontext,
    patterns,
    people,
)
from finetune.bundled_model.generators.fewshot import draw_layout, few_shot_row
from finetune.bundled_model.generators.patterns import HELD_OUT, PATTERNS
from finetune.bundled_model.generators.tasks import (
    QuestionTask,
    all_tasks,
    filled,
    in_more_words,
    letter_tasks,
)
from finetune.bundled_model.generators.words import KEPT_OUT, draw_labels, is_kept_out, table

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
def test_a_task_has_wordings_for_both_sides(task: QuestionTask) -> None:
    assert len(set(task.ask)) >= 5
    assert len(set(task.unseen)) >= 2
    assert not set(task.ask) & set(task.unseen)


@each_task
def test_a_task_can_be_asked_for_in_more_words(task: QuestionTask) -> None:
    (wide,) = in_more_words([task])
    assert wide.ask[: len(task.ask)] == task.ask
    assert len(set(wide.ask)) >= 12
    assert not set(wide.ask) & set(task.unseen)
    fields, _ = task.make(random.Random(0))
    for wording in wide.ask:
        assert set(re.findall(r"{(\w)}", wording)) == set(fields)


@each_task
def test_what_is_kept_out_is_never_taught(task: QuestionTask) -> None:
    draw = random.Random(1)
    (wide,) = in_more_words([task])
    taught = {each.training(draw).question for each in (task, wide) for _ in range(200)}
    for unseen in (False, True):
        measured = task.held_out(10, seed=0, unseen=unseen)
        assert measured
        assert not taught & {problem.question for problem in measured}
        assert measured == task.held_out(10, seed=0, unseen=unseen)


@each_task
def test_every_question_is_filled_in_and_answered(task: QuestionTask) -> None:
    draw = random.Random(2)
    for _ in range(50):
        problem = task.training(draw)
        assert problem.answer == problem.answer.strip() != ""
        assert not re.search(r"\{\w\}", problem.question + problem.answer)
        assert "\n" not in problem.answer


def answers(name: str, count: int = 40) -> list[tuple[str, str]]:
    """Problems as (the changing part, the answer)."""
    draw = random.Random(3)
    problems = [TASKS[name].training(draw) for _ in range(count)]
    return [(problem.given, problem.answer) for problem in problems]


def test_letters_and_counts_are_right() -> None:
    assert all(answer == given[::-1] for given, answer in answers("reverse"))
    assert all(answer.replace("-", "") == given for given, answer in answers("spell"))
    assert all(sorted(answer) == sorted(given) for given, answer in answers("unscramble"))
    assert all(int(answer) == len(given) for given, answer in answers("count_letters"))
    assert all(int(answer) == len(given.split()) for given, answer in answers("count_words"))
    for given, answer in answers("count_things"):
        asked, *things = given.split(", ")
        assert int(answer) == things.count(asked)
    for given, answer in answers("count_on"):
        first, last = map(int, given.split(", "))
        assert answer == ", ".join(map(str, range(first, last + 1)))


@pytest.mark.parametrize(
    ("name", "compute"),
    [
        ("sum", lambda a, b: a + b),
        ("difference", lambda a, b: a - b),
        ("product", lambda a, b: a * b),
        ("larger", max),
    ],
)
def test_sums_are_right(name: str, compute: object) -> None:
    for given, answer in answers(name):
        a, b = map(int, given.split(", "))
        assert int(answer) == compute(a, b)  # type: ignore[operator]


def test_calculator_calls_hold_their_result() -> None:
    for _, answer in answers("calculator"):
        found = re.search(r"<<(\d+)([-+*])(\d+)=(\d+)>>(\d+) ", answer)
        assert found
        a, sign, b, inside, after = found.groups()
        expected = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]
        assert int(inside) == int(after) == expected


def test_values_are_put_in_once() -> None:
    assert filled("{x} and {y}", {"x": "{y}", "y": "{x}"}) in ("{y} and {x}", "{x} and {x}")
    assert filled("{x}, {x}", {"x": "a"}) == "a, a"


# --- sums of the GPT-3 paper -------------------------------------------------------------


def test_no_row_has_a_problem_of_an_evaluation() -> None:
    text = "".join("".join(row["parts"]) for row in arithmetic.rows(1000, 0))
    taught = set(re.findall(r"Q: [^?]*\?\n\nA:", text))
    assert len(taught) > 5000
    for name in arithmetic.SHARES:
        assert not taught & {item.input for item in generate(name, 500, 0)}


def test_sums_in_few_shot_prompts_are_right() -> None:
    text = "\n\n".join("".join(row["parts"]) for row in arithmetic.rows(100, 0))
    problems = re.findall(r"Q: What is (.*)\?\n\nA: (\S+)", text)
    assert len(problems) > 500
    for expression, answer in problems:
        named = expression.replace("plus", "+").replace("minus", "-").replace("times", "*")
        assert re.fullmatch(r"[\d+*() -]+", named)
        assert eval(named) == int(answer)


# --- few-shot prompts --------------------------------------------------------------------


def test_a_row_is_the_prompt_that_is_asked_later() -> None:
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


def test_an_answer_that_cannot_be_known_is_not_learnt() -> None:
    layout = PromptFile(path=Path("x"))
    row = few_shot_row(layout, SHOTS, guessable=False)
    assert row is not None
    assert row["parts"][1::2] == [" a b\n", " b"]
    assert row["parts"][0].endswith("Input: two cats\nOutput: b\n\nInput: three dogs\nOutput:")
    assert few_shot_row(layout, SHOTS[:2], guessable=False) is None


# --- in-context tuning -------------------------------------------------------------------


def test_training_rows_hold_no_held_out_label_topic_or_sentence() -> None:
    rows = list(incontext.training_rows(GROUPINGS, WORDS, 150, seed=0, most=8))
    assert rows == list(incontext.training_rows(GROUPINGS, WORDS, 150, seed=0, most=8))
    text = "\n".join("".join(row["parts"]) for row in rows)
    labels = {part.strip() for row in rows for part in row["parts"][1::2]}
    never = set(table("layouts")["evaluation_labels"].split())
    assert len(labels) > 100
    assert not {label.lower() for label in labels} & never
    assert not [each for each in labels if each.islower() and is_kept_out(each, KEPT_OUT)]
    sentences = [each for group in GROUPINGS["animal"].values() for each in group]
    assert sum(each in text for each in sentences) > 50
    assert not [each for each in sentences if is_kept_out(each, 0.1) and f" {each}\n" in text]
    for word in ("trumpet", "rudder", "toffee", "headache"):
        assert word in " ".join(table("topics")["held_out"].values())
        assert word not in re.findall(r"\w+", text)


def test_texts_that_come_again_keep_their_label() -> None:
    sentences = [each for group in GROUPINGS["animal"].values() for each in group]
    rows = list(incontext.recall_rows(sentences, WORDS, 100, seed=0))
    assert rows == list(incontext.recall_rows(sentences, WORDS, 100, seed=0))
    text = "\n".join("".join(row["parts"]) for row in rows)
    assert not [each for each in sentences if is_kept_out(each, 0.1) and f" {each}\n" in text]
    for row in rows:
        for index in range(0, len(row["parts"]), 2):
            lines = "".join(row["parts"][: index + 1]).split("\n")
            *before, asked = [set(line.split()) for line in lines if len(line.split()) > 1]
            # What is asked stood there before, give or take a third of its words.
            assert max(len(asked & line) for line in before) >= len(asked) / 3


def test_unlike_texts_have_mostly_one_label_which_the_query_has_as_often() -> None:
    sentences = [each for group in GROUPINGS["animal"].values() for each in group]
    rows = list(incontext.majority_rows(sentences, 400, seed=0))
    assert rows == list(incontext.majority_rows(sentences, 400, seed=0))
    text = "\n".join("".join(row["parts"]) for row in rows)
    assert not [each for each in sentences if is_kept_out(each, 0.1) and f" {each}\n" in text]
    right = 0
    for row in rows:
        prompt, answer = "".join(row["parts"][:-1]), row["parts"][-1].strip()
        words = Counter(prompt.split())
        others = {part.strip() for part in row["parts"][1::2]}
        right += answer == max(others, key=lambda label: words[label])
    assert 0.55 < right / len(rows) < 0.9


def test_topics_and_patterns_of_both_sides_have_nothing_in_common() -> None:
    topics = table("topics")
    words = [set(" ".join(topics[side].values()).split()) for side in ("train", "held_out")]
    assert not words[0] & words[1]
    assert not set(PATTERNS) & set(HELD_OUT)


def test_twenty_tasks_are_for_measuring() -> None:
    tasks = incontext.held_out_tasks(GROUPINGS, WORDS, items=10, seed=0)
    assert len(tasks) == 20
    for task in tasks:
        labels = set(task.prompt.labels)
        assert labels == set(task.prompt.pool.outputs)
        assert {label for _, label in task.items} <= labels
        assert all(is_kept_out(label, KEPT_OUT) for label in labels)
        assert len(task.prompt.pool) > incontext.MOST_SHOTS
        assert "{x}" not in "".join(task.prompt.pool.inputs)
    texts = [text for task in tasks[15:] for text in task.prompt.pool.inputs]
    assert all(is_kept_out(text, incontext.KEPT_OUT) for text in texts)


@pytest.mark.parametrize("selection", ["random", "balanced", "nearest"])
def test_demonstrations_never_hold_the_query(selection: str) -> None:
    draw = random.Random(5)
    for _ in range(30):
        task = incontext.topics(draw, table("topics")["train"], 3, 10)
        labels = draw_labels(draw, 3)
        shots = incontext.shots_of(draw, task, labels, 6, selection, noise=0.0)
        assert shots is not None
        right = {t: label for g, label in zip(task.texts, labels, strict=True) for t in g}
        assert len(shots) == 7
        assert shots[-1][0] not in [text for text, _ in shots[:-1]]
        assert all(right[text] == label for text, label in shots)


def test_the_nearest_demonstration_stands_last() -> None:
    task = incontext.Classes("two", [["red apple tart", "red apple pie"], ["old dog", "old cat"]])
    for seed in range(10):
        shots = incontext.shots_of(random.Random(seed), task, ["x", "y"], 3, "nearest", noise=0.0)
        assert shots is not None
        assert shots[-2][1] == shots[-1][1]


def test_labels_are_different_from_one_another() -> None:
    draw = random.Random(0)
    for _ in range(200):
        labels = draw_labels(draw, 6)
        assert len(set(labels)) == 6


# --- chats and repetitions ---------------------------------------------------------------


def test_follow_ups_need_an_earlier_turn() -> None:
    asides = [(("Hello",), ("Hi!",))]
    rows = list(dialogues.rows(asides, list(TASKS.values()), 60, seed=0))
    assert rows == list(dialogues.rows(asides, list(TASKS.values()), 60, seed=0))
    remembered = 0
    for row in rows:
        roles = [message["role"] for message in row["messages"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        texts = [message["content"] for message in row["messages"]]
        for question, answer in zip(texts[::2], texts[1::2], strict=True):
            if found := re.fullmatch(r"Your name is (\w+)\.", answer):
                remembered += 1
                assert found[1] not in question
                assert any(found[1] in text for text in texts[: texts.index(question)])
    assert remembered > 3


def test_follow_ups_ask_for_nothing_that_is_kept_out() -> None:
    rows = [*dialogues.rows([(("Hello",), ("Hi!",))], list(TASKS.values()), 400, seed=0)]
    rows += dialogues.close_rows(400, seed=0)
    texts = {message["content"] for row in rows for message in row["messages"]}
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


def test_a_chat_goes_on_from_a_sum_or_from_a_word() -> None:
    for row in dialogues.close_rows(200, seed=1):
        _, first, *others = (message["content"] for message in row["messages"])
        if first.isdigit():
            assert (added := re.search(r"\d+", others[0]))
            assert int(others[1]) == int(first) + int(added[0])
        else:
            spelt = first.replace("-", "")
            right = {spelt[::-1], spelt.upper(), spelt[0], str(len(spelt))}
            assert set(others[1::2]) <= right


def test_letters_are_asked_of_the_words_that_are_given() -> None:
    words = ["gardener", "lantern", "mouse"]
    for task in letter_tasks(words):
        problem = task.training(random.Random(0))
        assert problem.given in words
    assert [task.name for task in letter_tasks(words)] == ["spell", "reverse", "upper"]


def test_a_name_is_told_before_it_is_asked_for() -> None:
    asides = [(("Hello",), ("Hi!",))]
    rows = list(people.rows(asides, list(TASKS.values()), 300, seed=0))
    assert rows == list(people.rows(asides, list(TASKS.values()), 300, seed=0))
    listed, found = set(people.names()), set()
    for row in rows:
        texts = [message["content"] for message in row["messages"]]
        for number, text in enumerate(texts):
            if number % 2 and (named := re.fullmatch(r"(?:Your name is|You are) (\w+)\.", text)):
                assert named[1].lower() in " ".join(texts[: number - 1]).lower()
                assert named[1][0].isupper()
                found.add(named[1])
    assert found & listed
    assert found - listed  # made up


def test_nobody_is_called_by_a_name_that_is_kept_out() -> None:
    kept = people.names(kept_out=True)
    assert len(kept) > 20
    assert not set(kept) & set(people.names())
    rows = people.rows([(("Hello",), ("Hi!",))], [TASKS["spell"]], 500, seed=1)
    said = {
        word
        for row in rows
        for each in row["messages"]
        for word in re.findall(r"\w+", each["content"])
    }
    assert not said & set(kept)


def test_questions_of_all_tasks_make_chats() -> None:
    rows = dialogues.question_rows(list(TASKS.values()), 30, seed=0)
    assert all(len(row["messages"]) % 2 == 0 for row in rows)


def test_what_is_handed_back_is_typed_to_the_letter() -> None:
    asked = {
        name: {
            row["messages"][0]["content"]
            for row in dialogues.question_rows([TASKS[name]], 200, seed=0)
        }
        for name in ("capital", "quote")
    }
    assert any(text == text.lower() for text in asked["capital"])
    assert any(text[-1] not in "?." for text in asked["capital"])
    assert not any(text == text.lower() for text in asked["quote"])


def test_repetitions_say_nothing_new() -> None:
    sentences = GROUPINGS["animal"]["dog"]
    for row in islice(patterns.rows(WORDS, sentences, 200, seed=0), 200):
        parts = row["parts"]
        assert len(parts) % 2 == 0
        for number in range(1, len(parts), 2):
            before = re.findall(r"[^\s,]+", "".join(parts[:number]))
            assert set(re.findall(r"[^\s,]+", parts[number])) <= set(before)


# --- what cannot be known, and small talk ------------------------------------------------


def test_what_cannot_be_known_is_declined_in_a_sentence() -> None:
    asides = [(("Hello",), ("Hi!",))]
    rows = list(abstention.rows(asides, list(TASKS.values()), 200, seed=0))
    assert rows == list(abstention.rows(asides, list(TASKS.values()), 200, seed=0))
    draw = random.Random(0)
    asked = set()
    for _ in range(600):
        question, reply = abstention.declined(draw)
        asked.add(question)
        assert re.search(r"\b(don't|do not|can't|cannot|only|too hard)\b", reply)
        assert reply.endswith(".")
        assert not re.search(r"\{\w\}", question + reply)
    assert len(asked) > 500


def test_wordings_kept_for_measuring_are_not_taught() -> None:
    kinds = table("abstention")["kinds"].values()
    taught = {wording.lower() for kind in kinds for wording in kind["ask"]}
    kept = {wording.lower() for kind in kinds for wording in kind["unseen"]}
    assert not taught & kept
    questions = abstention.held_out_questions(150, seed=0)
    assert len(set(questions)) == 150
    draw = random.Random(1)
    said = {abstention.declined(draw)[0].lower().rstrip("?.") for _ in range(5000)}
    assert not said & {question.lower().rstrip("?.") for question in questions}


def test_small_talk_replies_to_what_was_said() -> None:
    replies = {said.lower().rstrip("?."): each for talk, each in everyday.talks() for said in talk}
    assert len(replies) == sum(len(talk) for talk, _ in everyday.talks())
    for row in everyday.rows([(("Hello",), ("Hi!",))], 200, seed=0):
        texts = [message["content"] for message in row["messages"]]
        for said, reply in zip(texts[::2], texts[1::2], strict=True):
            expected = replies.get(said.lower().rstrip("?."), ("Hi!",))
            assert reply in expected
