"""The prompts that come with the program: each parses, fits a GPT-2, and says what is true."""

import re
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from chatapp.prompting.messages import text_of
from chatapp.rows.examples import normalise
from chatapp.tasks.files.layout import fit, render, render_channel
from chatapp.tasks.files.promptfile import load_prompt
from chatapp.tasks.selection.select import build_selector

FOLDER = Path(__file__).parents[3] / "prompts"
TASKS = sorted(path for path in FOLDER.iterdir() if path.suffix in (".toml", ".txt"))
PAPERS = sorted((FOLDER / "papers").glob("*.toml"))


def tokens(text):
    """More than GPT-2's tokenizer makes of English: it takes some four bytes a token."""
    return len(text.encode()) // 2 + 1


@pytest.fixture(params=TASKS, ids=lambda path: path.stem)
def prompt(request):
    return load_prompt(request.param)


def test_the_library_is_whole():
    assert {path.stem for path in TASKS} == set(
        "arithmetic caracas common_sense css email_reply english_to_french entailment equations "
        "grammar hate_speech new_words question_type sentiment spam spreadsheet sql summary "
        "unicorns".split()
    )
    pools = {path.stem for path in FOLDER.glob("*.jsonl")}
    assert pools == {path.stem for path in TASKS} - {"unicorns"}


def test_every_prompt_fits_a_gpt2_with_all_its_examples(prompt):
    assert 0 < len(prompt.description) <= 64
    if prompt.text is not None:
        assert tokens(prompt.text) < 512
        return
    room = 1_024 - int(prompt.generate["max_tokens"])
    selector = build_selector(prompt.pool, prompt.select)
    for query in prompt.pool.inputs:
        ranked = selector.select(query, prompt.select.k)
        assert len(ranked) == prompt.select.k
        fitted = fit(prompt, ranked, query, tokens, room)
        assert fitted.dropped == []
        assert query in text_of(render(prompt, ranked, query))
        if prompt.labels:
            render_channel(prompt, ranked, query, prompt.labels[0])


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_the_layouts_of_papers_fit_a_gpt2_and_can_be_answered(path):
    prompt = load_prompt(path)
    assert 0 < len(prompt.description) <= 64
    selector = build_selector(prompt.pool, prompt.select)
    for index in range(len(prompt.pool)):
        item = prompt.pool[index]
        ranked = selector.select(item.input, prompt.select.k)
        assert index not in ranked
        fitted = fit(prompt, ranked, item, tokens, 1_024 - int(prompt.generate["max_tokens"]))
        assert fitted.dropped == []
        assert not any(stop in item.output for stop in prompt.stop)


def test_no_answer_is_cut_off_by_its_own_stop(prompt):
    for output in prompt.pool.outputs:
        assert not any(stop in output for stop in prompt.stop)
        assert tokens(output) <= 2 * int(prompt.generate["max_tokens"])


def test_no_input_comes_twice(prompt):
    counts = Counter(map(normalise, prompt.pool.inputs))
    assert [text for text, count in counts.items() if count > 1] == []


def test_every_label_has_its_share(prompt):
    counts = Counter(prompt.pool.outputs)
    assert all(
        counts[label] >= 0.7 * len(prompt.pool) / len(prompt.labels) for label in prompt.labels
    )


def test_the_arithmetic_is_right():
    pool = load_prompt(FOLDER / "arithmetic.toml").pool
    for question, answer in zip(pool.inputs, pool.outputs, strict=True):
        term = question.removeprefix("What is ").removesuffix("?")
        for word, sign in (("plus", "+"), ("minus", "-"), ("times", "*")):
            term = term.replace(word, sign)
        assert re.fullmatch(r"[\d ()+*-]+", term)
        assert eval(term) == int(answer), question


def test_the_equations_are_solved():
    pool = load_prompt(FOLDER / "equations.toml").pool
    for equation, solution in zip(pool.inputs, pool.outputs, strict=True):
        name, value = solution.split(" = ")
        left, right = re.sub(r"(\d)([a-z])", r"\1 * \2", equation).split(" = ")
        assert re.fullmatch(r"[\w *+-]+", left)
        assert eval(left, {name: int(value)}) == int(right), equation


def test_the_sql_runs():
    prompt = load_prompt(FOLDER / "sql.toml")
    database = sqlite3.connect(":memory:")
    tables = re.findall(r"^(\w+ \(.+\))$", prompt.instruction, re.MULTILINE)
    assert len(tables) == 3
    for table in tables:
        database.execute(f"CREATE TABLE {table}")
    for statement in prompt.pool.outputs:
        database.execute(statement)  # an error in it is raised here


def test_the_css_is_closed():
    for rule in load_prompt(FOLDER / "css.toml").pool.outputs:
        assert rule.count("{") == rule.count("}") > 0
        assert re.search(r"[\w-]+: [^;{}]+; }", rule)


def test_a_shoe_holds_one_foot():
    pool = load_prompt(FOLDER / "common_sense.toml").pool
    (row,) = [
        n
        for n, text in enumerate(pool.inputs)
        if normalise(text) == normalise("how many feet fit in a shoe")
    ]
    assert pool.outputs[row].startswith("One.")
