"""Deleting a message, and bringing it back.

Keep: what is brought back is what there was, with its ids: texts, generations, verdicts.
"""

from chatapp.dialogue.store.feedback import FeedbackStore
from chatapp.dialogue.store.rows import Deleted

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
