"""Scores of a reward model: of stored replies, and of several replies to find the best.

Invariant: a reply is scored as in finetune's training: after its prompt, in the reward model's own
template, closed as that template closes it. The prompt of a stored reply is that of a preference
row (dpo) under the chat's current instructions, with earlier replies as written, not as corrected.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from chatapp.dialogue.feedback import answered_messages, conditions_of
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.rows import StoredMessage
from chatapp.dialogue.writers.choosing import own_template
from chatapp.engine.backends.head import RewardModel
from chatapp.engine.batch import MOST_AT_ONCE
from chatapp.engine.encoding import ids_of, without_start
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Event, Finished
from chatapp.engine.model import Sampling
from chatapp.engine.models.loading import load_reward_model
from chatapp.prompting.chat_template import ChatTemplate, Template
from chatapp.prompting.messages import END_OF_TEXT, Message, Segment


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

    def fits(self, messages: Sequence[Message], reply: str) -> bool:
        """Whether the reward model's window has room for all of them. Raises ValueError."""
        ids = closed_ids(self.template, self.model, messages, reply)
        return len(ids) <= self.model.context


def closed_ids(
    template: Template, model: RewardModel, messages: Sequence[Message], reply: str
) -> list[int]:
    """The tokens of a chat that ends in a reply, without those that start every sequence."""
    whole = template.render([*messages, Message("assistant", reply)])
    if isinstance(template, ChatTemplate):
        last = max(i for i, segment in enumerate(whole) if segment.kind == "assistant")
        if not any(segment.kind == "special" for segment in whole[last:]):
            whole = [*whole, _end(template, model)]
    elif whole[-1].kind != "end":
        whole = [*whole, END_OF_TEXT]
    return ids_of(without_start(whole, model), model.tokenizer)


def _end(template: ChatTemplate, model: RewardModel) -> Segment:
    """The end of a reply that the template leaves open: the stop string of chats."""
    special = model.tokenizer.special
    names = (text for text in template.stop if text in special)
    return next((Segment("special", name) for name in names), END_OF_TEXT)


@dataclass(frozen=True, slots=True)
class Scored:
    """A reply with its score. thoughts: the model's thoughts before it."""

    text: str
    thoughts: str
    finished: Finished
    score: float


def best_of(
    ask: Callable[[Sequence[Sampling], threading.Event], Sequence[Iterator[Event]]],
    scorer: ReplyScorer,
    messages: Sequence[Message],
    count: int,
    sampling: Sampling,
    cancel: threading.Event,
    tell: Callable[[int], None] = lambda done: None,
) -> list[Scored]:
    """Draw replies and return them, the best first; when cancelled, only the finished ones.

    ask: starts replies that are drawn in turn. sampling: with a seed, from which further replies
    count up. tell: called with the number of replies so far. A failed reply ends all, and is
    returned only when no other has finished.
    """
    assert sampling.seed is not None
    samplings = [replace(sampling, seed=sampling.seed + number) for number in range(count)]
    scored: list[Scored] = []
    for start in range(0, count, MOST_AT_ONCE):
        for reply in _whole(ask(samplings[start : start + MOST_AT_ONCE], cancel)):
            if reply.finished.reason in ("error", "cancelled"):
                return sorted(scored, key=_by_score) or [reply]
            if text := reply.text.strip():
                reply = replace(reply, score=scorer.score(messages, text))
            scored.append(reply)
            tell(len(scored))
    return sorted(scored, key=_by_score)


def _whole(replies: Sequence[Iterator[Event]]) -> Iterator[Scored]:
    """Each reply as soon as it has ended, not scored yet."""
    events_of_replies: list[list[Event]] = [[] for _ in replies]
    going_on = list(zip(replies, events_of_replies, strict=True))
    while going_on:
        for reply in list(going_on):
            events, so_far = reply
            event = next(events)
            so_far.append(event)
            if isinstance(event, Finished):
                going_on.remove(reply)
                text = "".join(part.text for part in so_far)
                thoughts = "".join(part.thought or "" for part in so_far)
                yield Scored(text, thoughts, event, float("-inf"))


def _by_score(reply: Scored) -> float:
    return -reply.score


def can_be_scored(reply: StoredMessage) -> bool:
    """Whether a message is a finished reply that is not empty."""
    return reply.role == "assistant" and reply.status == "complete" and bool(reply.text.strip())


def stored_score(scorer: ReplyScorer, store: Store, reply: StoredMessage) -> float:
    """The score of a stored reply; the oldest turns that do not fit the reward model's window are
    left out.

    Raises StoreError, and ValueError when not even the last turn fits.
    """
    assert reply.parent_id is not None
    path = store.path(reply.chat_id, reply.parent_id)
    conditions = conditions_of(store.chat(reply.chat_id))
    messages = answered_messages(conditions, path, reply, with_calls=False)
    text = reply.text.strip()
    return scorer.score(_fitting(scorer, messages, text), text)


def _fitting(scorer: ReplyScorer, messages: Sequence[Message], reply: str) -> list[Message]:
    """The messages without the oldest turns that do not fit; the instructions and the last message
    stay.
    """
    begin = 1 if messages[0].role == "system" else 0
    instructions, turns = messages[:begin], messages[begin:]

    def rest(dropped: int) -> list[Message]:
        return [*instructions, *turns[2 * dropped :]]

    most = len(turns) // 2
    dropped = bisect_left(range(most), True, key=lambda count: scorer.fits(rest(count), reply))
    return rest(dropped)
