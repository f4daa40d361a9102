"""A larger model answers short questions on common things, in a sentence each.

The questions stand in `tables/questions.toml`. A file of answers has one line a question: question,
answer, the thing it tells what it is ("" for other questions), and the mean log-probability of the
reply's tokens under the model, in nats. Answers are greedy, so the same model gives the same file.

Invariant: an answer is a whole sentence that is likely under the model itself, or it is empty; no
question is asked twice.
"""

import random
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from chatapp.dialogue.events import Options
from chatapp.dialogue.turn import answer
from chatapp.dialogue.writers.choosing import choose_template
from chatapp.engine.events import Token
from chatapp.engine.model import Sampling
from chatapp.engine.models.loading import load_model
from chatapp.tasks.evaluation.journal import Journal, read_rows
from finetune.bundled_model.chats import Turns
from finetune.bundled_model.report import whole_reply
from finetune.bundled_model.sources import clean
from finetune.bundled_model.tables import entries, filled, table, typed

_OPTIONS = Options(
    Sampling(temperature=0.0, max_tokens=48), system="Answer in one short, simple sentence."
)
_LONGEST, _LEAST_LIKELY = 150, -1.0
_SENTENCE = re.compile(r"[A-Z][^\n]*?[.!](?=\s|$)")
# The beginning of a list, a model that speaks of itself, or a sentence that repeats itself.
_BAD = re.compile(
    r"[*#:\[\]]|\b(?:I|I'm|AI|assistant|sorry)\b"
    r"|\b(\w+ \w+ \w+)\b.*\b\1\b|\b(\w{6,})\b.*\b\2\b.*\b\2\b"
)


def questions() -> list[tuple[str, str]]:
    """Each question and the thing that it asks about, or ""."""
    rows = table("questions")
    things = [(filled(rows["ask"][0], {"x": x}), x) for x in entries(rows["things"])]
    return [*things, *((question, "") for question in rows["whole"])]


def first_good_sentence(reply: str, logprob: float) -> str:
    """The first sentence of a reply; "" when it is not good enough for training.

    logprob: mean of the reply's tokens, in nats.
    """
    match = _SENTENCE.match(clean(reply))
    sentence = match[0] if match else ""
    likely = logprob >= _LEAST_LIKELY and len(sentence) <= _LONGEST
    return sentence if likely and not _BAD.search(sentence) else ""


def ask_teacher(model: Path, out: Path) -> None:
    """Append the answers to the questions that a file of answers does not contain yet.

    model: a chat model, such as a GGUF file. Raises PromptError when the file holds something else,
    and UserError when the model fails.
    """
    with Journal(out) as journal:
        known = {row["question"] for row in journal.rows()}
        missing = [question for question in questions() if question[0] not in known]
        teacher = load_model(str(model)) if missing else None
        for question, thing in missing:
            assert teacher is not None
            events = list(answer(teacher, choose_template(teacher, ""), question, _OPTIONS))
            reply = whole_reply(question, events)
            logprob = fmean([event.logprob for event in events if isinstance(event, Token)] or [0])
            row = {"question": question, "answer": first_good_sentence(reply.text, logprob)}
            journal.append([{**row, "thing": thing, "logprob": round(logprob, 3)}])
    print(f"{out}: {len(read_answers(out)):,} good answers to {len(questions()):,} questions")


def read_answers(path: Path) -> list[dict[str, str]]:
    """The rows of a file whose answers are good enough; none without a file."""
    return [row for row in read_rows(path) if row["answer"]] if path.exists() else []


def taught_chat(draw: random.Random, answers: Sequence[dict[str, str]]) -> Turns:
    """A chat of one to three of the questions, those on things in several wordings."""
    turns: Turns = []
    for row in draw.sample(answers, min(len(answers), draw.choice((1, 1, 2, 3)))):
        ask = draw.choice(table("questions")["ask"]) if row["thing"] else row["question"]
        turns += [typed(draw, filled(ask, {"x": row["thing"]})), row["answer"]]
    return turns
