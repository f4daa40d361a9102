"""What each reply was generated from, and how that ended.

Keep: the row is there before the first token, so that a reply that was cut off has one too.
"""

import json
import time
from typing import Any

from chatapp.dialogue.store.chats import ChatStore
from chatapp.dialogue.store.rows import Generation


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
