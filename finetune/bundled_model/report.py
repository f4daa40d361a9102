"""Measure the bundled model: everything that its card shows, except what other commands print.

    python -m finetune.bundled_model.report DATA data OUT [--model M] [--judge J] [--items N]
        [--last-look]

DATA and data are what `build` reads and writes, and DATA/classify has TREC and movie reviews. OUT
receives a folder for each part that `chatapp eval` could measure, with its answers, and a picture:

    in_context  twenty generated tasks whose label words are in no training row
    labels      types of question (TREC) and movie reviews (MR), which are in no training text
    tasks       exact match of greedy replies to each generated task, in wordings that training has
                (known) and in others (new)

and for what is sampled talk.json, and all replies in talk.md: whether replies end, go round in
circles and admit not knowing, to first messages of talks kept out of training and some written for
this, three times, and to questions that cannot be answered, in wordings kept out, and those that
can; with a judge the median over replies of the mean log-probability of their tokens; the share of
continued stories that become a chat or a prompt; and a scripted chat, three times.

`--last-look` measures what no stage, trial or choice has seen (tables/last_look.toml) instead, once
for a finished model. `chatapp eval --task` measures sums in the wording of the GPT-3 paper, and
`chatapp perplexity` texts.

Invariants: no item was used in training in the wording in which it is measured, and replies are not
selected. A generation that fails is no wrong answer: it ends the measurement with its reason.
"""

import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

import typer

from chatapp.common.parameters import Choices
from chatapp.common.userfiles import UserError, quoted, write_whole
from chatapp.dialogue.chat import Chat
from chatapp.dialogue.events import Options
from chatapp.dialogue.prompt_files import measure_tasks
from chatapp.dialogue.session import Session
from chatapp.dialogue.store import Store
from chatapp.dialogue.turn import answer, complete
from chatapp.dialogue.writers.choosing import choose_template, writer_for
from chatapp.dialogue.writers.prompt import Exchange
from chatapp.engine.events import Finished, FinishReason
from chatapp.engine.files.model_files import read_generation_config
from chatapp.engine.model import LanguageModel, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.tasks.evaluation.evaluate import Grid, Task, subset
from chatapp.tasks.evaluation.gpt3_tasks import own_words
from chatapp.tasks.evaluation.journal import Journal
from chatapp.tasks.evaluation.plot import plot
from chatapp.tasks.evaluation.report import Result, document
from chatapp.tasks.files.promptfile import PromptFile
from chatapp.tasks.metrics import wilson
from finetune.bundled_model.chats import held_out_questions
from finetune.bundled_model.demonstrations import Shot, as_task, held_out_tasks, pool_of
from finetune.bundled_model.questions import QuestionTask, all_tasks
from finetune.bundled_model.sources import groupings
from finetune.bundled_model.tables import filled, table, with_article
from finetune.recipes import run

Groups = dict[str, tuple[list[Task], Grid]]
"""The tasks of a part, with what is varied."""

_GRID = Grid(shots=(0, 1, 2, 4, 8, 16), select=("random", "knn:tfidf"))
_AS_CHAT = Grid(shots=(0,))
_TREC = "HUM person LOC place NUM number DESC description ENTY thing ABBR abbreviation".split()
TREC_KINDS = dict(zip(_TREC[::2], _TREC[1::2], strict=True))
_IN_CONTEXT, _LABELS, _TASKS, _STORIES = 40, 300, 200, 30  # items of each
MESSAGES, UNKNOWN, KNOWN = 200, 150, 300
_REVIEWS = 500  # to choose items from; as many more are not used
_SEEDS, _LAST, _LAST_ITEMS = 3, 20261125, 15
_NOT_KNOWING = re.compile(
    r"\b(?:don't|do not|can't|cannot|could not|no idea|not sure|too hard|only know|only speak)\b",
    re.IGNORECASE,
)


# --- what has a right answer -------------------------------------------------------------


def groups(sources: Path, items: int) -> Groups:
    """The tasks of each part, of which `items` are the most that are measured."""
    in_context = held_out_tasks(groupings(sources), own_words(), min(items, _IN_CONTEXT), seed=0)
    labels = [make(sources / "classify", min(items, _LABELS)) for make in (trec, reviews)]
    asked = [
        as_chat(task, min(items, _TASKS), 0, unseen=unseen)
        for task in all_tasks()
        for unseen in (False, True)
    ]
    return {
        "in_context": (in_context, _GRID),
        "labels": (labels, replace(_GRID, seeds=_SEEDS)),
        "tasks": (asked, _AS_CHAT),
    }


def last_groups(items: int = _LAST_ITEMS) -> Groups:
    """The tasks of the last look: those of the generators in new wordings, and labels."""
    look, labels = table("last_look"), []
    tasks = [replace(task, unseen=tuple(look["wordings"][task.name])) for task in all_tasks()]
    for classes in look["labels"]:
        shots = [(text, key) for key, row in classes.items() if key != "name" for text in row]
        labels.append(_label_task(classes["name"], ("Text: ", "Label:"), shots, shots))
    asked = [as_chat(task, items, _LAST, unseen=True) for task in tasks]
    return {"tasks": (asked, _AS_CHAT), "labels": (labels, _GRID)}


def as_chat(task: QuestionTask, items: int, seed: int, *, unseen: bool) -> Task:
    """The held-out problems of a generated task, each as the first message of a chat."""
    problems = task.held_out(items, seed, unseen=unseen)
    name = f"{task.name}, {'new' if unseen else 'known'}"
    greedy = {"temperature": 0.0, "max_tokens": 64}
    prompt = PromptFile(
        path=Path(name), input_prefix="", style="turns", metrics=("exact_match",), generate=greedy
    )
    return as_task(name, prompt, [(problem.question, problem.answer) for problem in problems])


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
    return _label_task("TREC", ("Question: ", "Type:"), pool, shots, items, instruction)


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
    return _label_task("MR", ("Review: ", "Sentiment:"), pool, shots, items, instruction)


def _lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="latin-1").split("\n")
    return [line.strip() for line in lines if line.strip()]


def _label_task(
    name: str,
    prefixes: tuple[str, str],
    pool: Sequence[Shot],
    shots: Sequence[Shot],
    items: int | None = None,
    instruction: str = "",
) -> Task:
    """A task whose labels are those of its pool. shots: its items, of which `items` are drawn."""
    prompt = PromptFile(
        path=Path(name),
        instruction=instruction,
        input_prefix=prefixes[0],
        output_prefix=prefixes[1],
        labels=tuple(dict.fromkeys(label for _, label in pool)),
        metrics=("accuracy",),
        pool=pool_of(pool),
    )
    task = as_task(name, prompt, shots)
    return replace(task, items=subset(task.items, items, 0))


def evaluate(model: LanguageModel, tasks: Sequence[Task], grid: Grid, out: Path) -> list[Result]:
    """The results of a part and their means over its tasks, which `out` receives in the form of
    `chatapp eval`. Raises UserError when it has the answers of another model.
    """
    with Journal(out / "answers.jsonl") as journal:
        results = measure_tasks(model, tasks, grid, journal)
    settings: defaultdict[tuple[Any, ...], list[Result]] = defaultdict(list)
    for result in results:
        part = result.task.rpartition(", ")[2] if grid == _AS_CHAT else ""
        settings[part, result.shots, result.selection].append(result)
    for (part, *_), group in settings.items():
        mean, n = fmean(result.mean for result in group), sum(result.n for result in group)
        votes = [result.vote for result in group if result.vote is not None]
        averaged = replace(
            group[0],
            task=f"mean of {len(group)} {part}".strip(),
            mean=mean,
            spread=None,
            interval=wilson(mean * n, n),
            n=n,
            vote=fmean(votes) if votes else None,
            majority=fmean(result.majority for result in group),
        )
        results.append(averaged)
    text = json.dumps(document({"model": model.name}, results), indent=2)
    write_whole(out / "report.json", text + "\n")
    if grid != _AS_CHAT:
        plot([result for result in results if result.task.startswith("mean")], out / "mean.png")
    for result in results:
        setting = f"{result.task}, {result.shots} demonstrations, {result.selection}"
        print(f"{setting}: {result.mean:.3f} of {result.n}")
    return results


# --- what is sampled ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """A message, the reply, and why it ended. right: the subject or call that it should have."""

    message: str
    text: str
    reason: FinishReason
    right: str = ""


def whole_reply(message: str, events: Iterable[Any], right: str = "") -> Reply:
    """The reply of a turn's events. Raises UserError, with the reason, for one that failed."""
    *drawn, end = events
    assert isinstance(end, Finished)
    if end.reason == "error":
        raise UserError(f"the reply to {quoted(message)} failed: {end.message}")
    texts = [getattr(event, "text", "") for event in (*drawn, end)]
    return Reply(message, "".join(texts).strip(), end.reason, right)


def replies(
    model: LanguageModel, messages: Iterable[str], sampling: Sampling, right: Iterable[str] = ()
) -> list[Reply]:
    """The reply to each message as the first one of a chat. Raises UserError."""
    template, options = choose_template(model, ""), Options(sampling)
    return [
        whole_reply(message, answer(model, template, message, options), expected)
        for message, expected in zip_longest(messages, right, fillvalue="")
    ]


def own_sampling(model: LanguageModel, **changes: Any) -> Sampling:
    """The sampling that the model itself asks for, with changes."""
    own = Choices().of("model", read_generation_config(model.files).sampling).sampling
    return replace(own, **changes)


def declines(reply: Reply) -> bool:
    """Whether a reply admits not to know or not to be able to do something."""
    return bool(_NOT_KNOWING.search(reply.text))


def becomes_no_story(reply: Reply) -> bool:
    """Whether a continuation of a story turns into a chat or into a prompt with demonstrations."""
    layouts = table("layouts")
    prefixes = {prefix.strip() for prefix in [*layouts["inputs"], *layouts["outputs"]]} - {""}
    return bool(re.search(rf"\b(?:{'|'.join({'User:', 'Assistant:', *prefixes})})", reply.text))


def stays_with_subject(reply: Reply) -> bool:
    """Whether a story names its subject twice, ends by itself and does not become a chat."""
    names = re.findall(rf"\b{reply.right}", reply.text, re.IGNORECASE)
    is_chat = re.search(r"\b(?:User|Assistant):", reply.text)
    return len(names) >= 2 and reply.reason == "stop" and not is_chat


_CHECKS: dict[str, tuple[str, Callable[[Reply], bool]]] = {
    "repeats itself": ("first messages", lambda reply: reply.reason == "repetition"),
    "ends by itself": ("first messages", lambda reply: reply.reason == "stop"),
    "declines what it cannot know": ("unknown", declines),
    "declines what it knows": ("known", declines),
    "continues a story as none": ("beginnings of stories", becomes_no_story),
    "stays with the subject of a story": ("stories", stays_with_subject),
    "calls with the right numbers": ("calls", lambda reply: reply.right in reply.text),
}
"""Each figure: the kind of message, and of what replies it is the share."""


def shares(drawn: Mapping[str, Sequence[Reply]]) -> dict[str, float]:
    """The figures of replies by their kind."""
    return {
        name: fmean(map(check, drawn[kind]))
        for name, (kind, check) in _CHECKS.items()
        if kind in drawn
    }


def talk(model: LanguageModel, data: Path, items: int) -> dict[str, list[Reply]]:
    """What is sampled of a model, by kind. data: what `build` wrote. items: the most of a kind."""
    samplings = [own_sampling(model, seed=seed) for seed in range(_SEEDS)]
    messages = first_messages(data, min(MESSAGES, items))
    talked = [replies(model, messages, sampling) for sampling in samplings]
    unknown, known = held_out_questions(min(UNKNOWN, items), 0), known_questions(min(KNOWN, items))
    return {
        "drawn at random": random.Random(0).sample(talked[0], min(10, len(talked[0]))),
        "a scripted chat": [r for seed in range(_SEEDS) for r in scripted_chat(model, seed)],
        "first messages": [reply for sample in talked for reply in sample],
        "unknown": replies(model, unknown, samplings[0]),
        "known": replies(model, known, samplings[0]),
        "beginnings of stories": continued(model, min(items, _STORIES)),
    }


def last_talk(model: LanguageModel) -> dict[str, list[Reply]]:
    """What is sampled in the last look, by kind."""
    look, sampling, draw = table("last_look"), own_sampling(model, seed=_LAST), random.Random(_LAST)
    stories = [(ask, x) for ask in look["stories"]["ask"] for x in look["stories"]["subjects"]]
    requests = [filled(ask, {"x": with_article(subject)}) for ask, subject in stories]
    calls = []
    for sign, wordings in look["calls"].items():
        for number in range(_LAST_ITEMS):
            b, a = sorted(draw.randrange(10**3, 10**6) for _ in range(2))
            question = filled(wordings[number % len(wordings)], {"a": str(a), "b": str(b)})
            calls.append((question, f"<<{a}{sign}{b}="))
    return {
        "first messages": replies(model, look["openers"], sampling),
        "unknown": replies(model, look["unknown"], sampling),
        "stories": replies(model, requests, sampling, [subject for _, subject in stories]),
        "calls": replies(model, [q for q, _ in calls], sampling, [call for _, call in calls]),
    }


def first_messages(data: Path, count: int) -> list[str]:
    """The written test messages, and held-out talks' messages up to `count`."""
    own: list[str] = table("first_messages")["said"]
    spoken = {
        json.loads(line)["messages"][0]["content"]: None
        for name in ("persona_chat", "topical_chat")
        for line in (data / "kept_out" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    }
    others = random.Random(0).sample(list(spoken), min(len(spoken), max(0, count - len(own))))
    return [*others, *own][-count:]


def known_questions(count: int) -> list[str]:
    """Questions of the generated tasks whose answer is in training, each task equally often."""
    tasks = [task for task in all_tasks() if task.name != "unknown"]
    problems = (task.held_out(-(-count // len(tasks)), 0, unseen=False) for task in tasks)
    return [problem.question for group in problems for problem in group][:count]


def scripted_chat(model: LanguageModel, seed: int) -> list[Reply]:
    """The replies to the scripted chat. Raises UserError."""
    chat, template = Chat(Store(None)), choose_template(model, "")
    session = Session(chat, model, template=template, sampling=Sampling(seed=seed))
    script = table("first_messages")["chat"]
    spoken = [whole_reply(message, session.say(message)) for message in script]
    chat.store.close()
    return spoken


def continued(model: LanguageModel, count: int) -> list[Reply]:
    """`count` continuations of each beginning of a story. Raises UserError."""
    samplings = [own_sampling(model, seed=seed, max_tokens=60) for seed in range(count)]
    return [
        whole_reply(beginning, complete(model, beginning, Options(sampling)))
        for beginning in table("first_messages")["stories"]
        for sampling in samplings
    ]


def likelihoods(judge: LanguageModel, sample: Sequence[Reply]) -> list[float]:
    """The mean log-probability of each reply's tokens under another model, in nats.

    The reply takes the place of the judge's own, in its own template. Empty replies have none.
    """
    writer = writer_for(judge, choose_template(judge, ""))
    pairs = [
        (writer.write(None, [Exchange(r.message)], max_tokens=1).ids, writer.reply_ids(r.text))
        for r in sample
        if r.text
    ]
    return [fmean(row) for row in judge.score(pairs)]


def measure(
    sources: Annotated[Path, typer.Argument(help="folder of the source data", exists=True)],
    data: Annotated[Path, typer.Argument(help="folder that `build` wrote", exists=True)],
    out: Annotated[Path, typer.Argument(help="folder to write to")],
    model: Annotated[str, typer.Option(help="bundled, or a model's folder")] = "bundled",
    judge: Annotated[str, typer.Option(help="model that says how likely the replies are")] = "",
    items: Annotated[int, typer.Option(min=1, help="the most of each task and kind")] = 500,
    last: Annotated[bool, typer.Option("--last-look", help="measure what nothing saw")] = False,
) -> None:
    """Measure a model and write the results; tasks that are answered in OUT are not asked again."""
    loaded = load_model(model)
    for name, (tasks, grid) in (last_groups() if last else groups(sources, items)).items():
        evaluate(loaded, tasks, grid, out / name)
    drawn = last_talk(loaded) if last else talk(loaded, data, items)
    figures = shares(drawn)
    if judge:
        figures["likelihood"] = median(likelihoods(load_model(judge), drawn["first messages"]))
    blocks = []
    for kind, sample in drawn.items():
        lines = [f"- {reply.message}\n  *{reply.text}* ({reply.reason})\n" for reply in sample]
        blocks.append(f"## {kind}\n\n{''.join(lines)}")
    write_whole(out / "talk.md", "\n".join(blocks))
    write_whole(out / "talk.json", json.dumps(figures, indent=2) + "\n")
    print("".join(f"{name}: {value:.3f}\n" for name, value in figures.items()))


if __name__ == "__main__":
    run(measure)
