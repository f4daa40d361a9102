"""Can a reader tell a model's continuations of passages from the passages' own?

As for the news articles of GPT-3 (Brown et al. 2020, 3.9.4): nothing is picked, and a control shows
what a reader makes of a deliberately bad text.

Invariant: the continuations of a passage are equally long, and which one is shown is drawn before
anything is generated.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from chatapp.engine.model import LanguageModel, Request, Sampling, whole_replies
from chatapp.prompting.examples import PromptError
from chatapp.tasks.evaluation.metrics import wilson

Origin = Literal["human", "machine", "control"]
Verdict = Literal["human", "machine", "unknown"]

_HEAT = 2.0
"""The temperature of the control, which also sees no passage."""

_TOKENS_PER_WORD = 3
"""Tokens to generate for a word that is shown: more than English needs."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The beginning of a passage, and a continuation of it; origin: whose it is."""

    beginning: str
    continuation: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Recognition:
    """How well a reader told texts of an origin from human ones.

    accuracy, interval: the share of right verdicts on these and on human texts, and its Wilson
    interval of 95 %, without verdicts "unknown"; 0 and (0, 1) where there is no other. n: verdicts
    that count. unknown: those that do not.
    """

    origin: Origin
    accuracy: float
    interval: tuple[float, float]
    n: int
    unknown: int


def make_trials(
    model: LanguageModel,
    passages: Sequence[str],
    words: int,
    sampling: Sampling,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[Trial]:
    """A trial for each passage of 2 · `words` words or more, in an order drawn by the seed.

    The first `words` are the beginning; a third of the trials has each origin. All continuations
    have as many words as the model's own one, at most `words`; a passage to which the model adds
    nothing is left out. Raises PromptError when no passage is long enough.
    """
    draw = random.Random(f"blind {seed}")
    usable = [passage for passage in passages if len(passage.split()) >= 2 * words]
    if not usable:
        raise PromptError(f"there is no passage of {2 * words} words; --words takes fewer")
    draw.shuffle(usable)
    origins: list[Origin] = ["human", "machine", "control"]
    shown = [origins[number % 3] for number in range(len(usable))]
    draw.shuffle(shown)
    trials = []
    for number, (passage, origin) in enumerate(zip(usable, shown, strict=True), 1):
        beginning = _first_words(passage, words)
        own = replace(sampling, seed=seed + number, max_tokens=words * _TOKENS_PER_WORD)
        texts = {
            "human": passage[len(beginning) :],
            "machine": _continued(model, model.tokenizer.encode(beginning), own),
        }
        if origin == "control":
            hot = replace(own, temperature=_HEAT, top_p=1.0)
            texts["control"] = _continued(model, [model.tokenizer.end_id], hot)
        length = min(words, *(len(text.split()) for text in texts.values()))
        if length:
            trials.append(Trial(beginning, _first_words(texts[origin], length).strip(), origin))
        if progress:
            progress(number, len(usable))
    return trials


def recognitions(trials: Sequence[Trial], verdicts: Sequence[Verdict]) -> list[Recognition]:
    """How well the model's texts, and the control's, were distinguished from human ones.

    verdicts: of the first trials, in their order.
    """
    counts = Counter(
        (trial.origin, verdict) for trial, verdict in zip(trials, verdicts, strict=False)
    )
    results = []
    for origin in ("machine", "control"):
        right = counts["human", "human"] + counts[origin, "machine"]
        n = right + counts["human", "machine"] + counts[origin, "human"]
        unknown = counts["human", "unknown"] + counts[origin, "unknown"]
        interval = wilson(right, n) if n else (0.0, 1.0)
        results.append(Recognition(origin, right / n if n else 0.0, interval, n, unknown))
    return results


def _continued(model: LanguageModel, ids: Sequence[int], sampling: Sampling) -> str:
    """The model's continuation. Raises PromptError when it cannot be generated."""
    ((text, finished),) = whole_replies(model.generate_many([Request(ids, sampling)]))
    if finished.reason == "error":
        raise PromptError(finished.message)
    return text


def _first_words(text: str, count: int) -> str:
    """The beginning of a text up to the end of its word number `count`, white space unchanged."""
    match = re.match(rf"\s*(?:\S+\s+){{{count - 1}}}\S+", text)
    return match.group() if match else text
