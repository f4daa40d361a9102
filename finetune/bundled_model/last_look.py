"""Measure a finished model once on what no stage, trial or choice has seen: tables/last_look.toml.

    python -m finetune.bundled_model.last_look OUT [--model M]

OUT receives last_look.json with the figures and their n, and last_look.md with every reply.

Invariant: nothing here is used in training, and replies are not selected.
"""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from chatapp.common.userfiles import write_whole
from chatapp.dialogue.writers.choosing import choose_template
from chatapp.engine.model import LanguageModel
from chatapp.engine.models.loading import load_model
from chatapp.tasks.evaluation.evaluate import Task
from chatapp.tasks.evaluation.journal import Journal
from finetune.bundled_model.questions import QuestionTask, all_tasks
from finetune.bundled_model.report import (
    GRID,
    Reply,
    curve,
    exact,
    few_shot_rows,
    label_task,
    own_sampling,
    replies,
    write_replies,
)
from finetune.bundled_model.tables import filled, table, with_article
from finetune.recipes import run

_PROBLEMS = 15  # of each task
_CALLS = 15  # of each sign
_CHAT = re.compile(r"\b(?:User|Assistant):")
_SEED = 20261125


def tasks() -> list[QuestionTask]:
    """The generated tasks in the wordings of last_look.toml alone."""
    wordings = table("last_look")["wordings"]
    return [replace(task, unseen=tuple(wordings[task.name])) for task in all_tasks()]


def story_requests() -> list[tuple[str, str]]:
    """Each request for a story, and its subject."""
    stories = table("last_look")["stories"]
    return [
        (filled(ask, {"x": with_article(subject)}), subject)
        for ask in stories["ask"]
        for subject in stories["subjects"]
    ]


def stays_with(subject: str, reply: Reply) -> bool:
    """Whether a story names its subject twice, ends by itself and does not become a chat."""
    names = len(re.findall(rf"\b{subject}", reply.text, re.IGNORECASE))
    return names >= 2 and reply.reason == "stop" and not _CHAT.search(reply.text)


def calls() -> list[tuple[str, str]]:
    """Questions on large numbers, and the beginning of the call that a right reply contains."""
    draw = random.Random(_SEED)
    rows = []
    for sign, wordings in table("last_look")["calls"].items():
        for number in range(_CALLS):
            b, a = sorted(draw.randrange(10**3, 10**6) for _ in range(2))
            wording = wordings[number % len(wordings)]
            rows.append((filled(wording, {"a": str(a), "b": str(b)}), f"<<{a}{sign}{b}="))
    return rows


def label_tasks() -> list[Task]:
    """The label tasks; every text but the query may be shown."""
    made = []
    for task in table("last_look")["labels"]:
        classes: dict[str, list[str]] = {key: row for key, row in task.items() if key != "name"}
        shots = [(text, label) for label, row in classes.items() for text in row]
        made.append(label_task(task["name"], ("Text: ", "Label:"), shots, shots))
    return made


def evaluate(model: LanguageModel, out: Path) -> tuple[dict[str, Any], list[Reply]]:
    """The figures by name, fractions with their n, and the replies drawn for them."""
    sampling = own_sampling(model)
    template, look = choose_template(model, ""), table("last_look")

    def drawn(messages: Sequence[str]) -> list[Reply]:
        return list(replies(model, template, messages, replace(sampling, seed=_SEED)))

    talked, unknown = drawn(look["openers"]), drawn(look["unknown"])
    requests = story_requests()
    stories = drawn([request for request, _ in requests])
    problems = [task.held_out(_PROBLEMS, _SEED, unseen=True) for task in tasks()]
    called = drawn([question for question, _ in calls()])
    with Journal(out / "answers.jsonl") as journal:
        settings = [(task, GRID) for task in label_tasks()]
        labels = curve(few_shot_rows(model, settings, journal))
    stayed = [
        stays_with(subject, story) for (_, subject), story in zip(requests, stories, strict=True)
    ]
    figures = {
        "tasks": fmean(exact(model, template, rows) for rows in problems),
        "n_tasks": sum(map(len, problems)),
        "repeats_itself": fmean(reply.reason == "repetition" for reply in talked),
        "ends_by_itself": fmean(reply.reason == "stop" for reply in talked),
        "declines_unknown": fmean(reply.declines for reply in unknown),
        "right_calls": fmean(
            call in reply.text for (_, call), reply in zip(calls(), called, strict=True)
        ),
        "stories_on_subject": fmean(stayed),
        "labels": labels,
    }
    return figures, [*talked, *unknown, *stories, *called]


def measure(
    out: Annotated[Path, typer.Argument(help="folder to write to")],
    model: Annotated[str, typer.Option(help="bundled, or a model's folder")] = "bundled",
) -> None:
    """Measure a finished model, once."""
    out.mkdir(parents=True, exist_ok=True)
    figures, sample = evaluate(load_model(model), out)
    write_whole(out / "last_look.json", json.dumps(figures, indent=2) + "\n")
    write_replies(out / "last_look.md", sample)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    run(measure)
