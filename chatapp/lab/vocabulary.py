"""How a vocabulary is made from a text, and how a tokenizer builds its tokens from characters.

Byte-pair encoding merges the most frequent pair of neighbours, again and again (Gage 1994, "A new
algorithm for data compression"; Sennrich, Haddow and Birch 2016, arXiv 1508.07909). WordPiece
merges the pair with the largest count(ab) / (count(a) · count(b)), so that parts which are frequent
anyway do not win (Schuster and Nakajima 2012, "Japanese and Korean voice search").
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from chatapp.common.foreign import parse_json, without_surrogates
from chatapp.common.userfiles import UserError
from chatapp.engine.model import PieceTokenizer
from chatapp.engine.tokenizers import BPETokenizer, TransformersTokenizer

Method = Literal["bpe", "wordpiece"]
METHODS: tuple[Method, ...] = ("bpe", "wordpiece")

_Pair = tuple[str, str]

_CONTINUES = "##"
"""Before each part of a word except its first, in WordPiece."""

_MOST_CHARACTERS = 2_000
"""The longest word whose steps are shown: each step holds the whole word."""


@dataclass(frozen=True, slots=True)
class Learned:
    """One step of learning: the pair that was merged into a new token.

    count: how often the pair occurred in the text. score: why it was chosen: the count itself, or
    count(ab) / (count(a) · count(b)) of WordPiece.
    """

    pair: _Pair
    token: str
    count: int
    score: float


def learn_vocabulary(words: Mapping[str, int], method: Method, steps: int) -> Iterator[Learned]:
    """Learn a vocabulary from words and their counts, a merge at a time.

    steps: the most merges; fewer come where no pair is left. Of equal pairs, the one wins that
    came up first, in the order of the words. Formulas and sources are in this file's first lines.
    """
    mark = _CONTINUES if method == "wordpiece" else ""
    later = {character: mark + character for character in {*"".join(words)}}
    cuts = [[word[0], *(later[character] for character in word[1:])] for word in words]
    tokens: Counter[str] = Counter()
    pairs: Counter[_Pair] = Counter()
    places: defaultdict[_Pair, set[int]] = defaultdict(set)

    def score(pair: _Pair) -> float:
        if method == "bpe":
            return pairs[pair]
        return pairs[pair] / (tokens[pair[0]] * tokens[pair[1]])

    def add(place: int, new: Iterable[_Pair], count: int) -> None:
        for pair in new:
            pairs[pair] += count
            places[pair].add(place)

    for place, (cut, count) in enumerate(zip(cuts, words.values(), strict=True)):
        for token in cut:
            tokens[token] += count
        add(place, pairwise(cut), count)
    counts = list(words.values())
    for _ in range(steps):
        best = max((pair for pair, count in pairs.items() if count), key=score, default=None)
        if best is None:
            return
        merged = best[0] + best[1].removeprefix(mark)
        yield Learned(best, merged, pairs[best], score(best))
        for place in sorted(places.pop(best)):
            old, count = cuts[place], counts[place]
            starts = _starts(old, best)
            cuts[place] = new = _merge(old, starts, merged)
            for pair in _pairs_at(old, starts, 2):
                pairs[pair] -= count
            add(place, _pairs_at(new, [at - k for k, at in enumerate(starts)], 1), count)
            tokens[best[0]] -= count * len(starts)
            tokens[best[1]] -= count * len(starts)
            tokens[merged] += count * len(starts)
        del pairs[best]


def _starts(cut: Sequence[str], pair: _Pair) -> list[int]:
    """Where a pair occurs in a word's tokens, from the left, without overlaps."""
    starts = []
    at = -1
    with suppress(ValueError):  # there is no more of its first token
        while True:
            at = cut.index(pair[0], at + 1)
            if at + 1 < len(cut) and cut[at + 1] == pair[1]:
                starts.append(at)
                at += 1
    return starts


def _merge(cut: Sequence[str], starts: Sequence[int], merged: str) -> list[str]:
    """Replace the pairs that start at some places of a word's tokens by one token each."""
    done: list[str] = []
    end = 0
    for start in starts:
        done += [*cut[end:start], merged]
        end = start + 2
    return [*done, *cut[end:]]


def _pairs_at(cut: Sequence[str], starts: Iterable[int], length: int) -> Iterator[_Pair]:
    """The pairs of neighbours that touch tokens at some places, each once. length: of a place."""
    done = 0
    for start in starts:
        for at in range(max(done, start - 1), min(start + length, len(cut) - 1)):
            yield cut[at], cut[at + 1]
        done = start + length


@dataclass(frozen=True, slots=True)
class CuttingStep:
    """One step in cutting a word.

    token: the new token. rank: the number of the merge, 0 for the one that the tokenizer learned
    first; None if the method does not merge. tokens: the word after the step.
    """

    token: str
    rank: int | None
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Word:
    """How a word became tokens. tokens: what it was before the first step."""

    tokens: tuple[str, ...]
    steps: tuple[CuttingStep, ...]


def merge_steps(tokenizer: PieceTokenizer, text: str) -> list[Word]:
    """How a tokenizer cuts a text, word by word.

    BPE: the pair that was learned first is merged first. WordPiece: the longest token that the
    rest of the word begins with is taken. Raises UserError for a tokenizer of another kind, for
    a word of more than 2,000 characters, and for a text that holds words which a tokenizer adds to
    its vocabulary as a whole.
    """
    kinds = BPETokenizer | TransformersTokenizer
    if not isinstance(tokenizer, kinds) or tokenizer.backend is None:
        raise UserError("this tokenizer does not show how it makes its tokens")
    library = tokenizer.backend
    rules = parse_json(library.to_str())["model"]
    cutters: dict[str, type[_MergedWords | _LongestMatch]]
    cutters = {"BPE": _MergedWords, "WordPiece": _LongestMatch}
    cut = cutters.get(rules["type"])
    if cut is None:
        raise UserError(
            f"this is a {rules['type']} tokenizer, which chooses the most probable cut of a text; "
            "it has no merges to show"
        )
    cutter, words = cut(rules), _words(library, text)
    longest = max(map(len, words), default=0)
    if longest > _MOST_CHARACTERS:
        raise UserError(
            f"a word of this text has {longest:,} characters; the steps are shown of words "
            f"with at most {_MOST_CHARACTERS:,}"
        )
    steps = [cutter(word) for word in words]
    # An unknown character has an id, but no merge ever holds it.
    ends = [token for start, taken in steps for token in (taken[-1].tokens if taken else start)]
    if [library.token_to_id(token) for token in ends] != tokenizer.encode(text):
        raise UserError(
            "this text holds words that the tokenizer takes as a whole, or unknown ones"
        )
    shown = tokenizer.shown
    return [
        Word(
            tuple(map(shown, start)),
            tuple(
                CuttingStep(shown(step.token), step.rank, tuple(map(shown, step.tokens)))
                for step in taken
            ),
        )
        for start, taken in steps
    ]


def _words(library: Any, text: str) -> list[str]:
    """A text as the tokenizer divides it before it cuts anything."""
    text = without_surrogates(text)
    if library.normalizer is not None:
        text = library.normalizer.normalize_str(text)
    if library.pre_tokenizer is None:
        return [text]
    return [word for word, _ in library.pre_tokenizer.pre_tokenize_str(text)]


_Cut = tuple[tuple[str, ...], list[CuttingStep]]


class _MergedWords:
    """Words cut by the merges of a BPE."""

    def __init__(self, rules: Mapping[str, Any]) -> None:
        self._ranks = {tuple(pair): rank for rank, pair in enumerate(rules["merges"])}
        self._vocabulary = rules["vocab"]
        self._takes_whole = rules.get("ignore_merges", False)
        self._has_bytes = rules.get("byte_fallback", False)
        self._suffix = rules.get("end_of_word_suffix") or ""

    def __call__(self, word: str) -> _Cut:
        characters = [*word[:-1], word[-1:] + self._suffix]
        start = tokens = tuple(part for character in characters for part in self._known(character))
        steps: list[CuttingStep] = []
        if self._takes_whole and word in self._vocabulary:
            return start, [CuttingStep(word, None, (word,))] if len(start) > 1 else []
        while pairs := [p for p in pairwise(tokens) if p in self._ranks]:
            best = min(pairs, key=self._ranks.__getitem__)
            merged = best[0] + best[1]
            tokens = tuple(_merge(tokens, _starts(tokens, best), merged))
            steps.append(CuttingStep(merged, self._ranks[best], tokens))
        return start, steps

    def _known(self, character: str) -> list[str]:
        """A character, or its bytes where the vocabulary has them alone."""
        if character in self._vocabulary or not self._has_bytes:
            return [character]
        return [f"<0x{byte:02X}>" for byte in character.encode()]


class _LongestMatch:
    """Words cut by the longest tokens of a WordPiece."""

    def __init__(self, rules: Mapping[str, Any]) -> None:
        self._vocabulary = rules["vocab"]
        self._unknown = rules["unk_token"]
        self._continues = rules["continuing_subword_prefix"]
        self._longest = rules["max_input_chars_per_word"]

    def __call__(self, word: str) -> _Cut:
        steps: list[CuttingStep] = []
        taken: tuple[str, ...] = ()
        rest = word
        while rest:
            token = self._first(rest, self._continues if taken else "")
            if token is None or len(word) > self._longest:
                return (word,), [CuttingStep(self._unknown, None, (self._unknown,))]
            rest = rest[len(token) - (len(self._continues) if taken else 0) :]
            taken = (*taken, token)
            steps.append(
                CuttingStep(token, None, (*taken, *([self._continues + rest] if rest else [])))
            )
        return (word,), steps if len(taken) > 1 else []

    def _first(self, rest: str, mark: str) -> str | None:
        ends = range(len(rest), 0, -1)
        return next(
            (mark + rest[:end] for end in ends if mark + rest[:end] in self._vocabulary), None
        )


_NUMBERED = re.compile(r"(\S+)[\t ]+([0-9]{1,18})")


def read_words(text: str) -> Counter[str]:
    """The words of a file: a text, or one word with its count in each line ("hug 10")."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    counted = [_NUMBERED.fullmatch(line) for line in lines]
    if not lines or any(match is None for match in counted):
        return Counter(text.split())
    words: Counter[str] = Counter()
    for match in counted:
        assert match is not None
        words[match[1]] += int(match[2])
    return words
