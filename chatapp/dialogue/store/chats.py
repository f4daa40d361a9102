"""All chats in one SQLite file: messages as a tree, one row a turn, full-text search.

The one invariant: every method is one transaction, so that whatever happens to this process
the file holds whole messages, and an index and counts that agree with them.

Lone surrogates, which UTF-8 cannot hold, are stored as U+FFFD. All other text is stored as
it stands, control characters included.
"""

import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from chatapp.foreign import without_surrogates
from chatapp.prompting.messages import Role
from chatapp.userfiles import UserError

Status = Literal["complete", "partial", "stopped", "error"]
Verdict = Literal["left", "right", "equal", "both bad"]

_APPLICATION_ID = 0x63686174  # "chat": tells this program's databases from any other
_BUSY_SECONDS = 10.0
_TITLE_LENGTH = 60
_BACK_FOR_SECONDS = 24 * 60 * 60.0
_MOST_MATCHES = 5_000
_MOST_WORDS = 32
"""Words of a search that are looked at; SQLite bounds the depth of the expression."""

# The database is brought up to date by running, in order, those it has not seen. One that
# was released is never changed.
_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE chats (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            title TEXT NOT NULL,
            system TEXT,
            template TEXT NOT NULL,
            model TEXT NOT NULL,
            created REAL NOT NULL,
            updated REAL NOT NULL,
            leaf_id INTEGER REFERENCES messages(id) ON DELETE SET NULL,
            messages INTEGER NOT NULL DEFAULT 0
        ) STRICT""",
        "CREATE INDEX chats_by_update ON chats (updated DESC, id DESC)",
        """CREATE TABLE messages (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            chat_id INTEGER NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
            parent_id INTEGER REFERENCES messages(id) ON DELETE CASCADE,
            role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
            text TEXT NOT NULL,
            status TEXT NOT NULL CHECK (status IN ('complete', 'partial', 'stopped', 'error')),
            created REAL NOT NULL
        ) STRICT""",
        "CREATE INDEX messages_by_chat ON messages (chat_id)",
        "CREATE INDEX messages_by_parent ON messages (parent_id, chat_id)",
        "CREATE INDEX chats_by_leaf ON chats (leaf_id)",
        """CREATE TABLE turns (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            message_id INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE,
            model TEXT NOT NULL,
            template TEXT NOT NULL,
            prompt TEXT NOT NULL,
            sampling TEXT NOT NULL,
            seed INTEGER NOT NULL,
            created REAL NOT NULL,
            reason TEXT,
            prompt_tokens INTEGER,
            reused_tokens INTEGER,
            reply_tokens INTEGER,
            time_to_first_token REAL,
            seconds REAL
        ) STRICT""",
        "CREATE INDEX turns_by_message ON turns (message_id)",
        """CREATE VIRTUAL TABLE message_index USING fts5 (
            text, content = 'messages', content_rowid = 'id',
            tokenize = "unicode61 remove_diacritics 2", prefix = '1 2 3'
        )""",
        """CREATE TRIGGER message_added AFTER INSERT ON messages BEGIN
            INSERT INTO message_index (rowid, text) VALUES (new.id, new.text);
        END""",
        """CREATE TRIGGER message_deleted AFTER DELETE ON messages BEGIN
            INSERT INTO message_index (message_index, rowid, text)
            VALUES ('delete', old.id, old.text);
        END""",
        """CREATE TRIGGER message_changed AFTER UPDATE OF text ON messages BEGIN
            INSERT INTO message_index (message_index, rowid, text)
            VALUES ('delete', old.id, old.text);
            INSERT INTO message_index (rowid, text) VALUES (new.id, new.text);
        END""",
    ),
    (
        """CREATE TABLE feedback (
            message_id INTEGER PRIMARY KEY REFERENCES messages(id) ON DELETE CASCADE,
            reply TEXT NOT NULL,
            thumb INTEGER NOT NULL DEFAULT 0 CHECK (thumb IN (-1, 0, 1)),
            rank INTEGER,
            correction TEXT,
            updated REAL NOT NULL
        ) STRICT""",
        "ALTER TABLE chats ADD COLUMN archived INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE chats ADD COLUMN deleted REAL",
    ),
    (
        """CREATE TABLE comparisons (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            left_id INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE,
            right_id INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE,
            choice TEXT NOT NULL CHECK (choice IN ('left', 'right', 'equal', 'both bad')),
            created REAL NOT NULL
        ) STRICT""",
        "CREATE INDEX comparisons_by_left ON comparisons (left_id)",
        "CREATE INDEX comparisons_by_right ON comparisons (right_id)",
    ),
    (
        "ALTER TABLE chats ADD COLUMN prompt TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE chats ADD COLUMN asked_template TEXT NOT NULL DEFAULT ''",
    ),
    ("ALTER TABLE chats ADD COLUMN markdown INTEGER NOT NULL DEFAULT 0",),
)

_MESSAGE = """
    SELECT id, chat_id, parent_id, role, text, status, created,
        (SELECT count(*) FROM messages AS other
            WHERE other.parent_id IS message.parent_id AND other.chat_id = message.chat_id
            AND other.id <= message.id),
        (SELECT count(*) FROM messages AS other
            WHERE other.parent_id IS message.parent_id AND other.chat_id = message.chat_id)
    FROM messages AS message
"""


class StoreError(UserError):
    """What is wrong with the store or a request to it, in one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Basis:
    """What a chat is held with; nothing of its own at first.

    system: its instructions; None for those of its prompt file or template. prompt: the prompt
    file its messages are put into, by its name in the library or its path. asked_template: the
    template it asks for where a model has none of its own. Both are "" where there is none.
    """

    system: str | None = None
    prompt: str = ""
    asked_template: str = ""


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat without its messages. Times are unix seconds; `leaf_id` ends its current path.

    deleted: when it was put into the bin; None while it was not. For system, prompt and
    asked_template see `Basis`. markdown: its replies are shown as Markdown.
    """

    id: int
    title: str
    system: str | None
    template: str
    model: str
    created: float
    updated: float
    leaf_id: int | None
    archived: bool = False
    deleted: float | None = None
    prompt: str = ""
    asked_template: str = ""
    markdown: bool = False

    @property
    def basis(self) -> Basis:
        """What it is held with."""
        return Basis(self.system, self.prompt, self.asked_template)


@dataclass(frozen=True, slots=True)
class ChatSummary:
    """A line of the list of chats. `messages` counts those of all branches."""

    id: int
    title: str
    model: str
    messages: int
    updated: float
    archived: bool = False


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message and its place among its siblings: the `sibling`th (from 1) of `siblings`.

    A reply that is still `partial` when nobody writes it belongs to a process that died.
    """

    id: int
    chat_id: int
    parent_id: int | None
    role: Role
    text: str
    status: Status
    created: float
    sibling: int
    siblings: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation into one message. What `finish_turn` sets is None until then."""

    id: int
    message_id: int
    model: str
    template: str
    prompt: str
    sampling: dict[str, Any]
    seed: int
    created: float
    reason: str | None
    prompt_tokens: int | None
    reused_tokens: int | None
    reply_tokens: int | None
    time_to_first_token: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Feedback:
    """What the user thinks of a reply. What it was drawn from is in the reply's turns.

    reply: its text when it was judged last. thumb: 1 is good, -1 is bad, 0 is not said.
    rank: its place among the replies to the same message, 1 is the best; None is not ranked.
    correction: the text it should have been, if the user has written that.
    """

    message_id: int
    reply: str
    thumb: int
    rank: int | None
    correction: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two replies to one message that the user has set side by side, and which is better.

    What each was drawn from is in its turns, its text in its feedback.
    """

    left_id: int
    right_id: int
    choice: Verdict


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that was found. In `snippet`, \\x02 and \\x03 stand around each found word."""

    chat_id: int
    message_id: int
    title: str
    snippet: str
    role: Role
    updated: float


class Store:
    """The chats of one file. Usable from any thread; several processes may have it open.

    Every method raises StoreError when the file cannot be read or written, and when the
    chat, message or turn asked for does not exist.
    """

    def __init__(self, path: Path) -> None:
        """Open `path`, or create it, readable by its owner alone.

        Raises StoreError, and writes nothing, when the file is damaged, no database of
        this program, or made by a newer version of it.
        """
        self._path = path
        self._lock = threading.RLock()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # SQLite gives its -wal and -shm files the mode of the database. A file that exists
            # is not opened here: closing it would end the locks of this process's other stores.
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            if path.is_file():
                path.chmod(0o600)
        except OSError as error:
            raise StoreError(f"{path}: cannot be opened: {error.strerror}") from None
        with self._errors():
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                self._prepare()
                break
            except StoreError as error:
                # While another process makes the same file, SQLite does not wait by itself.
                name = getattr(error.__cause__, "sqlite_errorname", "")
                if not name.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                    self._connection.close()
                    raise
            time.sleep(0.01)

    def close(self) -> None:
        """Close the file. Nothing else may be called afterwards."""
        with self._lock:
            self._connection.close()

    def transaction(self) -> AbstractContextManager[None]:
        """What is done within is stored as a whole, or not at all."""
        return self._transaction()

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
    ) -> int:
        """A new, empty chat; returns its id. Ids are never used twice."""
        now = time.time()
        return self._insert(
            "INSERT INTO chats (title, system, template, model, prompt, asked_template, created,"
            " updated) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (title, system, template, model, prompt, asked_template, now, now),
        )

    def chat(self, chat_id: int) -> Chat:
        """A chat by its id."""
        row = self._row(
            "SELECT id, title, system, template, model, created, updated, leaf_id, archived,"
            " deleted, prompt, asked_template, markdown FROM chats WHERE id = ?",
            (chat_id,),
            f"there is no chat {chat_id}",
        )
        return replace(Chat(*row), archived=bool(row[8]), markdown=bool(row[12]))

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
            found = "instr(lower(title), lower(?))"
            values.append(matching.strip())
            if expression := _match_expression(matching):
                found += """ OR id IN (
                    SELECT chat_id FROM messages WHERE id IN
                        (SELECT rowid FROM message_index WHERE message_index MATCH ?
                        ORDER BY rowid DESC LIMIT ?))"""
                values += [expression, _MOST_MATCHES]
            condition += f" AND ({found})"
        rows = self._rows(
            f"SELECT id, title, model, messages, updated, archived FROM chats WHERE {condition}"
            " ORDER BY updated DESC, id DESC LIMIT ? OFFSET ?",
            (*values, limit, offset),
        )
        return [replace(ChatSummary(*row), archived=bool(row[5])) for row in rows]

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

    def bin_chat(self, chat_id: int) -> None:
        """Delete a chat in such a way that `restore_chat` brings it back within a day."""
        self._change_chat(chat_id, "deleted", time.time())

    def restore_chat(self, chat_id: int) -> None:
        """Bring a chat back from the bin."""
        self._change_chat(chat_id, "deleted", None)

    def empty_bin(self) -> None:
        """Delete for good what has been in the bin for a day."""
        self._execute("DELETE FROM chats WHERE deleted < ?", (time.time() - _BACK_FOR_SECONDS,))

    def delete_chat(self, chat_id: int) -> None:
        """Delete a chat with all its messages and turns, for good."""
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
    ) -> StoredMessage:
        """A new message below `parent_id` (None: at the root). The chat's path ends in it.

        A chat without a title takes that of its first user's message.
        """
        with self._transaction():
            chat = self.chat(chat_id)
            if parent_id is not None:
                self._check_belongs(parent_id, chat_id)
            now = time.time()
            message_id = self._insert(
                "INSERT INTO messages (chat_id, parent_id, role, text, status, created)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (chat_id, parent_id, role, text, status, now),
            )
            title = _title_from(text) if role == "user" and not chat.title else chat.title
            self._execute(
                "UPDATE chats SET leaf_id = ?, updated = ?, title = ?, messages = messages + 1"
                " WHERE id = ?",
                (message_id, now, title, chat_id),
            )
            return self.message(message_id)

    def update_message(self, message_id: int, text: str, status: Status) -> None:
        """Replace a message's text and status."""
        with self._transaction():
            chat_id = self.message(message_id).chat_id
            self._execute(
                "UPDATE messages SET text = ?, status = ? WHERE id = ?", (text, status, message_id)
            )
            self._execute("UPDATE chats SET updated = ? WHERE id = ?", (time.time(), chat_id))

    def message(self, message_id: int) -> StoredMessage:
        """A message by its id."""
        row = self._row(
            f"{_MESSAGE} WHERE id = ?", (message_id,), f"there is no message {message_id}"
        )
        return StoredMessage(*row)

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
                ) {_MESSAGE} JOIN above ON id = above_id ORDER BY id""",
                (leaf,),
            )
        return [StoredMessage(*row) for row in rows]

    def tree(self, chat_id: int) -> list[StoredMessage]:
        """All messages of a chat, of all branches, oldest first."""
        self.chat(chat_id)
        return [
            StoredMessage(*row)
            for row in self._rows(f"{_MESSAGE} WHERE chat_id = ? ORDER BY id", (chat_id,))
        ]

    def set_leaf(self, chat_id: int, message_id: int) -> None:
        """Let the chat's current path end in another of its messages."""
        with self._transaction():
            self._check_belongs(message_id, chat_id)
            self._execute("UPDATE chats SET leaf_id = ? WHERE id = ?", (message_id, chat_id))

    def siblings(self, message_id: int) -> list[StoredMessage]:
        """The messages with the same parent, the message itself among them, oldest first."""
        with self._lock:
            message = self.message(message_id)
            rows = self._rows(
                f"{_MESSAGE} WHERE parent_id IS ? AND chat_id = ? ORDER BY id",
                (message.parent_id, message.chat_id),
            )
        return [StoredMessage(*row) for row in rows]

    def latest_leaf(self, message_id: int) -> int:
        """The newest message below a message, or itself when it has no replies."""
        row = self._row(
            """WITH RECURSIVE below (below_id) AS (
                SELECT id FROM messages WHERE id = ?
                UNION ALL
                SELECT id FROM messages JOIN below ON parent_id = below_id
            ) SELECT max(below_id) FROM below HAVING count(*)""",
            (message_id,),
            f"there is no message {message_id}",
        )
        return int(row[0])

    # Turns

    def begin_turn(
        self,
        message_id: int,
        *,
        model: str,
        template: str,
        prompt: str,
        sampling: dict[str, Any],
        seed: int,
    ) -> int:
        """Record what the reply `message_id` is generated from; returns the turn's id."""
        with self._transaction():
            self.message(message_id)
            return self._insert(
                "INSERT INTO turns (message_id, model, template, prompt, sampling, seed, created)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (message_id, model, template, prompt, json.dumps(sampling), seed, time.time()),
            )

    def finish_turn(
        self,
        turn_id: int,
        *,
        reason: str,
        prompt_tokens: int,
        reused_tokens: int,
        reply_tokens: int,
        time_to_first_token: float,
        seconds: float,
    ) -> None:
        """Record how a turn ended. Times are in seconds."""
        self._row(
            "UPDATE turns SET reason = ?, prompt_tokens = ?, reused_tokens = ?, reply_tokens = ?,"
            " time_to_first_token = ?, seconds = ? WHERE id = ? RETURNING id",
            (
                *(reason, prompt_tokens, reused_tokens, reply_tokens),
                *(time_to_first_token, seconds, turn_id),
            ),
            f"there is no turn {turn_id}",
        )

    def turns(self, chat_id: int) -> list[Turn]:
        """All turns of a chat, oldest first."""
        rows = self._rows(
            """SELECT id, message_id, model, template, prompt, sampling, seed, created, reason,
                prompt_tokens, reused_tokens, reply_tokens, time_to_first_token, seconds
            FROM turns WHERE message_id IN (SELECT id FROM messages WHERE chat_id = ?)
            ORDER BY id""",
            (chat_id,),
        )
        return [Turn(*(json.loads(v) if i == 5 else v for i, v in enumerate(row))) for row in rows]

    def sent_prompt(self, message_id: int) -> str | None:
        """What a reply was first generated from; None for what was not generated here."""
        rows = self._rows(
            "SELECT prompt FROM turns WHERE message_id = ? ORDER BY id LIMIT 1", (message_id,)
        )
        return rows[0][0] if rows else None

    # Feedback

    def feedback(self, chat_id: int) -> dict[int, Feedback]:
        """What was said of a chat's replies, by message id."""
        rows = self._rows(
            """SELECT message_id, reply, thumb, rank, correction FROM feedback
            WHERE message_id IN (SELECT id FROM messages WHERE chat_id = ?)
                AND (thumb OR rank IS NOT NULL OR correction IS NOT NULL
                    OR EXISTS (SELECT 1 FROM comparisons WHERE left_id = message_id)
                    OR EXISTS (SELECT 1 FROM comparisons WHERE right_id = message_id))
            ORDER BY message_id""",
            (chat_id,),
        )
        return {row[0]: Feedback(*row) for row in rows}

    def set_thumb(self, message_id: int, thumb: int) -> None:
        """Call a reply good (1) or bad (-1), or take that back (0)."""
        with self._transaction():
            self._judge(message_id, "thumb", thumb)

    def set_correction(self, message_id: int, text: str | None) -> None:
        """Say what a reply should have been, or with None that it may stay as it is."""
        with self._transaction():
            self._judge(message_id, "correction", text)

    def set_ranking(self, message_ids: Sequence[int]) -> None:
        """Rank replies to one message, the best first. Its other replies have no rank then."""
        with self._transaction():
            replies = [self.message(message_id) for message_id in message_ids]
            if len({(reply.chat_id, reply.parent_id) for reply in replies}) != 1:
                raise StoreError("only replies to the same message can be ranked")
            for sibling in self.siblings(message_ids[0]):
                rank = None
                if sibling.id in message_ids:
                    rank = list(message_ids).index(sibling.id) + 1
                self._judge(sibling.id, "rank", rank)

    def add_comparison(self, left_id: int, right_id: int, choice: Verdict) -> None:
        """Say which of two replies to one message is better, or that both are bad."""
        with self._transaction():
            left, right = self.message(left_id), self.message(right_id)
            if left_id == right_id or left.parent_id != right.parent_id:
                raise StoreError("only two replies to the same message can be compared")
            said = self.feedback(left.chat_id)
            for reply in (left, right):
                thumb = said[reply.id].thumb if reply.id in said else 0
                self._judge(reply.id, "thumb", -1 if choice == "both bad" else thumb)
            self._insert(
                "INSERT INTO comparisons (left_id, right_id, choice, created) VALUES (?, ?, ?, ?)",
                (left_id, right_id, choice, time.time()),
            )

    def comparisons(self, chat_id: int) -> list[Comparison]:
        """What was compared in a chat, oldest first."""
        rows = self._rows(
            """SELECT left_id, right_id, choice FROM comparisons
            WHERE left_id IN (SELECT id FROM messages WHERE chat_id = ?) ORDER BY id""",
            (chat_id,),
        )
        return [Comparison(*row) for row in rows]

    def _judge(self, message_id: int, column: str, value: int | str | None) -> None:
        reply = self.message(message_id)
        if reply.role != "assistant":
            raise StoreError(f"message {message_id} is no reply")
        self._execute(
            f"INSERT INTO feedback (message_id, reply, {column}, updated) VALUES (?, ?, ?, ?)"
            f" ON CONFLICT (message_id) DO UPDATE SET reply = excluded.reply,"
            f" {column} = excluded.{column}, updated = excluded.updated",
            (message_id, reply.text, value, time.time()),
        )

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
            """SELECT chats.id, messages.id, title,
                snippet(message_index, 0, char(2), char(3), '…', 16), role, updated
            FROM message_index
            JOIN messages ON messages.id = message_index.rowid
            JOIN chats ON chats.id = messages.chat_id
            WHERE message_index MATCH ? AND deleted IS NULL
            ORDER BY message_index.rowid DESC LIMIT ?""",
            (expression, limit),
        )
        return [Hit(*row) for row in rows]

    # Underneath

    def _prepare(self) -> None:
        """Check what kind of file this is, and bring it up to date."""
        self._execute("PRAGMA foreign_keys = ON")
        # One snapshot: another process may be making the tables right now.
        with self._transaction("DEFERRED"):
            version = self._check_version()
        # Writers then never wait for readers, and a killed process leaves a whole file.
        self._execute("PRAGMA journal_mode = WAL")
        self._execute("PRAGMA synchronous = NORMAL")
        if version == len(_MIGRATIONS):
            return
        with self._transaction():
            # Asked again: another process may have been faster.
            for number in range(self._check_version(), len(_MIGRATIONS)):
                for statement in _MIGRATIONS[number]:
                    self._execute(statement)
                self._execute(f"PRAGMA user_version = {number + 1}")
            self._execute(f"PRAGMA application_id = {_APPLICATION_ID}")

    def _check_version(self) -> int:
        version = int(self._rows("PRAGMA user_version")[0][0])
        application = self._rows("PRAGMA application_id")[0][0]
        used = self._rows("SELECT count(*) FROM sqlite_schema")[0][0]
        if used and application != _APPLICATION_ID:
            raise StoreError(f"{self._path}: is a database of another program")
        if version > len(_MIGRATIONS):
            raise StoreError(
                f"{self._path}: was made by a newer version of chatapp (format {version}; "
                f"this version knows up to {len(_MIGRATIONS)})"
            )
        return version

    def _check_belongs(self, message_id: int, chat_id: int) -> None:
        if self.message(message_id).chat_id != chat_id:
            raise StoreError(f"message {message_id} is not in chat {chat_id}")

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        storable = [without_surrogates(v) if isinstance(v, str) else v for v in values]
        with self._lock, self._errors():
            return self._connection.execute(statement, storable).fetchall()

    def _row(self, statement: str, values: Sequence[Any], absent: str) -> tuple[Any, ...]:
        """The one row there is. Raises StoreError(absent) when there is none."""
        rows = self._rows(statement, values)
        if not rows:
            raise StoreError(absent)
        return rows[0]

    def _execute(self, statement: str, values: Sequence[Any] = ()) -> None:
        self._rows(statement, values)

    def _insert(self, statement: str, values: Sequence[Any]) -> int:
        return int(self._rows(f"{statement} RETURNING id", values)[0][0])

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """One transaction. An immediate one takes the right to write at once, so that it
        never has to give up half-way because another process wrote in between. Within
        another it is a part of that."""
        with self._lock:
            with self._errors():
                within_another = self._connection.in_transaction
            if within_another:
                yield
                return
            self._execute(f"BEGIN {kind}")
            try:
                yield
                self._execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._execute("ROLLBACK")
                raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """SQLite's errors in words."""
        try:
            yield
        except (sqlite3.OperationalError, sqlite3.ProgrammingError) as error:
            raise StoreError(f"{self._path}: cannot be used: {error}") from error
        except sqlite3.IntegrityError:
            raise  # a bug of this program, not of the file
        except sqlite3.DatabaseError as error:
            raise StoreError(
                f"{self._path}: is damaged or is no chat database ({error}); "
                "it was left as it is, move it away to start anew"
            ) from error


def _title_from(text: str) -> str:
    """The beginning of a message on one line."""
    line = " ".join(text[: 8 * _TITLE_LENGTH].split())
    return line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1].rstrip() + "…"


def _match_expression(query: str) -> str:
    """FTS5's expression for all words of `query`, the last as a prefix; "" if there is none.

    Each word is an FTS5 string, within which only the double quote has a meaning.
    """
    words = [f'"{word}"' for word in query.replace("\0", " ").replace('"', " ").split()]
    return " ".join(words[:_MOST_WORDS]) + " *" if words else ""
