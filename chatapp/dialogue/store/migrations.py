"""The tables of the chats' file, as the statements that made them.

A chat's messages are a tree: each message has a parent, and `chats.leaf_id` ends the path that is
shown. `turns` has the conditions of a reply, one row for each generation or continuation.
`message_index` is an FTS5 index maintained by triggers.

Invariant: a released migration is never changed, moved or removed, because the format of a file
(`PRAGMA user_version`) is the number of its migrations.
"""

MIGRATIONS: dict[str, tuple[str, ...]] = {
    "chats and messages": (
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
    "feedback, archive and bin": (
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
    "comparisons": (
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
    "prompt file and template": (
        "ALTER TABLE chats ADD COLUMN prompt TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE chats ADD COLUMN asked_template TEXT NOT NULL DEFAULT ''",
    ),
    "markdown": ("ALTER TABLE chats ADD COLUMN markdown INTEGER NOT NULL DEFAULT 0",),
    "thoughts": (
        "ALTER TABLE messages ADD COLUMN thoughts TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE messages ADD COLUMN thought_tokens INTEGER NOT NULL DEFAULT 0",
        # Earlier, the text contained what servers send separately.
        """UPDATE messages SET thoughts = substr(text, 8), text = ''
            WHERE role = 'assistant' AND text LIKE '<think>%'""",
        """UPDATE messages SET
            text = ltrim(substr(thoughts, instr(thoughts, '</think>') + 8), char(10, 13, 32)),
            thoughts = substr(thoughts, 1, instr(thoughts, '</think>') - 1)
            WHERE instr(thoughts, '</think>') > 0""",
    ),
    "a chat's own model and sampling": (
        "ALTER TABLE chats ADD COLUMN chosen TEXT NOT NULL DEFAULT '{}'",
        # The model with which the chat began.
        """UPDATE chats SET model = coalesce(
            (SELECT turns.model FROM turns JOIN messages ON messages.id = turns.message_id
                WHERE messages.chat_id = chats.id ORDER BY turns.id DESC LIMIT 1), model)""",
    ),
    "documents": (
        "ALTER TABLE chats ADD COLUMN documents TEXT",
        "ALTER TABLE messages ADD COLUMN sources TEXT NOT NULL DEFAULT '[]'",
    ),
    "tools": (
        "ALTER TABLE chats ADD COLUMN tools TEXT NOT NULL DEFAULT '[]'",
        "ALTER TABLE chats ADD COLUMN allowed_tools TEXT NOT NULL DEFAULT '[]'",
        "ALTER TABLE messages ADD COLUMN calls TEXT NOT NULL DEFAULT '[]'",
    ),
    "how a reply came about": ("ALTER TABLE messages ADD COLUMN remark TEXT NOT NULL DEFAULT ''",),
    "reward model": ("ALTER TABLE chats ADD COLUMN reward TEXT NOT NULL DEFAULT ''",),
    "what was in force at a reply": ("ALTER TABLE turns ADD COLUMN conditions TEXT",),
    "what was changed inside the model": (
        "ALTER TABLE messages ADD COLUMN changes TEXT NOT NULL DEFAULT ''",
    ),
    "edited replies, and tags": (
        "ALTER TABLE messages ADD COLUMN original TEXT",
        "ALTER TABLE chats ADD COLUMN tags TEXT NOT NULL DEFAULT ''",
    ),
    "where a chat was imported from": (
        "ALTER TABLE chats ADD COLUMN origin TEXT NOT NULL DEFAULT ''",
        "CREATE INDEX chats_by_origin ON chats (origin) WHERE origin != ''",
    ),
}
"""The statements of each migration, by name, in their order."""
