"""Several replies to one question, and the one that a reward model scores highest.

Keep: a reply is scored as finetune learnt to score it: behind its prompt, in the reward model's own
template, closed as that closes it.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from chatapp.dialogue.template_choice import own_template
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Event, Finished
from chatapp.engine.model import Sampling
from chatapp.engine.reward_model import RewardModel, load_reward_model
from chatapp.fewshot.encoding import ids_of, without_start
from chatapp.prompting.chat_template import ChatTemplate, Template
from chatapp.prompting.messages import Message
from chatapp.prompting.segments import END_OF_TEXT, Segment


class ReplyScorer:
    """Scores replies with a reward model. Raises ModelError when that has no template."""

    def __init__(self, model: RewardModel) -> None:
        template = own_template(model.files.path, model.tokenizer.special)
        if template is None:
            raise ModelError(f"{model.name}: this reward model brings no dialogue template")
        self.model, self.template = model, template
        self.name = model.name

    @classmethod
    def load(cls, name: str) -> "ReplyScorer":
        """By the name of a reward model. Raises ModelError."""
        return cls(load_reward_model(name))

    def score(self, messages: Sequence[Message], reply: str) -> float:
        """The score of a reply to messages, the last of them the user's. Raises ValueError."""
        return self.model.score(closed_ids(self.template, self.model, messages, reply))

    def fits(self, messages: Sequence[Message], reply: str) -> bool:
        """Whether the reward model can read all of them. Raises ValueError."""
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
    """What ends a reply that the template leaves open: what chats stop at."""
    special = model.tokenizer.special
    names = (text for text in template.stop if text in special)
    return next((Segment("special", name) for name in names), END_OF_TEXT)


@dataclass(frozen=True, slots=True)
class Scored:
    """A reply with its score. thoughts: what was thought before it."""

    text: str
    thoughts: str
    finished: Finished
    score: float


def best_of(
    ask: Callable[[Sampling, threading.Event], Iterator[Event]],
    scorer: ReplyScorer,
    messages: Sequence[Message],
    count: int,
    sampling: Sampling,
    cancel: threading.Event,
    tell: Callable[[int], None] = lambda done: None,
) -> list[Scored]:
    """Replies, the best first; fewer when it was cancelled, then with those that were whole.

    sampling: with a seed, from which each further reply counts on. tell: called with how many
        replies are there. A reply that failed is not scored; when the first one fails, it is
        the only one.
    """
    assert sampling.seed is not None
    scored: list[Scored] = []
    for number in range(count):
        text = thoughts = ""
        finished = Finished("error")
        for event in ask(replace(sampling, seed=sampling.seed + number), cancel):
            text += event.text
            thoughts += event.thought or ""
            if isinstance(event, Finished):
                finished = event
        if finished.reason in ("error", "cancelled"):
            return sorted(scored, key=_by_score) or [
                Scored(text, thoughts, finished, float("-inf"))
            ]
        score = scorer.score(messages, text.strip()) if text.strip() else float("-inf")
        scored.append(Scored(text, thoughts, finished, score))
        tell(number + 1)
    return sorted(scored, key=_by_score)


def _by_score(reply: Scored) -> float:
    return -reply.score
