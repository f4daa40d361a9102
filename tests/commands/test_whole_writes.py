"""A write that fails in the middle leaves the user's file unchanged, whatever writes it."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import ScriptedModel
from full_disk import full_after
from program import Run

from chatapp.common.paths import TEMPLATE_FILE, database_path
from chatapp.common.userfiles import write_named, write_whole
from chatapp.dialogue.store import Store
from chatapp.prompting.template import PLAIN, save_template

Write = Callable[[Run, Path], Any]

POOL = "".join(f'{{"text": "a fox {n}", "label": "animal"}}\n' for n in range(4))


def export_history(run, folder):
    store = Store(database_path())
    if not store.chats():
        # SQLite needs room for an index of 32 kB when it opens its file.
        store.add_message(store.create_chat(), None, "user", "What does a walrus eat? " * 5_000)
    store.close()
    return run("history", "export", "--all", "--force", "-o", str(folder / "file"))


def generate_items(run, folder):
    return run("eval", "--task", "3D-", "--limit", "7", "--generate", str(folder))


def write_report(run, folder):
    task, test = folder.parent / "living.toml", folder.parent / "test.jsonl"
    task.write_text('labels = ["animal", "plant"]\nexamples_file = "test.jsonl"\n')
    test.write_text(POOL)
    return run("eval", str(task), "--test", str(test), "--shots", "0", "--report", str(folder))


WRITES = {
    "any": ("file", lambda run, folder: write_whole(folder / "file", "text " * 50)),
    "named": ("file", lambda run, folder: write_named(folder / "file", "x" * 99, replace=True)),
    "history": ("file", export_history),
    "items": ("3D-.jsonl", generate_items),
    "report": ("report.json", write_report),
    "plot": ("accuracy.png", write_report),
    "template": (TEMPLATE_FILE, lambda run, folder: save_template(PLAIN, folder)),
}


def refusal(run, folder, write):
    """What a command says, or a function raises, when it cannot write."""
    try:
        return str(write(run, folder).err)
    except OSError as error:
        return str(error)


@pytest.mark.parametrize("place", WRITES)
def test_the_file_before_is_whole(run, use_model, tmp_path, place):
    use_model(ScriptedModel([" animal"]))
    folder = tmp_path / "place"
    folder.mkdir()
    name, write = WRITES[place]
    write(run, folder)
    before, names = (folder / name).read_bytes(), sorted(folder.iterdir())
    with full_after(len(before) // 2):
        assert "File too large" in refusal(run, folder, write)
    assert (folder / name).read_bytes() == before
    assert sorted(folder.iterdir()) == names


def test_a_new_file_is_whole_or_absent(tmp_path):
    path = tmp_path / ("long" * 60 + ".md")
    with full_after(50), pytest.raises(OSError, match="File too large"):
        write_named(path, "x" * 99)
    assert not list(tmp_path.iterdir())
    write_named(path, "whole")
    with pytest.raises(FileExistsError):
        write_named(path, "another")
    assert path.read_text() == "whole"
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        write_named(tmp_path / "broken", "x")
    with pytest.raises(FileNotFoundError):
        write_named(tmp_path / "none" / "file", "x")


def test_a_pipe_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write_named, args=(pipe, "text"), kwargs={"replace": True})
    writer.start()
    assert pipe.read_text() == "text"
    writer.join()
    assert pipe.is_fifo()
