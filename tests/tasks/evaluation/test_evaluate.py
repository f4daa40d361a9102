"""Settings, their runs, what is kept of them, and what is computed from that alone."""

import json
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean

import pytest
from fakes import ScriptedModel

from chatapp.rows.examples import Pool, PromptError
from chatapp.tasks.answering import best
from chatapp.tasks.evaluation.evaluate import Cell, Grid, Selectors, Task, evaluate, plan, subset
from chatapp.tasks.evaluation.inputs import Item
from chatapp.tasks.evaluation.journal import (
    Journal,
    decided,
    likelihoods_of,
    read_answers,
)
from chatapp.tasks.evaluation.report import COLUMNS, Result, document, explanation, results, table
from chatapp.tasks.files.promptfile import PromptFile
from chatapp.tasks.selection.methods import vote
from chatapp.tasks.selection.select import Select

LABELS = ("animal", "plant")
POOL = Pool(
    ["the red fox", "an old oak", "a grey wolf", "tall grass", "one more fox", "a rose"],
    ["animal", "plant", "animal", "plant", "animal", "plant"],
)
ITEMS = [
    Item("a fox", "animal", 1),
    Item("an oak tree", "plant", 2),
    Item("the wolf", "animal", 3),
    Item("grass", "plant", 5),
    Item("a red rose", "plant", 6),
]


class Biased(ScriptedModel):
    """Takes what has a fox in it for an animal and all else for a plant; counts its work."""

    def __init__(self):
        super().__init__([" animal"])
        self.scored = 0

    def score(self, pairs):
        self.scored += len(pairs)
        found = []
        for context, continuation in pairs:
            text = self.tokenizer.decode(context) + self.tokenizer.decode(continuation)
            asked = text[text.rindex("Input") :]
            label = max(LABELS, key=text.rfind)
            likely = ("fox" in asked) == (label == "animal")
            found.append([-1.0 if likely else -2.0] * len(continuation))
        return found


def make(**changes):
    prompt = PromptFile(
        path=Path("living.toml"),
        labels=LABELS,
        metrics=("accuracy", "macro_f1"),
        pool=POOL,
        select=Select(method="knn", k=2, encoder="tfidf"),
    )
    return Task("living", replace(prompt, **changes), ITEMS)


def run(task, grid, path=None, model=None):
    model = model or Biased()
    selectors = {task.name: Selectors(task, model, None)}
    cells = [(task, cell) for cell in plan(task, grid)]
    if path is None:
        rows = evaluate(model, cells, selectors)
    else:
        with Journal(path) as journal:
            rows = evaluate(model, cells, selectors, journal=journal)
    votes = {task.name: selectors[task.name].voted}
    return rows, results([task], rows, grid.scoring, votes)


def cells(task, grid):
    return [(c.shots, c.selection, c.order, c.layout, c.seed) for c in plan(task, grid)]


def test_only_what_is_drawn_is_run_with_every_seed():
    grid = Grid((0, 2), ("fixed", "random", "knn"), (), ("direct",), seeds=3, seed=7)
    assert cells(make(), grid) == [
        (0, "none", "none", "direct", 7),
        (2, "fixed", "as chosen", "direct", 7),
        *((2, "random", "as chosen", "direct", seed) for seed in (7, 8, 9)),
        (2, "knn", "nearest-last", "direct", 7),
    ]
    shuffled = Grid((2,), ("knn",), ("shuffled", "nearest-first"), ("direct",), seeds=2)
    assert cells(make(), shuffled) == [
        (2, "knn", "shuffled", "direct", 0),
        (2, "knn", "shuffled", "direct", 1),
        (2, "knn", "nearest-first", "direct", 0),
    ]


def test_what_is_left_open_is_the_prompt_files():
    assert cells(make(scoring="channel"), Grid(seeds=5)) == [
        (2, "knn:tfidf", "nearest-last", "channel", 0)
    ]
    assert cells(make(pool=Pool([], [])), Grid()) == [(0, "none", "none", "direct", 0)]


def test_calibrated_and_direct_share_their_answers():
    grid = Grid((2,), ("knn",), (), ("direct", "calibrated", "channel"))
    assert [layout for *_, layout, _ in cells(make(), grid)] == ["calibrated", "channel"]
    model = Biased()
    _, found = run(make(metrics=("accuracy",)), grid, model=model)
    assert [each.scoring for each in found] == ["direct", "calibrated", "channel"]
    # Five items, two labels, for the input and three content-free ones, and for the channel.
    assert model.scored == 5 * 2 * (4 + 1)


def test_texts_are_drawn_when_the_temperature_says_so():
    task = make(labels=(), metrics=("exact_match",), generate={"temperature": 0.5})
    assert cells(task, Grid((0,), seeds=2)) == [
        (0, "none", "none", "text", 0),
        (0, "none", "none", "text", 1),
    ]
    assert len(plan(make(labels=(), metrics=("exact_match",)), Grid((0,), seeds=2))) == 1


def test_settings_that_a_task_cannot_have():
    with pytest.raises(PromptError, match="7 shots were requested; its pool has 6"):
        plan(make(), Grid((7,)))
    with pytest.raises(PromptError, match="'balanced', which needs labels"):
        plan(make(labels=(), metrics=("bleu",)), Grid((2,), ("balanced",)))
    with pytest.raises(PromptError, match="no answers to measure"):
        plan(make(text="Once"), Grid())


def test_a_seed_draws_the_same_subset_in_the_order_of_the_file():
    found = subset(ITEMS, 3, seed=1)
    assert found == subset(ITEMS, 3, seed=1)
    assert found == [item for item in ITEMS if item in found]
    assert len({tuple(subset(ITEMS, 3, seed)) for seed in range(9)}) > 1
    assert subset(ITEMS, None, 0) == subset(ITEMS, 9, 0) == ITEMS


def test_numbers_by_hand():
    """The model takes everything without a fox for a plant: the wolf is its one mistake."""
    rows, found = run(make(), Grid((0, 2), ("knn", "random"), seeds=3))
    by_setting = {(each.shots, each.selection, each.metric): each for each in found}
    zero = by_setting[0, "none", "accuracy"]
    assert (zero.mean, zero.spread, zero.seeds, zero.n) == (0.8, None, 1, 5)
    assert zero.interval_of == "wilson"
    assert zero.majority == 0.6
    assert (zero.vote, zero.gold_label_share, zero.gold_in_demonstrations) == (None, None, None)
    knn = by_setting[2, "knn", "accuracy"]
    mine = [row for row in rows if row["selection"] == "knn"]
    golds = [item.output for item in ITEMS]
    shown = [[POOL.outputs[index] for index in row["examples"]] for row in mine]
    right = [[label == gold for label in labels] for labels, gold in zip(shown, golds, strict=True)]
    assert knn.gold_label_share == pytest.approx(sum(map(sum, right)) / 10)
    assert knn.gold_in_demonstrations == pytest.approx(sum(map(any, right)) / 5)
    voted = [vote(POOL, row["examples"]) for row in mine]
    agreeing = sum(a == b for a, b in zip(voted, golds, strict=True))
    assert knn.vote == pytest.approx(agreeing / 5)
    assert knn.tokens == pytest.approx(sum(row["tokens"] for row in mine) / 5)
    drawn = by_setting[2, "random", "accuracy"]
    assert (drawn.seeds, drawn.spread, drawn.interval_of) == (3, 0.0, "items-seeds")
    assert drawn.vote == knn.vote
    assert len({tuple(row["examples"]) for row in rows if row["selection"] == "random"}) > 5


def test_bm25_is_measured_against_its_own_vote():
    task = make()
    selectors = Selectors(task, Biased(), None)
    rows, _ = run(task, Grid((2,), ("bm25",)))
    cell = Cell("living", 2, "bm25", "nearest-last", "direct", 0)
    assert selectors.voted(cell) == [vote(POOL, row["examples"]) for row in rows]


def test_answers_that_are_written_are_not_voted_on():
    task = make(labels=(), metrics=("exact_match",))
    _, found = run(task, Grid((2,), ("knn",)))
    assert [(each.scoring, each.vote) for each in found] == [("text", None)]


def test_a_vote_is_a_setting_of_its_own():
    model = Biased()
    rows, found = run(make(), Grid((2,), ("vote",)), model=model)
    assert model.scored == 0
    assert [row["layout"] for row in rows] == ["vote"] * 5
    assert found[0].scoring == "vote"
    assert found[0].mean == found[0].vote


def test_texts_are_measured_as_the_file_says():
    task = make(labels=(), metrics=("exact_match", "rouge_l"), stop=("\n",))
    rows, found = run(task, Grid((1,), ("knn",)), model=ScriptedModel([" animal", " plant"]))
    assert [row["output"] for row in rows] == ["animal", *["plant"] * 4]
    assert [each.metric for each in found] == ["exact_match", "rouge_l"]
    assert found[0].mean == 0.8
    assert found[0].scoring == "text"


def test_every_answer_is_kept_and_another_rule_needs_no_model(tmp_path):
    path = tmp_path / "answers.jsonl"
    grid = Grid((0, 2), ("random",), (), ("direct", "calibrated", "channel"), seeds=2)
    rows, found = run(make(), grid, path)
    head, kept = read_answers(path)
    assert list(kept) == rows
    assert head["tasks"]["living"]["label_tokens"] == {"animal": 1, "plant": 1}
    right = {}
    for row in rows:
        if row["layout"] == "calibrated":
            answer = best(likelihoods_of(row).direct)
            right.setdefault(row["shots"], []).append(answer == row["gold"])
    direct = {
        each.shots: each.mean
        for each in found
        if (each.scoring, each.metric) == ("direct", "accuracy")
    }
    assert {shots: fmean(rights) for shots, rights in right.items()} == pytest.approx(direct)
    assert len(direct) == 2
    channel = [row for row in rows if row["layout"] == "channel"]
    assert {decided(row, "channel") for row in channel} == set(LABELS)


def test_styles_are_settings_and_older_answers_go_on(tmp_path):
    path = tmp_path / "answers.jsonl"
    run(make(), Grid(select=("knn", "vote")), path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[1:]:
        del line["style"]  # as it was before there was a choice
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    model = Biased()
    both, found = run(make(), Grid(select=("knn", "vote"), style=("text", "turns")), path, model)
    assert model.scored == len(ITEMS) * len(LABELS)  # the turns alone
    assert [(each.selection, each.style) for each in found[::2]] == [
        ("knn", "text"),
        ("knn", "turns"),
        ("vote", "none"),
    ]
    assert len(both) == 3 * len(ITEMS)
    tokens = [row.get("label_tokens") for row in both]
    assert tokens.count({"animal": 1, "plant": 1}) == len(ITEMS)
    with pytest.raises(PromptError, match="the order of chat turns cannot be reversed"):
        plan(make(), Grid(style=("turns",), scoring=("channel",)))


def test_an_interrupted_evaluation_goes_on(tmp_path):
    grid = Grid((0, 2), ("random", "knn"), (), ("direct",), seeds=2)
    whole, found = run(make(), grid, tmp_path / "whole.jsonl")
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    strip = ("seconds",)
    for count in (0, 1, 2, 8, len(lines)):
        path = tmp_path / f"{count}.jsonl"
        half = lines[count][:20] if count < len(lines) else b""
        path.write_bytes(b"".join(lines[:count]) + half)
        model = Biased()
        rows, again = run(make(), grid, path, model)
        assert model.scored == 2 * (len(whole) - max(0, count - 1))
        assert [{k: v for k, v in row.items() if k not in strip} for row in rows] == [
            {k: v for k, v in row.items() if k not in strip} for row in whole
        ]
        assert [replace(each, seconds_per_item=0) for each in again] == [
            replace(each, seconds_per_item=0) for each in found
        ]


def test_more_settings_use_the_answers_there_are(tmp_path):
    path = tmp_path / "answers.jsonl"
    run(make(), Grid((2,), ("knn",)), path)
    model = Biased()
    rows, found = run(make(), Grid((0, 2), ("knn",)), path, model)
    assert model.scored == 2 * 5
    assert {each.shots for each in found} == {0, 2}
    assert sum(1 for _ in read_answers(path)[1]) == len(rows) == 10


def test_answers_of_another_evaluation_are_refused(tmp_path):
    path = tmp_path / "answers.jsonl"
    run(make(), Grid((2,)), path)
    before = path.read_bytes()
    other = make(instruction="Now this.")
    with pytest.raises(PromptError, match="other prompts or test items"):
        run(other, Grid((2,)), path)
    fewer = replace(make(), items=ITEMS[:4])
    with pytest.raises(PromptError, match="other prompts or test items"):
        run(fewer, Grid((2,)), path)
    model = Biased()
    model.name = "another"
    with pytest.raises(PromptError, match="of another model"):
        run(make(), Grid((2,)), path, model)
    assert path.read_bytes() == before
    path.write_text('{"line": 1}\n')
    with pytest.raises(PromptError, match="does not hold the answers"):
        run(make(), Grid((2,)), path)


def test_an_item_that_does_not_fit_is_named_before_any_is_asked(tmp_path):
    items = [*ITEMS, Item("x " * 2000, "plant", 9)]
    task = replace(make(), items=items, source="test.jsonl")
    model = Biased()
    with pytest.raises(PromptError, match=r"test\.jsonl, line 9: .*alone take"):
        run(task, Grid((2,)), tmp_path / "answers.jsonl", model)
    assert model.scored == 0


def test_the_report_is_plain_data():
    _, found = run(make(), Grid((2,), ("knn",)))
    made = json.loads(json.dumps(document({"seed": 0}, found)))
    assert made["config"] == {"seed": 0}
    assert {"chatapp", "python", "torch", "transformers"} <= made["versions"].keys()
    assert made["results"][0].keys() == {column.field for column in COLUMNS}


def test_a_narrow_table_leaves_out_what_matters_least_and_says_so():
    from rich.console import Console

    _, found = run(make(metrics=("accuracy",)), Grid((0, 2), ("knn", "random"), seeds=2))
    found = [replace(each, seconds_per_item=number) for number, each in enumerate(found)]

    def shown(width, *, all_columns=True):
        console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
        console.print(table(found, width, all_columns=all_columns))
        return console.export_text()

    assert "s/item" in shown(None) == shown(200)
    assert "left out" not in shown(None)
    least_used = shown(None, all_columns=False).partition("left out: ")
    assert "seeds" in least_used[0]
    assert "s/item" in least_used[2]
    assert "; --all-columns" in least_used[2]
    narrow = shown(80)
    assert max(map(len, map(str.rstrip, narrow.splitlines()))) <= 80
    assert "s/item" in narrow.partition("left out: ")[2]
    for name in ("mean", "95 %", "majority", "vote"):
        assert name in narrow.partition("left out: ")[0]
    # Never less than the settings, the figures and their baselines.
    assert "majority" in shown(10)


def test_the_table_shows_foreign_names_as_they_are():
    from rich.console import Console

    _, found = run(make(metrics=("accuracy",)), Grid((0, 2), ("knn",)))
    odd = [replace(each, task="[bold]\x1b[31mx") for each in found]
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table(odd))
    text = console.export_text()
    assert "task [bold]␛[31mx" in text
    assert "0.800" in text
    assert "nearest-last" in text


def test_every_column_of_the_report_is_declared_whole():
    """Each field of a result is a column with a text of its own; each computed figure is explained
    and has a place among those that a narrow terminal leaves out, unless it is a baseline.
    """
    _, (result, *_) = run(make(metrics=("accuracy",)), Grid((2,), ("knn",)))
    whole = replace(result, model="gpt", parameters=7, vote=0.5, head=0.25, spread=0.125)
    other = {str: "other", int: 99, float: 0.0625, tuple: (0.03, 0.97)}
    without = {field.name for field in fields(Result)} - {column.field for column in COLUMNS}
    assert without == {"runs"}, f"give {without - {'runs'}} of Result a column by `_column`"
    assert len({column.name for column in COLUMNS}) == len(COLUMNS), "a name stands twice"
    for column in COLUMNS:
        value = other[type(getattr(whole, column.field))]
        changed = replace(whole, **{column.field: value})
        assert "" != column.show(whole) != column.show(changed), f"{column.name}: `form` shows it"
        assert column.meaning or not column.compute, f"{column.name}: say its `meaning`"
        stays = column.name in ("majority", "vote", "over vote", "head") or not column.compute
        assert stays or column.narrow is not None, f"{column.name}: give it a `narrow`, such as 4.5"
    text = explanation(table([whole], all_columns=True))
    assert all(column.meaning in text for column in COLUMNS)
