"""Items with choices of their own: what is scored, and three ways to decide."""

import math
from dataclasses import replace

import pytest
from fakes import ScriptedModel

from chatapp.common.userfiles import UserError
from chatapp.rows.examples import Example, PromptError
from chatapp.tasks.answering import Answerer, Likelihoods, best, probabilities
from chatapp.tasks.evaluation.evaluate import Grid, Selectors, Task, evaluate, plan
from chatapp.tasks.evaluation.inputs import Item, read_test
from chatapp.tasks.evaluation.report import results
from chatapp.tasks.files.promptfile import load_for_chat, load_prompt

FILE = """
example = "Question: {question}\\nAnswer: {answer}"
choices = "options"
examples = [{question = "1 + 1?", options = ["2", "3"], answer = "2"}]
"""
ITEM = Example("What is hot?", "fire", choices=("a lot of ice", "fire"))


class Priced(ScriptedModel):
    """A token costs a nat, and half of it after a question; keeps what it was asked to score."""

    def __init__(self):
        super().__init__([" fire"])
        self.asked = []

    def score(self, pairs):
        decode = self.tokenizer.decode
        self.asked += [(decode(context), decode(scored)) for context, scored in pairs]
        return [
            [-0.5 if "Question" in decode(context) else -1.0] * len(scored)
            for context, scored in pairs
        ]


@pytest.fixture
def prompt(tmp_path):
    path = tmp_path / "task.toml"
    path.write_text(FILE)
    return load_prompt(path)


def test_each_choice_is_scored_after_the_prompt_and_alone(prompt):
    model = Priced()
    answerer = Answerer(model, prompt, None)
    (answer,) = answerer.answer([answerer.prepare(ITEM)])
    whole = "Question: What is hot?\nAnswer:"
    assert model.asked == [
        (whole, " a lot of ice"),
        (whole, " fire"),
        ("Answer:", " a lot of ice"),
        ("Answer:", " fire"),
    ]
    likelihoods = answer.likelihoods
    assert likelihoods is not None
    tokens = {choice: len(model.tokenizer.encode(f" {choice}")) for choice in ITEM.choices}
    assert likelihoods.tokens == tokens
    assert likelihoods.direct == {choice: -count / 2 for choice, count in tokens.items()}
    assert likelihoods.unconditional == {choice: -float(count) for choice, count in tokens.items()}


def test_three_ways_to_decide():
    scored = Likelihoods(
        direct={"long": -6.0, "short": -3.0, "odd": -8.0},
        tokens={"long": 4, "short": 1, "odd": 4},
        unconditional={"long": -7.0, "short": -3.5, "odd": -12.0},
    )
    assert best(probabilities(scored, "direct")) == "short"
    assert best(probabilities(scored, "per_token")) == "long"
    assert best(probabilities(scored, "unconditional")) == "odd"
    shares = probabilities(scored, "unconditional")
    assert math.isclose(shares["odd"] / shares["long"], math.exp(3))
    with pytest.raises(ValueError, match="no log-probabilities for per_token"):
        probabilities(Likelihoods({"a": -1.0}), "per_token")


def test_an_evaluation_decides_in_three_ways_from_one_run(prompt):
    model = Priced()
    items = [Item(ITEM.input, "fire", 1, choices=ITEM.choices)]
    task = Task("task", prompt, items)
    grid = Grid(shots=(0, 1), select=("fixed",), scoring=("direct", "per_token", "unconditional"))
    cells = [(task, cell) for cell in plan(task, grid)]
    assert [cell.layout for _, cell in cells] == ["choices", "choices"]
    selectors = {"task": Selectors(task, model, None)}
    rows = evaluate(model, cells, selectors)
    assert len(model.asked) == 8
    measured = results([task], rows, grid.scoring, {"task": selectors["task"].voted})
    assert [(each.shots, each.scoring, each.majority) for each in measured] == [
        (shots, scoring, 0.5) for shots in (0, 1) for scoring in grid.scoring
    ]
    assert measured[0].mean == 1.0
    with pytest.raises(PromptError, match="--score does not apply to it: calibrated"):
        plan(task, Grid(scoring=("calibrated",)))


def test_rows_of_choices(prompt, tmp_path):
    path = tmp_path / "test.jsonl"
    path.write_text('{"question": "x", "options": ["a", "b"], "answer": "c"}')
    with pytest.raises(UserError, match="line 1: 'c' is not one of the choices of its item"):
        read_test(path, prompt.columns)
    path.write_text('{"question": "x", "options": "ab", "answer": "a"}')
    with pytest.raises(PromptError, match="'options' is the string 'ab', expected a list"):
        read_test(path, prompt.columns)


def test_what_choices_exclude(prompt):
    with pytest.raises(PromptError, match=r"'choices' conflicts with 'labels'"):
        replace(prompt, labels=("a", "b"))
    with pytest.raises(PromptError, match=r"'score\.method' is 'channel'"):
        replace(prompt, scoring="channel")
    with pytest.raises(PromptError, match="'per_token', which needs choices"):
        replace(prompt, choices="", metrics=("exact_match",), scoring="per_token")
    with pytest.raises(PromptError, match="has choices for each item, and a message has none"):
        load_for_chat(prompt.path)
