"""The store keeps every chat, from any thread and process, and says in words what is wrong."""

import shutil
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from chatapp.dialogue.store import Store
from chatapp.dialogue.store.database import StoreError
from chatapp.dialogue.store.rows import Basis, Comparison, Feedback, Generation, Hit
from chatapp.prompting.messages import Call

TESTS = Path(__file__).parent.parent
FORMAT_5 = Path(__file__).parent / "chats_format_5.db"
"""Written by the program as it was when its files had the format 5."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "chats.db"


@pytest.fixture
def store(path):
    store = Store(path)
    yield store
    store.close()


def dialogue(store, *texts):
    """A chat of alternating messages; returns its id and theirs."""
    chat_id = store.create_chat(model="tiny", template="plain")
    ids = []
    for number, text in enumerate(texts):
        role = "assistant" if number % 2 else "user"
        ids.append(store.add_message(chat_id, ids[-1] if ids else None, role, text).id)
    return chat_id, ids


def check_sound(path):
    """SQLite finds no fault, and index and counts agree with the messages."""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    # With rank 1 the index is compared with the table it stands for.
    connection.execute(
        "INSERT INTO message_index (message_index, rank) VALUES ('integrity-check', 1)"
    )
    counts = "SELECT messages FROM chats ORDER BY id"
    counted = "SELECT count(messages.id) FROM chats LEFT JOIN messages ON chat_id = chats.id"
    assert (
        connection.execute(counts).fetchall()
        == connection.execute(f"{counted} GROUP BY chats.id ORDER BY chats.id").fetchall()
    )
    connection.close()


# Chats


def test_a_chat_comes_back_after_reopening(path):
    store = Store(path)
    chat_id = store.create_chat(system="Be brief.", template="chat", model="bundled")
    first = store.add_message(chat_id, None, "user", "  Hello,\n\tyou!  ")
    reply = store.add_message(chat_id, first.id, "assistant", "Hi", status="partial")
    store.close()

    store = Store(path)
    chat = store.chat(chat_id)
    assert (chat.title, chat.system, chat.template) == ("Hello, you!", "Be brief.", "chat")
    assert (chat.model, chat.leaf_id) == ("bundled", reply.id)
    assert chat.created <= chat.updated
    assert store.path(chat_id) == [first, reply]
    assert first.text == "  Hello,\n\tyou!  "
    assert store.message(reply.id).status == "partial", "opening must not change it"
    store.close()


@pytest.mark.parametrize(
    ("texts", "title"),
    [
        (["What is a prompt? Answer in one sentence."], "What is a prompt?"),
        (["Explain attention to me. I am ten."], "Explain attention to me"),
        (["Hi.  There is 1.5 of it"], "Hi. There is 1.5 of it"),
        (["a" * 100], "a" * 59 + "…"),
        (["word " * 1000], "word " * 11 + "word…"),
        (["Hello!", "What is attention?"], "What is attention?"),
        (["Hello!", "hi", "good morning"], "good morning"),
        (["Hello World", "More"], "Hello World"),
        (["See @sea.md\n\nsea.md:\n# The sea"], "See @sea.md"),
        (["Hello!\n\nWhat is a prompt? Tell me."], "Hello! What is a prompt?"),
        ([" \n "], ""),
    ],
)
def test_a_title_is_made_of_the_first_message_that_says_something(store, texts, title):
    chat_id = store.create_chat()
    for text in texts:
        store.add_message(chat_id, None, "user", text)
    assert store.chat(chat_id).title == title


def test_a_given_title_stays(store):
    chat_id = store.create_chat(title="Mine")
    store.add_message(chat_id, None, "user", "Hello")
    assert store.chat(chat_id).title == "Mine"
    store.rename_chat(chat_id, "Ours")
    assert store.chat(chat_id).title == "Ours"


def test_chats_are_listed_newest_change_first(store):
    (first, ids), (second, _), (third, _) = (dialogue(store, text, "ok") for text in "abc")
    assert [chat.id for chat in store.chats()] == [third, second, first]
    store.update_message(ids[1], "changed", "complete")
    assert [chat.id for chat in store.chats()] == [first, third, second]
    assert [chat.id for chat in store.chats(limit=1, offset=1)] == [third]
    assert len(store.chats(limit=2**70)) == 3
    summary = store.chats()[0]
    assert (summary.title, summary.model, summary.messages) == ("a", "tiny", 2)


def test_listing_walks_an_index_and_sorts_nothing(store, path):
    dialogue(store, "Hello")
    statements = []
    store._database._connection.set_trace_callback(statements.append)
    store.chats()
    store._database._connection.set_trace_callback(None)
    plan = sqlite3.connect(path).execute(f"EXPLAIN QUERY PLAN {statements[0]}").fetchall()
    assert [row[3] for row in plan] == ["SCAN chats USING INDEX chats_by_update"]


def test_a_deleted_chat_is_gone_with_all_it_had(store, path):
    kept, _ = dialogue(store, "stay here", "yes")
    gone, ids = dialogue(store, "go away", "now")
    row_id = store.begin_generation(
        ids[1], model="m", template="t", prompt="p", sampling={}, seed=1
    )
    store.delete_chat(gone)
    assert [chat.id for chat in store.chats()] == [kept]
    assert store.search("away") == []
    assert len(store.search("stay")) == 1
    with pytest.raises(StoreError, match=f"no chat {gone}"):
        store.path(gone)
    with pytest.raises(StoreError, match=f"no generation {row_id}"):
        store.finish_generation(
            row_id,
            reason="stop",
            prompt_tokens=1,
            reused_tokens=0,
            reply_tokens=1,
            time_to_first_token=0.1,
            seconds=0.2,
        )
    check_sound(path)
    assert dialogue(store, "next")[0] > gone, "an id must not be used twice"


def test_what_does_not_exist_is_named(store):
    other, _ = dialogue(store, "other")
    chat_id, ids = dialogue(store, "mine")
    for call, sentence in (
        (lambda: store.chat(99), "there is no chat 99"),
        (lambda: store.chat(2**70), f"there is no chat {2**70}"),
        (lambda: store.path(-(2**70)), f"there is no chat -{2**70}"),
        (lambda: store.rename_chat(99, "x"), "there is no chat 99"),
        (lambda: store.delete_chat(99), "there is no chat 99"),
        (lambda: store.add_message(99, None, "user", "x"), "there is no chat 99"),
        (lambda: store.message(99), "there is no message 99"),
        (lambda: store.update_message(99, "x", "complete"), "there is no message 99"),
        (lambda: store.siblings(99), "there is no message 99"),
        (lambda: store.latest_leaf(99), "there is no message 99"),
        (lambda: store.add_message(chat_id, 99, "user", "x"), "there is no message 99"),
        (lambda: store.set_leaf(other, ids[0]), f"message {ids[0]} is not in chat {other}"),
        (lambda: store.path(other, ids[0]), f"message {ids[0]} is not in chat {other}"),
        (
            lambda: store.add_message(other, ids[0], "assistant", "x"),
            f"message {ids[0]} is not in chat {other}",
        ),
        (
            lambda: store.begin_generation(
                99, model="", template="", prompt="", sampling={}, seed=0
            ),
            "there is no message 99",
        ),
    ):
        with pytest.raises(StoreError, match=f"^{sentence}$"):
            call()
    assert store.chat(other).leaf_id != ids[0]


# The tree


def test_branches_keep_their_own_paths(store):
    chat_id, (question, first, follow_up) = dialogue(store, "Q", "A1", "and then?")
    second = store.add_message(chat_id, question, "assistant", "A2").id

    def texts(leaf=None):
        return [message.text for message in store.path(chat_id, leaf)]

    assert texts() == ["Q", "A2"]
    assert texts(follow_up) == ["Q", "A1", "and then?"]
    places = [(m.id, m.sibling, m.siblings) for m in store.siblings(second)]
    assert places == [(first, 1, 2), (second, 2, 2)]
    assert store.siblings(first) == store.siblings(second)
    assert store.latest_leaf(first) == follow_up
    assert store.latest_leaf(second) == second
    assert store.latest_leaf(question) == second
    store.set_leaf(chat_id, store.latest_leaf(first))
    assert texts() == ["Q", "A1", "and then?"]


def test_roots_are_siblings_within_their_chat_alone(store):
    dialogue(store, "elsewhere")
    chat_id, (first,) = dialogue(store, "Q")
    second = store.add_message(chat_id, None, "user", "Q, edited")
    assert [message.id for message in store.siblings(first)] == [first, second.id]
    assert (second.sibling, second.siblings) == (2, 2)
    assert store.path(chat_id) == [second]


def test_an_empty_chat_has_an_empty_path(store):
    assert store.path(store.create_chat()) == []


# Generations


def test_a_generation_is_recorded_from_beginning_to_end(store):
    chat_id, ids = dialogue(store, "Q", "A")
    sampling = {"temperature": 0.5, "seed": 7}
    generation_id = store.begin_generation(
        ids[1], model="tiny", template="plain", prompt="User: Q", sampling=sampling, seed=7
    )
    (row,) = store.generations(chat_id)
    assert (row.id, row.message_id, row.prompt, row.sampling, row.seed) == (
        *(generation_id, ids[1], "User: Q", sampling),
        7,
    )
    assert row.reason is None
    assert row.seconds is None
    store.finish_generation(
        generation_id,
        reason="stop",
        prompt_tokens=10,
        reused_tokens=4,
        reply_tokens=3,
        time_to_first_token=0.25,
        seconds=0.5,
    )
    (row,) = store.generations(chat_id)
    assert (row.reason, row.prompt_tokens, row.reused_tokens) == ("stop", 10, 4)
    assert (row.reply_tokens, row.time_to_first_token, row.seconds) == (3, 0.25, 0.5)
    assert store.generations(store.create_chat()) == []


# Foreign text


def test_text_is_kept_as_it_is_but_for_lone_surrogates(store):
    text = "[/b] \x1b]0;x\x07 \x00 end\r\n" + "é你😀" * 1000
    chat_id, (first, second) = dialogue(store, text, "a \ud800 b \udcff")
    assert store.message(first).text == text
    assert store.message(second).text == "a \ufffd b \ufffd"
    store.rename_chat(chat_id, "\udc80")
    assert store.chat(chat_id).title == "\ufffd"


# Search


def found(store, query):
    return [hit.snippet for hit in store.search(query)]


def test_search_finds_words_whatever_their_case_and_accents(store):
    chat_id, ids = dialogue(store, "A naïve Question about cats", "An answer on dogs")
    (hit,) = store.search("NAIVE question")
    assert (hit.chat_id, hit.message_id, hit.role) == (chat_id, ids[0], "user")
    assert hit.title == store.chat(chat_id).title
    assert hit.snippet == "A \x02naïve\x03 \x02Question\x03 about cats"
    assert found(store, "cats dogs") == [], "one message must hold all words"


def test_the_last_word_may_be_unfinished(store):
    dialogue(store, "unfinished business")
    assert found(store, "business unfin") == ["\x02unfinished\x03 \x02business\x03"]
    assert found(store, "unfin business") == []


def test_the_index_follows_changed_and_unpicked_replies(store, path):
    chat_id, ids = dialogue(store, "Q", "apples")
    store.add_message(chat_id, ids[0], "assistant", "oranges")
    store.update_message(ids[1], "pears", "complete")
    assert found(store, "apples") == []
    assert found(store, "pears") == ["\x02pears\x03"], "also off the current path"
    check_sound(path)


def test_hits_come_newest_first_and_limited(store):
    chats = [dialogue(store, f"same words {number}")[0] for number in range(5)]
    assert [hit.chat_id for hit in store.search("same", limit=3)] == chats[:1:-1]


def test_chats_are_matched_by_title_or_text(store):
    by_text, _ = dialogue(store, "first", "the reply speaks of walrus")
    by_title = store.create_chat(title="About 100% Walruses")
    dialogue(store, "nothing")
    assert [chat.id for chat in store.chats(matching="walrus")] == [by_title, by_text]
    assert [chat.id for chat in store.chats(matching="100% w")] == [by_title]
    assert len(store.chats(matching="  ")) == 3
    assert store.chats(matching="?!") == []


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("filled") / "chats.db")
    dialogue(store, "Hello OR NOT hello", 'NEAR("x" y) * text:')
    yield store
    store.close()


@given(st.text(st.characters() | st.sampled_from('"*^():+-{}\\ \0\ud800')))
@example('"')
@example("NEAR(")
@example("text: hello")
@example("hello AND")
@example("\0")
@example("\0 \ud800 *")
@example("hello " * 2000)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_query_is_ever_wrong(filled, query):
    for hit in filled.search(query):
        assert "\x02" in hit.snippet
    filled.chats(matching=query)


def test_query_syntax_is_only_text(filled):
    assert found(filled, "hello OR nothing") == []
    assert len(found(filled, "hello OR not")) == 1
    assert len(found(filled, "text:")) == 1


# Files


def test_files_are_readable_by_their_owner_alone(path):
    path.parent.mkdir(mode=0o755)
    path.touch(mode=0o644)
    nested = path.parent / "new" / "chats.db"
    for each in (path, nested):
        store = Store(each)
        dialogue(store, "secret")
        files = sorted(each.parent.glob("chats.db*"))
        assert [file.name for file in files] == ["chats.db", "chats.db-shm", "chats.db-wal"]
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        store.close()
    assert stat.S_IMODE(nested.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("content", [b"This is no database at all. " * 100, b"\0" * 8192])
def test_a_damaged_file_is_refused_and_left_as_it_is(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged or not a chat database") as error:
        Store(path)
    assert str(path) in str(error.value)
    assert path.read_bytes() == content


def test_damage_within_is_told_in_words(path):
    store = Store(path)
    chat_id, _ = dialogue(store, *["x" * 3000] * 20)
    store.close()
    data = bytearray(path.read_bytes())
    data[4096 * 4 :] = b"\xff" * len(data[4096 * 4 :])
    path.write_bytes(data)
    with pytest.raises(StoreError, match="damaged"):
        Store(path).path(chat_id)


def test_thoughts_in_the_text_of_format_5_are_taken_out(path):
    path.parent.mkdir()
    shutil.copy(FORMAT_5, path)
    texts = {1: "<think>no</think>", 2: "<think>\nHm.\n</think>\n\nYes.", 3: "<think>\nHm"}
    with sqlite3.connect(path) as connection:
        for id, text in texts.items():
            connection.execute("UPDATE messages SET text = ? WHERE id = ?", (text, id))
    connection.close()
    store = Store(path)
    assert [(each.text, each.thoughts) for each in store.tree(1)] == [
        ("<think>no</think>", ""),
        ("Yes.", "\nHm.\n"),
        ("", "\nHm"),
    ]
    store.update_thoughts(3, "Hm!", 4)
    assert (store.message(3).thoughts, store.message(3).thought_tokens) == ("Hm!", 4)
    with pytest.raises(StoreError, match="there is no message 99"):
        store.update_thoughts(99, "", 0)
    store.close()
    check_sound(path)


def test_a_file_of_format_5_is_read_with_all_it_holds(path):
    path.parent.mkdir()
    shutil.copy(FORMAT_5, path)
    store = Store(path)
    chat = store.chat(1)
    assert (chat.title, chat.system, chat.template, chat.model) == (
        *("Does a walrus eat clams?", "Be brief.", "chat", "bundled"),
    )
    assert chat.basis == Basis("Be brief.", "spam", "plain")
    assert (chat.leaf_id, chat.markdown, chat.archived, chat.deleted) == (3, True, False, None)
    assert [(m.id, m.parent_id, m.role, m.text, m.status, m.sibling) for m in store.tree(1)] == [
        (1, None, "user", "Does a walrus eat clams?", "complete", 1),
        (2, 1, "assistant", "Yes, mostly.", "complete", 1),
        (3, 1, "assistant", "No, nev", "stopped", 2),
    ]
    finished, unfinished = store.generations(1)
    prompt = "User: Does a walrus eat clams?\nAssistant:"
    assert finished == Generation(
        *(1, 2, "bundled", "chat", prompt, {"temperature": 0.5, "seed": 7}, 7, finished.created),
        *("stop", 10, 4, 3, 0.25, 0.5),
    )
    assert (unfinished.message_id, unfinished.seed, unfinished.reason) == (3, 8, None)
    assert store.feedback(1) == {
        2: Feedback(2, "Yes, mostly.", 1, 1, None),
        3: Feedback(3, "No, nev", 0, 2, "No, never."),
    }
    assert store.comparisons(1) == [Comparison(2, 3, "left")]
    (archived,) = store.chats(archived=True)
    assert (archived.title, archived.messages, archived.archived) == ("Put away", 1, True)
    assert store.search("naive") == [
        Hit(2, 4, "Put away", "\x02naïve\x03 question", "user", archived.updated)
    ]
    assert [chat.id for chat in store.chats()] == [2, 1]
    assert store.chat(3).deleted is not None
    assert (chat.tools, chat.allowed_tools) == ((), ())
    assert not any(message.calls for message in store.tree(1))
    store.add_message(1, 3, "user", "Why?")
    store.close()
    check_sound(path)


def test_tools_of_a_chat_and_calls_of_a_reply_are_kept(store):
    chat_id, (_, reply) = dialogue(store, "Q", "A")
    made = Call("clock", {"zone": "Asia/Tōkyō\x1b"}, "noon\n", "done", 1)
    store.set_tools(chat_id, ["clock"])
    for key in ("b 2", "a 1", "b 2"):
        store.allow_tool(chat_id, key)
    store.update_calls(reply, [made])
    assert store.chat(chat_id).tools == ("clock",)
    assert store.chat(chat_id).allowed_tools == ("a 1", "b 2")
    assert store.message(reply).calls == (made,)
    with pytest.raises(StoreError, match="there is no message 99"):
        store.update_calls(99, [])
    with pytest.raises(StoreError, match="there is no chat 99"):
        store.allow_tool(99, "x")


def test_an_sqlite_too_old_is_refused_before_anything_is_written(path, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.36.0")
    with pytest.raises(StoreError, match=r"need SQLite 3\.37\.0 or newer.*brings 3\.36\.0$"):
        Store(path)
    assert not path.parent.exists()


def test_no_statement_needs_a_newer_sqlite_than_the_least(store):
    """HAVING without GROUP BY came with 3.39."""
    _, ids = dialogue(store, "Q", "A")
    statements = []
    store._database._connection.set_trace_callback(statements.append)
    assert store.latest_leaf(ids[0]) == ids[1]
    assert not any("HAVING" in statement for statement in statements)


def test_a_newer_format_is_refused(path):
    Store(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match=r"newer version of chatapp \(format 99"):
        Store(path)


def test_a_database_of_another_program_is_refused(path):
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="belongs to another program"):
        Store(path)
    assert path.read_bytes() == before


def test_after_closing_it_says_so(path):
    store = Store(path)
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.chats()


# Several at once


def test_threads_share_one_store(store, path):
    def write(name):
        chat_id, ids = dialogue(store, name)
        for number in range(30):
            store.update_message(ids[0], f"{name} {number}", "partial")
            store.add_message(chat_id, ids[0], "assistant", name)

    threads = [threading.Thread(target=write, args=(f"thread{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(chat.messages for chat in store.chats()) == [31] * 4
    check_sound(path)


def test_processes_share_one_file_from_its_creation_on(path):
    writer = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from chatapp.dialogue.store import Store

        store = Store(Path(sys.argv[1]))
        chat = store.create_chat()
        message = store.add_message(chat, None, "user", sys.argv[2])
        for number in range(50):
            message = store.add_message(chat, message.id, "user", f"{sys.argv[2]} {number}")
            store.chats(matching="process")
        """
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", writer, str(path), f"process{number}"],
            cwd=TESTS.parent,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    for process in processes:
        assert process.communicate()[1] == ""
        assert process.returncode == 0
    store = Store(path)
    assert [chat.messages for chat in store.chats()] == [51, 51, 51]
    assert len(store.search("process1", limit=100)) == 51
    store.close()
    check_sound(path)


# Put away


def test_an_archived_chat_is_found_and_out_of_the_way(store):
    first, _ = dialogue(store, "walrus")
    second, _ = dialogue(store, "seal")
    store.set_archived(first, True)
    assert [chat.id for chat in store.chats(archived=False)] == [second]
    assert [(chat.id, chat.archived) for chat in store.chats(archived=True)] == [(first, True)]
    assert [chat.id for chat in store.chats(matching="walrus")] == [first]
    assert store.chat(first).archived
    store.set_archived(first, False)
    assert len(store.chats(archived=False)) == 2


def test_the_bin_gives_back_until_it_is_emptied(store, path, monkeypatch):
    kept, _ = dialogue(store, "stay")
    gone, _ = dialogue(store, "walrus")
    store.bin_chat(gone)
    assert store.chat(gone).deleted is not None
    assert [chat.id for chat in store.chats()] == [kept]
    assert store.search("walrus") == []
    assert store.chats(matching="walrus") == []
    store.empty_bin()
    store.restore_chat(gone)
    assert store.chat(gone).deleted is None
    assert len(store.search("walrus")) == 1
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 10**8)  # a clock that is ahead
    store.bin_chat(gone)
    monkeypatch.setattr(time, "time", lambda: now)
    store.empty_bin()
    for hours in (25, 25.5):  # a clock that jumped to there, and is used for half an hour
        monkeypatch.setattr(time, "time", lambda ahead=hours: now + ahead * 60 * 60)
        store.empty_bin()
        store.add_message(kept, None, "user", "Hi")
        store.chat(gone)
    monkeypatch.setattr(time, "time", lambda: now + 27 * 60 * 60)
    store.empty_bin()
    with pytest.raises(StoreError, match=f"there is no chat {gone}"):
        store.restore_chat(gone)
    assert [chat.id for chat in store.chats()] == [kept]
    store.bin_chat(kept)
    for days in (3, 4):  # nothing else is in the store that says so
        store.chat(kept)
        monkeypatch.setattr(time, "time", lambda since=days: now + since * 24 * 60 * 60)
        store.empty_bin()
    with pytest.raises(StoreError, match=f"there is no chat {kept}"):
        store.chat(kept)
    check_sound(path)


def test_a_title_has_neither_case_nor_accents(store):
    chat_id = store.create_chat(title="ÉTÉ in ΑΘΗΝΑ")
    for words in ("été", "ete", "αθηνα"):
        assert [chat.id for chat in store.chats(matching=words)] == [chat_id]
