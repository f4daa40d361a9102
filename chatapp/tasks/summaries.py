"""Summaries of a document that is longer than the window: of its passages, then of the summaries.

Invariant: each summary names the passages it was made from, and none of them is skipped.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from chatapp.tasks.selection.similarity import TfidfIndex, ranked

_SENTENCE = re.compile(r"\S.*?[.!?]+(?=\s|$)|\S.*$", re.DOTALL)

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of a text; passages: the numbers of those it goes back to, from 0."""

    text: str
    passages: range


@dataclass(frozen=True, slots=True)
class TracedSentence:
    """A sentence of a summary, and the numbers of the passages nearest to it.

    passages: of those that the summary goes back to, nearest first; empty where none has a word of
    the sentence.
    """

    text: str
    passages: list[int]


def summarize(
    passages: Sequence[str],
    answer: Callable[[Sequence[str]], list[str]],
    fits: Callable[[str], bool],
) -> list[list[Summary]]:
    """The summaries of each level: first one of each passage, at last a single one.

    passages: of the document, in order, at least one. answer: the summaries of texts. fits: whether
    a text may be summarized at once; two summaries always are, so that the levels come to an end.
    """
    parts = zip(answer(passages), range(len(passages)), strict=True)
    levels = [[Summary(text, range(number, number + 1)) for text, number in parts]]
    while len(levels[-1]) > 1:
        groups = list(_grouped(levels[-1], fits))
        texts = answer([_joined(group) for group in groups])
        levels.append(
            [
                Summary(text, range(group[0].passages.start, group[-1].passages.stop))
                for text, group in zip(texts, groups, strict=True)
            ]
        )
    return levels


def trace_sentences(
    summary: Summary, passages: Sequence[str], most: int = 2
) -> list[TracedSentence]:
    """The sentences of a summary with the passages that say the same, by TF-IDF.

    passages: of the whole document. most: how many for a sentence.
    """
    index = TfidfIndex([passages[number] for number in summary.passages])
    traced = []
    for match in _SENTENCE.finditer(summary.text):
        # Without the signs, which every passage shares.
        scores = index.scores(" ".join(_WORD.findall(match.group())))
        near = [row for row in ranked(scores, most) if scores[row] > 0][:most]
        traced.append(TracedSentence(match.group(), [summary.passages[row] for row in near]))
    return traced


def _grouped(
    summaries: Sequence[Summary], fits: Callable[[str], bool]
) -> Iterator[Sequence[Summary]]:
    """Neighbours that fit together, two or more; only the last group may be of one."""
    group: list[Summary] = []
    for summary in summaries:
        if len(group) >= 2 and not fits(_joined([*group, summary])):
            yield group
            group = []
        group.append(summary)
    yield group


def _joined(summaries: Sequence[Summary]) -> str:
    return " ".join(summary.text for summary in summaries if summary.text)
