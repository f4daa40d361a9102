"""The dialogue loop: what is stored when, what the model is given, and what it costs."""

import signal
import subprocess
import sys
import textwrap
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from fakes import ScriptedModel, reworded
from sessions import session_with
from tiny import write_tiny_gpt2

from chatapp.dialogue.chat import Chat
from chatapp.dialogue.events import Started
from chatapp.dialogue.reading import usage
from chatapp.dialogue.session import Session
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.database import StoreError
from chatapp.dialogue.writers.choosing import ChatWriter, choose_template, mismatch
from chatapp.dialogue.writers.prompt import MessageTooLong
from chatapp.engine.events import Finished, Token
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import ContextOverflow, Sampling
from chatapp.prompting.messages import Message, text_of
from chatapp.prompting.template import ALPACA, CHAT, PLAIN, save_template

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def session_of(store):
    def make(model, template=CHAT, **options):
        return session_with(store, model, template, **options)

    return make


def reply_of(events):
    """All text of a turn; checks that it starts and ends as promised."""
    started, *tokens, finished = events
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    assert all(isinstance(token, Token) for token in tokens)
    return "".join(event.text for event in (*tokens, finished))


def texts(session):
    return [(message.role, message.text, message.status) for message in session.chat.messages]


# say


def test_a_turn_is_streamed_and_stored(session_of, store):
    model = ScriptedModel([" Hello there.", " Fine."])
    session = session_of(model, PLAIN)
    assert session.chat.id is None
    assert store.chats() == [], "nothing is stored before something is said"

    events = list(session.say(" Hi! "))
    started = events[0]
    assert started.user_message.text == " Hi! "
    assert started.message.status == "partial"
    assert reply_of(events) == "Hello there."
    assert texts(session) == [
        ("user", " Hi! ", "complete"),
        ("assistant", "Hello there.", "complete"),
    ]
    assert store.path(session.chat.id) == session.chat.messages
    assert reply_of(session.say("How are you?")) == "Fine."
    chat = store.chat(session.chat.id)
    assert (chat.title, chat.template, chat.model) == ("How are you?", "plain", "scripted")


def test_the_prompt_is_the_templates_rendering(session_of):
    for template in (PLAIN, ALPACA, CHAT):
        model = ScriptedModel([f"{template.wording.lead}one", f"{template.wording.lead}two"])
        session = session_of(model, template, system="Rhyme.")
        list(session.say("first"))
        list(session.say(" second\n"))
        messages = [
            Message("system", "Rhyme."),
            Message("user", "first"),
            Message("assistant", "one"),
            Message("user", "second"),
        ]
        assert model.prompts[-1] == text_of(template.render(messages))
        assert model.stops[-1] == template.stop


def test_the_user_is_stored_before_the_model_is_asked(session_of, store):
    session = session_of(ScriptedModel([" Yes."]))
    events = session.say("Are you there?")
    started = next(events)
    assert isinstance(started, Started)
    rows = store.path(started.message.chat_id)
    assert [(row.role, row.text, row.status) for row in rows] == [
        ("user", "Are you there?", "complete"),
        ("assistant", "", "partial"),
    ]


@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_an_empty_message_is_refused(session_of, store, text):
    with pytest.raises(ValueError, match="the message is empty"):
        list(session_of(ScriptedModel(["x"])).say(text))
    assert store.chats() == []


def test_a_turn_is_recorded_with_all_it_was_made_from(session_of, store):
    model = ScriptedModel([" Ok."])
    session = session_of(model, sampling=Sampling(temperature=0.3))
    list(session.say("Hi"))
    (row,) = store.generations(session.chat.messages[0].chat_id)
    assert row.message_id == session.chat.messages[1].id
    assert (row.prompt, row.model, row.template) == (model.prompts[0], "scripted", "chat")
    assert row.sampling["temperature"] == 0.3
    assert row.seed == model.samplings[0].seed, "the seed is drawn once, used and recorded"
    assert row.reason == "stop"
    assert row.prompt_tokens == model.finished[0].prompt_tokens
    assert row.seconds == model.finished[0].seconds


# How a reply ends


@pytest.mark.parametrize(
    ("reason", "status"), [("length", "complete"), ("context", "complete"), ("error", "error")]
)
def test_reasons_become_statuses(session_of, store, reason, status):
    replies = [RuntimeError("out of memory")] if reason == "error" else [" and so on" * 50]
    model = ScriptedModel(replies, context=30 if reason == "context" else 1000)
    session = session_of(model, sampling=Sampling(max_tokens=200 if reason == "context" else 9))
    finished = list(session.say("Go"))[-1]
    assert finished.reason == reason
    assert session.chat.messages[-1].status == status
    assert store.generations(session.chat.messages[0].chat_id)[0].reason == reason


def test_cancelling_keeps_what_there_was(session_of):
    cancel = threading.Event()
    session = session_of(ScriptedModel([" one two three four"]))
    events = session.say("Count", cancel)
    seen = [next(events) for _ in range(3)]
    cancel.set()
    seen += events
    assert reply_of(seen) == "one two"
    assert isinstance(seen[-1], Finished)
    assert seen[-1].reason == "cancelled"
    assert texts(session)[-1] == ("assistant", "one two", "stopped")


def test_a_bug_in_the_model_loses_nothing(session_of, store):
    class Broken(ScriptedModel):
        def generate(self, request):
            yield Token(1, " one", " one", -1.0)
            raise ZeroDivisionError

    session = session_of(Broken([]))
    with pytest.raises(ZeroDivisionError):
        list(session.say("Count"))
    assert texts(session)[-1] == ("assistant", "one", "error")
    assert store.path(session.chat.messages[0].chat_id) == session.chat.messages


def test_text_is_stored_before_its_tokens_are_remembered(session_of, store, monkeypatch):
    session = session_of(ScriptedModel([" one two"]))

    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(ChatWriter, "remember", broken)
    with pytest.raises(ZeroDivisionError):
        list(session.say("Count"))
    assert store.path(session.chat.id) == session.chat.messages
    assert texts(session)[-1] == ("assistant", "one two", "complete")


@pytest.mark.parametrize("failing", ["user", "assistant"])
def test_a_message_is_stored_with_the_reply_to_come_or_not_at_all(
    session_of, store, monkeypatch, failing
):
    add = store.add_message

    def full(chat_id, parent_id, role, text, **rest):
        if role == failing:
            raise StoreError("the disk is full")
        return add(chat_id, parent_id, role, text, **rest)

    session = session_of(ScriptedModel([" one", " two"]))
    for expected in ([], ["Q", "one"]):
        monkeypatch.setattr(store, "add_message", full)
        with pytest.raises(StoreError, match="the disk is full"):
            list(session.say("Q"))
        assert [message.text for message in session.chat.messages] == expected
        monkeypatch.undo()
        assert [chat.messages for chat in store.chats()] == ([2] if expected else [])
        assert reply_of(session.say("Q")) == ("two" if expected else "one")
    assert store.path(session.chat.id) == session.chat.messages


def test_a_turn_that_cannot_be_recorded_leaves_no_reply_unfinished(session_of, store, monkeypatch):
    def full(*_, **__):
        raise StoreError("the disk is full")

    session = session_of(ScriptedModel([" one", " two"]))
    list(session.say("Q"))
    monkeypatch.setattr(store, "begin_generation", full)
    with pytest.raises(StoreError, match="the disk is full"):
        list(session.continue_reply(session.chat.messages[-1].id))
    assert texts(session)[-1] == ("assistant", "one", "error")
    assert store.path(session.chat.id) == session.chat.messages


def test_a_killed_process_loses_at_most_a_second(tmp_path):
    """The child writes after each token when it came; what the store must hold follows."""
    talker = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from fakes import ScriptedModel
        from chatapp.dialogue.chat import Chat
        from chatapp.dialogue.session import Session
        from chatapp.dialogue.store import Store
        from chatapp.engine.events import Token
        from chatapp.engine.model import Sampling
        from chatapp.prompting.template import CHAT

        model = ScriptedModel([" word" * 900], delay=0.01)
        store = Store(Path(sys.argv[1]))
        sampling = Sampling(max_tokens=900)
        session = Session(Chat(store), model, template=CHAT, sampling=sampling)
        for event in session.say("Talk to me"):
            if isinstance(event, Token):
                print(time.monotonic(), flush=True)
        """
    )
    path = tmp_path / "chats.db"
    process = subprocess.Popen(
        [sys.executable, "-c", talker, str(path)],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    times = []
    while not times or times[-1] - times[0] < 1.7:
        times.append(float(process.stdout.readline()))
    process.send_signal(signal.SIGKILL)
    process.communicate()

    store = Store(path)
    user, reply = store.path(store.chats()[0].id)
    assert (user.text, reply.status) == ("Talk to me", "partial")
    older_than_a_second = sum(time <= times[-1] - 1.0 for time in times)
    assert older_than_a_second > 5
    assert len(reply.text.split()) >= older_than_a_second
    assert [tuple(row) for row in store._database.rows("PRAGMA integrity_check")] == [("ok",)]

    session = Session(Chat(store, store.chats()[0].id), ScriptedModel([" more"]), template=CHAT)
    list(session.continue_reply(reply.id))
    assert session.chat.messages[-1].text == f"{reply.text} more"
    store.close()


# Other replies, other questions


def test_regenerating_adds_a_sibling(session_of, store):
    model = ScriptedModel([" first", " later", " second"])
    session = session_of(model)
    list(session.say("Q"))
    list(session.say("R"))
    first = session.chat.messages[1]
    events = list(session.regenerate(first.id))
    assert reply_of(events) == "second"
    started = events[0]
    assert started.user_message is None
    assert [message.text for message in session.chat.messages] == ["Q", "second"]
    assert model.prompts[2] == model.prompts[0]
    assert [message.text for message in store.siblings(first.id)] == ["first", "second"]


def test_another_reply_is_drawn_from_another_seed_where_the_same_would_draw_the_same(session_of):
    model = ScriptedModel([" a", " b", " c", " d"])
    session = session_of(model)
    session.sampling = Sampling(seed=7)
    list(session.say("Q"))
    list(session.regenerate(session.chat.messages[1].id))
    list(session.regenerate(session.chat.messages[1].id))
    session.sampling = Sampling(seed=7, temperature=0.1)  # whose effect alone is to be seen
    list(session.regenerate(session.chat.messages[1].id))
    assert [sampling.seed for sampling in model.samplings] == [7, 8, 9, 7]


def test_a_message_without_reply_can_be_answered(session_of, store):
    chat_id = store.create_chat()
    question = store.add_message(chat_id, None, "user", "Q").id
    session = session_of(ScriptedModel([" A"]), chat_id=chat_id)
    assert reply_of(session.regenerate(question)) == "A"
    assert [message.text for message in session.chat.messages] == ["Q", "A"]


def test_editing_adds_a_sibling_and_its_reply(session_of, store):
    model = ScriptedModel([" a", " b", " c", " d"])
    session = session_of(model)
    list(session.say("Q"))
    list(session.say("R"))
    follow_up = session.chat.messages[2]
    list(session.edit(follow_up.id, "S"))
    assert [message.text for message in session.chat.messages] == ["Q", "a", "S", "c"]
    list(session.edit(session.chat.messages[0].id, "T"))
    assert [message.text for message in session.chat.messages] == ["T", "d"]
    assert model.prompts[-1] == "User: T\nAssistant:"
    assert [message.text for message in store.siblings(follow_up.id)] == ["R", "S"]


def test_continuing_goes_on_in_the_same_message(session_of, store):
    model = ScriptedModel([" one two three", " four", ", five"])
    session = session_of(model, sampling=Sampling(max_tokens=2))
    list(session.say("Count"))
    reply = session.chat.messages[-1]
    session.sampling = Sampling()
    events = list(session.continue_reply(reply.id))
    assert reply_of(events) == " four"
    assert model.prompts[-1] == "User: Count\nAssistant: one two"
    assert model.finished[-1].reused_tokens == model.finished[-1].prompt_tokens - 1
    list(session.continue_reply(reply.id))
    assert texts(session)[-1] == ("assistant", "one two four, five", "complete")
    assert store.message(reply.id).text == "one two four, five"
    assert len(store.generations(reply.chat_id)) == 3


def test_continuing_an_empty_reply_starts_it(session_of):
    session = session_of(ScriptedModel([RuntimeError("no"), " Hello"]))
    list(session.say("Hi"))
    list(session.continue_reply(session.chat.messages[-1].id))
    assert texts(session)[-1] == ("assistant", "Hello", "complete")


def test_stopping_a_continued_reply_keeps_all_of_it(session_of, store):
    session = session_of(ScriptedModel([" one", " two three"]))
    list(session.say("Count"))
    reply = session.chat.messages[-1]
    events = session.continue_reply(reply.id)
    next(events)
    assert store.message(reply.id).status == "partial"
    next(events)
    events.close()
    assert store.path(reply.chat_id) == session.chat.messages
    assert store.message(reply.id).text == "one two"
    assert store.message(reply.id).status == "stopped"


def test_what_is_not_there_or_not_last_is_refused(session_of):
    other = session_of(ScriptedModel([" x"]))
    list(other.say("Q"))
    session = session_of(ScriptedModel([" y", " z"]))
    list(session.say("R"))
    list(session.say("S"))
    user, reply, *_ = before = session.chat.messages
    for call, sentence in (
        (lambda: session.regenerate(other.chat.messages[1].id), "is not in this chat"),
        (lambda: session.edit(other.chat.messages[0].id, "x"), "is not in this chat"),
        (lambda: session.edit(reply.id, "x"), "is from the assistant"),
        (lambda: session.continue_reply(user.id), "is from the user"),
        (lambda: session.continue_reply(reply.id), "only the last reply"),
    ):
        with pytest.raises(ValueError, match=sentence):
            list(call())
    assert session.chat.messages == before


def test_an_unanswered_message_stays_in_the_prompt_without_a_reply(session_of):
    model = ScriptedModel([RuntimeError("no"), " Hello Bob"])
    session = session_of(model)
    list(session.say("I am Bob."))
    list(session.say("Who am I?"))
    assert model.prompts[-1] == "User: I am Bob.\nUser: Who am I?\nAssistant:"


# The window


def computed(model):
    return model.finished[-1].prompt_tokens - model.finished[-1].reused_tokens


@pytest.mark.parametrize("by_character", [False, True])
@pytest.mark.parametrize("template", [PLAIN, CHAT])
def test_turn_ten_computes_its_own_tokens_alone(session_of, template, by_character):
    """Also when the model drew other tokens than its reply's text would be encoded to."""
    reply = " word" * (20 if by_character else 80)
    model = ScriptedModel([reply + "\n"], context=2000, by_character=by_character)
    session = session_of(model, template)
    for _ in range(9):
        list(session.say("Go on and on"))
    events = list(session.say("And now for something else"))
    assert model.finished[-1].prompt_tokens > 800
    assert computed(model) <= 5 + 8
    assert isinstance(events[-1], Finished)
    assert events[-1].reused_tokens == model.finished[-1].reused_tokens


def test_turn_ten_of_a_real_model_computes_its_own_tokens_alone(session_of, tmp_path):
    import torch

    from chatapp.engine.backends.local import LocalModel

    torch.set_num_threads(1)
    model = LocalModel.load(ModelFiles.read(write_tiny_gpt2(tmp_path / "model")))
    # A random model does not begin with the space that a trained one does.
    session = session_of(model, reworded(CHAT, lead=""), sampling=Sampling(seed=1, max_tokens=75))
    for number in range(9):
        list(session.say(f"Question {number}"))
    message = "And now?"
    finished = list(session.say(message))[-1]
    assert finished.prompt_tokens > 800
    new = finished.prompt_tokens - finished.reused_tokens
    assert new <= len(model.tokenizer.encode(message)) + 8


def test_old_turns_are_dropped_in_large_steps_and_reported(session_of):
    model = ScriptedModel([" so" * 20], context=200)
    session = session_of(model, system="Be kind.", sampling=Sampling(max_tokens=40))
    dropped = []
    costs = []
    for number in range(20):
        events = list(session.say(f"Question number {number}"))
        started = events[0]
        assert started.prompt_tokens == model.finished[-1].prompt_tokens
        assert started.dropped == usage(session).dropped
        assert model.prompts[-1].startswith("Be kind.\n")
        kept = [n for n in range(number + 1) if f"number {n}\n" in model.prompts[-1]]
        assert kept == list(range(started.dropped // 2, number + 1))
        dropped.append(started.dropped)
        costs.append(computed(model))
    assert dropped == sorted(dropped)
    assert dropped[-1] > 20
    changes = [place for place in range(1, 20) if dropped[place] != dropped[place - 1]]
    assert all(later - earlier >= 2 for earlier, later in pairwise(changes))
    assert all(cost <= 12 for place, cost in enumerate(costs) if place and place not in changes)


def test_a_reopened_chat_drops_and_uses_the_same(session_of):
    model = ScriptedModel([" so" * 20 + "\n\n"], context=200)
    session = session_of(model, sampling=Sampling(max_tokens=40))
    for number in range(12):
        list(session.say(f"Question number {number}"))
        again = session_of(model, chat_id=session.chat.id, sampling=session.sampling)
        assert again.chat.messages == session.chat.messages
        assert usage(again) == usage(session)


def test_usage_grows_with_the_reply(session_of):
    session = session_of(ScriptedModel([" one two three"], context=100), system="Be kind.")
    assert usage(session)[:2] == (2, 100)
    assert usage(session).dropped == 0
    used = [usage(session).used for _ in session.say("Count to three")]
    assert used == [9, 10, 11, 12, 12]


def test_a_message_longer_than_the_window_is_refused_and_not_stored(session_of, store):
    model = ScriptedModel([" ok"], context=100)
    session = session_of(model)
    list(session.say("short"))
    with pytest.raises(MessageTooLong) as error:
        list(session.say("word " * 150))
    assert (error.value.tokens, error.value.limit) == (150, 96)
    assert "150 tokens" in str(error.value)
    assert "at most 96" in str(error.value)
    assert [message.text for message in session.chat.messages] == ["short", "ok"]
    assert store.chats()[0].messages == 2
    with pytest.raises(MessageTooLong):
        list(session.edit(session.chat.messages[0].id, "word " * 150))
    assert store.chats()[0].messages == 2


def test_the_limit_is_the_longest_message_that_fits(session_of):
    model = ScriptedModel([" ok"], context=100)
    session = session_of(model, system="Be very kind.")
    with pytest.raises(MessageTooLong) as error:
        list(session.say("word " * 150))
    with pytest.raises(MessageTooLong):
        list(session.say("word " * (error.value.limit + 1)))
    finished = list(session.say("word " * error.value.limit))[-1]
    assert finished.prompt_tokens == 99


def test_a_reply_that_fills_the_window_cannot_be_continued(session_of):
    session = session_of(
        ScriptedModel([" so" * 200], context=100), sampling=Sampling(max_tokens=500)
    )
    finished = list(session.say("Go"))[-1]
    assert finished.reason == "context"
    with pytest.raises(ContextOverflow, match="window of 100 tokens"):
        list(session.continue_reply(session.chat.messages[-1].id))
    assert session.chat.messages[-1].status == "complete"
    assert usage(session).used <= 100


def test_a_chat_of_a_larger_model_still_opens(session_of):
    session = session_of(ScriptedModel([" ok"], context=1000))
    list(session.say("word " * 500))
    small = session_of(ScriptedModel([" ok"], context=100), chat_id=session.chat.id)
    assert usage(small)[:2] == (100, 100)
    assert usage(small).dropped == 2
    with pytest.raises(MessageTooLong):
        list(small.regenerate(small.chat.messages[1].id))
    assert reply_of(small.say("short")) == "ok"
    assert usage(small).dropped == 2


def test_drawn_tokens_give_way_when_only_their_text_fits(session_of):
    """Drawn one a character, the reply is longer than the window; its words are not."""
    model = ScriptedModel(
        lambda prompt: " incomprehensibilities" * 4, context=110, by_character=True
    )
    session = session_of(model, sampling=Sampling(max_tokens=1000))
    list(session.say("Q"))
    session.sampling = Sampling(max_tokens=1)
    list(session.say("R" + " and so on" * 8))
    assert "incomprehensibilities" in model.prompts[1]
    assert model.finished[1].prompt_tokens < 110


# Templates and models


def test_the_models_own_template_is_the_default(tmp_path):
    own = reworded(PLAIN, name="mine", user_marker="Q:")
    save_template(own, tmp_path)
    model = ScriptedModel([], folder=tmp_path)
    assert choose_template(model, "") == own
    assert choose_template(model, "mine") == own
    assert choose_template(ScriptedModel([]), "") == PLAIN
    assert choose_template(ScriptedModel([], folder=tmp_path / "none"), "alpaca") == ALPACA


def test_another_template_than_the_models_is_refused(tmp_path):
    save_template(CHAT, tmp_path)
    model = ScriptedModel([], name="./run", folder=tmp_path)
    assert choose_template(model, "chat") == CHAT
    with pytest.raises(ValueError, match=r"trained with the template 'chat'.*'alpaca'") as error:
        choose_template(model, "alpaca")
    assert CHAT.fingerprint not in str(error.value)
    assert "alpaca! forces it" in str(error.value)
    assert mismatch(model, CHAT) == ""
    with pytest.raises(ValueError, match="there is no template 'chta'"):
        choose_template(model, "chta")
    save_template(reworded(CHAT, after_reply="\n\n"), tmp_path)  # of the same name
    with pytest.raises(ValueError, match=r"'chat'.*'chat'"):
        choose_template(model, "chat")


def test_every_prompt_begins_with_the_one_before(session_of):
    """In tokens, which is what the cache compares."""

    class Recording(ScriptedModel):
        given: list[list[int]]

        def generate(self, request):
            self.given = [*getattr(self, "given", []), list(request.ids)]
            return super().generate(request)

    model = Recording([" Yes, I do.\nWell.", " No", " <|endoftext|> is no token here"])
    session = session_of(model, PLAIN)
    for text in ("Do you?", " Really? ", "User: fooled you", "<|endoftext|>"):
        list(session.say(text))
    for shorter, longer in pairwise(model.given):
        assert longer[: len(shorter)] == shorter
    assert all(model.tokenizer.end_id not in ids for ids in model.given)
