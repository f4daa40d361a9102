"""Answers inputs by a prompt file and a model, with a label or a text: for `run` and `eval`.

A label's tokens are those that `layout` prints after the output prefix, a space and the label. Only
where the tokens of one label begin those of another ("entity", "entity type"), which could then
never win, each label is followed by the first token of the text between two examples, which marks
its end.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, islice, product
from statistics import fmean
from typing import Protocol

from chatapp.engine.backends.head import HEAD_FILE, HeadModel, HeadSpec
from chatapp.engine.constraint.compiling import ConstraintError
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.encoding import ids_of, segment_ids, without_start
from chatapp.engine.events import Event, Finished
from chatapp.engine.model import LanguageModel, Request, Sampling, whole_replies
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.messages import Segment, set_apart
from chatapp.prompting.template import PLAIN
from chatapp.rows.examples import Example, PromptError, Query, item_of
from chatapp.tasks.files.layout import (
    Demonstration,
    TurnsLayout,
    demonstrations,
    layout_of,
    render,
    render_channel,
)
from chatapp.tasks.files.promptfile import PromptFile
from chatapp.tasks.selection.methods import Selector, vote
from chatapp.tasks.settings import Scoring

# Labelled in one batch: enough to share common parts of prompts, few to lose.
_BATCH = 16

# Texts whose tokens are cached; demonstrations recur, inputs do not.
_REMEMBERED = 2**14


CONTENT_FREE = ("N/A", "", "[MASK]")
"""Inputs without content (Zhao et al. 2021)."""

ByLabel = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Likelihoods:
    """The likelihoods for one input: sums over tokens, in nats, by label.

    direct: log p(label | demonstrations, input). content_free: the same with each of CONTENT_FREE
    as the input; empty if not needed. channel: log p(input | reversed demonstrations, label); empty
    if not needed. tokens: of each choice, and unconditional: log p(choice | the answer's prefix);
    empty for labels.
    """

    direct: ByLabel = field(default_factory=dict)
    content_free: tuple[ByLabel, ...] = ()
    channel: ByLabel = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)
    unconditional: ByLabel = field(default_factory=dict)


def probabilities(likelihoods: Likelihoods, scoring: Scoring) -> dict[str, float]:
    """The probability of each label, normalized over the labels.

    direct: p(label | input). calibrated: p(label | input) / p(label), where p(label) is the mean
    over the content-free inputs: contextual calibration with W = diag(p)⁻¹ and b = 0 (Zhao et al.
    2021). channel: p(input | label), with equal prior probabilities (Min et al. 2021). per_token:
    the geometric mean of the probabilities of a choice's tokens. unconditional: p(choice | prompt)
    / p(choice | the answer's prefix) (both Brown et al. 2020). Raises ValueError when the required
    numbers are missing.
    """
    needed = {
        "direct": likelihoods.direct,
        "calibrated": likelihoods.direct and likelihoods.content_free,
        "channel": likelihoods.channel,
        "per_token": likelihoods.tokens,
        "unconditional": likelihoods.unconditional,
    }
    if not needed[scoring]:
        raise ValueError(f"there are no log-probabilities for {scoring} scoring")
    if scoring == "channel":
        return softmax(likelihoods.channel)
    sums = likelihoods.direct
    if scoring == "per_token":
        return softmax({choice: sums[choice] / likelihoods.tokens[choice] for choice in sums})
    if scoring == "unconditional":
        return softmax(
            {choice: sums[choice] - likelihoods.unconditional[choice] for choice in sums}
        )
    direct = softmax(sums)
    if scoring == "direct":
        return direct
    free = [softmax(sums) for sums in likelihoods.content_free]
    # In logarithms: a probability can be too small for a float, its logarithm never.
    logs = {
        label: likelihoods.direct[label] - math.log(max(fmean(p[label] for p in free), 1e-300))
        for label in direct
    }
    return softmax(logs)


def softmax(logs: ByLabel) -> dict[str, float]:
    """exp(x) for each label over their sum."""
    highest = max(logs.values())
    weights = {label: math.exp(value - highest) for label, value in logs.items()}
    total = math.fsum(weights.values())
    return {label: weight / total for label, weight in weights.items()}


def best(values: ByLabel) -> str:
    """The label with the highest value, the first of equals."""
    return max(values, key=values.__getitem__)


Pair = tuple[list[int], list[int]]
"""Tokens, and those that are scored after them."""

LookUp = Callable[[str, int, Callable[[str], int]], tuple[str, ...]]
"""Finds passages of documents for an input, up to a number of tokens counted by a function."""


@dataclass(frozen=True, slots=True)
class Question:
    """An input with its prompt.

    item: the input, with its fields.
    segments: of the prompt; with channel scoring of the one for the first label. examples, dropped:
    the shown ones and those that did not fit, each nearest first. passages: of documents, as placed
    before the input.
    """

    item: Example
    segments: list[Segment]
    examples: list[Demonstration]
    dropped: list[Demonstration]
    passages: tuple[str, ...] = ()

    @property
    def input(self) -> str:
        """The text of the input."""
        return self.item.input

    @property
    def full_input(self) -> Example:
        """The input with its passages."""
        return with_passages(self.item, self.passages)


def with_passages(item: Example, passages: Sequence[str]) -> Example:
    """An input after passages of documents, which only an input of one field has."""
    return replace(item, input="".join(passages) + item.input) if passages else item


_DIFFERENCE = 0.005
"""From which on probabilities over the labels and over the vocabulary are both shown."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question.

    probabilities: of the labels, in their order; empty for a generated text. likelihoods: their
    source; None for a vote, a head and a generated text. finished: how a generation ended; None
    otherwise. prompt_tokens: of the prompt with its demonstrations. seconds: spent on this answer,
    or its share of a batch.
    """

    question: Question = field(repr=False)
    output: str
    probabilities: dict[str, float]
    likelihoods: Likelihoods | None
    finished: Finished | None
    prompt_tokens: int
    seconds: float

    @property
    def of_vocabulary(self) -> dict[str, float]:
        """The probability of each label among all texts, not among the labels alone; {} where
        these hardly differ, or where it is unknown.
        """
        direct = {} if self.likelihoods is None else self.likelihoods.direct
        shares = {label: math.exp(value) for label, value in direct.items()}
        return shares if abs(sum(shares.values()) - 1) > _DIFFERENCE else {}


class Answering(Protocol):
    """Answers inputs with prompts of a model, or with its head."""

    def prepare(self, query: Query) -> Question: ...
    def answer(self, questions: Sequence[Question]) -> list[Answer]: ...
    def answers(self, questions: Iterable[Question]) -> Iterator[list[Answer]]: ...


class Answerer:
    """A prompt file and a model.

    label_ids: the scored tokens of each label.
    prompt: its `select`, `scoring` and `style` apply. selector: chooses from its pool; None shows
    no demonstrations. sampling: of generated answers; None for the prompt file's. template: renders
    turns. look_up: finds the passages for an input.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompt: PromptFile,
        selector: Selector | None,
        *,
        sampling: Sampling | None = None,
        template: ChatTemplate = PLAIN,
        look_up: LookUp | None = None,
    ) -> None:
        self.model = model
        self._prompt = prompt
        self._selector = selector
        self._sampling = sampling or sampling_of(prompt)
        self._constraint = constraint_of(prompt)
        self._look_up = look_up
        self._encode = lru_cache(_REMEMBERED)(model.tokenizer.encode)
        self._layout = layout_of(prompt, template)
        self.label_ids = self._ids_of_labels()

    @property
    def label_tokens(self) -> dict[str, int]:
        """The number of scored tokens of each label."""
        return {label: len(ids) for label, ids in self.label_ids.items()}

    def prepare(self, query: Query) -> Question:
        """Choose demonstrations for an input and lay out its prompt.

        Raises PromptError when the instruction and the input alone do not fit the window.
        """
        prompt, item = self._prompt, item_of(query)
        if prompt.text is not None:
            return self._text_to_complete(item)
        chosen = demonstrations(prompt, self._selector, item)
        if prompt.select.selector.votes:
            return Question(item, [], list(chosen.values()), [])
        passages = self._passages(item)
        full_input = with_passages(item, passages)
        fitted = self._layout.fit(list(chosen), full_input, self._count, self._room(full_input))
        return Question(
            item,
            self._render(fitted.kept, full_input, passages),
            [chosen[index] for index in fitted.kept],
            [chosen[index] for index in fitted.dropped],
            passages,
        )

    def _passages(self, item: Example) -> tuple[str, ...]:
        """The passages of the documents for an input: at most half of the window."""
        if self._look_up is None:
            return ()
        alone = sum(map(self._count, self._layout.render([], item)))
        room = min(self.model.context // 2, self._room(item) - alone)
        return self._look_up(item.input, room, lambda part: len(self._encode(part, begins=False)))

    def prompt_ids(self, question: Question) -> list[int]:
        """The tokens of a question's prompt."""
        return self._ids(question.segments)

    def answer(self, questions: Sequence[Question]) -> list[Answer]:
        """Answer a few questions."""
        return list(chain.from_iterable(self.answers(questions)))

    def answers(self, questions: Iterable[Question]) -> Iterator[list[Answer]]:
        """Answer questions in their order, taking each when there is room for it.

        Labels are scored in batches, and texts are generated together. Yields the finished answers,
        at least one at a time.
        """
        if self._prompt.select.selector.votes:
            return ([self._by_vote(question)] for question in questions)
        is_scored = self._prompt.labels or self._prompt.choices
        return self._labelled(questions) if is_scored else self._generated(questions)

    def _labelled(self, questions: Iterable[Question]) -> Iterator[list[Answer]]:
        coming = iter(questions)
        while batch := list(islice(coming, _BATCH)):
            started = time.perf_counter()
            scored = self._score(batch)
            seconds = (time.perf_counter() - started) / len(batch)
            answers = []
            for question, likelihoods in zip(batch, scored, strict=True):
                shares = probabilities(likelihoods, self._prompt.scoring)
                tokens = len(self._ids(question.segments))
                answers.append(
                    Answer(question, best(shares), shares, likelihoods, None, tokens, seconds)
                )
            yield answers

    def _text_to_complete(self, item: Example) -> Question:
        segments = render(self._prompt, [], item.input)
        size, window = len(self._ids(segments)), self.model.context
        if size >= window:
            raise PromptError(
                f"{self._prompt.path}: has {size} tokens; the model's window of {window} has room "
                f"for {window - 1} and a reply"
            )
        return Question(item, segments, [], [])

    def _render(
        self, ranked: Sequence[int], query: Query, passages: Sequence[str] = ()
    ) -> list[Segment]:
        if self._prompt.scoring == "channel":
            text = item_of(query).input
            return render_channel(self._prompt, ranked, text, self._prompt.labels[0])
        segments = set_apart(self._layout.render(ranked, query), passages)
        return without_start(segments, self.model)

    def _count(self, segment: Segment) -> int:
        return len(segment_ids(segment, self.model.tokenizer, self._encode))

    def _room(self, item: Example) -> int:
        """The tokens that a prompt may have, with its label."""
        window = self.model.context
        if self._prompt.choices:
            return window
        if not self._prompt.labels:
            return window - min(self._sampling.max_tokens, window // 4)
        # `fit` does not count the token that ends a label, or other inputs.
        spare = max(len(ids) for ids in self.label_ids.values()) - max(
            len(self._answer_ids(label)) for label in self.label_ids
        )
        if self._prompt.scoring == "calibrated":
            own = len(self._encode(self._layout.render_query(item), begins=False))
            rendered = (self._layout.render_query(free) for free in CONTENT_FREE)
            others = (len(self._encode(text, begins=False)) for text in rendered)
            spare += max(0, *(other - own for other in others))
        return window - spare

    def _ids_of_labels(self) -> dict[str, list[int]]:
        ids = {label: self._answer_ids(label) for label in self._prompt.labels}
        if any(
            one is not other and other[: len(one)] == one
            for one in ids.values()
            for other in ids.values()
        ):
            end = self._ids([self._layout.after_answer()], begins=False)[0]
            return {label: [*own, end] for label, own in ids.items()}
        return ids

    def _answer_ids(self, label: str) -> list[int]:
        return self._ids(self._layout.answer(label), begins=False)

    def _ids(self, segments: Sequence[Segment], *, begins: bool = True) -> list[int]:
        """The tokens of a prompt; the end-of-text token where there are none.

        begins: whether they begin a sequence; otherwise they continue a prompt.
        """
        ids = ids_of(segments, self.model.tokenizer, self._encode, begins=begins)
        return ids or [self.model.tokenizer.end_id]

    def _score(self, questions: Sequence[Question]) -> list[Likelihoods]:
        """All log-likelihoods that the prompt's scoring needs, in one call of the model."""
        groups = [self._groups(question) for question in questions]
        pairs = [pair for own in groups for group in own for pair in group.values()]
        sums = iter([math.fsum(scores) for scores in self.model.score(pairs)])
        scored = [[{label: next(sums) for label in group} for group in own] for own in groups]
        likelihoods = []
        for question, own, (first, *others) in zip(questions, groups, scored, strict=True):
            if self._prompt.scoring == "channel":
                likelihoods.append(Likelihoods(channel=first))
            elif question.item.choices:
                tokens = {choice: len(scored) for choice, (_, scored) in own[0].items()}
                likelihoods.append(Likelihoods(first, tokens=tokens, unconditional=others[0]))
            else:
                likelihoods.append(Likelihoods(first, tuple(others)))
        return likelihoods

    def _groups(self, question: Question) -> list[dict[str, Pair]]:
        """By label, what is scored after what: first of the prompt, then as the scoring needs."""
        kept = [example.index for example in question.examples]
        if self._prompt.scoring == "channel":
            group = {}
            for label in self.label_ids:
                *context, scored = render_channel(self._prompt, kept, question.input, label)
                group[label] = self._ids(context), self._ids([scored], begins=False)
            return [group]
        contexts = [self._render(kept, question.full_input, question.passages)]
        if self._prompt.scoring == "calibrated":
            contexts += [self._render(kept, text) for text in CONTENT_FREE]
        options = self.option_ids(question.item)
        if question.item.choices:
            contexts.append([Segment("marker", self._prompt.form.announcement)])
        return [
            dict(zip(options, product([self._ids(context)], options.values()), strict=True))
            for context in contexts
        ]

    def option_ids(self, item: Example) -> dict[str, list[int]]:
        """The tokens of the choices of an item, or of the labels."""
        return {choice: self._answer_ids(choice) for choice in item.choices} or self.label_ids

    def _by_vote(self, question: Question) -> Answer:
        """The majority of the demonstrations; the votes as probabilities."""
        if not question.examples:
            raise PromptError(f"{self._prompt.path}: a vote needs at least one example")
        started = time.perf_counter()
        voters = [example.index for example in question.examples]
        votes = Counter(self._prompt.pool.outputs[index] for index in voters)
        shares = {label: votes[label] / len(voters) for label in self._prompt.labels or votes}
        output = vote(self._prompt.pool, voters)
        seconds = time.perf_counter() - started
        return Answer(question, output, shares, None, None, 0, seconds)

    def _generated(self, questions: Iterable[Question]) -> Iterator[list[Answer]]:
        waiting: deque[Question] = deque()

        def taken() -> Iterator[Question]:
            for question in questions:
                waiting.append(question)
                yield question

        ended = time.perf_counter()
        for text, finished in whole_replies(self._events(taken())):
            question = waiting.popleft()
            output = text if self._prompt.text is not None else text.strip()
            tokens = len(self._ids(question.segments))
            # Answers of a batch share its time equally.
            seconds = time.perf_counter() - ended
            yield [Answer(question, output, {}, None, finished, tokens, seconds)]
            ended = time.perf_counter()

    def _events(self, questions: Iterable[Question]) -> Iterator[tuple[int, Event]]:
        """The events of generated answers.

        If a server renders the turns, in its model's own template.
        """
        return self.model.generate_many(
            Request(
                self._ids(question.segments),
                self._sampling,
                self._layout.stop,
                messages=self._messages(question),
                constraint=self._constraint,
            )
            for question in questions
        )

    def _messages(self, question: Question) -> list[dict[str, str]]:
        """The messages for a server that renders turns itself; none for other models."""
        layout = self._layout
        if not isinstance(layout, TurnsLayout) or not self.model.takes_messages:
            return []
        shown = [example.index for example in question.examples]
        messages = layout.messages(shown, question.full_input)
        return [{"role": message.role, "content": message.text} for message in messages]


def constraint_of(prompt: PromptFile) -> Constraint | None:
    """What a generated answer of a prompt file may look like.

    Raises PromptError that names the key that cannot be used.
    """
    output = prompt.output
    if output is None:
        return None
    try:
        if output.kind == "schema":
            return Constraint.of_schema(output.text, spaced=True)
        return Constraint(output.kind, output.text, spaced=True)
    except ConstraintError as error:
        raise prompt.error(f"output.{output.kind}", f"is refused: {error}") from None


def sampling_of(prompt: PromptFile, base: Sampling | None = None) -> Sampling:
    """The sampling of a prompt file; parameters that it leaves out are `base`'s."""
    return replace(base or Sampling(), **prompt.generate)  # type: ignore[arg-type]


def head_of(model: LanguageModel) -> HeadModel | None:
    """The label head stored with a model's files, or None.

    Raises ModelError.
    """
    if model.files is None or not (model.files.path / HEAD_FILE).is_file():
        return None
    spec = HeadSpec.load(model.files.path)
    if spec.task != "classification" or not spec.labels:
        return None
    return HeadModel.load(model.name, model.files)


class HeadAnswerer:
    """Answers with the labels of a prompt file, chosen by a head that has the same ones.

    Raises PromptError when the labels differ.
    """

    def __init__(self, head: HeadModel, prompt: PromptFile) -> None:
        if set(head.spec.labels) != set(prompt.labels):
            raise prompt.error(
                "labels", f"are not those of the head of {head.name}: {', '.join(head.spec.labels)}"
            )
        self._head, self._prompt = head, prompt

    def prepare(self, query: Query) -> Question:
        """The question of an input, as the head reads it."""
        item = item_of(query)
        return Question(item, [Segment("user", item.input.strip())], [], [])

    def answer(self, questions: Sequence[Question]) -> list[Answer]:
        """Answer a few questions."""
        return [self._answer(question) for question in questions]

    def answers(self, questions: Iterable[Question]) -> Iterator[list[Answer]]:
        """Answer questions in their order, one at a time."""
        return (self.answer([question]) for question in questions)

    def _answer(self, question: Question) -> Answer:
        started = time.perf_counter()
        sequences = self._head.encoder.sequences([question.input])
        (shares,) = self._head.outputs([sequences])
        by_label = dict(zip(self._head.spec.labels, shares, strict=True))
        probabilities = {label: by_label[label] for label in self._prompt.labels}
        seconds = time.perf_counter() - started
        read = len(sequences[0])
        return Answer(question, best(probabilities), probabilities, None, None, read, seconds)
