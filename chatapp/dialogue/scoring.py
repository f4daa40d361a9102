"""The score of a reply of a stored chat by a reward model.

Keep: a reply is scored behind the prompt that the row of a preference (dpo) would have, because
reward models learn from those: earlier replies as they were written, not as they were corrected.
"""

from bisect import bisect_left
from collections.abc import Sequence

from chatapp.dialogue.best_of import ReplyScorer
from chatapp.dialogue.feedback import answered_messages
from chatapp.dialogue.store import Store, StoredMessage
from chatapp.prompting.messages import Message


def can_be_scored(reply: StoredMessage) -> bool:
    """Whether a message is a reply that came to its end, and is not empty."""
    return reply.role == "assistant" and reply.status == "complete" and bool(reply.text.strip())


def stored_score(scorer: ReplyScorer, store: Store, reply: StoredMessage) -> float:
    """The score of a reply; for one deep in a chat without the oldest turns, as many as do not
    fit the reward model's window.

    Raises StoreError, and ValueError when not even the last turn fits.
    """
    assert reply.parent_id is not None
    path = store.path(reply.chat_id, reply.parent_id)
    messages = answered_messages(store.chat(reply.chat_id).system, path)
    text = reply.text.strip()
    return scorer.score(_fitting(scorer, messages, text), text)


def _fitting(scorer: ReplyScorer, messages: Sequence[Message], reply: str) -> list[Message]:
    """The messages without the oldest turns that do not fit; the instructions and the last
    message stay."""
    begin = 1 if messages[0].role == "system" else 0
    instructions, turns = messages[:begin], messages[begin:]

    def rest(dropped: int) -> list[Message]:
        return [*instructions, *turns[2 * dropped :]]

    most = len(turns) // 2
    dropped = bisect_left(range(most), True, key=lambda count: scorer.fits(rest(count), reply))
    return rest(dropped)
