"""Answers: exact likelihoods, the prompt that was shown, what fits, votes and texts."""

import math
import random
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import ScriptedModel

from chatapp.engine.model import Sampling
from chatapp.prompting.messages import text_of
from chatapp.rows.examples import Pool, PromptError
from chatapp.tasks import answering
from chatapp.tasks.answering import CONTENT_FREE, Answerer, sampling_of
from chatapp.tasks.files.promptfile import PromptFile, load_prompt
from chatapp.tasks.selection.select import Select, build_selector

LABELS = ("User", "Assistant", "no", "yes, said he")
POOL = Pool(
    ["a red fox", "the old mill", "two birds", "one more river"],
    ["User", "no", "yes, said he", "Assistant"],
)


def make(scoring="direct", labels=LABELS, **select):
    return PromptFile(
        path=Path("task.toml"),
        instruction="Say which.",
        input_prefix="Text: ",
        output_prefix="Which:",
        labels=tuple(labels),
        pool=POOL,
        scoring=scoring,
        metrics=("accuracy",),
        select=Select(**({"k": 2} | select)),
    )


def answerer(model, prompt):
    return Answerer(model, prompt, build_selector(prompt.pool, prompt.select))


def inputs(n):
    draw = random.Random(0)
    words = "fox river mill bird old red the and two more".split()
    return [" ".join(draw.choices(words, k=draw.randrange(1, 6))) for _ in range(n)]


def test_fifty_items_have_the_likelihoods_of_transformers(gpt2, log_probs):
    """Labels of one and of several tokens; the reference encodes the whole text at once."""
    encode = gpt2.tokenizer.encode
    assert {len(encode(f" {label}")) for label in LABELS} == {2, 3, 13}
    prompt = make(method="random", seed=3)
    asking = answerer(gpt2, prompt)
    items = inputs(50)
    answers = asking.answer([asking.prepare(text) for text in items])
    for text, answer in zip(items, answers, strict=True):
        first, second = (POOL[each.index] for each in answer.question.examples)
        shown = (
            f"Say which.\n\nText: {first.input}\nWhich: {first.output}\n\n"
            f"Text: {second.input}\nWhich: {second.output}\n\nText: {text}\nWhich:"
        )
        assert text_of(answer.question.segments) == shown
        assert answer.prompt_tokens == len(encode(shown))
        assert answer.likelihoods
        for label in LABELS:
            expected = math.fsum(log_probs(encode(shown), encode(f" {label}")))
            assert answer.likelihoods.direct[label] == pytest.approx(expected, abs=1e-4)
        assert answer.output == max(LABELS, key=answer.likelihoods.direct.__getitem__)
        assert list(answer.probabilities) == list(LABELS)
    assert len({answer.output for answer in answers}) > 1


def test_labels_of_one_token(gpt2, log_probs):
    prompt = replace(make(labels=("User", "Assistant"), k=0), output_prefix="Which:\n")
    asking = answerer(gpt2, prompt)
    ids = gpt2.tokenizer.encode("Say which.\n\nText: two birds\nWhich:\n")
    (answer,) = asking.answer([asking.prepare("two birds")])
    assert asking.label_tokens == {"User": 1, "Assistant": 1}
    assert answer.likelihoods
    for label in prompt.labels:
        (expected,) = log_probs(ids, gpt2.tokenizer.encode(label))
        assert answer.likelihoods.direct[label] == pytest.approx(expected, abs=1e-4)


def test_calibration_asks_the_same_prompt_without_an_input(gpt2, log_probs):
    asking = answerer(gpt2, make("calibrated"))
    answers = asking.answer([asking.prepare(text) for text in ("one fox", "no bird")])
    direct = answerer(gpt2, make("direct"))
    plain = direct.answer([direct.prepare(text) for text in ("one fox", "no bird")])
    shown = text_of(answers[0].question.segments)
    for answer, other in zip(answers, plain, strict=True):
        assert answer.likelihoods
        assert other.likelihoods
        assert answer.likelihoods.direct == pytest.approx(dict(other.likelihoods.direct), abs=1e-4)
        for free, found in zip(CONTENT_FREE, answer.likelihoods.content_free, strict=True):
            text = shown.replace("Text: one fox\n", f"Text: {free}\n")
            for label in LABELS:
                encode = gpt2.tokenizer.encode
                expected = math.fsum(log_probs(encode(text), encode(f" {label}")))
                assert found[label] == pytest.approx(expected, abs=1e-4)


def test_channel_scores_the_input_after_turned_examples(gpt2, log_probs):
    asking = answerer(gpt2, make("channel"))
    (answer,) = asking.answer([asking.prepare("one fox")])
    encode = gpt2.tokenizer.encode
    assert answer.likelihoods
    for label in LABELS:
        context = (
            "Say which.\n\nWhich: User\nText: a red fox\n\nWhich: no\nText: the old mill\n\n"
            f"Which: {label}\nText:"
        )
        expected = math.fsum(log_probs(encode(context), encode(" one fox")))
        assert answer.likelihoods.channel[label] == pytest.approx(expected, abs=1e-4)


def test_a_label_that_begins_another_is_closed(gpt2, log_probs):
    labels = ("ent", "entity", "no")
    prompt = make(labels=labels, k=0)
    asking = answerer(gpt2, prompt)
    encode = gpt2.tokenizer.encode
    end = encode("\n\nText:")[0]
    assert asking.label_tokens == {each: len(encode(f" {each}")) + 1 for each in labels}
    (answer,) = asking.answer([asking.prepare("two birds")])
    ids = encode("Say which.\n\nText: two birds\nWhich:")
    assert answer.likelihoods
    for label in labels:
        expected = math.fsum(log_probs(ids, [*encode(f" {label}"), end]))
        assert answer.likelihoods.direct[label] == pytest.approx(expected, abs=1e-4)
    bare = replace(prompt, separator="", input_prefix="", labels=labels)
    assert Answerer(gpt2, bare, None).label_tokens == asking.label_tokens


@pytest.mark.parametrize("scoring", ["direct", "calibrated", "channel"])
def test_a_full_window_drops_the_furthest(gpt2, scoring):
    prompt = make(scoring, method="knn", k=4)
    asking = answerer(gpt2, prompt)
    for size in range(1, 40):
        question = asking.prepare("x" * size)
        assert len(question.examples) + len(question.dropped) == 4
        (answer,) = asking.answer([question])  # the model raises when it does not fit
        assert answer.likelihoods
    assert len(question.dropped) > 0
    assert len(asking.prepare("x").examples) > len(question.examples)
    ranked = [each.index for each in (*question.examples, *question.dropped)]
    assert ranked == build_selector(POOL, prompt.select).select("x" * size, 4)


def test_nothing_but_the_label_is_scored_where_there_is_no_prompt(gpt2, log_probs):
    prompt = PromptFile(
        path=Path("p"),
        input_prefix="",
        output_prefix="",
        labels=("a", "b"),
        pool=Pool([], []),
        scoring="calibrated",
        metrics=("accuracy",),
    )
    (answer,) = Answerer(gpt2, prompt, None).answer([Answerer(gpt2, prompt, None).prepare("x")])
    expected = log_probs([gpt2.tokenizer.end_id], gpt2.tokenizer.encode(" a"))
    assert answer.likelihoods
    found = answer.likelihoods.content_free[CONTENT_FREE.index("")]["a"]
    assert found == pytest.approx(math.fsum(expected), abs=1e-4)


def test_a_vote_asks_no_model():
    model = ScriptedModel([])
    prompt = make(method="vote", k=3)
    asking = answerer(model, prompt)
    (answer,) = asking.answer([asking.prepare("the old red fox")])
    assert not model.prompts
    assert answer.output == "User"  # a tie, which the nearest decides
    assert answer.probabilities == pytest.approx(
        {"User": 1 / 3, "Assistant": 0, "no": 1 / 3, "yes, said he": 1 / 3}, abs=0.34
    )
    assert math.fsum(answer.probabilities.values()) == pytest.approx(1)
    assert all(each.similarity is not None for each in answer.question.examples)
    empty = replace(prompt, pool=Pool([], []))
    with pytest.raises(PromptError, match="at least one"):
        Answerer(model, empty, None).answer([Answerer(model, empty, None).prepare("x")])


def test_texts_are_generated_with_the_stops_of_the_file():
    model = ScriptedModel([" a fine day \n"])
    prompt = PromptFile(
        path=Path("p"), stop=("\n",), pool=POOL, generate={"temperature": 0.0, "max_tokens": 9}
    )
    asking = answerer(model, prompt)
    (answer,) = asking.answer([asking.prepare(" two {birds} ")])
    assert answer.output == "a fine day"
    assert model.prompts[0].endswith("Input: two {birds}\nOutput:")
    assert model.stops == [("\n",)]
    assert model.samplings[0].temperature == 0
    assert model.samplings[0].max_tokens == 9
    assert answer.finished
    assert answer.finished.reply_tokens > 0
    assert not answer.probabilities
    assert answer.likelihoods is None


def test_many_texts_are_what_each_is_alone(gpt2):
    prompt = replace(
        make(), labels=(), metrics=(), generate={"max_tokens": 9, "temperature": 1.0, "seed": 4}
    )
    asking = answerer(gpt2, prompt)
    texts = inputs(20)
    taken = []
    ahead = 0

    def questions():
        for text in texts:
            taken.append(text)
            yield asking.prepare(text)

    answers = []
    for some in asking.answers(questions()):
        answers += some
        ahead = max(ahead, len(taken) - len(answers))
    assert 1 < ahead < len(texts)
    assert [answer.question.input for answer in answers] == texts
    alone = [answerer(gpt2, prompt).answer([asking.prepare(text)])[0] for text in texts]
    assert [answer.output for answer in answers] == [answer.output for answer in alone]
    assert len({answer.output for answer in answers}) > 1


def test_those_asked_at_once_share_the_time(gpt2, monkeypatch):
    asking = answerer(gpt2, replace(make(), labels=(), metrics=(), generate={"max_tokens": 20}))
    clock = count()
    ticking = SimpleNamespace(perf_counter=lambda: float(next(clock)))
    monkeypatch.setattr(answering, "time", ticking)
    answers = asking.answer([asking.prepare(text) for text in inputs(16)])
    assert 16 <= sum(answer.seconds for answer in answers) <= next(clock)


def test_a_text_that_fills_the_window_is_refused(tmp_path):
    file = tmp_path / "story.txt"
    file.write_text("word " * 60)
    asking = Answerer(ScriptedModel([" x"], context=50), load_prompt(file), None)
    with pytest.raises(PromptError, match=r"story.txt: has \d+ tokens; .* window of 50 has room"):
        asking.prepare("")


def test_room_is_kept_for_a_generated_answer():
    model = ScriptedModel([" x"], context=60)
    prompt = PromptFile(path=Path("p"), pool=POOL, generate={"max_tokens": 1000})
    question = answerer(model, prompt).prepare("word " * 10)
    tokens = len(model.tokenizer.encode(text_of(question.segments)))
    assert question.dropped
    assert 30 < tokens <= 45


def test_sampling_comes_from_the_file_and_then_from_the_user():
    prompt = PromptFile(path=Path("p"), generate={"temperature": 0.5})
    found = sampling_of(prompt, Sampling(temperature=2.0, top_k=7))
    assert (found.temperature, found.top_k) == (0.5, 7)
