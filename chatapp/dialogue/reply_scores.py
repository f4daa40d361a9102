"""Scores of a reward model, and the best of several replies by them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from chatapp.dialogue.events import TurnEvent, interleaved
from chatapp.dialogue.writers.choosing import own_template
from chatapp.engine.backends.head import RewardModel
from chatapp.engine.batch import MOST_AT_ONCE
from chatapp.engine.encoding import ids_of, without_start
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Finished
from chatapp.engine.model import Sampling
from chatapp.engine.models.loading import load_reward_model
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.messages import END_OF_TEXT, Message


class ReplyScorer:
    """Scores replies with a reward model. Raises ModelError when that has no template."""

    def __init__(self, model: RewardModel) -> None:
        template = own_template(model.files, model.tokenizer.special)
        if template is None:
            raise ModelError(f"{model.name}: this reward model has no dialogue template")
        self.model, self.template = model, template
        self.name = model.name

    @classmethod
    def load(cls, name: str) -> "ReplyScorer":
        """Load by the name of a reward model. Raises ModelError."""
        return cls(load_reward_model(name))

    def score(self, messages: Sequence[Message], reply: str) -> float:
        """The score of a reply to messages, which end with the user's. Raises ValueError."""
        return self.model.score(closed_ids(self.template, self.model, messages, reply))


def closed_ids(
    template: ChatTemplate, model: RewardModel, messages: Sequence[Message], reply: str
) -> list[int]:
    """The tokens of a chat that ends in a reply, without those that start every sequence."""
    whole = template.render([*messages, Message("assistant", reply)])
    last = max((i for i, part in enumerate(whole) if part.kind == "assistant"), default=0)
    if not any(segment.kind in ("special", "end") for segment in whole[last:]):
        whole = [*whole, template.end if template.end.kind == "special" else END_OF_TEXT]
    return ids_of(without_start(whole, model), model.tokenizer)


@dataclass(frozen=True, slots=True)
class Scored:
    """A reply with its score. thoughts: the model's thoughts before it."""

    text: str
    thoughts: str
    finished: Finished
    score: float


def best_of(
    answers: Callable[[Sequence[Sampling]], Sequence[Iterator[TurnEvent]]],
    scorer: ReplyScorer,
    messages: Sequence[Message],
    count: int,
    sampling: Sampling,
    tell: Callable[[int], None] = lambda done: None,
) -> list[Scored]:
    """Draw replies and return them, the best first; when cancelled, only the finished ones.

    answers: starts replies that are drawn in turn. sampling: with a seed, from which further
    replies count up. tell: called with the number of replies so far. A failed reply ends all, and
    is returned only when no other has finished.
    """
    assert sampling.seed is not None
    samplings = [replace(sampling, seed=sampling.seed + number) for number in range(count)]
    scored: list[Scored] = []
    for start in range(0, count, MOST_AT_ONCE):
        for reply in _whole(answers(samplings[start : start + MOST_AT_ONCE])):
            if reply.finished.reason in ("error", "cancelled"):
                return sorted(scored, key=_by_score) or [reply]
            if text := reply.text.strip():
                reply = replace(reply, score=scorer.score(messages, text))
            scored.append(reply)
            tell(len(scored))
    return sorted(scored, key=_by_score)


def _whole(replies: Sequence[Iterator[TurnEvent]]) -> Iterator[Scored]:
    """Each reply as soon as it has ended, not scored yet."""
    so_far: list[list[TurnEvent]] = [[] for _ in replies]
    for number, event in interleaved(replies):
        if isinstance(event, BaseException):
            raise event
        so_far[number].append(event)
        if isinstance(event, Finished):
            text = "".join(part.text for part in so_far[number])
            thoughts = "".join(part.thought or "" for part in so_far[number])
            yield Scored(text, thoughts, event, float("-inf"))


def _by_score(reply: Scored) -> float:
    return -reply.score
