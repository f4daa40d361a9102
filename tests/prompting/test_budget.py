"""What the budget promises for every chat there could be."""

from hypothesis import given, settings
from hypothesis import strategies as st

from chatapp.prompting.messages import Budget, fit

LENGTHS = st.integers(min_value=1, max_value=400)
CHATS = st.fixed_dictionaries(
    {
        "window": st.integers(min_value=16, max_value=1024),
        "instructions": st.integers(min_value=0, max_value=100),
        "history": st.lists(LENGTHS, max_size=30),
        "newest": LENGTHS,
        "reserve": st.integers(min_value=1, max_value=256),
    }
)


def test_what_fits_is_left_alone():
    budget = fit(window=100, instructions=10, history=[20, 20], newest=30, reserve=20)
    assert budget == Budget(dropped=0, prompt=80, room=20)


def test_one_token_too_many_drops_a_quarter_of_the_window():
    budget = fit(window=100, instructions=10, history=[10, 10, 10, 10], newest=31, reserve=20)
    assert budget == Budget(dropped=3, prompt=51, room=49)


def test_a_message_that_does_not_fit_alone_leaves_no_room():
    budget = fit(window=100, instructions=10, history=[5], newest=95, reserve=20)
    assert budget == Budget(dropped=1, prompt=105, room=-5)


def test_the_reserve_gives_way_to_the_newest_message():
    assert fit(window=100, instructions=10, history=[5], newest=85, reserve=20).room == 5


@settings(max_examples=40)
@given(CHATS)
def test_instructions_and_newest_message_always_stay_and_counts_add_up(chat):
    budget = fit(**chat)
    kept = sum(chat["history"][budget.dropped :])
    assert budget.prompt == chat["instructions"] + kept + chat["newest"]
    assert budget.room == chat["window"] - budget.prompt


@settings(max_examples=40)
@given(CHATS)
def test_it_fits_with_its_reserve_whenever_that_is_possible(chat):
    budget = fit(**chat)
    possible = chat["instructions"] + chat["newest"] + chat["reserve"] <= chat["window"]
    assert (budget.room >= chat["reserve"]) == possible


@settings(max_examples=40)
@given(CHATS)
def test_nothing_is_dropped_without_need(chat):
    total = chat["instructions"] + sum(chat["history"]) + chat["newest"]
    if total + chat["reserve"] <= chat["window"]:
        assert fit(**chat).dropped == 0


@settings(max_examples=40)
@given(CHATS, st.lists(st.tuples(LENGTHS, LENGTHS), min_size=1, max_size=20))
def test_a_growing_chat_drops_in_steps_of_a_quarter(chat, turns):
    """What is left out only ever grows, by a quarter of the window or by all there is."""
    before = fit(**chat).dropped
    history = list(chat["history"])
    newest = chat["newest"]
    for reply, message in turns:
        history.append(newest + reply)
        newest = message
        after = fit(**{**chat, "history": history, "newest": newest}).dropped
        if after != before:
            step = sum(history[before:after])
            assert after > before
            assert step >= chat["window"] // 4 or after == len(history)
        before = after


@settings(max_examples=40)
@given(CHATS, st.integers(min_value=1, max_value=400))
def test_needing_more_room_goes_on_to_a_later_step(chat, more):
    """The steps are those of the history, whatever made the room too small."""
    fewer = fit(**chat).dropped
    greater = fit(**{**chat, "reserve": chat["reserve"] + more}).dropped
    step = sum(chat["history"][fewer:greater])
    assert greater == fewer or step >= chat["window"] // 4 or greater == len(chat["history"])
    assert greater >= fewer
