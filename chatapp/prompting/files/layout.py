"""A prompt file, chosen examples and an input become the segments of a prompt.

The layout, for a prompt file with the input prefix "Email: ", the output prefix "Class:" and
an empty line as the separator:

    Classify each email as spam or ham.     instruction, then the separator
                                            (nothing, where there is no instruction)
    Email: You have won a prize.            input_prefix + input, a line break,
    Class: spam                             output_prefix + one space + output, the separator

    Email: See you at noon.                 the query, in the same layout,
    Class:                                  up to the output prefix

- The line break is left out when the output prefix is empty or begins with white space:
  " =>" gives `cheese => fromage` on one line.
- The space is left out when the output prefix ends in a line break: "Reply:\n" puts the output
  on the next line. Spaces at the end of an output prefix mean nothing.
- Every other character is printed unchanged. Inserted text is not parsed again, so braces,
  quotes and markup of users are plain characters.

Invariant: white space belongs to the segment after it. So a prompt never ends in a space, and
wherever two segments meet at white space, encoding them one by one gives the same tokens as
encoding the whole text, because GPT-2's tokenizer begins a new piece there as well.
"""

import functools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from chatapp.prompting.examples import Example, PromptError
from chatapp.prompting.files.promptfile import PromptFile
from chatapp.prompting.messages import END_OF_TEXT, Kind, Segment
from chatapp.prompting.selection.methods import Selector
from chatapp.prompting.selection.select import Select

Part = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A pool item and its similarity to the input; None if the selector computes none."""

    index: int
    similarity: float | None


def demonstrations(
    prompt: PromptFile, selector: Selector | None, query: str
) -> dict[int, Demonstration]:
    """The demonstrations by index, nearest first, as many as the prompt file wants.

    selector: None chooses none.
    """
    if selector is None:
        return {}
    ranked = selector.select(query, prompt.select.k)
    nearness = selector.similarities(query, ranked)
    return dict(zip(ranked, map(Demonstration, ranked, nearness), strict=True))


def render(
    prompt: PromptFile, ranked: Sequence[int], query: str, turns: Sequence[Example] = ()
) -> list[Segment]:
    """The prompt that asks for the output of `query`.

    ranked: indices into the prompt's pool, nearest first; they are printed in the order of the
    prompt file. turns: earlier inputs and answers, placed between the examples and the query. A
    text prompt has neither examples nor a query. Raises PromptError when a text prompt gets a
    query.
    """
    if prompt.text is not None:
        if query or ranked:
            raise PromptError(f"{prompt.path}: is a text to complete and takes no input")
        return [Segment("user", prompt.text)]
    ask: list[Part] = [
        ("marker", prompt.input_prefix),
        ("user", query.strip()),
        ("marker", _answer_marker(prompt)),
    ]
    before: list[Part] = []
    for turn in turns:
        asked, answered = turn.input.strip(), turn.output.strip()
        before += [*_direct(prompt, Example(asked, answered), "user", "assistant")]
        before.append(("marker", prompt.separator))
    return _segments([*_opening(prompt), *_shots(prompt, ranked, _direct), *before, *ask])


def continuation(prompt: PromptFile, output: str) -> str:
    """The exact text after a rendered prompt when `output` is its answer."""
    return _lead(prompt) + output.strip()


def render_channel(
    prompt: PromptFile, ranked: Sequence[int], query: str, label: str
) -> list[Segment]:
    """The reversed prompt, for the likelihood of the input given a label.

    Each example has its output first, then its input (Min et al. 2021). The last segment is the
    query, the only one to be scored; the rest is its context. Raises PromptError when there is no
    query.
    """
    if not query.strip():
        raise PromptError(f"{prompt.path}: channel scoring needs an input that is not empty")
    kinds: tuple[Kind, ...] = ("marker", "assistant", "marker", "user")
    texts = [text for _, text in _channel(prompt, Example(query.strip(), label))]
    ask = list(zip(kinds, texts, strict=True))
    return _segments([*_opening(prompt), *_shots(prompt, ranked, _channel), *ask])


@dataclass(frozen=True, slots=True)
class Fitted:
    """The examples that fit the window and the dropped ones: indices, each nearest first.

    tokens: of the longest text to be scored with these examples: the prompt, and the label where
    there are labels.
    """

    kept: list[int]
    dropped: list[int]
    tokens: int


def fit(
    prompt: PromptFile,
    ranked: Sequence[int],
    query: str,
    count_tokens: Callable[[str], int],
    limit: int,
) -> Fitted:
    """Choose as many examples as the window holds, nearest first.

    ranked: indices into the pool, nearest first. An example that would not fit even alone is
    dropped, whatever its rank; of the others the furthest are dropped first, whatever the printed
    order. limit: the most tokens of the prompt and, with labels, the label; subtract the room for a
    generated answer before. No text is counted twice. Raises PromptError when the instruction and
    the query alone do not fit: they are never cut.
    """
    count = functools.cache(count_tokens)

    def length(segments: Iterable[Segment]) -> int:
        return sum(count(segment.text) for segment in segments)

    def size(kept: Sequence[int]) -> int:
        return max(length(segments) for segments in _scored(prompt, kept, query))

    alone = size([])
    if alone > limit:
        raise PromptError(
            f"{prompt.path}: the instruction and the input alone take {alone} tokens, "
            f"and there is room for {limit}"
        )
    layout = _channel if prompt.scoring == "channel" else _direct
    room = limit - alone
    kept: list[int] = []
    for index in ranked:
        # An example adds a separator, its own or that of the query after it.
        example = layout(prompt, prompt.pool[index])
        cost = length(_segments([("marker", prompt.separator), *example]))
        if cost > limit - alone:
            continue
        if cost > room:
            break
        room -= cost
        kept.append(index)
    # Without an instruction, the cost of the first printed example is a guess.
    while (tokens := size(kept)) > limit:
        kept.pop()
    left = set(ranked) - set(kept)
    return Fitted(kept, [index for index in ranked if index in left], tokens)


class TextLayout:
    """Lays out a prompt file as one text.

    stop: the strings at which a generated answer ends.
    """

    def __init__(self, prompt: PromptFile) -> None:
        self._prompt = prompt
        self.stop = prompt.stop

    def render(
        self, ranked: Sequence[int], query: str, turns: Sequence[Example] = ()
    ) -> list[Segment]:
        """See `render`."""
        return render(self._prompt, ranked, query, turns)

    def answer(self, output: str) -> list[Segment]:
        """The text after a rendered prompt when `output` is its answer; none for an empty one."""
        text = continuation(self._prompt, output)
        return [Segment("assistant", text)] if text.strip() else []

    def after_answer(self) -> Segment:
        """The text after an answer: its first token marks the end of the answer."""
        between = self._prompt.separator + self._prompt.input_prefix
        # The character after white space determines how it is cut into tokens.
        return Segment("marker", between + "x") if between else END_OF_TEXT

    def asked(self, query: str) -> str:
        """The text of the input, about as it is encoded."""
        return f" {query.strip()}"

    def fit(
        self, ranked: Sequence[int], query: str, count: Callable[[Segment], int], limit: int
    ) -> Fitted:
        """See `fit`; count: the tokens of a segment."""
        return fit(self._prompt, ranked, query, lambda text: count(Segment("marker", text)), limit)


def arrange(ranked: Sequence[int], select: Select) -> list[int]:
    """Sort indices, nearest first, into the order in which they are printed."""
    order = select.order
    if order is None:
        order = "nearest-last" if select.selector.ranks else "nearest-first"
    match order:
        case "nearest-first":
            return list(ranked)
        case "nearest-last":
            return list(reversed(ranked))
        case "shuffled":
            indices = sorted(ranked)
            random.Random(f"{select.seed} {indices}").shuffle(indices)
            return indices


def _scored(prompt: PromptFile, ranked: Sequence[int], query: str) -> Iterable[list[Segment]]:
    """All texts that the model must see whole to answer: one text, or one per label."""
    if prompt.scoring == "channel":
        return (render_channel(prompt, ranked, query, label) for label in prompt.labels)
    segments = render(prompt, ranked, query)
    labels = [[Segment("assistant", continuation(prompt, label))] for label in prompt.labels]
    return (segments + label for label in labels or [[]])


def _opening(prompt: PromptFile) -> list[Part]:
    if not prompt.instruction:
        return []
    return [("instruction", prompt.instruction), ("marker", prompt.separator)]


def _shots(
    prompt: PromptFile,
    ranked: Sequence[int],
    layout: Callable[[PromptFile, Example], list[Part]],
) -> list[Part]:
    parts: list[Part] = []
    for index in arrange(ranked, prompt.select):
        parts += [*layout(prompt, prompt.pool[index]), ("marker", prompt.separator)]
    return parts


def _direct(
    prompt: PromptFile, example: Example, asked: Kind = "example", answered: Kind = "example"
) -> list[Part]:
    return [
        ("marker", prompt.input_prefix),
        (asked, example.input),
        ("marker", _answer_marker(prompt)),
        (answered, continuation(prompt, example.output)),
    ]


def _channel(prompt: PromptFile, example: Example) -> list[Part]:
    marker = prompt.output_prefix.lstrip().rstrip(" ")
    return [
        ("marker", marker),
        ("example", continuation(prompt, example.output) if marker else example.output),
        ("marker", "\n" + prompt.input_prefix),
        ("example", example.input),
    ]


def _answer_marker(prompt: PromptFile) -> str:
    marker = prompt.output_prefix.rstrip(" ")
    return marker if not marker or marker[0].isspace() else "\n" + marker


def _lead(prompt: PromptFile) -> str:
    return "" if prompt.output_prefix.rstrip(" ").endswith("\n") else " "


def _segments(parts: Iterable[Part]) -> list[Segment]:
    """Move white space from the end of each part to the beginning of the next.

    White space at the very end stays only if it contains a line break.
    """
    segments: list[Segment] = []
    space = ""
    for kind, text in parts:
        whole = space + text
        body = whole.rstrip(" \t\r\n")
        space = whole[len(body) :]
        if body:
            segments.append(Segment(kind, body))
    if "\n" in space:
        segments.append(Segment("marker", space.rstrip(" \t")))
    return segments
