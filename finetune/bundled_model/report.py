"""Measure the bundled model: everything that its card shows, except what its own commands print.

    python -m finetune.bundled_model.report DATA data OUT [--model M] [--judge J] [--items N]
        [--beside OTHER]

DATA and data are what `build` reads and writes, and DATA/classify has TREC and movie reviews.
OUT receives one JSON file a part, and all of them as tables in report.md:

    in_context  twenty generated tasks whose label words are in no training row; see curve.png
    labels      types of question (TREC) and movie reviews (MR), which are in no training text
    arithmetic  sums in the wording of the GPT-3 paper, as `chatapp eval --task` has them
    tasks       exact match of greedy replies to each generated task, in wordings that training has
                and in others
    talk        whether replies end, go round in circles, and admit not knowing: to first messages
                of talks kept out of training and some written for this, sampled three times, and to
                questions that cannot be answered, in wordings kept out, and those that can. With a
                judge, the median over replies of the mean log-probability of their tokens. Those
                of the first seed are in talk.md
    replies     ten of them, drawn at random
    chat        a scripted chat, sampled three times
    stories     of continuations of beginnings of stories, the share that becomes a chat or a prompt

A second start goes on: parts that are there are not measured again. `chatapp perplexity FILE` and
`chatapp bench` print the rest.

Invariants: no item was used in training in the wording in which it is measured, and replies are not
selected. A generation that fails is no wrong answer. It ends the measurement with its reason; in
the scripted chat it follows the replies before it.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from chatapp.common.parameters import Choices
from chatapp.common.userfiles import UserError, quoted, read_required, write_whole
from chatapp.dialogue.chat import Chat
from chatapp.dialogue.events import Options
from chatapp.dialogue.session import Session
from chatapp.dialogue.store import Store
from chatapp.dialogue.turn import answer
from chatapp.dialogue.writers.choosing import choose_template, writer_for
from chatapp.dialogue.writers.prompt import Exchange
from chatapp.engine.events import Finished, FinishReason, Token
from chatapp.engine.files.model_files import read_generation_config
from chatapp.engine.model import LanguageModel, Request, Sampling, whole_replies
from chatapp.engine.models.loading import load_model
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.tasks.evaluation.evaluate import Grid, Selectors, Task, evaluate, plan, subset
from chatapp.tasks.evaluation.gpt3_tasks import generate, own_words, task_prompt
from chatapp.tasks.evaluation.journal import NONE, Journal
from chatapp.tasks.evaluation.report import results
from chatapp.tasks.files.promptfile import PromptFile
from finetune.bundled_model.chats import held_out_questions
from finetune.bundled_model.demonstrations import Row, Shot, as_task, held_out_tasks, pool_of
from finetune.bundled_model.questions import Problem, all_tasks
from finetune.bundled_model.sources import groupings
from finetune.bundled_model.tables import table
from finetune.recipes import run
from finetune.training.answers import whole_reply

Settings = list[tuple[Task, Grid]]

GRID = Grid(shots=(0, 1, 2, 4, 8, 16), select=("random", "knn:tfidf"))
_LABELS = Grid(GRID.shots, GRID.select, seeds=3)
_ARITHMETIC = Grid(shots=(0, 1, 8))
_SUMS = ("2D+", "2D-", "3D+", "3D-", "4D+", "4D-", "5D+", "5D-", "2Dx", "1DC")
_IN_CONTEXT_ITEMS, _LABEL_ITEMS, _SUM_ITEMS, _TASK_ITEMS = 40, 300, 500, 200  # of a task
_REVIEWS = 500  # to choose items from; as many more are not used
TREC_KINDS = {
    "HUM": "person",
    "LOC": "place",
    "NUM": "number",
    "DESC": "description",
    "ENTY": "thing",
    "ABBR": "abbreviation",
}
MESSAGES, _UNKNOWN, _KNOWN, _REPLIES = 200, 150, 300, 10
_SEEDS = 3
_CONTINUATIONS, _CONTINUED = 30, 60  # of each beginning; tokens
_GREEDY = Sampling(temperature=0.0, max_tokens=64)
_NOT_KNOWING = re.compile(
    r"\b(?:don't|do not|can't|cannot|could not|no idea|not sure|too hard|only know|only speak)\b",
    re.IGNORECASE,
)


class ReplyFailed(UserError):
    """A measured reply failed; says which and why."""


# --- few-shot tasks ----------------------------------------------------------------------


def few_shot_settings(sources: Path, items: int) -> dict[str, Settings]:
    """The tasks of each group, with what is varied. sources: as `build` reads them. items: the
    most of a task.
    """
    words = own_words()
    held_out = held_out_tasks(groupings(sources), words, min(items, _IN_CONTEXT_ITEMS), seed=0)
    few = min(items, _LABEL_ITEMS)
    labels = (trec(sources / "classify", few), reviews(sources / "classify", few))
    sums = []
    for name in _SUMS:
        problems = generate(name, 2 * _SUM_ITEMS, 0)
        measured = problems[: min(items, _SUM_ITEMS)]
        prompt = task_prompt(name, problems[_SUM_ITEMS:])
        sums.append(as_task(name, prompt, [(item.input, item.output) for item in measured]))
    return {
        "in_context": [(task, GRID) for task in held_out],
        "labels": [(task, _LABELS) for task in labels],
        "arithmetic": [(task, _ARITHMETIC) for task in sums],
    }


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
    task = label_task("TREC", ("Question: ", "Type:"), pool, shots, instruction)
    return replace(task, items=subset(task.items, items, 0))


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
    task = label_task("MR", ("Review: ", "Sentiment:"), pool, shots, instruction)
    return replace(task, items=subset(task.items, items, 0))


def _lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="latin-1").split("\n")
    return [line.strip() for line in lines if line.strip()]


def label_task(
    name: str,
    prefixes: tuple[str, str],
    pool: Sequence[Shot],
    shots: Sequence[Shot],
    instruction: str = "",
) -> Task:
    """A task whose labels are those of its pool. shots: its items."""
    prompt = PromptFile(
        path=Path(name),
        instruction=instruction,
        input_prefix=prefixes[0],
        output_prefix=prefixes[1],
        labels=tuple(dict.fromkeys(label for _, label in pool)),
        metrics=("accuracy",),
        pool=pool_of(pool),
    )
    return as_task(name, prompt, shots)


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
        mean, vote = fmean(row["mean"] for row in group), fmean(voted) if voted else None
        setting = {"shots": shots, "selection": selection}
        means.append({**setting, "mean": mean, "vote": vote, "tasks": len(group)})
    return means


# --- talk --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """A message, the reply, and why it ended."""

    message: str
    text: str
    reason: FinishReason

    @property
    def declines(self) -> bool:
        """Whether it admits not to know or not to be able to do something."""
        return bool(_NOT_KNOWING.search(self.text))


def first_messages(data: Path, count: int, seed: int) -> list[str]:
    """The written test messages, and held-out talks' messages up to `count`."""
    own: list[str] = table("first_messages")["said"]
    spoken = {
        json.loads(line)["messages"][0]["content"]: None
        for name in ("persona_chat", "topical_chat")
        for line in (data / "kept_out" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    }
    others = random.Random(seed).sample(list(spoken), min(len(spoken), max(0, count - len(own))))
    return [*others, *own][-count:]


def known_questions(count: int, seed: int) -> list[str]:
    """Questions of the generated tasks whose answer is in training, each task equally often."""
    tasks = [task for task in all_tasks() if task.name != "unknown"]
    per_task = -(-count // len(tasks))
    problems = (task.held_out(per_task, seed, unseen=False) for task in tasks)
    return [problem.question for each in problems for problem in each][:count]


def replies(
    model: LanguageModel, template: ChatTemplate, messages: Sequence[str], sampling: Sampling
) -> Iterator[Reply]:
    """The reply to each message as the first one of a chat. Raises ReplyFailed."""
    for message in messages:
        events = list(answer(model, template, message, Options(sampling)))
        end = events[-1]
        assert isinstance(end, Finished)
        if end.reason == "error":
            raise ReplyFailed(f"the reply to {quoted(message)} failed: {end.message}")
        yield Reply(message, "".join(event.text for event in events).strip(), end.reason)


def likelihoods(judge: LanguageModel, talk_replies: Sequence[Reply]) -> list[float]:
    """The mean log-probability of each reply's tokens under another model, in nats.

    The reply takes the place of the judge's own, in its own template. Empty replies have none.
    """
    writer = writer_for(judge, choose_template(judge, ""))
    pairs = [
        (
            writer.write(None, [Exchange(reply.message)], max_tokens=1).ids,
            writer.reply_ids(reply.text),
        )
        for reply in talk_replies
        if reply.text
    ]
    return [fmean(row) for row in judge.score(pairs)]


def own_sampling(model: LanguageModel) -> Sampling:
    """The sampling that the model itself asks for."""
    return Choices().of("model", read_generation_config(model.files).sampling).sampling


def talk(
    model: LanguageModel, data: Path, judge: LanguageModel | None = None, items: int = _KNOWN
) -> tuple[dict[str, float], list[Reply]]:
    """The results by name, and the replies of the first seed to first messages and questions.

    items: the most messages of a kind.
    """
    own = own_sampling(model)
    samplings = [replace(own, seed=seed) for seed in range(_SEEDS)]

    def drawn(messages: Sequence[str], sampling: Sampling = samplings[0]) -> list[Reply]:
        return list(replies(model, choose_template(model, ""), messages, sampling))

    messages = first_messages(data, min(MESSAGES, items), seed=0)
    talked = [drawn(messages, sampling) for sampling in samplings]
    every = [reply for sample in talked for reply in sample]
    unknown = drawn(held_out_questions(min(_UNKNOWN, items), 0))
    known = drawn(known_questions(min(_KNOWN, items), 0))
    figures = {
        "repeats_itself": fmean(reply.reason == "repetition" for reply in every),
        "ends_by_itself": fmean(reply.reason == "stop" for reply in every),
        "declines_unknown": fmean(reply.declines for reply in unknown),
        "declines_known": fmean(reply.declines for reply in known),
    }
    if judge is not None:
        figures["logprob"] = median(likelihoods(judge, every))
    return figures, [*talked[0], *unknown, *known]


def write_replies(path: Path, sample: Sequence[Reply]) -> None:
    """Write each message with its reply and the end of it."""
    lines = [f"- {reply.message}\n  *{reply.text}* ({reply.reason})\n" for reply in sample]
    write_whole(path, "".join(lines))


def in_words(figures: Mapping[str, float]) -> str:
    """A line for each result of `talk`."""
    return "".join(
        f"- {name}: {value:.2f}\n" if name == "logprob" else f"- {name}: {value:.1%}\n"
        for name, value in figures.items()
    )


def reply_rows(model: LanguageModel, data: Path) -> list[Row]:
    """Replies to some first messages of `talk`, drawn at random: those of its first seed."""
    drawn = random.Random(0).sample(first_messages(data, MESSAGES, seed=0), _REPLIES)
    sampling = replace(own_sampling(model), seed=0)
    talked = replies(model, choose_template(model, ""), drawn, sampling)
    return [{"message": reply.message, "reply": reply.text} for reply in talked]


# --- chats, questions and stories --------------------------------------------------------


def chat(model: LanguageModel, template: ChatTemplate, sampling: Sampling) -> list[str]:
    """The replies to the complete scripted chat."""
    spoken = []
    with TemporaryDirectory() as folder, closing(Store(Path(folder) / "chat.sqlite")) as store:
        session = Session(Chat(store), model, template=template, sampling=sampling)
        for message in table("first_messages")["chat"]:
            events = session.say(message)
            reply = whole_reply(event for event in events if isinstance(event, Token | Finished))
            spoken.append(str(reply))
    return spoken


def chat_rows(model: LanguageModel, template: ChatTemplate) -> list[Row]:
    """Each message of the scripted chat, and the reply with each seed."""
    chats = [chat(model, template, Sampling(seed=seed)) for seed in range(_SEEDS)]
    return [
        {"message": message, **{f"seed {seed}": chats[seed][turn] for seed in range(_SEEDS)}}
        for turn, message in enumerate(table("first_messages")["chat"])
    ]


def exact(model: LanguageModel, template: ChatTemplate, problems: Sequence[Problem]) -> float:
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


def task_rows(model: LanguageModel, template: ChatTemplate, items: int) -> list[Row]:
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
    layouts = table("layouts")
    prefixes = {prefix.strip() for prefix in [*layouts["inputs"], *layouts["outputs"]]} - {""}
    return bool(re.search(rf"\b(?:{'|'.join({'User:', 'Assistant:', *prefixes})})", text))


def story_rows(model: LanguageModel, count: int) -> list[Row]:
    """The share of `count` sampled continuations of each beginning that become no story.

    Raises ReplyFailed.
    """
    own = own_sampling(model)
    rows = []
    for beginning in table("beginnings")["stories"]:
        ids = model.tokenizer.encode(beginning)
        samplings = [replace(own, seed=seed, max_tokens=_CONTINUED) for seed in range(count)]
        requests = (Request(ids, sampling) for sampling in samplings)
        broken = []
        for text, finished in whole_replies(model.generate_many(requests)):
            if finished.reason == "error":
                raise ReplyFailed(f"{quoted(beginning)} was not continued: {finished.message}")
            broken.append(becomes_no_story(text))
        rows.append({"beginning": beginning, "broken_off": fmean(broken), "n": count})
    return rows


# --- the report --------------------------------------------------------------------------


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


def markdown(rows: Sequence[Row]) -> str:
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
    data: Annotated[Path, typer.Argument(help="folder that `build` wrote", exists=True)],
    out: Annotated[Path, typer.Argument(help="folder to write to")],
    model: Annotated[str, typer.Option(help="bundled, or a model's folder")] = "bundled",
    judge: Annotated[str, typer.Option(help="model that says how likely the replies are")] = "",
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

    def talk_figures() -> dict[str, float]:
        figures, sample = talk(loaded, data, load_model(judge) if judge else None, items)
        write_replies(out / "talk.md", sample)
        return figures

    measured: dict[str, Callable[[], Any]] = {
        "talk": talk_figures,
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
        **{name: markdown(rows) for name, rows in parts.items() if name != "talk"},
        "talk": in_words(parts["talk"]),
        "in_context": "\n".join(map(markdown, (curve(parts["in_context"]), parts["in_context"]))),
        "arithmetic": markdown(by_shots(parts["arithmetic"])),
        "tasks": markdown(with_mean(parts["tasks"])),
        "stories": markdown(with_mean(parts["stories"])),
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
