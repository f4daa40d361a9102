"""Feedback is stored with its reply, and exported as the rows that training reads."""

import sqlite3
from dataclasses import asdict

import pytest
from fakes import ScriptedModel

from chatapp.dialogue.chat import Chat
from chatapp.dialogue.documents.sources import Source
from chatapp.dialogue.feedback import FeedbackFormat, feedback_rows
from chatapp.dialogue.session import Session
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.database import APPLICATION_ID, StoreError
from chatapp.dialogue.store.migrations import MIGRATIONS
from chatapp.dialogue.store.rows import Basis, Comparison, Conditions, Feedback
from chatapp.prompting.messages import Call
from chatapp.prompting.template import PLAIN

HOSTILE = "[/b] \x1b[2J “quotes” \\n\n\nend"


def rows(store, format, chat_id=1):
    return list(feedback_rows(store, chat_id, FeedbackFormat(format)))


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


@pytest.fixture
def replies(store):
    """A chat with a finished exchange and three answers to the message after it."""
    chat_id = store.create_chat(system="Be kind.")
    first = store.add_message(chat_id, None, "user", "Hi")
    hello = store.add_message(chat_id, first.id, "assistant", "Hello.")
    question = store.add_message(chat_id, hello.id, "user", "Tea?")
    return [
        store.add_message(chat_id, question.id, "assistant", text).id
        for text in ("Yes.", "No.", HOSTILE)
    ]


PROMPT = [{"role": "system", "content": "Be kind."}, user("Hi"), assistant("Hello."), user("Tea?")]


def test_what_was_said_is_kept_and_can_be_taken_back(store, replies):
    yes, no, _ = replies
    assert store.feedback(1) == {}
    store.set_thumb(yes, 1)
    store.set_correction(yes, "Yes, please.")
    store.set_ranking([no, yes])
    assert store.feedback(1) == {
        yes: Feedback(yes, "Yes.", 1, 2, "Yes, please."),
        no: Feedback(no, "No.", 0, 1, None),
    }
    store.set_thumb(yes, 0)
    store.set_correction(yes, None)
    store.set_ranking([no])
    assert store.feedback(1) == {no: Feedback(no, "No.", 0, 1, None)}


def test_what_cannot_be_judged_is_refused_in_words(store, replies):
    with pytest.raises(StoreError, match="message 1 is not a reply"):
        store.set_thumb(1, 1)
    with pytest.raises(StoreError, match="there is no message 99"):
        store.set_correction(99, "x")
    with pytest.raises(StoreError, match="only replies to the same message"):
        store.set_ranking([2, replies[0]])
    assert store.feedback(1) == {}


def test_what_was_judged_stays_when_the_reply_goes_on(store, replies):
    store.set_thumb(replies[0], 1)
    store.update_message(replies[0], "Yes. But not now.", "complete")
    assert rows(store, "kto") == [
        {"prompt": PROMPT, "completion": [assistant("Yes.")], "label": True}
    ]


def test_corrections_are_rows_to_imitate(store, replies):
    store.set_thumb(replies[0], 1)
    assert rows(store, "sft") == []
    store.set_correction(replies[2], HOSTILE + "!")
    assert rows(store, "sft") == [{"messages": [*PROMPT, assistant(HOSTILE + "!")]}]
    store.set_correction(2, "Good day.")
    assert rows(store, "sft") == [
        {"messages": [*PROMPT[:2], assistant("Good day.")]},
        {"messages": [*PROMPT[:2], assistant("Good day."), PROMPT[3], assistant(HOSTILE + "!")]},
    ]


def test_preferences_come_from_ranks_thumbs_and_corrections(store, replies):
    yes, no, hostile = replies
    store.set_thumb(yes, 1)
    assert rows(store, "dpo") == []
    store.set_thumb(hostile, -1)

    def pairs():
        found = rows(store, "dpo")
        assert all(row.keys() == {"prompt", "chosen", "rejected"} for row in found)
        assert all(row["prompt"] == PROMPT for row in found)
        return [(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in found]

    assert pairs() == [("Yes.", HOSTILE)]
    store.set_ranking([hostile, no])
    assert pairs() == [("Yes.", HOSTILE), (HOSTILE, "No.")]
    store.set_ranking([hostile, no, yes])  # a rank says more than a thumb
    assert pairs() == [("No.", "Yes."), (HOSTILE, "Yes."), (HOSTILE, "No.")]
    store.set_correction(no, "No, thanks.")
    assert pairs()[0] == ("No, thanks.", "No.")


def test_what_won_a_comparison_is_preferred(store, replies):
    yes, no, hostile = replies
    store.add_comparison(yes, no, "equal")
    assert rows(store, "dpo") == []
    store.add_comparison(yes, hostile, "right")
    store.add_comparison(no, hostile, "left")
    store.update_message(hostile, HOSTILE + " and more", "complete")
    assert [(row["chosen"], row["rejected"]) for row in rows(store, "dpo")] == [
        ([assistant(HOSTILE)], [assistant("Yes.")]),
        ([assistant("No.")], [assistant(HOSTILE)]),
    ]
    assert rows(store, "kto") == rows(store, "sft") == []
    store.set_ranking([yes, hostile])  # decided later, and about the same two
    assert [row["chosen"] for row in rows(store, "dpo")] == [
        [assistant("Yes.")],
        [assistant("No.")],
    ]
    assert store.comparisons(1) == [
        Comparison(yes, no, "equal"),
        Comparison(yes, hostile, "right"),
        Comparison(no, hostile, "left"),
    ]


def test_both_bad_is_a_verdict_on_each(store, replies):
    store.set_thumb(replies[2], 1)
    store.add_comparison(replies[0], replies[1], "both bad")
    assert rows(store, "dpo") == [
        {"prompt": PROMPT, "chosen": [assistant(HOSTILE)], "rejected": [assistant(text)]}
        for text in ("Yes.", "No.")
    ]
    labels = [(row["completion"][0]["content"], row["label"]) for row in rows(store, "kto")]
    assert labels == [("Yes.", False), ("No.", False), (HOSTILE, True)]
    store.add_comparison(replies[0], replies[2], "left")  # which takes no thumb back
    assert store.feedback(1)[replies[2]].thumb == 1


def test_only_two_replies_to_one_message_are_compared(store, replies):
    for left, right in ((replies[0], 2), (replies[0], replies[0]), (replies[0], 1)):
        with pytest.raises(StoreError, match="only two replies to the same message"):
            store.add_comparison(left, right, "left")
    with pytest.raises(StoreError, match="is not a reply"):
        store.add_comparison(1, store.add_message(1, None, "user", "x").id, "left")
    assert store.comparisons(1) == []
    assert store.feedback(1) == {}
    store.add_comparison(replies[0], replies[1], "left")
    store.set_thumb(replies[0], -1)
    store.delete_chat(1)
    assert store.comparisons(1) == []
    assert store.feedback(1) == {}


def test_verdicts_come_from_thumbs_and_corrections(store, replies):
    yes, no, hostile = replies
    store.set_thumb(yes, 1)
    store.set_thumb(no, -1)
    store.set_correction(hostile, "Later.")
    found = [(row["completion"][0]["content"], row["label"]) for row in rows(store, "kto")]
    assert found == [("Yes.", True), ("No.", False), ("Later.", True), (HOSTILE, False)]
    assert all(row["prompt"] == PROMPT for row in rows(store, "kto"))


def test_an_exchange_without_a_reply_is_left_out_of_the_prompt(store):
    chat_id = store.create_chat()
    first = store.add_message(chat_id, None, "user", "Hello?")
    silence = store.add_message(chat_id, first.id, "assistant", "", status="stopped")
    second = store.add_message(chat_id, silence.id, "user", "Anyone?")
    reply = store.add_message(chat_id, second.id, "assistant", "Me.")
    store.set_thumb(reply.id, 1)
    store.set_thumb(silence.id, -1)
    assert rows(store, "kto") == [
        {"prompt": [user("Anyone?")], "completion": [assistant("Me.")], "label": True}
    ]


def test_a_file_of_the_first_version_is_brought_up_to_date(tmp_path):
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path)
    for statement in MIGRATIONS["chats and messages"]:
        connection.execute(statement)
    connection.execute(
        "INSERT INTO chats (title, template, model, created, updated)"
        " VALUES ('Old', 'plain', 'tiny', 1, 1)"
    )
    connection.executemany(
        "INSERT INTO messages (chat_id, parent_id, role, text, status, created)"
        " VALUES (1, ?, ?, ?, 'complete', 1)",
        [(None, "user", "Hi"), (1, "assistant", "Hello.")],
    )
    connection.execute("PRAGMA user_version = 1")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.commit()
    connection.close()
    for _ in range(2):
        store = Store(path)
        assert [chat.title for chat in store.chats()] == ["Old"]
        store.set_thumb(2, 1)
        assert store.feedback(1)[2].thumb == 1
        store.close()


# What was in force at the reply

CAPITALS = """
instruction = "Name the capital."
input_prefix = "Country: "
output_prefix = "Capital:"
examples = [{input = "France", output = "Paris"}]
"""
SPAM = """
instruction = "Classify."
labels = ["spam", "ham"]
examples = [{input = "Win!", output = "spam"}, {input = "Lunch?", output = "ham"}]
"""


def say(store, *replies, **facts):
    """A session whose model gives these replies."""
    model = ScriptedModel(list(replies))
    return Session(Chat(store, **facts), model, template=PLAIN)


def test_a_row_has_the_instructions_that_were_in_force_at_its_reply(store):
    session = say(store, "Yes.", "No.", "Maybe.", basis=Basis("Be kind."))
    list(session.say("Tea?"))
    yes = session.chat.messages[-1]
    list(session.regenerate(yes.id))
    no = session.chat.messages[-1]
    store.set_ranking([yes.id, no.id])
    session.chat.use_basis(Basis("Be rude."))
    list(session.say("Sure?"))
    store.set_thumb(session.chat.messages[-1].id, 1)
    (preference,) = rows(store, "dpo")
    kind, rude = ({"role": "system", "content": text} for text in ("Be kind.", "Be rude."))
    assert preference["prompt"] == [kind, user("Tea?")]
    (verdict,) = rows(store, "kto")
    assert verdict["prompt"] == [rude, user("Tea?"), assistant("No."), user("Sure?")]


def test_a_row_has_the_passages_and_the_tools_of_its_reply(store):
    tool = {"type": "function", "function": {"name": "clock"}}
    passage = Source("notes.md", "line 1", "Tea is at five.", 0.9, 1)
    call = Call("clock", {"zone": "UTC"}, "16:50", "done", 4)
    chat_id = store.create_chat()
    question = store.add_message(chat_id, None, "user", "When is tea?")
    reply = store.add_message(chat_id, question.id, "assistant", "Wait Soon.", sources=[passage])
    store.update_calls(reply.id, [call])
    store.begin_generation(
        reply.id,
        **{"model": "m", "template": "t", "prompt": "p", "sampling": {}, "seed": 1},
        conditions=asdict(Conditions(tools=(tool,))),
    )
    store.set_thumb(reply.id, 1)
    (row,) = rows(store, "kto")
    assert row["prompt"] == [
        user("Passages of documents:\n\n[1] notes.md, line 1\nTea is at five.\n\nWhen is tea?")
    ]
    assert row["tools"] == [tool]
    before, result, after = row["completion"]
    assert before["content"] == "Wait"
    assert before["tool_calls"][0]["function"] == {"name": "clock", "arguments": '{"zone": "UTC"}'}
    assert result["role"] == "tool"
    assert result["content"] == "16:50"
    assert after == assistant("Soon.")


def test_a_row_has_the_demonstrations_of_the_prompt_file(store, tmp_path):
    path = tmp_path / "capitals.toml"
    path.write_text(CAPITALS)
    session = say(store, "Rome", "Oslo", basis=Basis(prompt=str(path)))
    list(session.say("Italy"))
    list(session.say("Norway"))
    session.chat.use_basis(Basis())
    store.set_thumb(session.chat.messages[-1].id, 1)
    (row,) = rows(store, "kto")
    assert row["prompt"] == [
        {"role": "system", "content": "Name the capital."},
        *(user("Country: France"), assistant("Paris")),
        *(user("Country: Italy"), assistant("Rome")),
        user("Country: Norway"),
    ]


def test_a_label_of_a_prompt_file_is_no_reply(store, tmp_path):
    path = tmp_path / "spam.toml"
    path.write_text(SPAM)
    session = say(store, "spam", basis=Basis(prompt=str(path)))
    list(session.say("You won!"))
    label = session.chat.messages[-1]
    store.set_thumb(label.id, -1)
    store.set_correction(label.id, "ham")
    assert [*rows(store, "kto"), *rows(store, "dpo"), *rows(store, "sft")] == []
