"""The store's longer statements."""

from dataclasses import fields

from chatapp.dialogue.store.rows import ChatSummary, Comparison, Feedback, Generation, StoredChat


def _columns(kind: type) -> str:
    return ", ".join(field.name for field in fields(kind))


_MOST_MATCHES = 5_000
_MOST_WORDS = 32
"""Words of a search that are used; SQLite limits the depth of the expression."""

ALIKE = "SELECT title FROM chats WHERE substr(title, 1, length(?)) = ? AND id != ?"
"""The titles of other chats that begin in the same way."""

FROM_ORIGIN = """SELECT id, created, origin FROM chats
    WHERE deleted IS NULL AND ((origin = ? AND origin != '') OR id = ?) ORDER BY id"""
"""The chats with an origin, and the one with an id."""

CHAT = f"SELECT {_columns(StoredChat)} FROM chats WHERE id = ?"

MESSAGES = """
    SELECT id, chat_id, parent_id, role, text, status, created,
        (SELECT count(*) FROM messages AS other
            WHERE other.parent_id IS message.parent_id AND other.chat_id = message.chat_id
            AND other.id <= message.id) AS sibling,
        (SELECT count(*) FROM messages AS other
            WHERE other.parent_id IS message.parent_id AND other.chat_id = message.chat_id)
            AS siblings,
        thoughts, thought_tokens, sources, calls, remark, changes, original
    FROM messages AS message
"""

PATH = f"""
    WITH RECURSIVE above (above_id, next_id) AS (
        SELECT id, parent_id FROM messages WHERE id = ?
        UNION ALL
        SELECT id, parent_id FROM messages JOIN above ON id = next_id
    ) {MESSAGES} JOIN above ON id = above_id ORDER BY id"""

INDEXING_TRIGGER = "SELECT sql FROM sqlite_schema WHERE name = 'message_added'"
INDEX_AFTER = "INSERT INTO message_index (rowid, text) SELECT id, text FROM messages WHERE id > ?"
"""Index the messages whose id is above a value."""

INDEX_MEMORY = "INSERT INTO message_index (message_index, rank) VALUES ('hashsize', ?)"

LATEST_LEAF = """
    WITH RECURSIVE below (below_id) AS (
        SELECT id FROM messages WHERE id = ?
        UNION ALL
        SELECT id FROM messages JOIN below ON parent_id = below_id
    ) SELECT below_id FROM below ORDER BY below_id DESC LIMIT 1"""

MESSAGE_ROW = "SELECT * FROM messages WHERE id = ?"
TURN_ROWS = "SELECT * FROM turns WHERE message_id = ? ORDER BY id"

_BELOW = """WITH RECURSIVE below (id) AS (
    SELECT ? UNION ALL SELECT messages.id FROM messages JOIN below ON parent_id = below.id
)"""
WITH_MESSAGE = {
    table: f"{_BELOW} SELECT * FROM {table} WHERE {condition} ORDER BY rowid"
    for table, condition in {
        "messages": "id IN below",
        "turns": "message_id IN below",
        "feedback": "message_id IN below",
        "comparisons": "left_id IN below OR right_id IN below",
    }.items()
}
"""For each table, the rows that are deleted with a message, in an order that allows
restoring them."""

_OF_CHAT = "IN (SELECT id FROM messages WHERE chat_id = ?)"
GENERATIONS = f"""
    SELECT {_columns(Generation)} FROM turns WHERE message_id {_OF_CHAT} ORDER BY id"""
CONDITIONS = f"""
    SELECT message_id, conditions FROM turns WHERE id IN
        (SELECT min(id) FROM turns WHERE message_id {_OF_CHAT} GROUP BY message_id)
    AND conditions IS NOT NULL"""
COMPARISONS = f"""
    SELECT {_columns(Comparison)} FROM comparisons WHERE left_id {_OF_CHAT} ORDER BY id"""
FEEDBACK = f"""
    SELECT {_columns(Feedback)} FROM feedback WHERE message_id {_OF_CHAT}
        AND (thumb OR rank IS NOT NULL OR correction IS NOT NULL
            OR EXISTS (SELECT 1 FROM comparisons WHERE left_id = message_id)
            OR EXISTS (SELECT 1 FROM comparisons WHERE right_id = message_id))
    ORDER BY message_id"""

SEARCH = """
    SELECT chats.id AS chat_id, messages.id AS message_id, title, role, updated,
        snippet(message_index, 0, char(2), char(3), '…', 16) AS snippet
    FROM message_index
    JOIN messages ON messages.id = message_index.rowid
    JOIN chats ON chats.id = messages.chat_id
    WHERE message_index MATCH ? AND deleted IS NULL
    ORDER BY message_index.rowid DESC LIMIT ?"""


def chats(matching: str, archived: bool | None) -> tuple[str, list[str]]:
    """A statement that selects chats, and its first values; a limit and an offset follow. For the
    arguments see `Store.chats`."""
    conditions, values = ["deleted IS NULL"], list[str]()
    if archived is not None:
        conditions.append(f"archived = {int(archived)}")
    if matching.startswith("#"):
        conditions.append("instr(folded(' ' || tags), folded(?))")
        values.append(f" {matching.strip()}")
    elif matching.strip():
        matches = "instr(folded(title), folded(?))"
        values.append(matching.strip())
        if expression := match_expression(matching):
            matches += f""" OR id IN (
                SELECT chat_id FROM messages WHERE id IN
                    (SELECT rowid FROM message_index WHERE message_index MATCH ?
                    ORDER BY rowid DESC LIMIT {_MOST_MATCHES}))"""
            values.append(expression)
        conditions.append(f"({matches})")
    statement = (
        f"SELECT {_columns(ChatSummary)} FROM chats WHERE {' AND '.join(conditions)}"
        " ORDER BY updated DESC, id DESC LIMIT ? OFFSET ?"
    )
    return statement, values


def match_expression(query: str) -> str:
    """FTS5's expression for all words of `query`, the last as a prefix; "" without words.

    Each word is an FTS5 string, in which only the double quote has a meaning.
    """
    words = [f'"{word}"' for word in query.replace("\0", " ").replace('"', " ").split()]
    return " ".join(words[:_MOST_WORDS]) + " *" if words else ""
