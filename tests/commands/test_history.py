"""Chats are listed, found, shown, exported and deleted, and never by accident."""

import json
import re
import sqlite3
from contextlib import closing

import pytest

from chatapp.common.paths import database_path
from chatapp.dialogue.store import Store

HOSTILE = "[/b] \x1b]0;x\x07 \x1b[2J [link=x]"


@pytest.fixture
def ids():
    """Two chats: a plain one, and one of hostile text with an answer that was stopped."""
    store = Store(database_path())
    first = store.create_chat(model="bundled", template="plain")
    question = store.add_message(first, None, "user", "What does a walrus eat?")
    store.add_message(first, question.id, "assistant", "Clams, mostly.")
    second = store.create_chat(model="\x1b[31mred", template="plain")
    question = store.add_message(second, None, "user", HOSTILE)
    store.add_message(second, question.id, "assistant", "a walrus \x9b", status="stopped")
    store.close()
    return [first, second]


def chats_left():
    store = Store(database_path())
    ids = [chat.id for chat in store.chats()]
    store.close()
    return ids


def test_an_empty_history_is_no_error(run):
    assert run("history", "list") == (0, "", "chatapp: there are no chats yet\n")
    assert run("history", "list", "--json") == (0, "[]\n", "")
    assert run("history", "search", "x") == (0, "", "chatapp: no message contains 'x'\n")


@pytest.mark.parametrize("terminal", [False, True])
def test_the_list_shows_each_chat_on_one_line(run, ids, terminal):
    status, out, err = run("history", "list", terminal=terminal)
    assert (status, err) == (0, "")
    out = re.sub(r"\x1b\[[01]m", "", out)  # the heading's bold
    heading, newest, oldest = out.splitlines()
    assert heading.split() == ["id", "messages", "updated", "model", "title"]
    assert newest.split()[:2] == [str(ids[1]), "2"]
    assert "[/b] ␛]0" in newest
    assert "What does a walrus eat?" in oldest or "…" in oldest
    assert "␛[31mred" in newest
    assert "\x1b" not in out
    assert "\x07" not in out


def test_search_marks_what_it_found(run, ids):
    status, out, _ = run("history", "search", "WALRUS")
    assert status == 0
    assert "    assistant: a **walrus** \ufffd\n" in out
    assert "    user: What does a **walrus** eat?\n" in out
    assert out.index("assistant") < out.index("user:"), "newest first"
    (hit,) = json.loads(run("history", "search", "walrus ea", "--json").out)
    assert hit["snippet"] == "What does a walrus eat?"
    assert (hit["chat_id"], hit["role"]) == (ids[0], "user")


def test_show_is_safe_to_look_at(run, ids):
    status, out, _ = run("history", "show", str(ids[1]))
    assert status == 0
    assert "## User\n\n[/b] ␛]0;x␇ ␛[2J [link=x]\n" in out
    assert "## Assistant (stopped)\n\na walrus \ufffd\n" in out
    assert "\x1b" not in out
    document = json.loads(run("history", "show", str(ids[1]), "--json").out)
    assert document["messages"][0]["content"] == HOSTILE


@pytest.mark.parametrize("seconds", [1e300, -1e300, float("inf")])
def test_a_time_out_of_range_hides_no_chat(run, ids, seconds):
    with closing(sqlite3.connect(database_path())) as database:
        database.execute("UPDATE messages SET created = ?", [seconds])
        database.execute("UPDATE chats SET created = ?, updated = ?", [seconds, seconds])
        database.commit()
    for command in (["list"], ["show", str(ids[0])], ["export", str(ids[0])]):
        assert run("history", *command).status == 0, command


@pytest.mark.parametrize("command", ["show", "export", "delete"])
def test_a_chat_that_is_not_there_is_named(run, command):
    flags = ["--yes"] if command == "delete" else []
    assert run("history", command, "7", *flags) == (2, "", "chatapp: there is no chat 7\n")


# Export


def test_export_keeps_the_text_as_it_is_in_pipes_and_files(run, ids, tmp_path):
    out = run("history", "export", str(ids[1])).out
    assert f"## User\n\n{HOSTILE}\n" in out
    shown = run("history", "export", str(ids[1]), terminal=True).out
    assert "\x1b" not in shown
    assert "␛" in shown
    file = tmp_path / "chat.md"
    assert run("history", "export", str(ids[1]), "--output", str(file)) == (0, "", "")
    assert file.read_text() == out


def test_export_replaces_no_file_unasked(run, ids, tmp_path):
    file = tmp_path / "mine.md"
    file.write_text("precious")
    arguments = ("history", "export", str(ids[0]), "-o", str(file))
    assert run(*arguments) == (
        *(2, "", f"chatapp: {file}: this file already exists; --force replaces it\n"),
    )
    assert file.read_text() == "precious"
    assert run(*arguments, "--force").status == 0
    assert "walrus" in file.read_text()


def test_a_file_survives_a_disk_that_is_full(run, ids, tmp_path, monkeypatch):
    file = tmp_path / "mine.md"
    file.write_text("precious")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert run("history", "export", str(ids[0]), "--force", "-o", str(file)) == (
        *(2, "", f"chatapp: {file}: cannot be written: the disk is full\n"),
    )
    assert file.read_text() == "precious"


@pytest.mark.parametrize("arguments", [[], ["1", "--all"]])
def test_export_wants_one_chat_or_all(run, arguments):
    assert run("history", "export", *arguments) == (
        *(2, "", "chatapp: give either the id of a chat or --all\n"),
    )


# Delete


def test_deleting_has_to_be_confirmed(run, ids):
    assert run("history", "delete", str(ids[0])) == (
        *(2, "", "chatapp: to delete a chat, confirm with --yes\n"),
    )
    assert chats_left() == ids[::-1]
    assert run("history", "delete", str(ids[0]), "--yes") == (0, "", "")
    assert chats_left() == [ids[1]]


@pytest.mark.parametrize(("answer", "status", "left"), [("n", 1, 2), ("", 1, 2), ("y", 0, 1)])
def test_deleting_asks_on_a_terminal(run, ids, answer, status, left):
    result = run("history", "delete", str(ids[1]), stdin=f"{answer}\n".encode(), terminal=True)
    assert result.status == status
    assert len(chats_left()) == left
    assert "\x1b" not in result.out + result.err


def test_a_damaged_database_is_told_in_words(run):
    database_path().parent.mkdir(parents=True)
    database_path().write_bytes(b"no database" * 100)
    status, out, err = run("history", "list")
    assert (status, out) == (2, "")
    assert str(database_path()) in err
    assert err.count("\n") == 1
    assert database_path().read_bytes() == b"no database" * 100


def test_feedback_is_exported_as_training_rows(run, ids, tmp_path):
    file = tmp_path / "rows.jsonl"
    for more in ((), ("--output", str(file))):
        assert run("history", "export", "--feedback", "kto", *more) == (
            *(1, "", "chatapp: there is no feedback to export\n"),
        )
    assert not file.exists()
    store = Store(database_path())
    reply, hostile = (store.path(id)[-1].id for id in ids)
    store.set_thumb(reply, 1)
    store.set_correction(hostile, HOSTILE)
    store.close()
    target = tmp_path / "rows.jsonl"
    assert run("history", "export", "--feedback", "dpo", "-o", str(target)) == (0, "", "")
    (row,) = [json.loads(line) for line in target.read_text().splitlines()]
    assert row["chosen"] == [{"role": "assistant", "content": HOSTILE}]
    assert row["rejected"] == [{"role": "assistant", "content": "a walrus \x9b"}]
    kto = "history", "export", "--feedback", "kto"
    for only in ([str(ids[0])], ["--model", "bundled"]):
        assert [json.loads(line)["label"] for line in run(*kto, *only).out.splitlines()] == [True]
    assert run(*kto, "--model", "x").err.endswith("there is of ␛[31mred, bundled\n")
    status, _, err = run("history", "export", "--feedback", "ppo")
    assert status == 2
    assert "ppo" in err
    assert run("history", "export", "--feedback", "sft", "99").status == 2


def test_chats_are_imported(run, ids, tmp_path):
    target = tmp_path / "chats.json"
    run("history", "export", "--all", "--format", "json", "-o", str(target))
    here = "chatapp: imported 0 chats\nchatapp: left 2 chats as before\n"
    assert run("history", "import", str(target)) == (0, "", here)
    documents = [each | {"id": 70 + n} for n, each in enumerate(json.loads(target.read_text()))]
    target.write_text(json.dumps(documents))
    assert run("history", "import", str(target)) == (0, "", "chatapp: imported 2 chats\n")
    assert len(chats_left()) == 4
    documents[0]["messages"].append({"role": "user", "content": "More"})
    rest = [{"title": HOSTILE}, {"messages": []}]
    target.write_text(json.dumps([*documents, *rest]))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "user.json").write_text("{}")
    status, out, err = run("history", "import", str(target), str(tmp_path / "folder"))
    assert (status, out, err.splitlines()[:6]) == (
        *(0, ""),
        [
            "chatapp: imported 0 chats",
            "chatapp: continued 1 chat that had grown",
            "chatapp: left 1 chat as before",
            "chatapp: skipped 1 chat without a message",
            "chatapp: skipped 1 file without chats",
            "chatapp: left out 1 that cannot be read:",
        ],
    )
    assert err.splitlines()[6].startswith(f"chatapp: {target}, chat 3 ")
    assert len(err.splitlines()) == 7
    new = json.loads(run("history", "import", str(target), "--json").out)
    assert [(sorted(chat), chat["added"]) for chat in new] == [(["added", "id", "title"], 0)] * 2
    assert len(chats_left()) == 4
    target.write_text(json.dumps([*documents, *[{"title": HOSTILE}] * 30]))
    lines = run("history", "import", str(target)).err.splitlines()
    assert lines[2] == "chatapp: left out 30 that cannot be read:"
    assert (len(lines), lines[-1]) == (3 + 20 + 1, "chatapp: and 10 more of this kind")
    target.write_text("{")
    status, out, err = run("history", "import", str(target))
    assert (status, out) == (2, "")
    assert str(target) in err
    assert len(chats_left()) == 4


def test_a_damaged_file_is_replaced_by_the_copy_of_the_day(run, ids):
    path = database_path()
    assert run("history", "list")[0] == 0  # at whose end the copy is made
    with path.open("r+b") as file:
        file.write(b"\xff" * 100)
    status, _, err = run("history", "list")
    assert (status, len(err.splitlines())) == (2, 1)
    assert "`chatapp history restore`" in err
    status, out, err = run("history", "restore")
    assert (status, out) == (0, "")
    assert err.startswith("chatapp: restored 2 chats from ")
    assert len(json.loads(run("history", "list", "--json").out)) == 2
    status, out, _ = run("history", "restore", "--json")
    assert (status, json.loads(out)["chats"]) == (0, 2)


def test_an_interrupted_import_leaves_nothing(run, ids, tmp_path, monkeypatch):
    target = tmp_path / "chats.json"
    run("history", "export", "--all", "--format", "json", "-o", str(target))
    target.write_text(target.read_text().replace('"id": ', '"id": 7'))
    create, calls = Store.create_chat, []

    def interrupted(store, **facts):
        calls.append(facts)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return create(store, **facts)

    monkeypatch.setattr(Store, "create_chat", interrupted)
    status, out, err = run("history", "import", str(target))
    assert (status, out, err) == (130, "", "chatapp: interrupted; nothing was imported\n")
    assert len(chats_left()) == 2
