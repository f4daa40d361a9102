"""Feedback as rows for training: on corrections (SFT), preferences (DPO) and verdicts (KTO).

A row is a line of JSON in one of the conversational formats of
TRL's documentation (dataset formats), where a message is {"role", "content"}:

    sft   {"messages": [message, …]}
          A row for each correction, which is the last message. Earlier replies that were
          corrected stand there as corrected.
    dpo   {"prompt": [message, …], "chosen": [message], "rejected": [message]}
          A row for each pair of different answers to one message of which the user preferred
          one: a correction to its reply; the better ranked to the other; where they were not
          both ranked, the winner of their comparison; and else the good to the bad one.
    kto   {"prompt": [message, …], "completion": [message], "label": true or false}
          A row for each answer: a correction is good and its reply bad; else what the thumb
          says.

A prompt ends in the user's message that was answered. `finetune` reads the rows of corrections
as they stand.

Keep: a row holds what the model was given and what the user said of the answer, and nothing
that the user did not say: two replies make a preference only when one of them was put before
the other.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from chatapp.prompting.messages import Message

if TYPE_CHECKING:
    from chatapp.dialogue.store import Store
    from chatapp.dialogue.store.rows import Comparison, Feedback, StoredChat, StoredMessage

_Message = dict[str, str]


class FeedbackFormat(StrEnum):
    """What the rows are to train with."""

    SFT = "sft"
    DPO = "dpo"
    KTO = "kto"


def feedback_rows(store: "Store", chat_id: int, format: FeedbackFormat) -> Iterator[dict[str, Any]]:
    """The rows that a chat's feedback gives, of all its branches, in the order of its messages.

    Raises StoreError when there is no such chat.
    """
    chat = store.chat(chat_id)
    judged = store.feedback(chat_id)
    compared = _compared(store.comparisons(chat_id))
    by_parent: dict[int, list[Feedback]] = {}
    for feedback in judged.values():
        parent_id = store.message(feedback.message_id).parent_id
        if parent_id is not None:
            by_parent.setdefault(parent_id, []).append(feedback)
    for parent_id, answers in by_parent.items():
        path = store.path(chat_id, parent_id)
        if format is FeedbackFormat.SFT:
            prompt = _prompt(chat, path, judged)
            for answer in answers:
                if answer.correction:
                    yield {"messages": prompt + _answer(answer.correction)}
        elif format is FeedbackFormat.DPO:
            for chosen, rejected in _preferences(answers, compared):
                yield {
                    "prompt": _prompt(chat, path, {}),
                    "chosen": _answer(chosen),
                    "rejected": _answer(rejected),
                }
        else:
            for text, good in _verdicts(answers):
                yield {
                    "prompt": _prompt(chat, path, {}),
                    "completion": _answer(text),
                    "label": good,
                }


def _prompt(
    chat: "StoredChat", path: "Sequence[StoredMessage]", judged: "Mapping[int, Feedback]"
) -> list[_Message]:
    answered = answered_messages(chat.system, path, judged)
    return [{"role": message.role, "content": message.text} for message in answered]


def answered_messages(
    system: str | None,
    path: "Sequence[StoredMessage]",
    judged: "Mapping[int, Feedback] | None" = None,
) -> list[Message]:
    """The messages that were answered, as rows of feedback have them.

    Exchanges without a reply are left out, because all that reads these rows wants user and
    assistant in turn. path: down to the user's message that was answered. judged: what the user
    has said of earlier replies, whose corrections stand in their place.
    """
    messages = [Message("system", system)] if system else []
    for message, reply in pairwise(path):
        if message.role == "user" and reply.role == "assistant":
            feedback = (judged or {}).get(reply.id)
            text = feedback.correction if feedback and feedback.correction else reply.text
            if text.strip():
                messages += [Message("user", message.text), Message("assistant", text)]
    return [*messages, Message("user", path[-1].text)]


def _answer(text: str) -> list[_Message]:
    return [{"role": "assistant", "content": text}]


def _compared(comparisons: "Iterable[Comparison]") -> set[tuple[int, int]]:
    """(better, worse) message ids of the comparisons that one of the two has won."""
    won = set()
    for comparison in comparisons:
        left, right = comparison.left_id, comparison.right_id
        if comparison.choice == "left":
            won.add((left, right))
        elif comparison.choice == "right":
            won.add((right, left))
    return won


def _preferences(
    answers: "Sequence[Feedback]", compared: set[tuple[int, int]]
) -> Iterator[tuple[str, str]]:
    """(better, worse) texts, each pair once."""
    pairs = [
        (answer.correction, answer.reply) for answer in answers if answer.correction is not None
    ]
    for one, other in combinations(answers, 2):
        order = _preference(one, other, compared)
        if order:
            better, worse = (one, other) if order > 0 else (other, one)
            pairs.append((better.reply, worse.reply))
    for pair in dict.fromkeys(pairs):
        if pair[0] != pair[1] and all(text.strip() for text in pair):
            yield pair


def _preference(one: "Feedback", other: "Feedback", compared: set[tuple[int, int]]) -> int:
    """Above 0 when `one` is better, below when `other` is, 0 when the user put neither first."""
    if one.rank is not None and other.rank is not None:
        return other.rank - one.rank
    if (one.message_id, other.message_id) in compared:
        return 1
    if (other.message_id, one.message_id) in compared:
        return -1
    return one.thumb - other.thumb if one.thumb * other.thumb < 0 else 0


def _verdicts(answers: "Sequence[Feedback]") -> Iterator[tuple[str, bool]]:
    for answer in answers:
        if answer.correction is not None:
            yield answer.correction, True
        if answer.reply.strip() and (answer.thumb or answer.correction is not None):
            yield answer.reply, answer.thumb > 0 and answer.correction is None
