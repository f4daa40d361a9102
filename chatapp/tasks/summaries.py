"""Summaries of a document longer than the window: of its passages, then of their summaries."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from chatapp.tasks.files.documents import content_words, least_covered, rarity_of

_SENTENCE = re.compile(r"\S.*?[.!?](?=\s|$)|\S.*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of a text; passages: the numbers of those it goes back to, from 0."""

    text: str
    passages: range


@dataclass(frozen=True, slots=True)
class TracedSentence:
    """A sentence of a summary, and the numbers of the passages nearest to it.

    passages: of those that the summary goes back to, nearest first; empty where none has enough of
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
    """The sentences of a summary with the passages that have enough of their words.

    passages: of the whole document; what is enough is what a search of documents takes for it, see
    `documents.least_covered`. most: how many for a sentence.
    """
    contained = [set(content_words(text)) for text in passages]
    traced = []
    for match in _SENTENCE.finditer(summary.text):
        words = content_words(match.group())
        rarity = {w: rarity_of(sum(w in own for own in contained), len(passages)) for w in words}
        scores = {
            number: sum(rarity[word] for word in words if word in contained[number])
            for number in summary.passages
        }
        least = least_covered(list(rarity.values()))
        near = sorted((n for n in scores if 0 < scores[n] >= least), key=lambda n: -scores[n])
        traced.append(TracedSentence(match.group(), near[:most]))
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
