"""Chats, their messages as a tree, and full-text search.

Keep: every method is one transaction, so that whatever happens to this process the file holds
whole messages, and an index and counts that agree with them.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from chatapp.dialogue.store.database import Database, Gone, StoreError
from chatapp.dialogue.store.rows import Basis, Chat, ChatSummary, Hit, Status, StoredMessage
from chatapp.passages.sources import Source
from chatapp.prompting.files.documents import DocumentSet
from chatapp.prompting.messages import Call, Role

_TITLE_LENGTH = 60
_SENTENCE = re.compile(r".{11,}?[.!?](?= )")
_GREETINGS = {"hi", "hello", "hey", "hi there", "hello there", "good morning", "good evening"}
"""First messages that say nothing of what a chat is about."""

_BACK_FOR_SECONDS = 24 * 60 * 60.0
_MOST_MATCHES = 5_000
_MOST_WORDS = 32
"""Words of a search that are looked at; SQLite bounds the depth of the expression."""

_SELECT_MESSAGE = """
    SELECT id, chat_id, parent_id, role, text, status, created,
        (SELECT count(*) FROM messages AS other
            WHERE other.parent_id IS message.parent_id AND other.chat_id = message.chat_id
            AND other.id <= message.id) AS sibling,
        (SELECT count(*) FROM messages AS other
            WHERE other.parent_id IS message.parent_id AND other.chat_id = message.chat_id)
            AS siblings,
        thoughts, thought_tokens, sources, calls, remark
    FROM messages AS message
"""


class ChatStore(Database):
    """The chats of one file.

    Every method raises StoreError when the chat or message asked for does not exist.
    """

    # Chats

    def create_chat(
        self,
        *,
        title: str = "",
        system: str | None = None,
        template: str = "",
        model: str = "",
        prompt: str = "",
        asked_template: str = "",
        documents: DocumentSet | None = None,
    ) -> int:
        """A new, empty chat; returns its id. Ids are never used twice."""
        now = time.time()
        chat = (title, system, template, model, prompt, asked_template, _documents_json(documents))
        return self._insert(
            "INSERT INTO chats (title, system, template, model, prompt, asked_template, documents,"
            " created, updated) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*chat, now, now),
        )

    def chat(self, chat_id: int) -> Chat:
        """A chat by its id."""
        row = self._row(
            "SELECT id, title, system, template, model, created, updated, leaf_id, archived,"
            " deleted, prompt, asked_template, markdown, chosen, documents, tools,"
            " allowed_tools, reward FROM chats WHERE id = ?",
            (chat_id,),
            f"there is no chat {chat_id}",
        )
        return Chat.of(row)

    def chats(
        self,
        *,
        limit: int = 100,
        offset: int = 0,
        matching: str = "",
        archived: bool | None = None,
    ) -> list[ChatSummary]:
        """Chats that are not in the bin, the last changed first.

        matching: only those with this text in their title, or its words in one of the
            newest 5,000 messages that have them. archived: only those that are or are not.
        """
        condition, values = "deleted IS NULL", list[Any]()
        if archived is not None:
            condition += f" AND archived = {int(archived)}"
        if matching.strip():
            matches = "instr(lower(title), lower(?))"
            values.append(matching.strip())
            if expression := _match_expression(matching):
                matches += """ OR id IN (
                    SELECT chat_id FROM messages WHERE id IN
                        (SELECT rowid FROM message_index WHERE message_index MATCH ?
                        ORDER BY rowid DESC LIMIT ?))"""
                values += [expression, _MOST_MATCHES]
            condition += f" AND ({matches})"
        rows = self._rows(
            f"SELECT id, title, model, messages, updated, archived FROM chats WHERE {condition}"
            " ORDER BY updated DESC, id DESC LIMIT ? OFFSET ?",
            (*values, limit, offset),
        )
        return [ChatSummary.of(row) for row in rows]

    def rename_chat(self, chat_id: int, title: str) -> None:
        """Give a chat another title."""
        self._change_chat(chat_id, "title", title)

    def set_system(self, chat_id: int, system: str | None) -> None:
        """Give a chat other instructions; None for those of its template."""
        self._change_chat(chat_id, "system", system)

    def set_basis(self, chat_id: int, basis: Basis) -> None:
        """Hold a chat with something else."""
        self._row(
            "UPDATE chats SET prompt = ?, system = ?, asked_template = ? WHERE id = ? RETURNING id",
            (basis.prompt, basis.system, basis.asked_template, chat_id),
            f"there is no chat {chat_id}",
        )

    def set_archived(self, chat_id: int, archived: bool) -> None:
        """Put a chat out of the way, or back."""
        self._change_chat(chat_id, "archived", int(archived))

    def set_markdown(self, chat_id: int, markdown: bool) -> None:
        """Show the chat's replies as Markdown, or as they are written."""
        self._change_chat(chat_id, "markdown", int(markdown))

    def set_chosen(self, chat_id: int, chosen: Mapping[str, object]) -> None:
        """Draw the chat's replies with these sampling parameters, by name."""
        self._change_chat(chat_id, "chosen", json.dumps(dict(chosen)))

    def set_reward(self, chat_id: int, name: str) -> None:
        """Have the chat's replies scored by a reward model; "" is by none."""
        self._change_chat(chat_id, "reward", name)

    def set_documents(self, chat_id: int, documents: DocumentSet | None) -> None:
        """Let a chat draw on documents, or on none."""
        self._change_chat(chat_id, "documents", _documents_json(documents))

    def set_tools(self, chat_id: int, names: Sequence[str]) -> None:
        """Let a chat's model call these tools."""
        self._change_chat(chat_id, "tools", json.dumps(list(names)))

    def allow_tool(self, chat_id: int, key: str) -> None:
        """Let a tool run without asking in all of a chat. key: see `Tool.key`."""
        with self.transaction():
            allowed = {*self.chat(chat_id).allowed_tools, key}
            self._change_chat(chat_id, "allowed_tools", json.dumps(sorted(allowed)))

    def bin_chat(self, chat_id: int) -> None:
        """Delete a chat in such a way that `restore_chat` brings it back within a day."""
        self._change_chat(chat_id, "deleted", time.time())

    def restore_chat(self, chat_id: int) -> None:
        """Bring a chat back from the bin."""
        self._change_chat(chat_id, "deleted", None)

    def empty_bin(self) -> None:
        """Delete for good what has been in the bin for a day."""
        self._rows("DELETE FROM chats WHERE deleted < ?", (time.time() - _BACK_FOR_SECONDS,))

    def delete_chat(self, chat_id: int) -> None:
        """Delete a chat with all its messages and their generations, for good."""
        self._row(
            "DELETE FROM chats WHERE id = ? RETURNING id",
            (chat_id,),
            f"there is no chat {chat_id}",
        )

    def _change_chat(self, chat_id: int, column: str, value: str | float | None) -> None:
        self._row(
            f"UPDATE chats SET {column} = ? WHERE id = ? RETURNING id",
            (value, chat_id),
            f"there is no chat {chat_id}",
        )

    # Messages

    def add_message(
        self,
        chat_id: int,
        parent_id: int | None,
        role: Role,
        text: str,
        *,
        status: Status = "complete",
        sources: Sequence[Source] = (),
    ) -> StoredMessage:
        """A new message below `parent_id` (None: at the root). The chat's path ends in it.

        A chat without a title takes it from its first user's message, or, when that only greets,
        from the next. Raises Gone when the chat
        is in the bin.
        """
        with self.transaction():
            chat = self._open_chat(chat_id)
            if parent_id is not None:
                self._check_belongs(parent_id, chat_id)
            now = time.time()
            message_id = self._insert(
                "INSERT INTO messages (chat_id, parent_id, role, text, status, created, sources)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (chat_id, parent_id, role, text, status, now, _sources_json(sources)),
            )
            has_title = chat.title and not _is_greeting(chat.title)
            title = _title_from(text) if role == "user" and not has_title else chat.title
            self._rows(
                "UPDATE chats SET leaf_id = ?, updated = ?, title = ?, messages = messages + 1"
                " WHERE id = ?",
                (message_id, now, title, chat_id),
            )
            return self.message(message_id)

    def update_message(self, message_id: int, text: str, status: Status) -> None:
        """Replace a message's text and status."""
        with self.transaction():
            chat_id = self.message(message_id).chat_id
            self._rows(
                "UPDATE messages SET text = ?, status = ? WHERE id = ?", (text, status, message_id)
            )
            self._rows("UPDATE chats SET updated = ? WHERE id = ?", (time.time(), chat_id))

    def update_thoughts(self, message_id: int, thoughts: str, tokens: int) -> None:
        """Replace what was thought before a reply. tokens: how many that were."""
        self._row(
            "UPDATE messages SET thoughts = ?, thought_tokens = ? WHERE id = ? RETURNING id",
            (thoughts, tokens, message_id),
            f"there is no message {message_id}",
        )

    def update_calls(self, message_id: int, calls: Sequence[Call]) -> None:
        """Replace the calls of tools within a reply."""
        self._row(
            "UPDATE messages SET calls = ? WHERE id = ? RETURNING id",
            (json.dumps([asdict(call) for call in calls]), message_id),
            f"there is no message {message_id}",
        )

    def update_remark(self, message_id: int, remark: str) -> None:
        """Replace how a reply came about, in words."""
        self._row(
            "UPDATE messages SET remark = ? WHERE id = ? RETURNING id",
            (remark, message_id),
            f"there is no message {message_id}",
        )

    def message(self, message_id: int) -> StoredMessage:
        """A message by its id."""
        row = self._row(
            f"{_SELECT_MESSAGE} WHERE id = ?", (message_id,), f"there is no message {message_id}"
        )
        return StoredMessage.of(row)

    def path(self, chat_id: int, leaf_id: int | None = None) -> list[StoredMessage]:
        """The messages from the root to a leaf: to the chat's own unless another is given."""
        with self._lock:
            leaf = leaf_id if leaf_id is not None else self.chat(chat_id).leaf_id
            if leaf is None:
                return []
            self._check_belongs(leaf, chat_id)
            rows = self._rows(
                f"""WITH RECURSIVE above (above_id, next_id) AS (
                    SELECT id, parent_id FROM messages WHERE id = ?
                    UNION ALL
                    SELECT id, parent_id FROM messages JOIN above ON id = next_id
                ) {_SELECT_MESSAGE} JOIN above ON id = above_id ORDER BY id""",
                (leaf,),
            )
        return [StoredMessage.of(row) for row in rows]

    def tree(self, chat_id: int) -> list[StoredMessage]:
        """All messages of a chat, of all branches, oldest first."""
        self.chat(chat_id)
        return [
            StoredMessage.of(row)
            for row in self._rows(f"{_SELECT_MESSAGE} WHERE chat_id = ? ORDER BY id", (chat_id,))
        ]

    def set_leaf(self, chat_id: int, message_id: int) -> None:
        """Let the chat's current path end in another of its messages. Raises Gone when the chat
        is in the bin."""
        with self.transaction():
            self._open_chat(chat_id)
            self._check_belongs(message_id, chat_id)
            self._rows("UPDATE chats SET leaf_id = ? WHERE id = ?", (message_id, chat_id))

    def siblings(self, message_id: int) -> list[StoredMessage]:
        """The messages with the same parent, the message itself among them, oldest first."""
        with self._lock:
            message = self.message(message_id)
            rows = self._rows(
                f"{_SELECT_MESSAGE} WHERE parent_id IS ? AND chat_id = ? ORDER BY id",
                (message.parent_id, message.chat_id),
            )
        return [StoredMessage.of(row) for row in rows]

    def latest_leaf(self, message_id: int) -> int:
        """The newest message below a message, or itself when it has no replies."""
        row = self._row(
            """WITH RECURSIVE below (below_id) AS (
                SELECT id FROM messages WHERE id = ?
                UNION ALL
                SELECT id FROM messages JOIN below ON parent_id = below_id
            ) SELECT below_id FROM below ORDER BY below_id DESC LIMIT 1""",
            (message_id,),
            f"there is no message {message_id}",
        )
        return int(row["below_id"])

    def _open_chat(self, chat_id: int) -> Chat:
        """A chat that is not in the bin."""
        chat = self.chat(chat_id)
        if chat.deleted is not None:
            raise Gone(f"chat {chat_id} has been deleted")
        return chat

    def _check_belongs(self, message_id: int, chat_id: int) -> None:
        if self.message(message_id).chat_id != chat_id:
            raise StoreError(f"message {message_id} is not in chat {chat_id}")

    # Search

    def search(self, query: str, *, limit: int = 50) -> list[Hit]:
        """Messages of all branches that hold every word of `query`, newest first.

        Chats in the bin are left out. Case and accents do not matter, and the last word may
        be the start of one. Whatever is in the query is text to find, never query syntax.
        """
        expression = _match_expression(query)
        if not expression:
            return []
        rows = self._rows(
            """SELECT chats.id AS chat_id, messages.id AS message_id, title, role, updated,
                snippet(message_index, 0, char(2), char(3), '…', 16) AS snippet
            FROM message_index
            JOIN messages ON messages.id = message_index.rowid
            JOIN chats ON chats.id = messages.chat_id
            WHERE message_index MATCH ? AND deleted IS NULL
            ORDER BY message_index.rowid DESC LIMIT ?""",
            (expression, limit),
        )
        return [Hit(**row) for row in rows]


def _documents_json(documents: DocumentSet | None) -> str | None:
    return None if documents is None else json.dumps(documents.to_dict())


def _sources_json(sources: Sequence[Source]) -> str:
    return json.dumps([asdict(source) for source in sources])


def _title_from(text: str) -> str:
    """The first sentence of a message on one line, or as many of its words as a title has room
    for."""
    line = " ".join(text[: 8 * _TITLE_LENGTH].split())
    if (sentence := _SENTENCE.match(line)) is not None:
        line = sentence[0].removesuffix(".")
    if len(line) <= _TITLE_LENGTH:
        return line
    words, _, _ = line[:_TITLE_LENGTH].rpartition(" ")
    return (words or line[: _TITLE_LENGTH - 1]) + "…"


def _is_greeting(title: str) -> bool:
    return title.strip(" .,!?").lower() in _GREETINGS


def _match_expression(query: str) -> str:
    """FTS5's expression for all words of `query`, the last as a prefix; "" if there is none.

    Each word is an FTS5 string, within which only the double quote has a meaning.
    """
    words = [f'"{word}"' for word in query.replace("\0", " ").replace('"', " ").split()]
    return " ".join(words[:_MOST_WORDS]) + " *" if words else ""
