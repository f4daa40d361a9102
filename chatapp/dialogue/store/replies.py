"""What the user thinks of replies: thumbs, ranks, corrections and comparisons.

Keep: judging a reply stores its text as it is then, so that going on with it later changes
nothing of what was judged.

What each reply was generated from, and how that ended.

Keep: the row is there before the first token, so that a reply that was cut off has one too.

Deleting a message, and bringing it back.

Keep: what is brought back is what there was, with its ids: texts, generations, verdicts.
"""

import json
import time
from collections.abc import Sequence
from typing import Any

from chatapp.dialogue.store.chats import ChatStore
from chatapp.dialogue.store.database import StoreError
from chatapp.dialogue.store.rows import Comparison, Deleted, Feedback, Generation, Verdict


class GenerationStore(ChatStore):
    """The generations of the chats of one file.

    Every method raises StoreError when the message or generation asked for does not exist.
    """

    def begin_generation(
        self,
        message_id: int,
        *,
        model: str,
        template: str,
        prompt: str,
        sampling: dict[str, Any],
        seed: int,
    ) -> int:
        """Record what the reply `message_id` is generated from; returns the generation's id."""
        with self.transaction():
            chat_id = self.message(message_id).chat_id
            self._change_chat(chat_id, "model", model)
            return self._insert(
                "INSERT INTO turns (message_id, model, template, prompt, sampling, seed, created)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (message_id, model, template, prompt, json.dumps(sampling), seed, time.time()),
            )

    def finish_generation(
        self,
        generation_id: int,
        *,
        reason: str,
        prompt_tokens: int,
        reused_tokens: int,
        reply_tokens: int,
        time_to_first_token: float,
        seconds: float,
    ) -> None:
        """Record how a generation ended. Times are in seconds."""
        self._row(
            "UPDATE turns SET reason = ?, prompt_tokens = ?, reused_tokens = ?, reply_tokens = ?,"
            " time_to_first_token = ?, seconds = ? WHERE id = ? RETURNING id",
            (
                *(reason, prompt_tokens, reused_tokens, reply_tokens),
                *(time_to_first_token, seconds, generation_id),
            ),
            f"there is no generation {generation_id}",
        )

    def generations(self, chat_id: int) -> list[Generation]:
        """All generations of a chat, oldest first."""
        rows = self._rows(
            """SELECT id, message_id, model, template, prompt, sampling, seed, created, reason,
                prompt_tokens, reused_tokens, reply_tokens, time_to_first_token, seconds
            FROM turns WHERE message_id IN (SELECT id FROM messages WHERE chat_id = ?)
            ORDER BY id""",
            (chat_id,),
        )
        return [Generation.of(row) for row in rows]

    def sent_prompt(self, message_id: int) -> str | None:
        """What a reply was first generated from; None for what was not generated here."""
        rows = self._rows(
            "SELECT prompt FROM turns WHERE message_id = ? ORDER BY id LIMIT 1", (message_id,)
        )
        return rows[0]["prompt"] if rows else None


class FeedbackStore(GenerationStore):
    """A store of chats that also keeps what the user thinks of their replies."""

    def feedback(self, chat_id: int) -> dict[int, Feedback]:
        """The feedback on a chat's replies, by message id."""
        rows = self._rows(
            """SELECT message_id, reply, thumb, rank, correction FROM feedback
            WHERE message_id IN (SELECT id FROM messages WHERE chat_id = ?)
                AND (thumb OR rank IS NOT NULL OR correction IS NOT NULL
                    OR EXISTS (SELECT 1 FROM comparisons WHERE left_id = message_id)
                    OR EXISTS (SELECT 1 FROM comparisons WHERE right_id = message_id))
            ORDER BY message_id""",
            (chat_id,),
        )
        return {row["message_id"]: Feedback(**row) for row in rows}

    def set_thumb(self, message_id: int, thumb: int) -> None:
        """Call a reply good (1) or bad (-1), or take that back (0)."""
        with self.transaction():
            self._judge(message_id, "thumb", thumb)

    def set_correction(self, message_id: int, text: str | None) -> None:
        """Say what a reply should have been, or with None that it may stay as it is."""
        with self.transaction():
            self._judge(message_id, "correction", text)

    def set_ranking(self, message_ids: Sequence[int]) -> None:
        """Rank replies to one message, the best first. Its other replies have no rank then."""
        with self.transaction():
            replies = [self.message(message_id) for message_id in message_ids]
            if len({(reply.chat_id, reply.parent_id) for reply in replies}) != 1:
                raise StoreError("only replies to the same message can be ranked")
            ranks = {message_id: rank for rank, message_id in enumerate(message_ids, 1)}
            for sibling in self.siblings(message_ids[0]):
                self._judge(sibling.id, "rank", ranks.get(sibling.id))

    def add_comparison(self, left_id: int, right_id: int, choice: Verdict) -> None:
        """Say which of two replies to one message is better, or that both are bad."""
        with self.transaction():
            left, right = self.message(left_id), self.message(right_id)
            if left_id == right_id or left.parent_id != right.parent_id:
                raise StoreError("only two replies to the same message can be compared")
            feedback = self.feedback(left.chat_id)
            for reply in (left, right):
                thumb = feedback[reply.id].thumb if reply.id in feedback else 0
                self._judge(reply.id, "thumb", -1 if choice == "both bad" else thumb)
            self._insert(
                "INSERT INTO comparisons (left_id, right_id, choice, created) VALUES (?, ?, ?, ?)",
                (left_id, right_id, choice, time.time()),
            )

    def comparisons(self, chat_id: int) -> list[Comparison]:
        """The comparisons in a chat, oldest first."""
        rows = self._rows(
            """SELECT left_id, right_id, choice FROM comparisons
            WHERE left_id IN (SELECT id FROM messages WHERE chat_id = ?) ORDER BY id""",
            (chat_id,),
        )
        return [Comparison(**row) for row in rows]

    def _judge(self, message_id: int, column: str, value: int | str | None) -> None:
        """Set a column of a reply's feedback, and keep the reply as it is now."""
        reply = self.message(message_id)
        if reply.role != "assistant":
            raise StoreError(f"message {message_id} is no reply")
        self._rows(
            f"INSERT INTO feedback (message_id, reply, {column}, updated) VALUES (?, ?, ?, ?)"
            f" ON CONFLICT (message_id) DO UPDATE SET reply = excluded.reply,"
            f" {column} = excluded.{column}, updated = excluded.updated",
            (message_id, reply.text, value, time.time()),
        )


_TABLES = {
    "messages": "id IN below",
    "turns": "message_id IN below",
    "feedback": "message_id IN below",
    "comparisons": "left_id IN below OR right_id IN below",
}

"""What goes with messages, and which of its rows. In this order they can be put back."""


_BELOW = """WITH RECURSIVE below (id) AS (
    SELECT ? UNION ALL SELECT messages.id FROM messages JOIN below ON parent_id = below.id
)"""


class DeletionStore(FeedbackStore):
    """A store whose messages can be deleted one by one."""

    def delete_message(self, message_id: int) -> Deleted:
        """Delete a message with all that follow it. The chat's path then goes through its newest
        sibling, or ends above it."""
        with self.transaction():
            message = self.message(message_id)
            leaf_id = self._open_chat(message.chat_id).leaf_id
            rows = {
                table: self._rows(
                    f"{_BELOW} SELECT * FROM {table} WHERE {condition} ORDER BY rowid",
                    (message_id,),
                )
                for table, condition in _TABLES.items()
            }
            others = [each.id for each in self.siblings(message_id) if each.id != message_id]
            count = len(rows["messages"])
            self._rows("DELETE FROM messages WHERE id = ?", (message_id,))
            end = self.latest_leaf(others[-1]) if others else message.parent_id
            if leaf_id is not None and leaf_id not in [row["id"] for row in rows["messages"]]:
                end = leaf_id  # it was on no path that is shown
            self._end_in(message.chat_id, end, -count)
        return Deleted(message.chat_id, message.parent_id, count, leaf_id or message_id, rows)

    def restore_messages(self, deleted: Deleted) -> None:
        """Bring deleted messages back. Raises Gone when what they followed is not there."""
        with self.transaction():
            self._open_chat(deleted.chat_id)
            if deleted.parent_id is not None:
                self._check_belongs(deleted.parent_id, deleted.chat_id)
            for table, rows in deleted.rows.items():
                for row in rows:
                    names, marks = ", ".join(row.keys()), ", ".join("?" * len(row))
                    self._rows(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(row))
            self._end_in(deleted.chat_id, deleted.leaf_id, deleted.count)

    def _end_in(self, chat_id: int, leaf_id: int | None, added: int) -> None:
        """Let a chat's path end elsewhere, after so many messages were added to it."""
        self._rows(
            "UPDATE chats SET leaf_id = ?, messages = messages + ? WHERE id = ?",
            (leaf_id, added, chat_id),
        )
