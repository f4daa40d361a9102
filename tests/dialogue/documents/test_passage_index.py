"""The index: kept, renewed for what changed, shared by processes, and broken."""

import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from chatapp.dialogue.documents import index as index_module
from chatapp.dialogue.documents.index import Index
from chatapp.dialogue.documents.reader import DocumentReader
from chatapp.dialogue.documents.search import Documents
from chatapp.tasks.files.documents import DocumentsError, DocumentSet


def documents_of(folder):
    return Documents(DocumentSet((str(folder),), limit=10))


def found(documents, query):
    return [Path(passage.file).name for passage in documents.search(query)]


def write(path, text, seconds=1000000000):
    """A file that was last changed long ago, at that second."""
    path.write_text(text)
    os.utime(path, (seconds, seconds))


@pytest.fixture
def read_files(monkeypatch):
    """The names of files whose text is read from now on."""
    names = []
    read = DocumentReader.read

    def counting(self, path, *rest):
        for batch in read(self, path, *rest):
            names.append(Path(path).name)
            yield batch

    monkeypatch.setattr(DocumentReader, "read", counting)
    return names


def test_only_what_changed_is_read_again(folder, read_files):
    write(folder / "a.txt", "walrus")
    write(folder / "b.txt", "clam")
    assert found(documents_of(folder), "walrus") == ["a.txt"]
    assert sorted(read_files) == ["a.txt", "b.txt"]
    read_files.clear()
    documents = documents_of(folder)  # as another run of the program would
    assert found(documents, "clam") == ["b.txt"]
    assert read_files == []
    write(folder / "b.txt", "oyster", 1_000_000_001)
    assert found(documents, "oyster") == ["b.txt"]
    assert found(documents, "clam") == []
    assert read_files == ["b.txt"]
    (folder / "b.txt").unlink()
    write(folder / "c.txt", "oyster")
    assert found(documents, "oyster") == ["c.txt"]


def test_another_time_with_the_same_content_is_no_change(folder, read_files):
    write(folder / "a.txt", "walrus")
    documents = documents_of(folder)
    documents.renew()
    os.utime(folder / "a.txt", (2_000, 2_000))
    documents.renew()
    assert read_files == ["a.txt"]


def test_a_change_within_one_tick_of_the_clock_is_seen(folder):
    (folder / "a.txt").write_text("walrus")
    documents = documents_of(folder)
    documents.renew()
    before = (folder / "a.txt").stat()
    (folder / "a.txt").write_text("oyster")
    os.utime(folder / "a.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert found(documents, "oyster") == ["a.txt"]


def test_files_without_text_are_counted_each_time_and_read_once(folder):
    write(folder / "a.txt", "walrus")
    write(folder / "b.bin", "a\0b")
    write(folder / "c.txt", "")
    documents = documents_of(folder)
    for _ in range(2):
        assert str(documents.renew()) == "1 passage of 1 file; left out: 1 binary, 1 empty"


def test_a_file_that_vanishes_while_it_is_read(folder, monkeypatch):
    write(folder / "a.txt", "walrus")
    write(folder / "b.txt", "walrus")
    read = DocumentReader.read

    def vanishing(self, path, *rest):
        if path.endswith("b.txt"):
            Path(path).unlink()
        return read(self, path, *rest)

    monkeypatch.setattr(DocumentReader, "read", vanishing)
    documents = documents_of(folder)
    assert found(documents, "walrus") == ["a.txt"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_a_file_that_may_not_be_read(folder):
    write(folder / "a.txt", "walrus")
    write(folder / "b.txt", "walrus")
    (folder / "b.txt").chmod(0)
    assert found(documents_of(folder), "walrus") == ["a.txt"]


def test_nothing_to_search_is_told_with_the_reasons(folder):
    with pytest.raises(DocumentsError, match=r"there is no text to search$"):
        documents_of(folder).renew()
    write(folder / "a.bin", "a\0b")
    with pytest.raises(DocumentsError, match="left out: 1 binary"):
        documents_of(folder).search("x")


def test_two_at_once_give_what_one_would(folder, home):
    for number in range(300):
        write(folder / f"{number}.txt", f"walrus number{number}")
    errors = []

    def renew():
        try:
            documents_of(folder).renew()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=renew) for _ in range(2)]
    script = (
        "import sys; from chatapp.dialogue.documents.search import Documents;"
        "from chatapp.tasks.files.documents import DocumentSet;"
        "Documents(DocumentSet((sys.argv[1],))).renew()"
    )
    root = str(Path(index_module.__file__).parents[3])
    environment = os.environ | {"PYTHONPATH": root}
    with subprocess.Popen([sys.executable, "-c", script, str(folder)], env=environment) as other:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert other.returncode == 0
    assert errors == []
    documents = documents_of(folder)
    coverage = documents.renew()
    assert (coverage.files, coverage.passages) == (300, 300)
    assert found(documents, "number7") == ["7.txt"]


def test_what_was_read_before_the_end_is_kept(folder, monkeypatch, read_files):
    monkeypatch.setattr(index_module, "_BATCH", 2)
    for number in range(5):
        write(folder / f"{number}.txt", "walrus")

    def end(done, of):
        if done > 2 * len("walrus"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        documents_of(folder).renew(end)
    assert len(read_files) == 3  # the last of them in vain
    read_files.clear()
    documents_of(folder).renew()
    assert len(read_files) == 3


def test_a_broken_index_is_told_in_a_sentence(folder, home):
    write(folder / "a.txt", "walrus")
    documents = documents_of(folder)
    documents.renew()
    (file,) = (home / "cache" / "documents").glob("*.sqlite")
    file.write_bytes(b"no database, " * 500)
    with pytest.raises(DocumentsError, match="deleted without loss"):
        documents.search("walrus")


def test_the_words_of_the_index_agree_with_its_passages(folder, tmp_path):
    from chatapp.dialogue.documents.reader import list_files

    index = Index(tmp_path / "index.sqlite", 600)
    for text in ("walrus", "oyster and clam", "walrus"):
        write(folder / "a.txt", text, len(text))
        index.renew(list_files([str(folder)]).files, DocumentReader(), lambda done, of: None)
    with sqlite3.connect(tmp_path / "index.sqlite") as database:
        database.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")
    database.close()
