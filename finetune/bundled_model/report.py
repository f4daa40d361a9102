"""Measure the bundled model on what its generators keep out of training.

    python -m finetune.bundled_model.report DATA OUT [--model M] [--items N] [--beside OTHER]

OUT receives tasks.json (exact match of greedy replies to each generated task, in wordings that
training has and in others), in_context.json (accuracy on the twenty held-out tasks with label
words drawn at random, by the number of demonstrations), both as tables in report.md, and
chats.md (a scripted chat, sampled three times). The answers to the in-context tasks are kept in
OUT/answers.jsonl: a second start goes on.

What the program measures itself is measured with it: `chatapp eval --task 2D+,…` for the
arithmetic of the GPT-3 paper, `chatapp eval PROMPT --test FILE` for TREC and MR, `chatapp
perplexity FILE` for WikiText-2.

Invariant: a generation that fails is no wrong answer. It ends the measurement with its reason; in
the scripted chat it follows the replies before it.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from chatapp.common.userfiles import UserError, quoted
from chatapp.dialogue.chat import Chat
from chatapp.dialogue.oneshot import ask
from chatapp.dialogue.session import Session
from chatapp.dialogue.store import Store
from chatapp.dialogue.writers.choosing import choose_template
from chatapp.engine.events import Finished, Token
from chatapp.engine.model import LanguageModel, Sampling
from chatapp.evaluation.evaluate import Grid, Selectors, Task, evaluate, plan
from chatapp.evaluation.gpt3_tasks import own_words
from chatapp.evaluation.inputs import Item
from chatapp.evaluation.journal import NONE, Journal
from chatapp.evaluation.report import results
from chatapp.models.loading import load_model
from chatapp.prompting.chat_template import Template
from finetune.bundled_model.generators.incontext import HeldOut, held_out_tasks
from finetune.bundled_model.generators.tasks import Problem, all_tasks
from finetune.bundled_model.sources import groupings
from finetune.recipes import run
from finetune.training.sample_replies import whole_reply

GRID = Grid(shots=(0, 1, 2, 4, 8, 16), select=("random", "knn"))
TURNS = (
    "Hello!",
    "What is your name?",
    "My name is Clara.",
    "How are you today?",
    "I like tea.",
    "What is the capital of France?",
    "And of Spain?",
    "What is 48 plus 76?",
    "Add 10 to that.",
    "Correct this sentence: I eated the purple berries.",
    "What is the opposite of hot?",
    "Spell apple.",
    "And backwards?",
    "What colour is snow?",
    "How many days are in a week?",
    "What is the weather today?",
    "What is my name?",
    "What do I like?",
    "Thank you!",
    "Goodbye!",
)
_SEEDS = 3
_GREEDY = Sampling(temperature=0.0, max_tokens=64)


class ReplyFailed(UserError):
    """A measured reply failed; says which and why."""


def chat(model: LanguageModel, template: Template, sampling: Sampling) -> str:
    """The complete scripted chat: the user's messages and the model's replies."""
    lines = []
    with TemporaryDirectory() as folder, closing(Store(Path(folder) / "chat.sqlite")) as store:
        session = Session(Chat(store), model, template=template, sampling=sampling)
        for message in TURNS:
            events = session.say(message)
            reply = whole_reply(event for event in events if isinstance(event, Token | Finished))
            lines.append(f"**User:** {message}\n\n**Model:** {reply}\n")
    return "\n".join(lines)


def exact(model: LanguageModel, template: Template, problems: Sequence[Problem]) -> float:
    """The fraction of problems whose greedy reply, to the problem as the first message, is the
    answer.

    Raises ReplyFailed.
    """
    right = 0
    for problem in problems:
        reply = whole_reply(ask(model, template, problem.question, sampling=_GREEDY))
        if reply.error:
            raise ReplyFailed(f"the reply to {quoted(problem.question)} failed: {reply.error}")
        right += reply.text == problem.answer
    return right / len(problems)


def task_rows(model: LanguageModel, template: Template, items: int) -> list[dict[str, Any]]:
    """Exact match of each generated task: held-out problems, in training and held-out wordings."""
    rows = []
    for task in all_tasks():
        row: dict[str, Any] = {"task": task.name}
        for unseen in (False, True):
            problems = task.held_out(items, seed=0, unseen=unseen)
            side = "unseen" if unseen else "seen"
            row |= {side: exact(model, template, problems), f"n_{side}": len(problems)}
        rows.append(row)
        print(f"{task.name}: {row['seen']:.2f} {row['unseen']:.2f}", flush=True)
    return rows


def in_context_rows(
    model: LanguageModel, held_out: Sequence[HeldOut], journal: Journal
) -> list[dict[str, Any]]:
    """Accuracy on each held-out task by number of demonstrations and selection.

    With the vote of the demonstrations and the most common label, as in `chatapp eval`.
    """
    tasks = [
        Task(task.name, task.prompt, [Item(*shot, line) for line, shot in enumerate(task.items, 1)])
        for task in held_out
    ]
    cells = [(task, cell) for task in tasks for cell in plan(task, GRID)]
    selectors = {task.name: Selectors(task, model, None) for task in tasks}
    rows = evaluate(model, cells, selectors, journal=journal)
    votes = {name: selector.voted for name, selector in selectors.items()}
    columns = ("task", "shots", "selection", "mean", "vote", "majority", "n")
    report_rows = results(tasks, rows, (), votes)
    return [{name: getattr(result, name) for name in columns} for result in report_rows]


def curve(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
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


def draw_curves(reports: Mapping[str, Sequence[dict[str, Any]]], path: Path) -> None:
    """Write a PNG of the `curve` of one or more models, with the vote of the nearest."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    shots = [str(k) for k in GRID.shots]
    votes: list[float] = []
    for number, (model, rows) in enumerate(reports.items()):
        means = {(row["shots"], row["selection"]): row for row in curve(rows)}
        for line, selection in zip(("--", "-"), GRID.select, strict=True):
            # Settings without demonstrations are the first point of every curve.
            points = [means.get((k, selection)) or means[k, NONE] for k in GRID.shots]
            height = [point["mean"] for point in points]
            name = f"{model}, {selection}"
            axes.plot(shots, height, marker="o", linestyle=line, color=f"C{number}", label=name)
            votes = [point["vote"] for point in points]
    axes.plot(shots, votes, color="0.6", label="vote of the nearest")
    axes.set(xlabel="demonstrations", ylabel="accuracy, mean over tasks", ylim=(0, 1))
    figure.legend(loc="outside right upper")
    figure.savefig(path, dpi=150)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as a Markdown table; proportions in per cent."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"]
    for row in rows:
        cells = (
            f"{100 * value:.1f}" if isinstance(value, float) else "" if value is None else value
            for value in row.values()
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def measure(
    data: Annotated[Path, typer.Argument(help="folder of the source data", exists=True)],
    out: Annotated[Path, typer.Argument(help="folder to write to")],
    model: Annotated[str, typer.Option(help="bundled, or a model's folder")] = "bundled",
    items: Annotated[int, typer.Option(min=1, help="of each task")] = 200,
    beside: Annotated[Path | None, typer.Option(help="folder of another model's report")] = None,
) -> None:
    """Evaluate a model on held-out tasks and write the results."""
    out.mkdir(parents=True, exist_ok=True)
    loaded = load_model(model)
    template = choose_template(loaded, "")
    chats = [
        f"## Seed {seed}\n\n{chat(loaded, template, Sampling(seed=seed))}" for seed in range(_SEEDS)
    ]
    (out / "chats.md").write_text("\n".join(chats), encoding="utf-8")
    held_out = held_out_tasks(groupings(data), own_words(), min(items, 40), seed=0)
    with Journal(out / "answers.jsonl") as journal:
        in_context = in_context_rows(loaded, held_out, journal)
    tasks = task_rows(loaded, template, items)
    for name, rows in (("in_context", in_context), ("tasks", tasks)):
        (out / f"{name}.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    report = "\n".join(map(table, (curve(in_context), in_context, tasks)))
    (out / "report.md").write_text(report, encoding="utf-8")
    reports = {out.name: in_context}
    if beside is not None:
        reports[beside.name] = json.loads((beside / "in_context.json").read_text(encoding="utf-8"))
    draw_curves(reports, out / "curve.png")
    print(table(curve(in_context)))


if __name__ == "__main__":
    run(measure)
