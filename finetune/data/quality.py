"""Ranks the documents of a pool by how like they are a good text.

As in GPT-3 (Brown et al., 2020, arXiv 2005.14165, appendix A) and LLaMA, a linear classifier of
hashed words and pairs of words separates documents of the good text from documents of the pool, and
ranks the pool by the probability of the good text. It is fastText's: the mean of the embeddings of
a document's features, here of one number each, so logistic regression on their frequencies.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from chatapp.common.foreign import printable
from chatapp.common.userfiles import write_whole
from chatapp.rows.reading import BadRow, tables
from finetune.config.sections import ConfigError, TrainSource
from finetune.data.formats import detect
from finetune.data.split import text_key

_BUCKETS = 2**18
_WORD = re.compile(r"\w+|[^\w\s]")
_PASSAGE = 1500
"""Characters from which the end of a paragraph of a plain text ends a document."""
_LEAST_EPOCHS, _LEAST_STEPS, _BATCH, _RATE = 5, 300, 64, 0.5
PARETO = 9.0
"""GPT-3's α: a document of score s stays if a number drawn from Pareto(α) is above 1 - s."""


@dataclass(frozen=True, slots=True)
class PoolDocument:
    """fields: of its row, as they are written again. text: what is ranked."""

    fields: dict[str, Any]
    text: str


@dataclass(frozen=True, slots=True)
class Filtered:
    """documents of the pool, their scores (documents,), from 0 to 1, and which are kept."""

    documents: list[PoolDocument]
    scores: NDArray[np.float64]
    kept: NDArray[np.bool_]

    def document(self) -> dict[str, Any]:
        """The figures of --json."""
        return {
            "documents": len(self.documents),
            "kept": int(self.kept.sum()),
            "mean_score": float(self.scores.mean()),
            "mean_score_kept": float(self.scores[self.kept].mean()),
        }

    def lines(self) -> list[str]:
        """The figures in words, with the likest and the unlikest document."""
        figures, order = self.document(), np.argsort(-self.scores, kind="stable")
        ends = [("most", order[0]), ("least", order[-1])]
        return [
            f"kept {figures['kept']:,} of {figures['documents']:,} documents; mean score "
            f"{figures['mean_score_kept']:.3f}, of all {figures['mean_score']:.3f}",
            *(
                f"{word} alike, {self.scores[number]:.3f}: "
                + printable(" ".join(self.documents[number].text.split())[:100])
                for word, number in ends
            ),
        ]


def filter_pool(
    pool: str, like: str, output: Path, *, share: float, pareto: bool, seed: int
) -> Filtered:
    """Rank the documents of a pool, and write those that are kept as JSONL, in their order.

    pool, like: a file or a folder of any layout that training reads; a plain text is cut into
    documents at its paragraphs. share: how many are kept, the likest. pareto: instead, each is kept
    by chance, see `PARETO`. Raises ConfigError and OSError.
    """
    documents, good = (list(_documents(path)) for path in (pool, like))
    if len(documents) < 4:
        raise ConfigError(f"{pool}: has {len(documents)} documents; expected at least 4")
    scores = _scores(good, documents, seed)
    if pareto:
        kept = np.random.default_rng(seed).pareto(PARETO, len(scores)) > 1 - scores
    else:
        kept = np.zeros(len(scores), np.bool_)
        kept[np.argsort(-scores, kind="stable")[: max(1, round(share * len(scores)))]] = True
    if not kept.any():
        raise ConfigError(f"{pool}: no document is like {like}; keep the best by --share")
    rows = (json.dumps(documents[n].fields, ensure_ascii=False) for n in np.flatnonzero(kept))
    write_whole(output, "".join(f"{row}\n" for row in rows))
    return Filtered(documents, scores, kept)


def _documents(path: str) -> Iterator[PoolDocument]:
    for table in tables(TrainSource.model_validate({"path": path})):
        is_plain = table.name.removesuffix(".gz").endswith(".txt")
        for row in table.rows():
            if isinstance(row, BadRow):
                raise row
            if is_plain:
                texts = _passages(row.fields["text"])
                yield from (PoolDocument({"text": text}, text) for text in texts)
                continue
            example = detect(row).read(row)
            parts = [example.text, *example.parts, *(m.text for m in example.messages)]
            yield PoolDocument(dict(row.fields), "\n".join(parts))


def _passages(text: str) -> Iterator[str]:
    """A text as documents of whole paragraphs, or lines where paragraphs are long."""
    passage = ""
    for line in text.strip().splitlines(keepends=True):
        passage += line
        if len(passage) >= (2 * _PASSAGE if line.strip() else _PASSAGE):
            yield passage.strip()
            passage = ""
    if passage.strip():
        yield passage.strip()


def _features(text: str) -> Tensor:
    """The hashed words and pairs of words of a text."""
    words = _WORD.findall(text.lower()) or [""]
    grams = [*words, *map(" ".join, pairwise(words))]
    return torch.tensor([crc32(gram.encode()) % _BUCKETS for gram in grams])


def _scores(
    good: list[PoolDocument], documents: list[PoolDocument], seed: int
) -> NDArray[np.float64]:
    """The probability of each document to be of the good text, if both were equally many."""
    wanted, pool = ([_features(doc.text) for doc in docs] for docs in (good, documents))
    half = np.array([int(text_key(doc.text), 16) % 2 for doc in documents])
    if half.all() or not half.any():
        half = np.arange(len(pool)) % 2
    scores = np.zeros(len(pool))
    for side in (0, 1):
        theirs, others = np.flatnonzero(half == side), np.flatnonzero(half != side)
        score = _train(wanted, [pool[number] for number in others], seed)
        scores[theirs] = [score(pool[number]) for number in theirs]
    return scores


def _train(good: list[Tensor], pool: list[Tensor], seed: int) -> Any:
    """The classifier of two sets of documents, from the features of one to its score."""
    weights = torch.zeros(_BUCKETS, 1, requires_grad=True)
    bias = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adagrad([weights, bias], lr=_RATE)
    texts = [*good, *pool]
    labels = torch.tensor([1.0] * len(good) + [0.0] * len(pool))
    balance = torch.where(labels > 0, len(pool) / len(good), 1.0)
    draw = np.random.default_rng(seed)
    for _ in range(max(_LEAST_EPOCHS, _LEAST_STEPS * _BATCH // len(texts))):
        order = draw.permutation(len(texts))
        for start in range(0, len(order), _BATCH):
            batch = order[start : start + _BATCH]
            logits = _logits([texts[number] for number in batch], weights, bias)
            loss = functional.binary_cross_entropy_with_logits(
                logits, labels[batch], balance[batch]
            )
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    return partial(_score, weights=weights.detach(), bias=bias.detach())


def _logits(texts: list[Tensor], weights: Tensor, bias: Tensor) -> Tensor:
    lengths = torch.tensor([0, *map(len, texts[:-1])])
    means = functional.embedding_bag(torch.cat(texts), weights, lengths.cumsum(0), mode="mean")
    return means[:, 0] + bias


def _score(text: Tensor, weights: Tensor, bias: Tensor) -> float:
    return float(_logits([text], weights, bias).sigmoid())
