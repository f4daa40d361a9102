"""Two replies to one message, drawn at once: each is what it would be alone, and ends by itself."""

import threading

import pytest
from completions_server import CompletionsServer
from fakes import ScriptedModel

from chatapp.dialogue.chat import Chat
from chatapp.dialogue.events import Started, interleaved
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.rows import Basis
from chatapp.dialogue.variants import Pair, Variant
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Finished, Token
from chatapp.engine.model import Sampling
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import BUNDLED

SHORT = Variant("own", "auto", "", Sampling(temperature=1.0, seed=1, max_tokens=6))
LONG = Variant("own", "auto", "", Sampling(temperature=0.7, seed=2, max_tokens=30))


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def bundled():
    model = load_model(BUNDLED)
    assert isinstance(model, LocalModel)
    return model


def pair_of(store, own, message="What do you eat?", *, load=None, prompt=""):
    chat = Chat(store, basis=Basis(prompt=prompt))
    return Pair(chat, message, None, load or (lambda name, precision: own))


def drawn(pair, variants, cancel=None):
    return list(interleaved(pair.answers(variants, cancel or threading.Event())))


def of(events, number):
    return [event for side, event in events if side == number]


def text_of(events):
    return "".join(event.text for event in events if isinstance(event, Token | Finished))


def test_both_are_what_each_is_alone_by_one_pass_for_both(store, tmp_path, bundled, monkeypatch):
    texts = []
    for number, variant in enumerate((SHORT, LONG)):
        chats = Store(tmp_path / f"{number}.db")
        texts.append(text_of(of(drawn(pair_of(chats, bundled), [variant]), 0)))
        chats.close()
    rows = []
    compute = bundled.decoder.forward_rows

    def counted(ids, *arguments, **options):
        rows.append(len(ids))
        return compute(ids, *arguments, **options)

    monkeypatch.setattr(bundled.decoder, "forward_rows", counted)
    monkeypatch.setattr(bundled.decoder, "write", lambda *_: [])
    events = drawn(pair_of(store, bundled), [SHORT, LONG])
    assert [text_of(of(events, side)) for side in (0, 1)] == texts
    assert texts[0] != texts[1]
    assert [number for number, _ in events[:12]] == [0, 1] * 6
    shared, tokens = rows.count(2), len(of(events, 0)) - 2
    assert shared >= tokens - 1
    assert rows == [2] * shared + [1] * (len(rows) - shared)
    user, *_ = store.path(1)
    assert [reply.text for reply in store.siblings(user.id + 1)] == [text.strip() for text in texts]
    assert [reply.parent_id for reply in store.siblings(user.id + 1)] == [user.id, user.id]


def test_what_there_is_of_both_is_stored_while_they_grow(store, bundled, monkeypatch):
    monkeypatch.setattr("chatapp.dialogue.session._STORE_EVERY_SECONDS", 0.0)
    replies = pair_of(store, bundled).answers([LONG, LONG], threading.Event())
    texts = ["", ""]
    for number, event in interleaved(replies):
        assert not isinstance(event, Exception)
        texts[number] += "" if isinstance(event, Started) else event.text
        ids = [row.id for row in store.path(1) if row.role == "assistant"]
        if texts[0] and texts[1] and isinstance(event, Token):
            rows = store.siblings(ids[0])
            assert texts[number].strip() in rows[number].text
            assert rows[number].status == "partial"
    assert [row.status for row in store.siblings(ids[0])] == ["complete", "complete"]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_model_that_cannot_be_loaded_leaves_the_other(store, failing):
    own = ScriptedModel(["One two."])

    def load(name, precision):
        if name != "own":
            raise ModelError(f"{name}: no such model")
        return own

    variants = [SHORT, SHORT]
    variants[failing] = SHORT.changed("model=gone")
    events = drawn(pair_of(store, own, load=load), variants)
    (failure,) = of(events, failing)
    assert str(failure) == "gone: no such model"
    assert text_of(of(events, 1 - failing)) == "One two."
    assert [message.text for message in store.path(1)] == ["What do you eat?", "One two."]


def test_the_one_that_failed_is_asked_again(store):
    own, other = ScriptedModel(["Own."]), ScriptedModel(["Other."])
    models = {"own": own}
    pair = pair_of(store, own, load=lambda name, precision: models[name])
    changed = SHORT.changed("model=other")
    assert isinstance(of(drawn(pair, [SHORT, changed]), 1)[-1], KeyError)
    models["other"] = other
    assert text_of(of(drawn(pair, [changed]), 0)) == "Other."
    assert [row.text for row in store.siblings(2)] == ["Own.", "Other."]


def test_a_window_too_short_for_one_leaves_the_other(store):
    own, narrow = ScriptedModel(["Yes."]), ScriptedModel(["No."], context=4)
    pair = pair_of(store, own, load=lambda name, _: own if name == "own" else narrow)
    events = drawn(pair, [SHORT.changed("model=narrow"), SHORT])
    (failure,) = of(events, 0)
    assert isinstance(failure, ValueError)
    assert "window of 4 tokens" in str(failure)
    assert text_of(of(events, 1)) == "Yes."


def test_cancelling_stops_both_and_keeps_what_there_is(store, bundled):
    cancel, texts = threading.Event(), ["", ""]
    replies = pair_of(store, bundled).answers([LONG, LONG], cancel)
    for count, (number, event) in enumerate(interleaved(replies)):
        assert not isinstance(event, Exception)
        texts[number] += "" if isinstance(event, Started) else event.text
        if count == 11:
            cancel.set()
    rows = store.siblings(2)
    assert [row.status for row in rows] == ["stopped", "stopped"]
    assert [row.text for row in rows] == [text.lstrip() for text in texts]
    assert all(texts)


def test_cancelled_while_the_first_is_loaded_nothing_more_is(store):
    cancel, loaded = threading.Event(), []

    def load(name, precision):
        loaded.append(name)
        cancel.set()
        return ScriptedModel(["No."])

    pair = pair_of(store, ScriptedModel([""]), load=load)
    events = drawn(pair, [SHORT, SHORT.changed("model=other")], cancel)
    assert [str(event) for _, event in events] == ["stopped before the reply began"] * 2
    assert loaded == ["own"]
    assert store.chats() == []


def test_a_server_that_goes_down_leaves_the_other(store, bundled):
    with CompletionsServer().running() as server:
        served = load_model(server.url)
    pair = pair_of(store, bundled, load=lambda name, _: bundled if name == "own" else served)
    events = drawn(pair, [SHORT.changed("model=served"), SHORT])
    _, end = of(events, 0)
    assert end.reason == "error"
    assert text_of(of(events, 1))
