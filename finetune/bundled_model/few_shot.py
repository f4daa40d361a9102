"""What the bundled model makes of demonstrations: three groups of few-shot tasks and their results.

    in_context      twenty generated tasks whose label words are in no training row
    labels          types of question (TREC) and movie reviews (MR), which are in no training text
    arithmetic      sums in the wording of the GPT-3 paper, as `chatapp eval --task` has them

Invariant: no item is in a training row in the wording in which it is measured.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from chatapp.engine.model import LanguageModel
from chatapp.rows.examples import Pool
from chatapp.tasks.evaluation.evaluate import Grid, Selectors, Task, evaluate, plan, subset
from chatapp.tasks.evaluation.gpt3_tasks import generate, own_words, task_prompt
from chatapp.tasks.evaluation.inputs import Item
from chatapp.tasks.evaluation.journal import Journal
from chatapp.tasks.evaluation.report import results
from chatapp.tasks.files.promptfile import PromptFile
from finetune.bundled_model.generators.fewshot import Shot
from finetune.bundled_model.generators.incontext import held_out_tasks
from finetune.bundled_model.sources import groupings

Row = dict[str, Any]
Settings = list[tuple[Task, Grid]]

GRID = Grid(shots=(0, 1, 2, 4, 8, 16), select=("random", "knn:tfidf"))
_LABELS = Grid(GRID.shots, GRID.select, seeds=3)
_ARITHMETIC = Grid(shots=(0, 1, 8))
_SUMS = ("2D+", "2D-", "3D+", "3D-", "4D+", "4D-", "5D+", "5D-", "2Dx", "1DC")
_IN_CONTEXT_ITEMS, _LABEL_ITEMS, _SUM_ITEMS = 40, 300, 500
_REVIEWS = 500  # to choose items from; as many more are not used
TREC_KINDS = {
    "HUM": "person",
    "LOC": "place",
    "NUM": "number",
    "DESC": "description",
    "ENTY": "thing",
    "ABBR": "abbreviation",
}


def few_shot_settings(sources: Path, items: int) -> dict[str, Settings]:
    """The tasks of each group, with what is varied. sources: as `documents` reads them. items: the
    most of a task.
    """
    words = own_words()
    held_out = held_out_tasks(groupings(sources), words, min(items, _IN_CONTEXT_ITEMS), seed=0)
    few = min(items, _LABEL_ITEMS)
    labels = (trec(sources / "classify", few), reviews(sources / "classify", few))
    return {
        "in_context": [(as_task(task.name, task.prompt, task.items), GRID) for task in held_out],
        "labels": [(task, _LABELS) for task in labels],
        "arithmetic": [(task, _ARITHMETIC) for task in arithmetic_tasks(min(items, _SUM_ITEMS))],
    }


def as_task(name: str, prompt: PromptFile, shots: Sequence[Shot]) -> Task:
    """A task whose items are inputs with their outputs."""
    return Task(name, prompt, [Item(*shot, line) for line, shot in enumerate(shots, 1)])


def arithmetic_tasks(items: int) -> list[Task]:
    """The paper's tasks."""
    tasks = []
    for name in _SUMS:
        problems = generate(name, 2 * _SUM_ITEMS, 0)
        prompt = task_prompt(name, problems[_SUM_ITEMS:])
        shots = [(item.input, item.output) for item in problems[:items]]
        tasks.append(as_task(name, prompt, shots))
    return tasks


def trec(folder: Path, items: int) -> Task:
    """Types of question, with all training questions to show. items: of the 500 for testing."""
    pool, shots = (
        [
            (text, TREC_KINDS[label.split(":")[0]])
            for label, text in (line.split(" ", 1) for line in _lines(folder / f"trec_{part}.txt"))
        ]
        for part in ("train", "test")
    )
    instruction = "Say what kind of answer each question asks for."
    return _label_task("TREC", instruction, ("Question: ", "Type:"), pool, shots, items)


def reviews(folder: Path, items: int) -> Task:
    """Sentences of movie reviews, those to measure drawn once and kept out of the pool."""
    rows = [
        (line, label)
        for label in ("positive", "negative")
        for line in _lines(folder / f"mr_{label[:3]}.txt")
    ]
    random.Random(0).shuffle(rows)
    pool, shots = rows[2 * _REVIEWS :], rows[:_REVIEWS]
    instruction = "Say whether each review is positive or negative."
    return _label_task("MR", instruction, ("Review: ", "Sentiment:"), pool, shots, items)


def _lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="latin-1").split("\n")
    return [line.strip() for line in lines if line.strip()]


def _label_task(
    name: str,
    instruction: str,
    prefixes: tuple[str, str],
    pool: Sequence[Shot],
    shots: Sequence[Shot],
    items: int,
) -> Task:
    prompt = PromptFile(
        path=Path(name),
        instruction=instruction,
        input_prefix=prefixes[0],
        output_prefix=prefixes[1],
        labels=tuple(dict.fromkeys(label for _, label in pool)),
        metrics=("accuracy",),
        pool=Pool([text for text, _ in pool], [label for _, label in pool]),
    )
    task = as_task(name, prompt, shots)
    return Task(name, prompt, subset(task.items, items, 0))


def few_shot_rows(model: LanguageModel, settings: Settings, journal: Journal) -> list[Row]:
    """Accuracy on each task by number of demonstrations and selection, with the vote of the
    demonstrations and the most common label, as in `chatapp eval`.
    """
    tasks = [task for task, _ in settings]
    cells = [(task, cell) for task, grid in settings for cell in plan(task, grid)]
    selectors = {task.name: Selectors(task, model, None) for task in tasks}
    rows = evaluate(model, cells, selectors, journal=journal)
    votes = {name: selector.voted for name, selector in selectors.items()}
    columns = ("task", "shots", "selection", "mean", "spread", "vote", "majority", "n")
    report_rows = results(tasks, rows, (), votes)
    return [{name: getattr(result, name) for name in columns} for result in report_rows]


def curve(rows: Sequence[Row]) -> list[Row]:
    """The mean over tasks for each number of demonstrations and selection."""
    settings = dict.fromkeys((row["shots"], row["selection"]) for row in rows)
    means = []
    for shots, selection in settings:
        group = [row for row in rows if (row["shots"], row["selection"]) == (shots, selection)]
        voted = [row["vote"] for row in group if row["vote"] is not None]
        means.append(
            {
                "shots": shots,
                "selection": selection,
                "mean": fmean(row["mean"] for row in group),
                "vote": fmean(voted) if voted else None,
                "tasks": len(group),
            }
        )
    return means
