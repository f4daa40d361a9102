"""A journal survives being cut anywhere, and leaves other files alone."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from chatapp.rows.examples import PromptError
from chatapp.tasks.evaluation.journal import Journal, NotWritten, read_rows

ROOT = Path(__file__).parents[3]
ROWS = [{"line": n, "text": "é\ud800" * n} for n in range(4)]


def write(path, rows):
    with Journal(path) as journal:
        journal.append(rows)


def test_rows_come_back(tmp_path):
    path = tmp_path / "deep" / "rows.jsonl"
    write(path, ROWS[:3])
    write(path, ROWS[3:])
    assert list(read_rows(path)) == ROWS
    with Journal(path) as journal:
        assert list(journal.rows()) == ROWS


def test_cut_at_every_byte_it_goes_on_with_the_first_row_that_is_not_whole(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, ROWS)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with Journal(path) as journal:
            known = list(journal.rows())
            assert known == ROWS[: whole[:size].count(b"\n")]
            assert path.read_bytes() == whole[:size]
            journal.append(ROWS[len(known) :])
        assert path.read_bytes() == whole


def test_a_long_half_row_is_dropped(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, ROWS[:1])
    with path.open("ab") as file:
        file.write(b'{"text": "' + b"x" * 300_000)
    with Journal(path) as journal:
        journal.append(ROWS[1:])
    assert list(read_rows(path)) == ROWS


@pytest.mark.parametrize(
    "content", [b"hello", b"[1]\n", b"\n", b'{"a": 1}\nhello\n', b'{"a": 1}\n7']
)
def test_another_file_is_left_as_it_was(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with Journal(path) as journal, pytest.raises(PromptError, match=r"line \d: is not a row"):
        list(journal.rows())
    assert path.read_bytes() == content


def test_a_second_writer_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    with Journal(path), pytest.raises(PromptError, match="another process is writing"):
        Journal(path)
    write(path, ROWS)


def test_a_second_writer_is_refused_where_there_is_no_fcntl(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    path = tmp_path / "rows.jsonl"
    with Journal(path), pytest.raises(PromptError, match="another process is writing"):
        Journal(path)


def test_no_lock_is_left_behind(tmp_path):
    path = tmp_path / "rows.jsonl"
    for _ in range(2):
        with Journal(path) as journal:
            journal.append(ROWS)
    assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]


def test_the_lock_of_a_killed_process_is_no_lock(tmp_path):
    path = tmp_path / "rows.jsonl"
    script = (
        "import os, sys; from pathlib import Path;"
        "from chatapp.tasks.evaluation.journal import Journal;"
        "journal = Journal(Path(sys.argv[1])); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=False, cwd=ROOT)
    assert (tmp_path / ".rows.jsonl.lock").exists()
    write(path, ROWS)
    assert list(read_rows(path)) == ROWS


def test_a_path_that_cannot_be_written(tmp_path):
    with pytest.raises(PromptError, match="cannot be written: is not a regular file"):
        Journal(tmp_path)
    with pytest.raises(PromptError, match="cannot be read"):
        list(read_rows(tmp_path / "none"))


def test_rows_are_plain_ascii(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, ROWS)
    assert path.read_text("ascii")
    assert [json.loads(line) for line in path.read_text().splitlines()] == ROWS


def test_a_full_disk_keeps_the_rows_before(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, ROWS[:1])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The system refuses what goes beyond this size, as it does on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, hard))
    try:
        with (
            pytest.raises(NotWritten, match=r"rows\.jsonl: cannot be written"),
            Journal(path) as journal,
        ):
            journal.append(ROWS[1:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with Journal(path) as journal:
        assert list(journal.rows()) == ROWS[:1]
        journal.append(ROWS[1:])
    assert list(read_rows(path)) == ROWS


def test_a_pipe_is_no_file_to_continue(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PromptError, match="pipe: cannot be written: is not a regular file"):
        Journal(tmp_path / "pipe")
