"""Measure the bundled model: everything that its card shows, except what its own commands print.

    python -m finetune.bundled_model.report DATA data OUT [--model M] [--judge J] [--items N]
        [--beside OTHER]

DATA and data are what `documents` reads and writes, and DATA/classify has TREC and movie reviews.
OUT receives one JSON file a part, and all of them as tables in report.md:

    in_context, labels, arithmetic      see `few_shot`; curve.png draws the first
    tasks       exact match of greedy replies to each generated task, in wordings that training has
                and in others
    talk        see `talk`; its replies are in talk.md
    replies     ten of them, drawn at random
    chat        a scripted chat, sampled three times
    stories     of continuations of beginnings of stories, the share that becomes a chat or a prompt

A second start goes on: parts that are there are not measured again. `chatapp perplexity FILE` and
`chatapp bench` print the rest.

Invariant: a generation that fails is no wrong answer. It ends the measurement with its reason; in
the scripted chat it follows the replies before it.
"""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from chatapp.common.userfiles import quoted, read_required, write_whole
from chatapp.dialogue.chat import Chat
from chatapp.dialogue.events import Options
from chatapp.dialogue.session import Session
from chatapp.dialogue.store import Store
from chatapp.dialogue.turn import answer
from chatapp.dialogue.writers.choosing import choose_template
from chatapp.engine.events import Finished, Token
from chatapp.engine.model import LanguageModel, Request, Sampling, whole_replies
from chatapp.engine.models.loading import load_model
from chatapp.prompting.chat_template import Template
from chatapp.tasks.evaluation.journal import NONE, Journal
from finetune.bundled_model import talk
from finetune.bundled_model.few_shot import GRID, Row, curve, few_shot_rows, few_shot_settings
from finetune.bundled_model.generators.tasks import Problem, all_tasks
from finetune.bundled_model.generators.words import table as texts_table
from finetune.bundled_model.talk import ReplyFailed
from finetune.recipes import run
from finetune.training.answers import whole_reply

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
_TASK_ITEMS, _CONTINUATIONS, _REPLIES = 200, 30, 10
_CONTINUED = 60  # tokens
_GREEDY = Sampling(temperature=0.0, max_tokens=64)


def chat(model: LanguageModel, template: Template, sampling: Sampling) -> list[str]:
    """The replies to the complete scripted chat."""
    replies = []
    with TemporaryDirectory() as folder, closing(Store(Path(folder) / "chat.sqlite")) as store:
        session = Session(Chat(store), model, template=template, sampling=sampling)
        for message in TURNS:
            events = session.say(message)
            reply = whole_reply(event for event in events if isinstance(event, Token | Finished))
            replies.append(str(reply))
    return replies


def chat_rows(model: LanguageModel, template: Template) -> list[Row]:
    """Each message of the scripted chat, and the reply with each seed."""
    chats = [chat(model, template, Sampling(seed=seed)) for seed in range(_SEEDS)]
    return [
        {"message": message, **{f"seed {seed}": chats[seed][turn] for seed in range(_SEEDS)}}
        for turn, message in enumerate(TURNS)
    ]


def exact(model: LanguageModel, template: Template, problems: Sequence[Problem]) -> float:
    """The fraction of problems whose greedy reply, to the problem as the first message, is the
    answer.

    Raises ReplyFailed.
    """
    right = 0
    for problem in problems:
        reply = whole_reply(answer(model, template, problem.question, Options(_GREEDY)))
        if reply.error:
            raise ReplyFailed(f"the reply to {quoted(problem.question)} failed: {reply.error}")
        right += reply.text == problem.answer
    return right / len(problems)


def task_rows(model: LanguageModel, template: Template, items: int) -> list[Row]:
    """Exact match of each generated task: held-out problems, in training and held-out wordings."""
    rows = []
    for task in all_tasks():
        row: Row = {"task": task.name}
        for unseen in (False, True):
            problems = task.held_out(items, seed=0, unseen=unseen)
            side = "unseen" if unseen else "seen"
            row |= {side: exact(model, template, problems), f"n_{side}": len(problems)}
        rows.append(row)
        print(f"{task.name}: {row['seen']:.2f} {row['unseen']:.2f}", flush=True)
    return rows


def becomes_no_story(text: str) -> bool:
    """Whether a continuation of a story turns into a chat or into a prompt with demonstrations."""
    layouts = texts_table("layouts")
    prefixes = {prefix.strip() for prefix in [*layouts["inputs"], *layouts["outputs"]]} - {""}
    return bool(re.search(rf"\b(?:{'|'.join({'User:', 'Assistant:', *prefixes})})", text))


def story_rows(model: LanguageModel, count: int) -> list[Row]:
    """The share of `count` sampled continuations of each beginning that become no story.

    Raises ReplyFailed.
    """
    own = talk.own_sampling(model)
    rows = []
    for beginning in texts_table("beginnings")["stories"]:
        ids = model.tokenizer.encode(beginning)
        samplings = [replace(own, seed=seed, max_tokens=_CONTINUED) for seed in range(count)]
        requests = (Request(ids, sampling) for sampling in samplings)
        broken = []
        for text, finished in whole_replies(model.generate_many(requests)):
            if finished.reason == "error":
                raise ReplyFailed(f"{quoted(beginning)} was not continued: {finished.message}")
            broken.append(becomes_no_story(text))
        rows.append({"beginning": beginning, "broken_off": talk.share(broken), "n": count})
    return rows


def reply_rows(model: LanguageModel, data: Path) -> list[Row]:
    """Replies to some first messages of `talk`, drawn at random: those of its first seed."""
    messages = talk.first_messages(data, talk.MESSAGES, seed=0)
    drawn = random.Random(0).sample(messages, _REPLIES)
    sampling = replace(talk.own_sampling(model), seed=0)
    replies = talk.replies(model, choose_template(model, ""), drawn, sampling)
    return [{"message": reply.message, "reply": reply.text} for reply in replies]


def draw_curves(reports: Mapping[str, Sequence[Row]], path: Path) -> None:
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


def table(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table; proportions in per cent."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"]
    for row in rows:
        cells = (
            f"{100 * value:.1f}" if isinstance(value, float) else "" if value is None else value
            for value in row.values()
        )
        texts = (str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells)
        lines.append("| " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def by_shots(rows: Sequence[Row]) -> list[Row]:
    """A row for each number of demonstrations, a column for each task."""
    shots = dict.fromkeys(row["shots"] for row in rows)
    columns = [
        {"shots": k, **{row["task"]: row["mean"] for row in rows if row["shots"] == k}}
        for k in shots
    ]
    return [*columns, {"shots": "n", **{row["task"]: row["n"] for row in rows}}]


def with_mean(rows: Sequence[Row]) -> list[Row]:
    """The rows, and one of the means of their shares."""
    means = {
        name: fmean(row[name] for row in rows) if isinstance(value, float) else None
        for name, value in rows[0].items()
    }
    return [*rows, {**means, next(iter(means)): "mean"}]


def measure(
    sources: Annotated[Path, typer.Argument(help="folder of the source data", exists=True)],
    data: Annotated[Path, typer.Argument(help="folder that `documents` wrote", exists=True)],
    out: Annotated[Path, typer.Argument(help="folder to write to")],
    model: Annotated[str, typer.Option(help="bundled, or a model's folder")] = "bundled",
    judge: Annotated[str, typer.Option(help=talk.JUDGE_HELP)] = "",
    items: Annotated[int, typer.Option(min=1, help="the most of each task and kind")] = 500,
    beside: Annotated[Path | None, typer.Option(help="folder of another model's report")] = None,
) -> None:
    """Measure a model and write the results, as far as they are not there."""
    loaded = load_model(model)
    template = choose_template(loaded, "")
    groups = few_shot_settings(sources, items)
    # Refuses a folder with the answers of another model, or to other items.
    with Journal(out / "answers.jsonl") as journal:
        settings = [setting for group in groups.values() for setting in group]
        rows = few_shot_rows(loaded, settings, journal)
    parts: dict[str, Any] = {}
    for name, group in groups.items():
        names = {task.name for task, _ in group}
        parts[name] = [row for row in rows if row["task"] in names]
        write_whole(out / f"{name}.json", json.dumps(parts[name], indent=2) + "\n")
    measured: dict[str, Callable[[], Any]] = {
        "talk": lambda: talk.write(loaded, data, out, judge, items),
        "replies": lambda: reply_rows(loaded, data),
        "chat": lambda: chat_rows(loaded, template),
        "tasks": lambda: task_rows(loaded, template, min(items, _TASK_ITEMS)),
        "stories": lambda: story_rows(loaded, min(items, _CONTINUATIONS)),
    }
    for name, part in measured.items():
        path = out / f"{name}.json"
        if not path.exists():
            write_whole(path, json.dumps(part(), indent=2) + "\n")
        parts[name] = json.loads(read_required(path))
    tables = {
        **{name: table(rows) for name, rows in parts.items() if name != "talk"},
        "talk": talk.in_words(parts["talk"]),
        "in_context": "\n".join(map(table, (curve(parts["in_context"]), parts["in_context"]))),
        "arithmetic": table(by_shots(parts["arithmetic"])),
        "tasks": table(with_mean(parts["tasks"])),
        "stories": table(with_mean(parts["stories"])),
    }
    report = "\n".join(f"## {name}\n\n{text}" for name, text in tables.items())
    write_whole(out / "report.md", report)
    curves = {out.name: parts["in_context"]}
    if beside is not None:
        curves[beside.name] = json.loads(read_required(beside / "in_context.json"))
    draw_curves(curves, out / "curve.png")
    print(report)


if __name__ == "__main__":
    run(measure)
