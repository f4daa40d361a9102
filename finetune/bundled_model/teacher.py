"""A larger model answers short questions on common things, in a sentence each.

The questions stand in `tables/questions.toml`; reading the model needs the package gguf.
A file of answers has one line a question: question, answer, the thing it tells what it is ("" for
other questions), and the mean log-probability of the reply's tokens under the model. Answers are
greedy, so the same model gives the same file.

Invariant: an answer is a whole sentence that is likely under the model itself, or it is empty; no
question is asked twice.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chatapp.tasks.evaluation.journal import Journal, read_rows
from finetune.bundled_model.chats import Turns, typed
from finetune.bundled_model.sources import clean
from finetune.bundled_model.tables import entries, filled, table

_INSTRUCTION = "Answer in one short, simple sentence."
_BATCH, _MOST_TOKENS = 16, 48
_LONGEST, _LEAST_LIKELY = 150, -1.0
_SENTENCE = re.compile(r"[A-Z][^\n]*?[.!](?=\s|$)")
# The beginning of a list, a model that speaks of itself, or a sentence that repeats itself.
_BAD = re.compile(
    r"[*#:\[\]]|\b(?:I|I'm|AI|assistant|sorry)\b"
    r"|\b(\w+ \w+ \w+)\b.*\b\1\b|\b(\w{6,})\b.*\b\2\b.*\b\2\b"
)


@dataclass(frozen=True, slots=True)
class TeacherAnswer:
    """A question with the teacher's answer, "" where that is not good enough for training.

    thing: the thing that the answer defines, or "". logprob: mean of the reply's tokens, in nats.
    """

    question: str
    answer: str
    thing: str
    logprob: float


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


class Teacher:
    """A chat model in a GGUF file, read by transformers."""

    def __init__(self, path: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        where = {"gguf_file": path.name}
        self._tokenizer = AutoTokenizer.from_pretrained(path.parent, padding_side="left", **where)
        self._model = AutoModelForCausalLM.from_pretrained(
            path.parent, dtype=torch.float32, **where
        ).eval()

    def answers(self, texts: Sequence[str]) -> list[tuple[str, float]]:
        """A greedy reply to each question and the mean log-probability of its tokens."""
        import torch

        prompts = [
            self._tokenizer.apply_chat_template(
                [
                    {"role": "system", "content": _INSTRUCTION},
                    {"role": "user", "content": question},
                ],
                tokenize=False,
                add_generation_prompt=True,
            )
            for question in texts
        ]
        batch = self._tokenizer(prompts, return_tensors="pt", padding=True)
        end: Any = self._tokenizer.eos_token_id
        with torch.inference_mode():
            made = self._model.generate(
                **batch,
                max_new_tokens=_MOST_TOKENS,
                do_sample=False,
                pad_token_id=end,
                return_dict_in_generate=True,
                output_logits=True,
            )
        ids = made.sequences[:, batch["input_ids"].shape[1] :]
        logprobs = torch.stack(made.logits, dim=1).log_softmax(-1)
        chosen = logprobs.gather(-1, ids[..., None])[..., 0]
        replies = []
        for row, values in zip(ids, chosen, strict=True):
            real = (row == end).cumsum(0) <= (row == end)  # up to the first end of text
            text = self._tokenizer.decode(row[real], skip_special_tokens=True)
            replies.append((text, float(values[real].mean())))
        return replies


def ask_teacher(model: Path, out: Path) -> None:
    """Append the answers to the questions that a file of answers does not contain yet, batch by
    batch. model: a chat model as a GGUF file. Raises PromptError when the file holds something
    else.
    """
    with Journal(out) as journal:
        known = {row["question"] for row in journal.rows()}
        missing = [question for question in questions() if question[0] not in known]
        teacher = Teacher(model) if missing else None
        for batch in (missing[at : at + _BATCH] for at in range(0, len(missing), _BATCH)):
            assert teacher is not None
            replies = teacher.answers([question for question, _ in batch])
            answers = [
                TeacherAnswer(asked, first_good_sentence(*reply), thing, round(reply[1], 3))
                for (asked, thing), reply in zip(batch, replies, strict=True)
            ]
            journal.append(map(asdict, answers))
    print(f"{out}: {len(read_answers(out)):,} good answers to {len(questions()):,} questions")


def read_answers(path: Path) -> list[TeacherAnswer]:
    """The answers in a file that are good enough; none without a file."""
    if not path.exists():
        return []
    return [answer for row in read_rows(path) if (answer := TeacherAnswer(**row)).answer]


def taught_chat(draw: random.Random, answers: Sequence[TeacherAnswer]) -> Turns:
    """A chat of one to three of the questions, those on things in several wordings."""
    turns: Turns = []
    for row in draw.sample(answers, min(len(answers), draw.choice((1, 1, 2, 3)))):
        ask = draw.choice(table("questions")["ask"]) if row.thing else row.question
        turns += [typed(draw, filled(ask, {"x": row.thing})), row.answer]
    return turns
