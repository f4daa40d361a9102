"""The blind test: equally long, unpicked and shuffled texts, and the result of the verdicts."""

import random

import pytest
from fakes import ScriptedModel

from chatapp.engine.model import Sampling
from chatapp.prompting.examples import PromptError
from chatapp.tasks.evaluation.blind_test import Trial, make_trials, recognitions
from chatapp.tasks.evaluation.metrics import wilson

PASSAGES = [" ".join(f"w{row}.{place}" for place in range(10)) for row in range(9)]


def test_a_third_of_the_texts_has_each_origin_and_all_of_a_passage_are_equally_long() -> None:
    model = ScriptedModel([" one two  three", " one two three four five six seven"])
    trials = make_trials(model, [*PASSAGES, "too short"], 4, Sampling(), 0)
    assert sorted(trial.origin for trial in trials) == sorted(["human", "machine", "control"] * 3)
    assert [trial.beginning for trial in trials] != [p[:19] for p in PASSAGES], "shuffled"
    for trial in trials:
        (passage,) = (p for p in PASSAGES if p.startswith(trial.beginning))
        assert len(trial.beginning.split()) == 4
        own = passage.split()[4:]
        words = trial.continuation.split()
        assert 3 <= len(words) <= 4
        assert (words == own[: len(words)]) == (trial.origin == "human")
    assert trials == make_trials(
        ScriptedModel([" one two  three", " one two three four five six seven"]),
        PASSAGES,
        4,
        Sampling(),
        0,
    )


def test_the_control_is_hot_and_sees_no_passage() -> None:
    model = ScriptedModel([" one two three"])
    trials = make_trials(model, PASSAGES[:3], 2, Sampling(temperature=0.5, top_p=0.8), 1)
    assert {trial.origin for trial in trials} == {"human", "machine", "control"}
    asked = list(zip(model.prompts, model.samplings, strict=True))
    (bad,) = (each for each in asked if each[0] == "<|endoftext|>")
    assert (bad[1].temperature, bad[1].top_p) == (2.0, 1.0)
    assert {each[1].temperature for each in asked if each != bad} == {0.5}


def test_passages_that_give_nothing() -> None:
    assert make_trials(ScriptedModel([""]), PASSAGES, 2, Sampling(), 0) == []
    with pytest.raises(PromptError, match="there is no passage of 40 words"):
        make_trials(ScriptedModel([" a"]), PASSAGES, 20, Sampling(), 0)


def test_accuracy_counts_verdicts_on_human_texts_and_leaves_out_dont_know() -> None:
    trials = [Trial("a", "b", origin) for origin in ("human",) * 3 + ("machine",) * 3]
    trials += [Trial("a", "b", "control")] * 2
    verdicts = ["human", "machine", "unknown", "machine", "human", "unknown", "machine"]
    machine, control = recognitions(trials, verdicts)
    assert (machine.accuracy, machine.n, machine.unknown) == (0.5, 4, 2)
    assert machine.interval == wilson(2, 4)
    assert (control.accuracy, control.n, control.unknown) == (pytest.approx(2 / 3), 3, 1)
    none, _ = recognitions(trials, [])
    assert (none.n, none.interval) == (0, (0.0, 1.0))


def test_a_reader_who_guesses_is_right_in_half() -> None:
    draw = random.Random(0)
    trials = [Trial("a", "b", draw.choice(["human", "machine"])) for _ in range(2_000)]
    verdicts = [draw.choice(["human", "machine"]) for _ in trials]
    machine, _ = recognitions(trials, verdicts)
    assert machine.accuracy == pytest.approx(0.5, abs=0.05)
