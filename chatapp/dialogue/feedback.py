"""Feedback as rows for training: on corrections, on preferences (DPO), on verdicts (KTO).

The one invariant: a row holds what the model was given and what the user said of the answer,
and nothing that the user did not say: two replies make a preference only when one of them
was put before the other.

The rows are the conversational formats of TRL, https://huggingface.co/docs/trl/dataset_formats:
lists of {"role", "content"}. `finetune` reads those of corrections as they stand.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chatapp.dialogue.store import Chat, Comparison, Feedback, Store, StoredMessage

_Turn = dict[str, str]


class FeedbackFormat(StrEnum):
    """What the rows are to train with."""

    SFT = "sft"
    DPO = "dpo"
    KTO = "kto"


def feedback_rows(store: "Store", chat_id: int, format: FeedbackFormat) -> Iterator[dict[str, Any]]:
    """The rows that a chat's feedback gives, of all its branches, in the order of its messages.

    sft: {"messages"}, a row for each correction, which is its last reply. Earlier replies
        that were corrected stand there as corrected.
    dpo: {"prompt", "chosen", "rejected"}, a row for each pair of different answers to one
        message of which the user preferred one: a correction to its reply, the better ranked
        to the other, and where they were not both ranked the one that was better when they
        were compared, and else the good to the bad one.
    kto: {"prompt", "completion", "label"}, a row for each answer: a correction is good and
        its reply bad; else what the thumb says.
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
                    yield {"messages": prompt + _said(answer.correction)}
        elif format is FeedbackFormat.DPO:
            for chosen, rejected in _preferences(answers, compared):
                yield {
                    "prompt": _prompt(chat, path, {}),
                    "chosen": _said(chosen),
                    "rejected": _said(rejected),
                }
        else:
            for text, good in _verdicts(answers):
                yield {
                    "prompt": _prompt(chat, path, {}),
                    "completion": _said(text),
                    "label": good,
                }


def _prompt(
    chat: "Chat", path: "Sequence[StoredMessage]", judged: "Mapping[int, Feedback]"
) -> list[_Turn]:
    """The messages that were answered. Exchanges without a reply are left out, because all
    that reads these rows wants user and assistant in turn."""
    turns = [{"role": "system", "content": chat.system}] if chat.system else []
    for message, reply in pairwise(path):
        if message.role == "user" and reply.role == "assistant":
            known = judged.get(reply.id)
            text = known.correction if known and known.correction else reply.text
            if text.strip():
                turns += [{"role": "user", "content": message.text}, *_said(text)]
    return [*turns, {"role": "user", "content": path[-1].text}]


def _said(text: str) -> list[_Turn]:
    return [{"role": "assistant", "content": text}]


def _compared(comparisons: "Iterable[Comparison]") -> set[tuple[int, int]]:
    """(better, worse) message ids of the comparisons that one of the two has won."""
    won = set()
    for each in comparisons:
        if each.choice == "left":
            won.add((each.left_id, each.right_id))
        elif each.choice == "right":
            won.add((each.right_id, each.left_id))
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
    """Above 0 when `one` is better, below when `other` is, 0 when nothing was said of it."""
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
