"""Feedback as rows for training: on corrections (SFT), preferences (DPO) and verdicts (KTO).

A row is a line of JSON in one of the conversational formats of
TRL's documentation (dataset formats), where a message is {"role", "content"}:

    sft   {"messages": [message, …]}
          A row for each correction, which is the last message. Earlier replies are in
          their corrected form.
    dpo   {"prompt": [message, …], "chosen": [message], "rejected": [message]}
          A row for each pair of different answers to one message if the user prefers one:
          a correction over its reply; the better ranked over the other; if they are not both
          ranked, the winner of their comparison; and else the good over the bad one.
    kto   {"prompt": [message, …], "completion": [message], "label": true or false}
          A row for each answer: a correction is good and its reply bad; else the thumb
          decides.

A prompt ends in the user's message that was answered. It has the conditions at the beginning of the
reply: the instructions, a prompt file's demonstrations, the passages before the message; "tools"
are those that the model could call, and calls have the form of OpenAI's protocol. If the two
replies of a preference had different conditions, those of the better one count. "edited" is true
where the user has edited the answer in place, so that its text is not the model's. A reply that
is one of a prompt file's labels gives no row, because it was chosen from a list, not written; nor
does one of a model that was changed inside, because that is another model. "model" is the name of
the model that wrote the reply, or the chat's for one that was not generated here; and
"rejected_model" that of the worse reply, where it is another. `finetune` reads the rows of
corrections unchanged.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from chatapp.dialogue.documents.sources import texts_in_prompt
from chatapp.prompting.messages import Message

if TYPE_CHECKING:
    from chatapp.dialogue.store import Store
    from chatapp.dialogue.store.rows import (
        Comparison,
        Conditions,
        Feedback,
        StoredChat,
        StoredMessage,
    )

_Message = dict[str, Any]


class FeedbackFormat(StrEnum):
    """The method that the rows are for."""

    SFT = "sft"
    DPO = "dpo"
    KTO = "kto"


def feedback_rows(store: "Store", chat_id: int, format: FeedbackFormat) -> Iterator[dict[str, Any]]:
    """The rows from a chat's feedback, on all branches, in the order of its messages.

    Raises StoreError when there is no such chat.
    """
    compared = _compared(store.comparisons(chat_id))
    feedback_by_id = store.feedback(chat_id)
    by_parent: dict[int, list[_Answer]] = {}
    for answer in _answers(store, chat_id):
        by_parent.setdefault(answer.reply.parent_id or 0, []).append(answer)
    for parent_id, answers in by_parent.items():
        path = store.path(chat_id, parent_id)
        if format is FeedbackFormat.SFT:
            for answer in answers:
                if answer.feedback.correction:
                    row = answer.prompt(path, feedback_by_id)
                    messages = row.pop("prompt") + _written(answer.feedback.correction)
                    yield {"messages": messages, **row}
        elif format is FeedbackFormat.DPO:
            for better, worse, chosen, rejected in _preferences(answers, compared):
                other = {"rejected_model": worse.model} if worse.model != better.model else {}
                yield {**better.prompt(path), "chosen": chosen, "rejected": rejected, **other}
        else:
            for answer in answers:
                for completion, good in _verdicts(answer):
                    yield {**answer.prompt(path), "completion": completion, "label": good}


def rows_of_model(rows: Iterable[dict[str, Any]], model: str) -> list[dict[str, Any]]:
    """The rows whose replies are all by the model of this name."""
    return [row for row in rows if row.get("model") == model == row.get("rejected_model", model)]


@dataclass(frozen=True, slots=True)
class _Answer:
    """A reply with its feedback, the conditions at its beginning, and its model's name or ""."""

    reply: "StoredMessage"
    feedback: "Feedback"
    conditions: "Conditions"
    model: str

    @property
    def written(self) -> list[_Message]:
        """What the model wrote, up to the last feedback, with its calls."""
        from chatapp.dialogue.writers.prompt import Exchange, in_protocol

        return in_protocol(Exchange("", self.feedback.reply, calls=self.reply.calls).replied())

    def prompt(
        self,
        path: "Sequence[StoredMessage]",
        feedback_by_id: "Mapping[int, Feedback] | None" = None,
    ) -> dict[str, Any]:
        """The messages that were answered and the tools, as fields of a row."""
        from chatapp.dialogue.writers.prompt import in_protocol

        messages = answered_messages(self.conditions, path, self.reply, feedback_by_id)
        tools = {"tools": list(self.conditions.tools)} if self.conditions.tools else {}
        edited = {"edited": True} if self.reply.is_edited else {}
        model = {"model": self.model} if self.model else {}
        return {"prompt": in_protocol(messages), **tools, **edited, **model}


def _answers(store: "Store", chat_id: int) -> Iterator[_Answer]:
    """The answers that have feedback, except labels of a prompt file."""
    chat, known = store.chat(chat_id), store.conditions(chat_id)
    models = {one.message_id: one.model for one in store.generations(chat_id)}
    for id, feedback in store.feedback(chat_id).items():
        reply = store.message(id)
        conditions = known.get(id) or conditions_of(chat)
        # For a label stored by an earlier version, the store has only the remark.
        is_label = conditions.is_label or (id not in known and bool(chat.prompt and reply.remark))
        if reply.parent_id is not None and not is_label and not reply.changes:
            yield _Answer(reply, feedback, conditions, models.get(id, chat.model))


def conditions_of(chat: "StoredChat") -> "Conditions":
    """What is in force in a chat as far as the chat alone shows it: its instructions."""
    from chatapp.dialogue.store.rows import Conditions

    return Conditions((("system", chat.system),) if chat.system else ())


def answered_messages(
    conditions: "Conditions",
    path: "Sequence[StoredMessage]",
    answer: "StoredMessage",
    feedback_by_id: "Mapping[int, Feedback] | None" = None,
) -> list[Message]:
    """The messages that a reply answers, in the form of feedback rows.

    Exchanges without a reply are left out, because readers of these rows expect user and assistant
    to alternate. path: down to the answered message. feedback_by_id: on earlier replies, whose
    corrections replace them.
    """
    from chatapp.dialogue.writers.prompt import Exchange

    messages = [Message(role, text) for role, text in conditions.opening]
    for message, reply in pairwise(path) if conditions.goes_on else ():
        if message.role == "user" and reply.role == "assistant":
            feedback = (feedback_by_id or {}).get(reply.id)
            correction = feedback.correction if feedback else None
            text = correction or reply.text
            calls = () if correction else reply.calls
            replied = Exchange("", text, calls=calls).replied()
            if text.strip() or calls:
                messages += [Message("user", conditions.prefix + message.text), *replied]
    passages = "".join(texts_in_prompt(answer.sources))
    return [*messages, Message("user", conditions.prefix + passages + path[-1].text)]


def _written(text: str) -> list[_Message]:
    return [{"role": "assistant", "content": text}]


def _compared(comparisons: "Iterable[Comparison]") -> set[tuple[int, int]]:
    """The (better, worse) message ids of the decided comparisons."""
    won = set()
    for comparison in comparisons:
        left, right = comparison.left_id, comparison.right_id
        if comparison.choice == "left":
            won.add((left, right))
        elif comparison.choice == "right":
            won.add((right, left))
    return won


def _preferences(
    answers: Sequence[_Answer], compared: set[tuple[int, int]]
) -> Iterator[tuple[_Answer, _Answer, list[_Message], list[_Message]]]:
    """(better answer, worse answer, their messages), each pair of texts once."""
    pairs = [
        (answer, answer, _written(answer.feedback.correction), answer.written)
        for answer in answers
        if answer.feedback.correction is not None
    ]
    for one, other in combinations(answers, 2):
        order = _preference(one.feedback, other.feedback, compared)
        if order:
            better, worse = (one, other) if order > 0 else (other, one)
            pairs.append((better, worse, better.written, worse.written))
    seen: set[tuple[str, ...]] = set()
    for better, worse, chosen, rejected in pairs:
        texts = tuple(json.dumps(messages) for messages in (chosen, rejected))
        if chosen != rejected and texts not in seen and _says(chosen) and _says(rejected):
            seen.add(texts)
            yield better, worse, chosen, rejected


def _says(messages: Sequence[_Message]) -> bool:
    """Whether an answer ends in text."""
    return bool(messages) and bool(messages[-1]["content"].strip())


def _preference(one: "Feedback", other: "Feedback", compared: set[tuple[int, int]]) -> int:
    """Above 0 when `one` is better, below when `other` is, 0 without a preference of the user."""
    if one.rank is not None and other.rank is not None:
        return other.rank - one.rank
    if (one.message_id, other.message_id) in compared:
        return 1
    if (other.message_id, one.message_id) in compared:
        return -1
    return one.thumb - other.thumb if one.thumb * other.thumb < 0 else 0


def _verdicts(answer: _Answer) -> Iterator[tuple[list[_Message], bool]]:
    """The completions that the feedback on an answer rates good or bad."""
    feedback = answer.feedback
    if feedback.correction is not None:
        yield _written(feedback.correction), True
    if _says(answer.written) and (feedback.thumb or feedback.correction is not None):
        yield answer.written, feedback.thumb > 0 and feedback.correction is None
