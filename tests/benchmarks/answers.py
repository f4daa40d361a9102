"""How right answers are: demonstrations, the example that decided, passages, calls."""

import gzip
import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from measure import Table, models, run_chatapp, sized
from shared_data import Rows, labelled, shared_data

SHOTS = sized((1, 2, 4, 8, 16), (1,))
TASKS = {
    "trec": (
        "types of question",
        "Say what kind of answer each question asks for.",
        "Question",
        "Type",
    ),
    "mr": (
        "movie reviews",
        "Say whether each review is positive or negative.",
        "Review",
        "Sentiment",
    ),
}


def write_task(task: str, folder: Path) -> Path:
    """Write a prompt file, its pool (every row to learn from) and items to measure; returns the
    prompt file.
    """
    _, instruction, asked, answer = TASKS[task]
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, rows: Rows) -> None:
        lines = (json.dumps({"input": text, "label": label}) + "\n" for text, label in rows)
        (folder / name).write_text("".join(lines))

    pool, items = labelled(task)
    write("pool.jsonl", pool)
    write("items.jsonl", items)
    keys = {
        "instruction": instruction,
        "input_prefix": f"{asked}: ",
        "output_prefix": f"{answer}:",
        "labels": sorted({label for _, label in pool}),
        "examples_file": "pool.jsonl",
    }
    path = folder / f"{task}.toml"
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()))
    return path


def evaluate(*arguments: str) -> list[dict[str, Any]]:
    """The results of `chatapp eval`, as its report has them."""
    with tempfile.TemporaryDirectory() as folder:
        run_chatapp("eval", *arguments, "--report", f"{folder}/report")
        report = json.loads(Path(folder, "report", "report.json").read_text("utf-8"))
    results: list[dict[str, Any]] = report["results"]
    return results


def per_cent(result: dict[str, Any]) -> str:
    """A mean, its interval, and the spread over sets of demonstrations where seeds draw sets."""
    low, high = (f"{100 * bound:.0f}" for bound in result["interval"])
    spread = f" ± {100 * result['spread']:.1f}" if result["selection"] == "random-block" else ""
    return f"{100 * result['mean']:.1f} ({low}–{high}){spread}"


def demonstrations_table() -> Table:
    """Accuracy by the number of demonstrations: random ones for each item or for all, the nearest
    ones, and their vote.
    """
    limits = sized({"bundled": 300, "SmolLM2-135M": 100}, {"bundled": 2})
    rows = []
    for task in sized(tuple(TASKS), ("mr",)):
        title = TASKS[task][0]
        with tempfile.TemporaryDirectory() as folder:
            prompt = write_task(task, Path(folder))
            for name in limits.keys() & models().keys():
                shots = ",".join(map(str, (0, *SHOTS)))
                options = f"--limit {limits[name]} --shots {shots} --seeds {sized(5, 2)}".split()
                methods = "random,random-block,knn:tfidf,vote"
                results = [
                    result
                    for result in evaluate(
                        *(str(prompt), "--test", f"{folder}/items.jsonl", *options),
                        *("--select", methods, "--model", models()[name]),
                    )
                    if result["metric"] == "accuracy"
                ]
                cells = {(each["selection"], each["shots"]): per_cent(each) for each in results}
                for way, label in (
                    ("random", "random"),
                    ("random-block", "one random set for all"),
                    ("knn:tfidf", "nearest"),
                    ("vote", "their vote"),
                ):
                    first = cells["none", 0] if way == "random" else ""
                    figures = (cells[way, count] for count in SHOTS)
                    rows.append((f"{title}, {name}: {label}", first, *figures))
    numbers = ", ".join(
        f"{number} for {name}" for name, number in limits.items() if name in models()
    )
    count = (
        f"accuracy in per cent; items: {numbers}; in brackets 95 % over items and, for random ones,"
        " five seeds; ±: the standard deviation over five sets of demonstrations"
    )
    return Table(("demonstrations", "0", *map(str, SHOTS)), rows, count)


def examples_table() -> Table:
    """How often the example with the largest contribution carries the label that was answered."""
    from chatapp.commands.run import explain_answer
    from chatapp.engine.models.loading import load_model
    from chatapp.tasks.answering import Answerer
    from chatapp.tasks.files.promptfile import load_prompt, selector_for

    items, rows = sized(100, 1), []
    for name, source in models().items():
        model = load_model(source)
        counts: Counter[str] = Counter()
        chance = 0.0
        with tempfile.TemporaryDirectory() as folder:
            prompt = load_prompt(write_task("trec", Path(folder)))
            prompt = prompt.changed(select="knn:tfidf", shots=sized(8, 2))
            answerer = Answerer(model, prompt, selector_for(prompt, model, lambda done, of: None))
            for text, gold in labelled("trec")[1][:items]:
                (answer,) = answerer.answer([answerer.prepare(text)])
                parts = [
                    part
                    for part in explain_answer(answerer, answer).parts
                    if part.part.startswith("example")
                ]
                labels = [part.text.rsplit("Type:", 1)[1].strip() for part in parts]
                places = range(len(parts))
                by_occlusion = max(places, key=lambda n, parts=parts: parts[n].occlusion)
                by_gradient = max(places, key=lambda n, parts=parts: parts[n].gradient)
                counts["right"] += answer.output == gold
                counts["occlusion"] += labels[by_occlusion] == answer.output
                counts["gradient"] += labels[by_gradient] == answer.output
                chance += labels.count(answer.output) / len(labels)
        shares = (counts["right"], counts["occlusion"], counts["gradient"], chance)
        rows.append(
            (name, *(f"{100 * share / items:.0f} % {interval(share, items)}" for share in shares))
        )
    count = (
        f"n = {items} TREC questions with the eight nearest examples by TF-IDF; in brackets 95 %"
    )
    return Table(("model", "right", "by occlusion", "by gradient × input", "chance"), rows, count)


def interval(successes: float, trials: int) -> str:
    """Wilson's 95 % interval of a share, in per cent."""
    from chatapp.tasks.metrics import wilson

    low, high = wilson(successes, trials)
    return f"({100 * low:.0f}–{100 * high:.0f})"


def documents_table() -> Table:
    """How often the passage with the answer is found, and given although it does not exist."""
    with gzip.open(
        shared_data() / "books" / "fairytale_qa.jsonl.gz", "rt", encoding="utf-8"
    ) as lines:
        tales = [json.loads(line) for line in lines]
    random.Random(0).shuffle(tales)
    rows = []
    for method in sized(("bm25", "encoder:tfidf", "both:tfidf"), ("bm25",)):
        for size in sized((3, 20, 200), (2,)):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(_searched(method, size, tales, Path(folder)))
    count = (
        "of up to 100 questions on fairy tales, how often the passage with the answer is among the "
        "first 1, 3 and 5, and to how many of 100 questions on other tales a passage is given, in "
        "per cent; in brackets 95 %"
    )
    return Table(
        ("search", "tales", "questions", "1", "3", "5", "given without an answer"), rows, count
    )


def _searched(method: str, size: int, tales: list[dict[str, Any]], folder: Path) -> tuple[str, ...]:
    from chatapp.dialogue.documents.search import Documents
    from chatapp.tasks.files.documents import DocumentSet

    draw, here, elsewhere = random.Random(size), tales[:size], tales[sized(200, 2) :]
    for number, tale in enumerate(here):
        (folder / f"{number}.txt").write_text(tale["text"], encoding="utf-8")
    documents = Documents(DocumentSet((str(folder),), method, limit=5))
    documents.renew()
    asked = _questions(here, draw)
    places = []
    for question, answer in asked:
        texts = [_plain(passage.text) for passage in documents.search(question)]
        places.append(next((place for place, text in enumerate(texts, 1) if answer in text), 9))
    shares = (sum(place <= most for place in places) for most in (1, 3, 5))
    others = _questions(elsewhere, draw)
    given = sum(bool(documents.search(question)) for question, _ in others)
    figures = (f"{100 * share / len(asked):.0f} {interval(share, len(asked))}" for share in shares)
    wrong = f"{100 * given / len(others):.0f} {interval(given, len(others))}"
    return method, str(size), str(len(asked)), *figures, wrong


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _questions(tales: list[dict[str, Any]], draw: random.Random) -> list[tuple[str, str]]:
    """Questions whose answer of three words or more stands in their tale."""
    pairs = [
        (pair["question"], answer)
        for tale in tales
        for pair in tale["questions"]
        if len((answer := _plain(pair["answer"]).rstrip(".")).split()) >= 3
        and answer in _plain(tale["text"])
    ]
    return draw.sample(pairs, min(100, len(pairs)))


def taught_question(draw: random.Random, number: int, a: int, b: int) -> tuple[str, int]:
    """A question in a wording of the bundled model's training, and its answer."""
    who, what = (
        draw.choice(("Anna", "Tom", "Mary", "Ben")),
        draw.choice(("books", "coins", "hats", "lamps")),
    )
    end = f"How many {what} does {who} have now?"
    if number % 2:
        return f"{who} has {a} {what} and gets {b} more. {end}", a + b
    return f"{who} has {a} boxes with {b} {what} in each. {end}", a * b


def other_question(draw: random.Random, number: int, a: int, b: int) -> tuple[str, int]:
    """A question in a wording that the model was not taught, and its answer; a is not below b."""
    who, what = (
        draw.choice(("Hugo", "Nora", "Emil", "Greta")),
        draw.choice(("bricks", "candles", "rings")),
    )
    return (
        (f"{who} owns {a} {what} and buys another {b}. How many {what} is that together?", a + b),
        (f"Could you multiply {a} by {b} for me?", a * b),
        (f"{who} baked {a} {what}; {b} were eaten. How many remain?", a - b),
        (f"Every box holds {b} {what}. How many {what} are there in {a} boxes?", a * b),
        (f"I need {a} plus {b}.", a + b),
        (f"How much do I get when I take {b} away from {a}?", a - b),
        (f"One of the {what} costs {b} euros. What do {a} of them cost?", a * b),
    )[number % 7]


def calculator_table() -> Table:
    """The bundled model on sums and products: alone, opening the call itself, and with the call
    chosen by likelihood, as `ask --tools calculator` does.
    """
    problems, digits = sized(100, 1), sized((1, 2, 3, 4, 5, 6), (1, 6))
    rows = []
    for wording, question_of in (("taught", taught_question), ("other", other_question)):
        right = Counter(_right_calls(question_of, problems, digits))
        for way in ("without", "own", "scored"):
            cells = (str(right[of, way]) for of in digits)
            rows.append((f"{wording} wordings, {way}", *cells))
    count = f"right of n = {problems} sums and products of two numbers with so many digits, greedy"
    return Table(("digits", *map(str, digits)), rows, f"{count}; 95 % within ± 10")


def _right_calls(
    question_of: Callable[..., tuple[str, int]], problems: int, digits: tuple[int, ...]
) -> Iterator[tuple[int, str]]:
    """(digits, way) of each problem that is right in a way."""
    from chatapp.dialogue.events import Options
    from chatapp.dialogue.tool_calls import Toolbox, chooser_of
    from chatapp.dialogue.tools.registry import find_tools
    from chatapp.dialogue.turn import answer
    from chatapp.dialogue.writers.choosing import choose_template, writer_for
    from chatapp.engine.model import Sampling
    from chatapp.engine.models.loading import load_model

    model = load_model("bundled")
    template = choose_template(model, "")
    tools = find_tools().chosen(["calculator"])
    choose = chooser_of(model, writer_for(model, template), tools)
    assert choose is not None
    sampling = Sampling(temperature=0.0, max_tokens=40, seed=0)
    ways = {
        "without": Options(sampling),
        "own": Options(sampling, toolbox=Toolbox(tools, lambda *given: False)),
        "scored": Options(sampling, toolbox=Toolbox(tools, lambda *given: False, choose)),
    }
    draw = random.Random(0)
    for of in digits:
        for number in range(problems):
            b, a = sorted(draw.randrange(max(2, 10 ** (of - 1)), 10**of) for _ in range(2))
            question, result = question_of(draw, number, a, b)
            for way, options in ways.items():
                reply = "".join(event.text for event in answer(model, template, question, options))
                if (re.findall(r"\d+", reply) or [""])[-1] == str(result):
                    yield of, way
