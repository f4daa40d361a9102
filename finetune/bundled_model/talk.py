"""Measure how a model talks: whether its replies end, go round in circles, and admit not knowing.

    python -m finetune.bundled_model.talk DATA OUT [--model M] [--judge J] [--items N]

DATA is what `documents` wrote; OUT receives talk.json with the shares and talk.md with every reply
of the first seed. First messages are those of talks kept out of training and some written for
this; questions that cannot be answered come in wordings kept out, those that can from the facts and
tasks of the generators. Sampling is the model's own, except the seed. With a judge, the median over
replies of the mean log-probability that it gives their tokens.

Invariant: no test text was used in training, and replies are not selected.
"""

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Annotated

import typer

from chatapp.common.parameters import Choices
from chatapp.common.userfiles import UserError, quoted, write_whole
from chatapp.dialogue.events import Options
from chatapp.dialogue.turn import answer
from chatapp.dialogue.writers.choosing import choose_template, writer_for
from chatapp.dialogue.writers.prompt import Exchange
from chatapp.engine.events import Finished, FinishReason
from chatapp.engine.files.model_files import read_generation_config
from chatapp.engine.model import LanguageModel, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.prompting.chat_template import Template
from finetune.bundled_model.generators import abstention
from finetune.bundled_model.generators.tasks import all_tasks
from finetune.bundled_model.generators.words import table
from finetune.recipes import run

MESSAGES, _UNKNOWN, _KNOWN = 200, 150, 300
_SEEDS = 3
JUDGE_HELP = "model whose likelihood of the replies is measured"
_NOT_KNOWING = re.compile(
    r"\b(?:don't|do not|can't|cannot|could not|no idea|not sure|too hard|only know|only speak)\b",
    re.IGNORECASE,
)


class ReplyFailed(UserError):
    """A measured reply failed; says which and why."""


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
    questions = [
        problem.question
        for task in tasks
        for problem in task.held_out(per_task, seed, unseen=False)
    ]
    return questions[:count]


def replies(
    model: LanguageModel, template: Template, messages: Sequence[str], sampling: Sampling
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


def share(kept: Sequence[bool]) -> float:
    return sum(kept) / len(kept)


def own_sampling(model: LanguageModel) -> Sampling:
    """The sampling that the model itself asks for."""
    return Choices().of("model", read_generation_config(model.files).sampling).sampling


def evaluate(
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
    unknown = drawn(abstention.held_out_questions(min(_UNKNOWN, items), 0))
    known = drawn(known_questions(min(_KNOWN, items), 0))
    figures = {
        "repeats_itself": share([reply.reason == "repetition" for reply in every]),
        "ends_by_itself": share([reply.reason == "stop" for reply in every]),
        "declines_unknown": share([reply.declines for reply in unknown]),
        "declines_known": share([reply.declines for reply in known]),
    }
    if judge is not None:
        figures["logprob"] = median(likelihoods(judge, every))
    return figures, [*talked[0], *unknown, *known]


def write(
    model: LanguageModel, data: Path, out: Path, judge: str = "", items: int = _KNOWN
) -> dict[str, float]:
    """Write the replies of the first seed to talk.md; returns the results by name."""
    figures, sample = evaluate(model, data, load_model(judge) if judge else None, items)
    lines = [f"- {reply.message}\n  *{reply.text}* ({reply.reason})\n" for reply in sample]
    write_whole(out / "talk.md", "".join(lines))
    return figures


def in_words(figures: dict[str, float]) -> str:
    """A line for each result."""
    return "".join(
        f"- {name}: {value:.2f}\n" if name == "logprob" else f"- {name}: {value:.1%}\n"
        for name, value in figures.items()
    )


def measure(
    data: Annotated[Path, typer.Argument(help="folder that `documents` wrote", exists=True)],
    out: Annotated[Path, typer.Argument(help="folder to write to")],
    model: Annotated[str, typer.Option(help="bundled, or a model's folder")] = "bundled",
    judge: Annotated[str, typer.Option(help=JUDGE_HELP)] = "",
    items: Annotated[int, typer.Option(min=1, help="the most messages of a kind")] = _KNOWN,
) -> None:
    """Evaluate how a model talks."""
    figures = write(load_model(model), data, out, judge, items)
    write_whole(out / "talk.json", json.dumps(figures, indent=2) + "\n")
    print(in_words(figures), end="")


if __name__ == "__main__":
    run(measure)
