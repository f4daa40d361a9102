"""What the user thinks of replies: thumbs, ranks, corrections and comparisons.

Keep: judging a reply stores its text as it is then, so that going on with it later changes
nothing of what was judged.
"""

import time
from collections.abc import Sequence

from chatapp.dialogue.store.database import StoreError
from chatapp.dialogue.store.generations import GenerationStore
from chatapp.dialogue.store.rows import Comparison, Feedback, Verdict


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
