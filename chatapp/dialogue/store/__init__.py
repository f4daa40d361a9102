"""All chats in one SQLite file.

`rows` has the values that the store returns, `queries` its statements, `database` the file.

Invariant: every method is one transaction, so whatever happens to this process, the file has whole
messages, and its index and counts agree with them.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain, count
from pathlib import Path
from typing import Unpack

from chatapp.dialogue.documents.sources import Source
from chatapp.dialogue.store import queries
from chatapp.dialogue.store.backup import forget_backups
from chatapp.dialogue.store.database import Database, Gone, StoreError
from chatapp.dialogue.store.rows import (
    Basis,
    ChatSummary,
    Comparison,
    Conditions,
    Deleted,
    Ending,
    Feedback,
    Generation,
    Hit,
    NewMessage,
    Origin,
    Status,
    StoredChat,
    StoredMessage,
    Verdict,
    own_origin,
    title_after,
)
from chatapp.prompting.messages import Call, Role
from chatapp.tasks.files.documents import DocumentSet

_SECONDS_IN_BIN, _SECONDS_UNTIL_TRUSTED = 24 * 60 * 60.0, 60 * 60.0
"""Of a chat in the bin, and of a clock that may have jumped."""

_INDEX_MEMORY, _MUCH_INDEX_MEMORY = 2**20, 2**25
"""Bytes that the index collects before it writes them: FTS5's default, and for many messages."""


class Store:
    """The chats of one file. Usable from any thread; several processes may have it open.

    Every method raises StoreError when the file cannot be read or written, and Gone when a
    chat, message or generation does not exist.
    """

    def __init__(self, path: Path | None) -> None:
        """path: of the file, created if necessary; None: in memory. Raises as `Database` does."""
        self._database = Database(path)
        self.transaction = self._database.transaction
        self.is_kept = path is not None
        """Whether the chats are on disk."""

    def close(self) -> None:
        """Close the file. No other method may be called afterwards."""
        self._database.close()

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
        origin: str = "",
    ) -> int:
        """A new, empty chat; returns its id. Ids are never used twice. origin: see `StoredChat`."""
        now = time.time()
        return self._database.insert(
            "chats",
            title=title,
            system=system,
            template=template,
            model=model,
            prompt=prompt,
            asked_template=asked_template,
            documents=documents and documents.to_dict(),
            origin=origin,
            created=now,
            updated=now,
        )

    def chat(self, chat_id: int) -> StoredChat:
        """A chat by its id."""
        return self._database.read_one(StoredChat.of, "chats", queries.CHAT, chat_id)

    def chats(
        self, *, limit: int = 100, offset: int = 0, matching: str = "", archived: bool | None = None
    ) -> list[ChatSummary]:
        """Chats that are not in the bin, the last changed first.

        matching: only those with this text in their title, or its words in one of the
            newest 5,000 messages that have them. archived: only those that are or are not.
        """
        statement, values = queries.chats(matching, archived)
        return self._database.read(ChatSummary.of, statement, *values, limit, offset)

    def chat_from(self, origin: str) -> int | None:
        """The chat outside the bin that was imported from there, or that began here and is it."""
        own_id = int(origin.split(":")[1]) if origin.startswith("chatapp:") else 0
        for row in self._database.rows(queries.FROM_ORIGIN, origin, own_id):
            if origin in (row["origin"], own_origin(row["id"], row["created"])):
                return int(row["id"])
        return None

    def rename_chat(self, chat_id: int, title: str) -> None:
        """Give a chat another title."""
        self._database.update("chats", chat_id, title=title)

    def unique_title(self, chat_id: int, title: str) -> str:
        """The title, numbered if another chat has it."""
        alike = {row["title"] for row in self._database.rows(queries.ALIKE, title, title, chat_id)}
        numbered = (f"{title} ({number})" for number in count(2))
        return next(name for name in chain([title], numbered) if name not in alike)

    def set_tags(self, chat_id: int, tags: str) -> None:
        """Give a chat other tags; see `StoredChat`."""
        self._database.update("chats", chat_id, tags=tags)

    def set_basis(self, chat_id: int, basis: Basis) -> None:
        """Change a chat's instructions, prompt file and template."""
        self._database.update("chats", chat_id, **asdict(basis))

    def set_archived(self, chat_id: int, archived: bool) -> None:
        """Archive a chat, or list it again."""
        self._database.update("chats", chat_id, archived=archived)

    def set_markdown(self, chat_id: int, markdown: bool) -> None:
        """Show the chat's replies as Markdown, or as plain text."""
        self._database.update("chats", chat_id, markdown=markdown)

    def set_chosen(self, chat_id: int, chosen: Mapping[str, object]) -> None:
        """Store the chat's sampling parameters, by name."""
        self._database.update("chats", chat_id, chosen=dict(chosen))

    def set_documents(self, chat_id: int, documents: DocumentSet | None) -> None:
        """Set the documents of a chat; None removes them."""
        self._database.update("chats", chat_id, documents=documents and documents.to_dict())

    def set_tools(self, chat_id: int, names: Sequence[str]) -> None:
        """Set the tools that a chat's model may call."""
        self._database.update("chats", chat_id, tools=list(names))

    def allow_tool(self, chat_id: int, permission: str) -> None:
        """Let a tool run in this chat without asking. permission: see `Tool.permission`."""
        with self.transaction():
            allowed = {*self.chat(chat_id).allowed_tools, permission}
            self._database.update("chats", chat_id, allowed_tools=sorted(allowed))

    def bin_chat(self, chat_id: int) -> None:
        """Put a chat into the bin, from which `restore_chat` brings it back within a day."""
        self._database.update("chats", chat_id, deleted=time.time())

    def restore_chat(self, chat_id: int) -> None:
        """Bring a chat back from the bin."""
        self._database.update("chats", chat_id, deleted=None)

    def empty_bin(self) -> None:
        """Delete for good the chats that were put into the bin more than a day ago, if a chat was
        changed or this was called since that day, over an hour ago: a clock that has just jumped
        ahead says nothing. For one of a clock that was ahead the day begins now.
        """
        now = time.time()
        self._database.rows("UPDATE chats SET deleted = ? WHERE deleted > ?", now, now)
        noted = "UPDATE chats SET updated = ? WHERE deleted + ? < ? AND updated < deleted + ?"
        self._database.rows(noted, now, _SECONDS_IN_BIN, now, _SECONDS_IN_BIN)
        statement = """DELETE FROM chats WHERE deleted + ? <
            (SELECT max(updated) FROM chats WHERE updated < ?) RETURNING id"""
        if self._database.rows(statement, _SECONDS_IN_BIN, now - _SECONDS_UNTIL_TRUSTED):
            forget_backups(self._database.path)

    def delete_chat(self, chat_id: int) -> None:
        """Delete a chat with all its messages and their generations, for good, also on a full
        disk."""
        self._database.delete("chats", chat_id)
        forget_backups(self._database.path)

    def _open_chat(self, chat_id: int) -> StoredChat:
        """A chat that is not in the bin."""
        chat = self.chat(chat_id)
        if chat.deleted is not None:
            raise Gone(f"chat {chat_id} has been deleted")
        return chat

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
        """Add a message below `parent_id` (None: at the root). The chat's path then ends in it.

        A chat without a title takes it from its first user's message, or, when that is only a
        greeting, from the next. Raises Gone when the chat is in the bin.
        """
        with self.transaction():
            title = self._open_chat(chat_id).title
            if parent_id is not None:
                self._check_belongs(parent_id, chat_id)
            row = {"chat_id": chat_id, "parent_id": parent_id, "role": role, "text": text}
            origin = [asdict(source) for source in sources]
            now = time.time()
            message_id = self._database.insert(
                "messages", **row, status=status, created=now, sources=origin
            )
            if role == "user" and (newer := title_after(title, text)) != title:
                title = self.unique_title(chat_id, newer)
            self._database.update("chats", chat_id, title=title, updated=now)
            self._end_path(chat_id, message_id, 1)
            return self.message(message_id)

    def add_messages(
        self,
        chat_id: int,
        messages: Iterable[NewMessage | StoredMessage],
        parent_id: int | None = None,
    ) -> None:
        """Add messages to a chat, the first below `parent_id` (None: at the root) and each below
        the one before; the path ends in the last.

        Its title is as after `add_message` for each. Raises Gone when the chat is in the bin.
        """
        with self.transaction():
            title, last, added, now = self._open_chat(chat_id).title, parent_id, 0, time.time()
            for message in messages:
                last = self._database.insert(
                    "messages",
                    **{"chat_id": chat_id, "parent_id": last, "created": now},
                    **{"role": message.role, "text": message.text, "status": message.status},
                    thoughts=message.thoughts,
                    sources=[asdict(source) for source in message.sources],
                    calls=[asdict(call) for call in message.calls],
                    changes=message.changes,
                    original=message.original,
                )
                added += 1
                if message.role == "user":
                    title = title_after(title, message.text)
            self._database.update("chats", chat_id, title=title, updated=now)
            self._end_path(chat_id, last, added)

    def copy_messages(self, chat_id: int, message_ids: Sequence[int]) -> None:
        """Copy messages with their times and generations into an empty chat, each below the one
        before; the path ends in the last. Raises Gone when a message does not exist.
        """
        with self.transaction():
            last: int | None = None
            for message_id in message_ids:
                message = self._database.row("messages", queries.MESSAGE_ROW, message_id)
                place = {"id": None, "chat_id": chat_id, "parent_id": last}
                last = self._database.insert("messages", **{**message, **place})
                for turn in self._database.rows(queries.TURN_ROWS, message_id):
                    self._database.insert("turns", **{**turn, "id": None, "message_id": last})
            self._end_path(chat_id, last, len(message_ids))

    @contextmanager
    def indexed_together(self) -> Iterator[Callable[[], None]]:
        """A transaction whose new messages enter the index at the end, and whenever the function
        is called that it gives: thousands at once take a third of the time of one by one.
        """
        newest = "SELECT coalesce(max(id), 0) FROM messages"
        with self.transaction():
            rows = self._database.rows
            ((indexed,),), ((trigger,),) = rows(newest), rows(queries.INDEXING_TRIGGER)
            rows("DROP TRIGGER message_added")
            rows(queries.INDEX_MEMORY, _MUCH_INDEX_MEMORY)

            def index() -> None:
                nonlocal indexed
                rows(queries.INDEX_AFTER, indexed)
                ((indexed,),) = rows(newest)

            yield index
            index()
            rows(queries.INDEX_MEMORY, _INDEX_MEMORY)
            rows(trigger)

    def update_message(self, message_id: int, text: str, status: Status) -> None:
        """Replace a message's text and status."""
        with self.transaction():
            self._database.update("messages", message_id, text=text, status=status)
            chat_id = self.message(message_id).chat_id
            self._database.update("chats", chat_id, updated=time.time())

    def edit_reply(self, message_id: int, text: str) -> None:
        """Replace a reply's text by the user's, and keep the model's."""
        with self.transaction():
            reply = self.message(message_id)
            own = reply.text if reply.original is None else reply.original
            original = None if text == own else own
            self._database.update("messages", message_id, text=text, original=original)

    def update_thoughts(self, message_id: int, thoughts: str, tokens: int) -> None:
        """Replace the thoughts before a reply. tokens: their number."""
        self._database.update("messages", message_id, thoughts=thoughts, thought_tokens=tokens)

    def update_calls(self, message_id: int, calls: Sequence[Call]) -> None:
        """Replace the calls of tools within a reply."""
        self._database.update("messages", message_id, calls=[asdict(call) for call in calls])

    def update_remark(self, message_id: int, remark: str) -> None:
        """Replace the remark on how a reply was generated."""
        self._database.update("messages", message_id, remark=remark)

    def update_changes(self, message_id: int, changes: str) -> None:
        """Replace the words for what was changed inside the model at a reply."""
        self._database.update("messages", message_id, changes=changes)

    def message(self, message_id: int) -> StoredMessage:
        """A message by its id."""
        statement = f"{queries.MESSAGES} WHERE id = ?"
        return self._database.read_one(StoredMessage.of, "messages", statement, message_id)

    def path(self, chat_id: int, leaf_id: int | None = None) -> list[StoredMessage]:
        """The messages from the root to a leaf: to the chat's own unless another is given."""
        with self.transaction("DEFERRED"):
            leaf = leaf_id if leaf_id is not None else self.chat(chat_id).leaf_id
            if leaf is None:
                return []
            self._check_belongs(leaf, chat_id)
            return self._messages(queries.PATH, leaf)

    def tree(self, chat_id: int) -> list[StoredMessage]:
        """All messages of a chat, of all branches, oldest first."""
        with self.transaction("DEFERRED"):
            self.chat(chat_id)
            return self._messages(f"{queries.MESSAGES} WHERE chat_id = ? ORDER BY id", chat_id)

    def siblings(self, message_id: int) -> list[StoredMessage]:
        """The messages with the same parent, including the message itself, oldest first."""
        with self.transaction("DEFERRED"):
            message = self.message(message_id)
            statement = f"{queries.MESSAGES} WHERE parent_id IS ? AND chat_id = ? ORDER BY id"
            return self._messages(statement, message.parent_id, message.chat_id)

    def latest_leaf(self, message_id: int) -> int:
        """The newest message below a message, or itself when it has no replies."""
        row = self._database.row("messages", queries.LATEST_LEAF, message_id)
        return int(row["below_id"])

    def set_leaf(self, chat_id: int, message_id: int) -> None:
        """End the chat's current path in another of its messages. Raises Gone when the chat is in
        the bin.
        """
        with self.transaction():
            self._open_chat(chat_id)
            self._check_belongs(message_id, chat_id)
            self._database.update("chats", chat_id, leaf_id=message_id)

    def delete_message(self, message_id: int) -> Deleted:
        """Delete a message with all that follow it. The chat's path then passes through its newest
        sibling, or ends above it.
        """
        with self.transaction():
            message = self.message(message_id)
            leaf_id = self._open_chat(message.chat_id).leaf_id
            rows = {
                table: self._database.rows(statement, message_id)
                for table, statement in queries.WITH_MESSAGE.items()
            }
            ids = [row["id"] for row in rows["messages"]]
            others = [other.id for other in self.siblings(message_id) if other.id != message_id]
            self._database.rows("DELETE FROM messages WHERE id = ?", message_id)
            end = self.latest_leaf(others[-1]) if others else message.parent_id
            if leaf_id is not None and leaf_id not in ids:
                end = leaf_id  # the message was not on the chat's path
            self._end_path(message.chat_id, end, -len(ids))
        return Deleted(message.chat_id, message.parent_id, len(ids), leaf_id or message_id, rows)

    def restore_messages(self, deleted: Deleted) -> None:
        """Restore deleted messages with their ids, generations and feedback. Raises Gone when the
        message before them does not exist.
        """
        with self.transaction():
            self._open_chat(deleted.chat_id)
            if deleted.parent_id is not None:
                self._check_belongs(deleted.parent_id, deleted.chat_id)
            for table, rows in deleted.rows.items():
                for row in rows:
                    self._database.insert(table, **row)
            self._end_path(deleted.chat_id, deleted.leaf_id, deleted.count)

    def _messages(self, statement: str, *values: int | None) -> list[StoredMessage]:
        return self._database.read(StoredMessage.of, statement, *values)

    def _end_path(self, chat_id: int, leaf_id: int | None, added: int) -> None:
        """End a chat's path in a message, and count the messages added to the chat."""
        self._database.rows(
            "UPDATE chats SET leaf_id = ?, messages = messages + ? WHERE id = ?",
            *(leaf_id, added, chat_id),
        )

    def _check_belongs(self, message_id: int, chat_id: int) -> None:
        if self.message(message_id).chat_id != chat_id:
            raise StoreError(f"message {message_id} is not in chat {chat_id}")

    def search(self, query: str, *, limit: int = 50) -> list[Hit]:
        """Messages of all branches that contain every word of `query`, newest first.

        Chats in the bin are left out. Case and accents do not matter, and the last word may be a
        prefix. The query is text to find, never query syntax.
        """
        expression = queries.match_expression(query)
        rows = self._database.rows(queries.SEARCH, expression, limit) if expression else []
        return [Hit(**row) for row in rows]

    # Generations: a row exists before the first token, so that an interrupted reply has one

    def begin_generation(self, message_id: int, **origin: Unpack[Origin]) -> int:
        """Record the conditions of the reply `message_id`; return the generation's id."""
        with self.transaction():
            chat_id = self.message(message_id).chat_id
            self._database.update("chats", chat_id, model=origin["model"])
            return self._database.insert(
                "turns", message_id=message_id, created=time.time(), **origin
            )

    def set_model(self, chat_id: int, model: str) -> None:
        """Name the model of a chat, until another one replies."""
        self._database.update("chats", chat_id, model=model)

    def finish_generation(self, generation_id: int, **ending: Unpack[Ending]) -> None:
        """Record how a generation ended."""
        self._database.update("turns", generation_id, **ending)

    def generations(self, chat_id: int) -> list[Generation]:
        """All generations of a chat, oldest first."""
        return self._database.read(Generation.of, queries.GENERATIONS, chat_id)

    def conditions(self, chat_id: int) -> dict[int, Conditions]:
        """What was in force when the replies of a chat began, by message id. Replies that an
        earlier version generated, and those not generated here, are without."""
        return dict(
            self._database.read(
                lambda row: (row["message_id"], Conditions.of(row["conditions"])),
                *(queries.CONDITIONS, chat_id),
            )
        )

    def sent_prompt(self, message_id: int) -> str | None:
        """The prompt of a reply's first generation; None for a reply not generated here."""
        statement = "SELECT prompt FROM turns WHERE message_id = ? ORDER BY id LIMIT 1"
        rows = self._database.rows(statement, message_id)
        return rows[0]["prompt"] if rows else None

    # Feedback: stored with the reply's text, so that continuing the reply later changes nothing

    def feedback(self, chat_id: int) -> dict[int, Feedback]:
        """The feedback on a chat's replies, by message id."""
        rows = self._database.rows(queries.FEEDBACK, chat_id)
        return {row["message_id"]: Feedback(**row) for row in rows}

    def set_thumb(self, message_id: int, thumb: int) -> None:
        """Rate a reply good (1) or bad (-1), or remove the rating (0)."""
        with self.transaction():
            self._set_feedback(message_id, "thumb", thumb)

    def set_correction(self, message_id: int, text: str | None) -> None:
        """Store the correct text of a reply; None removes it."""
        with self.transaction():
            self._set_feedback(message_id, "correction", text)

    def set_ranking(self, message_ids: Sequence[int]) -> None:
        """Rank replies to one message, the best first. Its other replies lose their rank."""
        with self.transaction():
            replies = [self.message(message_id) for message_id in message_ids]
            if len({(reply.chat_id, reply.parent_id) for reply in replies}) != 1:
                raise StoreError("only replies to the same message can be ranked")
            ranks = {message_id: rank for rank, message_id in enumerate(message_ids, 1)}
            for sibling in self.siblings(message_ids[0]):
                self._set_feedback(sibling.id, "rank", ranks.get(sibling.id))

    def add_comparison(self, left_id: int, right_id: int, choice: Verdict) -> None:
        """Store which of two replies to one message is better, or that both are bad."""
        with self.transaction():
            left, right = self.message(left_id), self.message(right_id)
            if left_id == right_id or left.parent_id != right.parent_id:
                raise StoreError("only two replies to the same message can be compared")
            feedback = self.feedback(left.chat_id)
            for reply in (left, right):
                thumb = feedback[reply.id].thumb if reply.id in feedback else 0
                self._set_feedback(reply.id, "thumb", -1 if choice == "both bad" else thumb)
            row = {"left_id": left_id, "right_id": right_id, "choice": choice}
            self._database.insert("comparisons", **row, created=time.time())

    def comparisons(self, chat_id: int) -> list[Comparison]:
        """The comparisons in a chat, oldest first."""
        return [Comparison(**row) for row in self._database.rows(queries.COMPARISONS, chat_id)]

    def _set_feedback(self, message_id: int, column: str, value: int | str | None) -> None:
        """Set a column of a reply's feedback, and store the reply's current text."""
        reply = self.message(message_id)
        if reply.role != "assistant":
            raise StoreError(f"message {message_id} is not a reply")
        self._database.rows(
            f"INSERT INTO feedback (message_id, reply, {column}, updated) VALUES (?, ?, ?, ?)"
            f" ON CONFLICT (message_id) DO UPDATE SET reply = excluded.reply,"
            f" {column} = excluded.{column}, updated = excluded.updated",
            *(message_id, reply.text, value, time.time()),
        )
