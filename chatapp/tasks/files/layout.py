"""A prompt file, chosen examples and an input become the segments of a prompt.

For a prompt file with the input prefix "Email: ", the output prefix "Class:" and an empty line as
the separator (see `form` for layouts with named fields):

    Classify each email as spam or ham.     instruction, then the separator
                                            (nothing, where there is no instruction)
    Email: You have won a prize.            the form of an example, then the separator
    Class: spam

    Email: See you at noon.                 the form of a query, without the space before its
    Class:                                  answer

Invariant: white space belongs to the segment after it. So a prompt never ends in a space, and
wherever two segments meet at white space, encoding them one by one gives the same tokens as
encoding the whole text, because GPT-2's tokenizer begins a new piece there as well.
"""

import functools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.messages import END_OF_TEXT, Kind, Message, Segment, text_of
from chatapp.prompting.thoughts_and_calls import ends_in_thought
from chatapp.rows.examples import Example, PromptError, Query, item_of
from chatapp.tasks.files.form import Template, fill, join
from chatapp.tasks.files.promptfile import NO_CHANNEL, PromptFile
from chatapp.tasks.selection.methods import Selector
from chatapp.tasks.selection.select import Select


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A pool item and its similarity to the input; None if the selector computes none."""

    index: int
    similarity: float | None


def demonstrations(
    prompt: PromptFile, selector: Selector | None, query: Query
) -> dict[int, Demonstration]:
    """The demonstrations by index, nearest first, as many as the prompt file wants.

    selector: None chooses none.
    """
    if selector is None:
        return {}
    text = item_of(query).input
    ranked = selector.select(text, prompt.select.k)
    nearness = selector.similarities(text, ranked)
    return dict(zip(ranked, map(Demonstration, ranked, nearness), strict=True))


def render(
    prompt: PromptFile, ranked: Sequence[int], query: Query, turns: Sequence[Example] = ()
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
    form, separator = prompt.form, Segment("marker", prompt.separator)
    parts = [*_opening(prompt), *_shots(prompt, ranked, form.example)]
    for turn in turns:
        parts += [*_filled(prompt, form.example, turn, "user", "assistant"), separator]
    return join(chain(parts, _filled(prompt, form.query, item_of(query), "user")))


def continuation(prompt: PromptFile, output: str) -> str:
    """The exact text after a rendered prompt when `output` is its answer."""
    return prompt.form.lead + output.strip()


def render_channel(
    prompt: PromptFile, ranked: Sequence[int], query: str, label: str
) -> list[Segment]:
    """The reversed prompt, for the likelihood of the input given a label.

    Each example has its output first, then its input (Min et al. 2021). The last segment is the
    query, the only one to be scored; the rest is its context. Raises PromptError when there is no
    query.
    """
    channel = prompt.form.channel
    if channel is None:
        raise prompt.error("score.method", NO_CHANNEL)
    if not query.strip():
        raise PromptError(f"{prompt.path}: channel scoring needs an input that is not empty")
    ask = _filled(prompt, channel, Example(query, label), "user", "assistant")
    return join(chain(_opening(prompt), _shots(prompt, ranked, channel), ask))


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
    query: Query,
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
    form = prompt.form
    template = (form.channel if prompt.scoring == "channel" else None) or form.example
    separator = Segment("marker", prompt.separator)
    room = limit - alone
    kept: list[int] = []
    for index in ranked:
        # An example adds a separator, its own or that of the query after it.
        example = _filled(prompt, template, prompt.pool[index], "example")
        cost = length(join(chain([separator], example)))
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
        self, ranked: Sequence[int], query: Query, turns: Sequence[Example] = ()
    ) -> list[Segment]:
        """See `render`."""
        return render(self._prompt, ranked, query, turns)

    def answer(self, output: str) -> list[Segment]:
        """The text after a rendered prompt when `output` is its answer; none for an empty one."""
        text = continuation(self._prompt, output)
        return [Segment("assistant", text)] if text.strip() else []

    def after_answer(self) -> Segment:
        """The text after an answer: its first token marks the end of the answer."""
        form = self._prompt.form
        first = form.query.pieces[0]
        between = form.example.ending if form.example.fields[-1] == form.output else ""
        between += self._prompt.separator + (first if isinstance(first, str) else "")
        # The character after white space determines how it is cut into tokens.
        return Segment("marker", between + "x") if between else END_OF_TEXT

    def render_query(self, query: Query) -> str:
        """The text of the input, about as it is encoded."""
        item, form = item_of(query), self._prompt.form
        return "".join(f" {item.value(name).strip()}" for name in form.query_fields)

    def fit(
        self, ranked: Sequence[int], query: Query, count: Callable[[Segment], int], limit: int
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


def _scored(prompt: PromptFile, ranked: Sequence[int], query: Query) -> Iterable[list[Segment]]:
    """All texts that the model must see whole to answer: one text, or one per label."""
    if prompt.scoring == "channel":
        text = item_of(query).input
        return (render_channel(prompt, ranked, text, label) for label in prompt.labels)
    segments = render(prompt, ranked, query)
    answers = item_of(query).choices or prompt.labels
    labels = [[Segment("assistant", continuation(prompt, answer))] for answer in answers]
    return (segments + label for label in labels or [[]])


def _opening(prompt: PromptFile) -> list[Segment]:
    if not prompt.instruction or prompt.form.places_instruction:
        return []
    return [Segment("instruction", prompt.instruction), Segment("marker", prompt.separator)]


def _shots(prompt: PromptFile, ranked: Sequence[int], template: Template) -> list[Segment]:
    parts: list[Segment] = []
    for index in arrange(ranked, prompt.select):
        parts += _filled(prompt, template, prompt.pool[index], "example")
        parts.append(Segment("marker", prompt.separator))
    return parts


def _filled(
    prompt: PromptFile,
    template: Template,
    item: Example,
    input_kind: Kind,
    output_kind: Kind = "example",
) -> Iterator[Segment]:
    return fill(template, item, prompt.form, prompt.instruction, input_kind, output_kind)


class TurnsLayout:
    """Lays out a prompt file in turns, with the methods of `TextLayout`: the instruction is the
    system message, each input with its prefix (or as `query` lays it out) a user's message, and
    each output the reply to it. The other keys of a layout do not apply.

    template: renders the turns. A thinking model is asked not to think, because the label or output
    is expected at the beginning of the reply.
    """

    def __init__(self, prompt: PromptFile, template: ChatTemplate) -> None:
        self._prompt = prompt
        if template.switch:
            template = replace(template, thinking=False)
        self._template = template
        self.stop = (*prompt.stop, *template.stop)

    def messages(
        self, ranked: Sequence[int], query: Query, turns: Sequence[Example] = ()
    ) -> list[Message]:
        """The chat that asks for the output of `query`; for ranked and turns see
        `TextLayout.render`."""
        prompt = self._prompt
        opens = bool(prompt.instruction) and not prompt.form.places_instruction
        chat = [Message("system", prompt.instruction)] if opens else []
        shots = [prompt.pool[index] for index in arrange(ranked, prompt.select)]
        for example in (*shots, *turns):
            chat.append(Message("user", self.render_query(example)))
            chat.append(Message("assistant", example.output.strip()))
        return [*chat, Message("user", self.render_query(query))]

    def render(
        self, ranked: Sequence[int], query: Query, turns: Sequence[Example] = ()
    ) -> list[Segment]:
        segments = self._template.render(self.messages(ranked, query, turns))
        marks = self._template.marks
        if marks is not None and ends_in_thought(segments, marks):
            special = marks.end in self._template.special
            end = Segment("special" if special else "marker", marks.end)
            segments += [end, Segment("marker", "\n\n")]
        return segments

    def answer(self, output: str) -> list[Segment]:
        return self._template.reply(output.strip())

    def after_answer(self) -> Segment:
        return self._template.end

    def render_query(self, query: Query) -> str:
        form = self._prompt.form
        parts = fill(form.turn, item_of(query), form, self._prompt.instruction, "user", "assistant")
        return text_of(parts).strip()

    def fit(
        self, ranked: Sequence[int], query: Query, count: Callable[[Segment], int], limit: int
    ) -> Fitted:
        count = functools.cache(count)
        possible = item_of(query).choices or self._prompt.labels
        answers = [self.answer(answer) for answer in possible]
        longest = max((sum(map(count, answer)) for answer in answers), default=0)

        def size(kept: Sequence[int]) -> int:
            return longest + sum(map(count, self.render(kept, query)))

        kept = list(ranked)
        if (tokens := size(kept)) > limit:
            alone = size([])
            if alone > limit:
                raise PromptError(
                    f"{self._prompt.path}: the instruction and the input alone take {alone} "
                    f"tokens, and there is room for {limit}"
                )
            kept = [index for index in ranked if size([index]) <= limit]
            while (tokens := size(kept)) > limit:
                kept.pop()
        left = set(ranked) - set(kept)
        return Fitted(kept, [index for index in ranked if index in left], tokens)


Layout = TextLayout | TurnsLayout
"""The layout for the `style` of a prompt file."""


def layout_of(prompt: PromptFile, template: ChatTemplate) -> Layout:
    """The layout of a prompt file. template: renders turns."""
    return TurnsLayout(prompt, template) if prompt.style == "turns" else TextLayout(prompt)
