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
from statistics import fmean
from typing import Literal

from chatapp.engine.events import Token
from chatapp.engine.model import LanguageModel, Sampling
from chatapp.evaluation.perplexity import Progress, exp_or_inf

Protocol = Literal["last_token", "last_word"]


@dataclass(frozen=True, slots=True)
class Lambada:
    """accuracy: the share of targets that greedy decoding gives.

    perplexity: exp of the mean negative log-likelihood of a target, per token or word.
    """

    accuracy: float
    perplexity: float


def lambada(
    model: LanguageModel,
    passages: Sequence[str],
    progress: Progress | None = None,
) -> dict[Protocol, Lambada]:
    """Both measures over passages of two words or more each (see `is_passage`).

    A passage longer than the model's window loses its beginning.
    """
    found: dict[Protocol, list[tuple[float, bool]]] = {"last_token": [], "last_word": []}
    for done, passage in enumerate(passages, start=1):
        for protocol, (context, target) in _targets(model, passage).items():
            (scores,) = model.score([(context, target)])
            found[protocol].append((math.fsum(scores), _is_greedy(model, context, target)))
        if progress:
            progress(done, len(passages))
    return {
        protocol: Lambada(
            fmean(right for _, right in items),
            exp_or_inf(-fmean(likelihood for likelihood, _ in items)),
        )
        for protocol, items in found.items()
    }


def is_passage(text: str) -> bool:
    """Whether there is a last word with something before it."""
    return len(text.split()) > 1


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
    """Whether the likeliest continuation is the target."""
    sampling = Sampling(temperature=0.0, max_tokens=len(target))
    events = model.generate(context, sampling)
    return [event.id for event in events if isinstance(event, Token)] == list(target)
