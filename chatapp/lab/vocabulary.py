"""How a vocabulary is made from a text, and how a tokenizer builds its tokens from characters.

Invariant: the steps end in the same tokens as the tokenizer itself.

Byte-pair encoding merges the most frequent pair of neighbours, again and again (Gage 1994, "A new
algorithm for data compression"; Sennrich, Haddow and Birch 2016, arXiv 1508.07909). WordPiece
merges the pair with the largest count(ab) / (count(a) · count(b)), so that parts which are frequent
anyway do not win (Schuster and Nakajima 2012, "Japanese and Korean voice search").
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from chatapp.common.foreign import without_surrogates
from chatapp.common.userfiles import UserError
from chatapp.engine.model import PieceTokenizer
from chatapp.engine.tokenizers.byte_level import BPETokenizer
from chatapp.engine.tokenizers.transformers_tokenizer import TransformersTokenizer

Method = Literal["bpe", "wordpiece"]
METHODS: tuple[Method, ...] = ("bpe", "wordpiece")

_CONTINUES = "##"
"""Before each part of a word except its first, in WordPiece."""


@dataclass(frozen=True, slots=True)
class Learned:
    """One step of learning: the pair that was merged into a new token.

    count: how often the pair occurred in the text. score: why it was chosen: the count itself, or
    count(ab) / (count(a) · count(b)) of WordPiece.
    """

    pair: tuple[str, str]
    token: str
    count: int
    score: float


def count_words(text: str) -> Counter[str]:
    """The words of a text, divided at white space, and how often each occurs."""
    return Counter(text.split())


def learn_vocabulary(words: Mapping[str, int], method: Method, steps: int) -> Iterator[Learned]:
    """Learn a vocabulary from words and their counts, a merge at a time.

    steps: the most merges; fewer come where no pair is left. Of equal pairs, the one wins that
    came up first, in the order of the words. Formulas and sources are in this file's first lines.
    """
    mark = _CONTINUES if method == "wordpiece" else ""
    cuts = [[word[0], *(mark + character for character in word[1:])] for word in words]
    counts = list(words.values())
    tokens: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    places: defaultdict[tuple[str, str], set[int]] = defaultdict(set)

    def add(place: int, sign: int) -> None:
        cut, count = cuts[place], sign * counts[place]
        for token in cut:
            tokens[token] += count
        for pair in pairwise(cut):
            pairs[pair] += count
            places[pair].add(place)

    def score(pair: tuple[str, str]) -> float:
        if method == "bpe":
            return pairs[pair]
        return pairs[pair] / (tokens[pair[0]] * tokens[pair[1]])

    for place in range(len(cuts)):
        add(place, 1)
    for _ in range(steps):
        best = max((pair for pair, count in pairs.items() if count), key=score, default=None)
        if best is None:
            return
        merged = best[0] + best[1].removeprefix(mark)
        yield Learned(best, merged, pairs[best], score(best))
        for place in sorted(places.pop(best)):
            add(place, -1)
            cuts[place] = _merge(cuts[place], best, merged)
            add(place, 1)
        del pairs[best]


def _merge(cut: Sequence[str], pair: tuple[str, str], merged: str) -> list[str]:
    """Replace each occurrence of a pair in a word's tokens, from the left, by one token."""
    done: list[str] = []
    at = 0
    while at < len(cut):
        is_pair = tuple(cut[at : at + 2]) == pair
        done.append(merged if is_pair else cut[at])
        at += 2 if is_pair else 1
    return done


@dataclass(frozen=True, slots=True)
class Step:
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
    steps: tuple[Step, ...]


def merge_steps(tokenizer: PieceTokenizer, text: str) -> list[Word]:
    """How a tokenizer cuts a text, word by word.

    BPE: the pair that was learned first is merged first. WordPiece: the longest token that the
    rest of the word begins with is taken. Raises UserError for a tokenizer of another kind, and
    for a text that holds words which a tokenizer adds to its vocabulary as a whole.
    """
    kinds = BPETokenizer | TransformersTokenizer
    if not isinstance(tokenizer, kinds) or tokenizer.backend is None:
        raise UserError("this tokenizer does not show how it makes its tokens")
    library = tokenizer.backend
    rules = json.loads(library.to_str())["model"]
    cutters: dict[str, type[_MergedWords | _LongestMatch]]
    cutters = {"BPE": _MergedWords, "WordPiece": _LongestMatch}
    cut = cutters.get(rules["type"])
    if cut is None:
        raise UserError(
            f"this is a {rules['type']} tokenizer, which chooses the most probable cut of a text; "
            "it has no merges to show"
        )
    cutter, words = cut(rules), _words(library, text)
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
                Step(shown(step.token), step.rank, tuple(map(shown, step.tokens))) for step in taken
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


_Cut = tuple[tuple[str, ...], list[Step]]


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
        steps: list[Step] = []
        if self._takes_whole and word in self._vocabulary:
            return start, [Step(word, None, (word,))] if len(start) > 1 else []
        while pairs := [p for p in pairwise(tokens) if p in self._ranks]:
            best = min(pairs, key=self._ranks.__getitem__)
            merged = best[0] + best[1]
            tokens = tuple(_merge(tokens, best, merged))
            steps.append(Step(merged, self._ranks[best], tokens))
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
        steps: list[Step] = []
        taken: tuple[str, ...] = ()
        rest = word
        while rest:
            token = self._first(rest, self._continues if taken else "")
            if token is None or len(word) > self._longest:
                return (word,), [Step(self._unknown, None, (self._unknown,))]
            rest = rest[len(token) - (len(self._continues) if taken else 0) :]
            taken = (*taken, token)
            steps.append(Step(token, None, (*taken, *([self._continues + rest] if rest else []))))
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
        return count_words(text)
    words: Counter[str] = Counter()
    for match in counted:
        assert match is not None
        words[match[1]] += int(match[2])
    return words
