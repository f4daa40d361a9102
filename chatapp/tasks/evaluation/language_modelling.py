"""Language modelling: LAMBADA in both of its protocols, and perplexity over a sliding window.

LAMBADA is predicting the last word of a passage (Paperno et al. 2016). `last_token` predicts the
last BPE token from all tokens before it, which may include a part of the last word; this is easier,
and some GPT-2 code measured it. `last_word` predicts the whole last word, with the space before it,
from the text before that space, as lm-evaluation-harness does; it counts as correct if each of its
tokens is the most likely one. A figure always comes with the name of its protocol.

Perplexity scores every token of the text exactly once. The first window begins with the end-of-text
token, which GPT-2 saw before every document, so that the text's first token is scored as well; each
later window begins a stride after its predecessor and gives a token at least window - stride tokens
of context.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from statistics import fmean
from typing import Literal, TypeVar

from chatapp.common.userfiles import Progress
from chatapp.engine.events import Token
from chatapp.engine.model import LanguageModel, Request, Sampling
from chatapp.rows.examples import PromptError
from chatapp.rows.reading import RowsError
from chatapp.tasks.evaluation.inputs import Item, read_inputs

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Perplexity:
    """The likelihood of a text under a model.

    negative_log_likelihood: of the whole text, in nats. tokens: of the model's own tokenizer.
    words: separated by white space. bytes: of the text in UTF-8. stride: tokens scored in each
    window after the first. without_memory: of a model with a memory, see `perplexity`, the same as
    the first where each segment is read alone; else None.
    """

    negative_log_likelihood: float
    tokens: int
    words: int
    bytes: int
    stride: int
    without_memory: float | None = None

    @property
    def per_token(self) -> float:
        """exp(nats / tokens); depends on the tokenizer."""
        return exp_or_inf(self.negative_log_likelihood / self.tokens)

    @property
    def per_word(self) -> float:
        """exp(nats / words), the "word perplexity" of papers on language models."""
        return exp_or_inf(self.negative_log_likelihood / self.words)

    @property
    def per_byte(self) -> float:
        """exp(nats / bytes); 2 to the power of the bits per byte."""
        return exp_or_inf(self.negative_log_likelihood / self.bytes)


def perplexity(
    model: LanguageModel, text: str, stride: int | None = None, progress: Progress | None = None
) -> Perplexity:
    """The perplexity of a text.

    stride: from 1 to the model's window - 1; by default half the window. A smaller one gives more
    context, and takes longer. A model with a memory (Dai et al. 2019) reads the text in segments as
    long as its memory, each with the states of those before, and then each segment alone.
    Raises ValueError for a stride out of range and for a text without words.
    """
    window = model.context
    stride = window // 2 if stride is None else stride
    if not 1 <= stride < window:
        raise ValueError(f"the stride is {stride}; expected 1 to {window - 1}")
    words = len(text.split())
    if not words:
        raise ValueError("there are no words to predict")
    ids = [model.tokenizer.end_id, *model.tokenizer.encode(text)]
    size = len(text.encode("utf-8", "surrogatepass"))
    from chatapp.engine.backends.local import LocalModel

    memory = model.memory if isinstance(model, LocalModel) else None
    if memory is None:
        total = _scored(model, ids, _windows(len(ids), window, stride), progress)
        return Perplexity(total, len(ids) - 1, words, size, stride)
    alone = [(at, at + 1, min(at + 1 + memory, len(ids))) for at in range(0, len(ids) - 1, memory)]
    # Of a text longer than the cache, every half of it reads the half before again.
    half = window // 2
    segments = [(-(-max(0, end - window) // half) * half, b, end) for _, b, end in alone]
    with_memory = _scored(model, ids, segments, progress)
    without = _scored(model, ids, alone, None)
    return Perplexity(with_memory, len(ids) - 1, words, size, memory, without)


def _scored(
    model: LanguageModel,
    ids: Sequence[int],
    windows: Iterable[tuple[int, int, int]],
    progress: Progress | None,
) -> float:
    """The negative log-likelihood of the tokens of each window, in nats; see `_windows`."""
    total = 0.0
    for block in _blocks(model, windows):
        pairs = [(ids[first:begin], ids[begin:end]) for first, begin, end in block]
        total -= sum(map(math.fsum, model.score(pairs)))
        if progress:
            progress(block[-1][2] - 1, len(ids) - 1)
    return total


def _windows(length: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Each window's beginning, the first token that is scored in it, and its end."""
    begin = 1
    for first in range(0, length, stride):
        end = min(first + window, length)
        if begin < end:
            yield first, begin, end
        begin = end


def exp_or_inf(value: float) -> float:
    """e to the power of `value`, infinite if that is too large for a float."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


Protocol = Literal["last_token", "last_word"]


@dataclass(frozen=True, slots=True)
class Lambada:
    """One protocol's results.

    accuracy: the fraction of targets that greedy decoding gives. perplexity: exp of the mean
    negative log-likelihood of a target, per token or word.
    """

    accuracy: float
    perplexity: float


@dataclass(frozen=True, slots=True)
class LambadaResult:
    """Both protocols over the same passages.

    figures: empty where the model failed on every passage. failures: why a passage is not counted,
    by its index: the model failed on it, so its prediction is unknown.
    """

    figures: dict[Protocol, Lambada]
    failures: dict[int, str]


def lambada(
    model: LanguageModel, passages: Sequence[str], progress: Progress | None = None
) -> LambadaResult:
    """Both measures over passages of two words or more each (see `is_passage`).

    A passage longer than the model's window loses its beginning.
    """
    scored: dict[Protocol, list[tuple[float, bool]]] = {"last_token": [], "last_word": []}
    failures: dict[int, str] = {}
    results = chain.from_iterable(_score(model, block) for block in _blocks(model, passages))
    for index, scores in enumerate(results):
        if isinstance(scores, str):
            failures[index] = scores
        else:
            for protocol, score in scores.items():
                scored[protocol].append(score)
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
    return LambadaResult(figures, failures)


def read_passages(path: Path) -> list[Item]:
    """The passages in a file (see `read_inputs`). Raises PromptError at an invalid one."""
    passages = []
    for line, text in read_inputs(path):
        if isinstance(text, RowsError):
            raise text
        if not (isinstance(text, str) and is_passage(text)):
            raise PromptError(f"{path}, line {line}: expected a passage of two words or more")
        passages.append(Item(text, "", line))
    if not passages:
        raise PromptError(f"{path}: contains no passages")
    return passages


def is_passage(text: str) -> bool:
    """Whether there is a last word with text before it."""
    return len(text.split()) > 1


def _score(
    model: LanguageModel, passages: Sequence[str]
) -> Iterator[dict[Protocol, tuple[float, bool]] | str]:
    """For each passage and protocol the target's log-likelihood, and whether it is predicted; or
    why the model failed.
    """
    targets = [_targets(model, passage) for passage in passages]
    pairs = [pair for of_passage in targets for pair in of_passage.values()]
    likelihoods = map(math.fsum, model.score(pairs))
    predictions = _continued(model, pairs)
    for of_passage in targets:
        scores: dict[Protocol, tuple[float, bool]] = {}
        problem = ""
        for protocol, (_, target) in of_passage.items():
            ids, error = next(predictions)
            scores[protocol] = next(likelihoods), ids == list(target)
            problem = problem or error
        yield problem or scores


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


def _continued(
    model: LanguageModel, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> Iterator[tuple[list[int], str]]:
    """As many tokens as each target has, continued greedily, and the error that ended them."""
    ids: list[list[int]] = [[] for _ in pairs]
    errors = [""] * len(pairs)
    requests = (
        Request(context, Sampling(temperature=0.0, max_tokens=len(target)))
        for context, target in pairs
    )
    for number, event in model.generate_many(requests):
        if isinstance(event, Token):
            ids[number].append(event.id)
        elif event.reason == "error":
            errors[number] = event.message
    return zip(ids, errors, strict=True)


def _blocks(model: LanguageModel, items: Iterable[_T]) -> Iterator[list[_T]]:
    """The items in lists as long as a server takes requests at a time; a model here takes one."""
    from chatapp.engine.backends.remote.remote_model import RemoteModel

    size = model.concurrency if isinstance(model, RemoteModel) else 1
    rest = iter(items)
    while block := list(islice(rest, size)):
        yield block
