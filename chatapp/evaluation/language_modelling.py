"""LAMBADA: predicting the last word of a passage (Paperno et al. 2016), in both protocols.

`last_token` predicts the last BPE token from all tokens before it, which may hold a part of
the last word; this is easier, and what some GPT-2 code measured. `last_word` predicts the
whole last word, with the space before it, from the text before that space, as
lm-evaluation-harness does; it counts as right when each of its tokens is the likeliest.

Keep: a figure always comes with the name of its protocol.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

from chatapp.engine.events import Token
from chatapp.engine.model import LanguageModel, Sampling
from chatapp.evaluation.inputs import Item, read_inputs
from chatapp.evaluation.perplexity import Progress, exp_or_inf
from chatapp.prompting.examples import PromptError

Protocol = Literal["last_token", "last_word"]


@dataclass(frozen=True, slots=True)
class Lambada:
    """One protocol's figures.

    accuracy: the share of targets that greedy decoding gives.
    perplexity: exp of the mean negative log-likelihood of a target, per token or word.
    """

    accuracy: float
    perplexity: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Both protocols over the same passages.

    figures: empty where the model failed on every passage.
    failures: why a passage is in no figure, by its index: the model failed on it, which says
        nothing about what it would have predicted.
    """

    figures: dict[Protocol, Lambada]
    failures: dict[int, str]


class _GenerationFailed(Exception):
    """A generation that ended in an error, in the model's words."""


def lambada(
    model: LanguageModel,
    passages: Sequence[str],
    progress: Progress | None = None,
) -> Measured:
    """Both measures over passages of two words or more each (see `is_passage`).

    A passage longer than the model's window loses its beginning.
    """
    scored: dict[Protocol, list[tuple[float, bool]]] = {"last_token": [], "last_word": []}
    failures: dict[int, str] = {}
    for index, passage in enumerate(passages):
        try:
            for protocol, score in _score(model, passage).items():
                scored[protocol].append(score)
        except _GenerationFailed as failure:
            failures[index] = str(failure)
        if progress:
            progress(index + 1, len(passages))
    figures = {
        protocol: Lambada(
            fmean(right for _, right in scores),
            exp_or_inf(-fmean(likelihood for likelihood, _ in scores)),
        )
        for protocol, scores in scored.items()
        if scores
    }
    return Measured(figures, failures)


def read_passages(path: Path) -> list[Item]:
    """The passages in a file (see `read_inputs`). Raises PromptError at one that is none."""
    passages = []
    for line, text in read_inputs(path):
        if isinstance(text, PromptError):
            raise text
        if not is_passage(text):
            raise PromptError(f"{path}, line {line}: expected a passage of two words or more")
        passages.append(Item(text, "", line))
    if not passages:
        raise PromptError(f"{path}: holds no passages")
    return passages


def is_passage(text: str) -> bool:
    """Whether there is a last word with something before it."""
    return len(text.split()) > 1


def _score(model: LanguageModel, passage: str) -> dict[Protocol, tuple[float, bool]]:
    """Of each protocol's target the log-likelihood, and whether it is predicted."""
    scores: dict[Protocol, tuple[float, bool]] = {}
    for protocol, (context, target) in _targets(model, passage).items():
        (logprobs,) = model.score([(context, target)])
        scores[protocol] = math.fsum(logprobs), _is_greedy(model, context, target)
    return scores


def _targets(
    model: LanguageModel, passage: str
) -> dict[Protocol, tuple[Sequence[int], Sequence[int]]]:
    """Context and target of each protocol."""
    passage = passage.strip()
    before = passage[: -len(passage.split()[-1])].rstrip()
    ids = model.tokenizer.encode(passage)
    context = model.tokenizer.encode(before)
    target = model.tokenizer.encode(passage[len(before) :])
    return {
        "last_token": (ids[:-1][-model.context + 1 :], ids[-1:]),
        "last_word": (context[-model.context + len(target) :], target),
    }


def _is_greedy(model: LanguageModel, context: Sequence[int], target: Sequence[int]) -> bool:
    """Whether the likeliest continuation is the target. Raises _GenerationFailed."""
    ids = []
    for event in model.generate(context, Sampling(temperature=0.0, max_tokens=len(target))):
        if isinstance(event, Token):
            ids.append(event.id)
        elif event.reason == "error":
            raise _GenerationFailed(event.message)
    return ids == list(target)
