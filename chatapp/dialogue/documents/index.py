"""Passages of files in an SQLite file, renewed for changed files.

A file counts as unchanged while its size and time are the same; one with another time and the same
digest is not parsed again. SQLite's FTS5 indexes the words.
"""

import math
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from chatapp.common.foreign import printable, without_surrogates
from chatapp.common.userfiles import Progress, make_private
from chatapp.dialogue.documents.passages import Unreadable
from chatapp.dialogue.documents.reader import DocumentReader, SourceFile
from chatapp.tasks.files.documents import DocumentsError, content_words, least_covered, rarity_of

_BATCH = 200
"""Files between two commits."""

_RACY_SECONDS = 2.0
"""A file read so soon after its change may change again within one tick of the file system's clock;
git has the same rule.
"""

_MOST_WORDS = 64
"""Words of a question that are looked up; SQLite limits the number of joined queries."""

_LEAST_FTS5_IDF = 1e-6
"""FTS5's inverse document frequency of a word in half of the passages or more."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    id INTEGER PRIMARY KEY,
    path TEXT NOT NULL UNIQUE,
    size INTEGER NOT NULL,
    modified INTEGER NOT NULL,
    read_at INTEGER NOT NULL,
    digest BLOB,
    left_out TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS passages (
    id INTEGER PRIMARY KEY,
    file_id INTEGER NOT NULL REFERENCES files(id) ON DELETE CASCADE,
    place TEXT NOT NULL,
    title TEXT NOT NULL,
    text TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS passages_by_file ON passages (file_id);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (
    title, text, content = 'passages', content_rowid = 'id',
    tokenize = "porter unicode61 remove_diacritics 2"
);
CREATE TRIGGER IF NOT EXISTS passage_added AFTER INSERT ON passages BEGIN
    INSERT INTO words (rowid, title, text) VALUES (new.id, new.title, new.text);
END;
CREATE TRIGGER IF NOT EXISTS passage_deleted AFTER DELETE ON passages BEGIN
    INSERT INTO words (words, rowid, title, text)
    VALUES ('delete', old.id, old.title, old.text);
END;
"""


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage that was found.

    file: its path. place: its position in the file, in words. score: its similarity to the query by
    the search method, larger is nearer. identity: of its row in the index.
    """

    identity: int
    file: str
    place: str
    text: str
    score: float = 0.0


class Index:
    """The passages of a set of files, in one SQLite file.

    Every method raises DocumentsError when the file cannot be used.
    """

    def __init__(self, file: Path, size: int) -> None:
        """size: of a passage, in characters; each size has its own index file."""
        self._file = file
        self._size = size

    def renew(
        self, files: dict[str, SourceFile], reader: DocumentReader, progress: Progress
    ) -> Counter[str]:
        """Update the index to the current files.

        Returns the number of files without passages, for each reason.
        """
        with self._open() as database:
            known = {
                row["path"]: row
                for row in database.execute("SELECT path, size, modified, read_at FROM files")
            }
            gone = [(path,) for path in known if path not in files]
            with database:
                database.executemany("DELETE FROM files WHERE path = ?", gone)
            stale = [
                file
                for path, file in files.items()
                if path not in known or not _is_unchanged(file, known[path])
            ]
            done, of = 0, sum(file.size for file in stale) or 1
            for start in range(0, len(stale), _BATCH):
                with database:
                    for file in stale[start : start + _BATCH]:
                        report = partial(_report_share, progress, done, file.size, of)
                        self._renew_file(database, reader, file, report)
                        done += file.size
                progress(min(done, of), of)
            rows = database.execute(
                "SELECT left_out, count(*) AS files FROM files WHERE left_out != '' GROUP BY 1"
            )
            return Counter({row["left_out"]: row["files"] for row in rows})

    def count(self) -> tuple[int, int]:
        """(files with passages, passages)."""
        with self._open() as database:
            (row,) = database.execute("SELECT count(DISTINCT file_id), count(*) FROM passages")
            return row[0], row[1]

    def texts(self) -> tuple[list[int], list[str]]:
        """The identity and the text of each passage, preceded by its headings."""
        with self._open() as database:
            rows = database.execute("SELECT id, title, text FROM passages ORDER BY id").fetchall()
        return [row["id"] for row in rows], [f"{row['title']}\n{row['text']}" for row in rows]

    def by_words(self, query: str, limit: int) -> list[tuple[int, float]]:
        """The passages with the highest BM25 (k1 = 1.2, b = 0.75) for the words of a query.

        Returns (identity, score) pairs, the best first. The term frequencies are those of SQLite's
        FTS5; the inverse document frequency is Lucene's, ln(1 + (N - n + 0.5) / (n + 0.5)) for a
        word in n of N passages, because that of FTS5 is 0 for a word in half of them. Function
        words of English are left out unless there are no others, and so are passages that contain
        too little of the query.
        """
        with self._open() as database:
            (passages,) = database.execute("SELECT count(*) FROM passages").fetchone()
            terms: list[tuple[float, float, str]] = []
            rarities: list[float] = []
            for word in _words(query):
                count = "SELECT count(*) FROM words WHERE words MATCH ?"
                (matches,) = database.execute(count, (word,)).fetchone()
                rarity = rarity_of(matches, passages)
                rarities.append(rarity)
                if matches:
                    of_fts5 = math.log((passages - matches + 0.5) / (matches + 0.5))
                    terms.append((rarity / max(of_fts5, _LEAST_FTS5_IDF), rarity, word))
            if not terms:
                return []
            least = least_covered(rarities)
            scored = (
                "SELECT rowid AS id, -rank * ? AS score, ? AS idf FROM words WHERE words MATCH ?"
            )
            of_words = " UNION ALL ".join([scored] * len(terms))
            rows = database.execute(
                f"SELECT id, sum(score) AS score FROM ({of_words}) GROUP BY id"
                " HAVING sum(idf) >= ? ORDER BY score DESC, id LIMIT ?",
                (*(value for term in terms for value in term), least, limit),
            )
            return [(row["id"], row["score"]) for row in rows]

    def passages(self, scores: Sequence[tuple[int, float]]) -> list[Passage]:
        """The passages with these identities, in their order.

        One that another process has replaced in the meantime is left out.
        """
        with self._open() as database:
            result = []
            for identity, score in scores:
                row = database.execute(
                    "SELECT path, place, text FROM passages JOIN files ON files.id = file_id"
                    " WHERE passages.id = ?",
                    (identity,),
                ).fetchone()
                if row is not None:
                    result.append(Passage(identity, row["path"], row["place"], row["text"], score))
            return result

    def _renew_file(
        self,
        database: sqlite3.Connection,
        reader: DocumentReader,
        file: SourceFile,
        report: Callable[[float], None],
    ) -> None:
        """Read a file that may have changed, and replace its passages.

        report: called often with the fraction of the file that was read, from 0 to 1.
        """
        path, read_at = Path(file.path), time.time_ns()
        row = database.execute(
            "SELECT id, digest FROM files WHERE path = ?", (file.path,)
        ).fetchone()
        known = row["digest"].hex() if row is not None and row["digest"] else ""
        share, identity, left_out = 0.0, None, ""
        batches = reader.read(file.path, self._size, known, lambda: report(share))
        try:
            for digest, share, pieces in batches:
                if identity is None:
                    identity = _replace_file(database, file, read_at, bytes.fromhex(digest))
                report(share)
                database.executemany(
                    "INSERT INTO passages (file_id, place, title, text) VALUES (?, ?, ?, ?)",
                    (
                        # Headings and the file's name are searched as well.
                        (identity, p.place, printable(f"{path.stem} {p.headings}".strip()), p.text)
                        for p in pieces
                    ),
                )
        except Unreadable as reason:
            left_out = str(reason)
        if left_out:
            _replace_file(database, file, read_at, None, left_out)
        elif identity is None:  # unchanged
            database.execute(
                "UPDATE files SET size = ?, modified = ?, read_at = ? WHERE id = ?",
                (file.size, file.modified, read_at, row["id"]),
            )

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            make_private(self._file.parent)
            database = sqlite3.connect(self._file, timeout=60)
            try:
                database.row_factory = sqlite3.Row
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = NORMAL")
                database.execute("PRAGMA foreign_keys = ON")
                if not database.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
                    # In one transaction: whoever finds a table finds the triggers too.
                    database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
                yield database
            finally:
                database.close()
        except (sqlite3.Error, OSError) as error:
            raise DocumentsError(
                f"{self._file}: this index of documents cannot be used ({error}); "
                "it can be deleted without loss"
            ) from None


def _replace_file(
    database: sqlite3.Connection,
    file: SourceFile,
    read_at: int,
    digest: bytes | None,
    left_out: str = "",
) -> int | None:
    """Insert a new row for a file and delete its old passages; return the row's identity."""
    database.execute("DELETE FROM files WHERE path = ?", (file.path,))
    return database.execute(
        "INSERT INTO files (path, size, modified, read_at, digest, left_out)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (file.path, file.size, file.modified, read_at, digest, left_out),
    ).lastrowid


def _report_share(progress: Progress, done: int, size: int, of: int, share: float) -> None:
    """Report progress. done: bytes of the files before one of `size` bytes, of which `share` is
    read.
    """
    progress(min(done + int(share * size), of), of)


def _is_unchanged(file: SourceFile, row: sqlite3.Row) -> bool:
    is_settled = row["modified"] < row["read_at"] - _RACY_SECONDS * 1e9
    return is_settled and (file.size, file.modified) == (row["size"], row["modified"])


def _words(query: str) -> list[str]:
    """The different words of a query, each as an FTS5 string, so that nothing is syntax."""
    return [f'"{word}"' for word in content_words(without_surrogates(query))[:_MOST_WORDS]]
