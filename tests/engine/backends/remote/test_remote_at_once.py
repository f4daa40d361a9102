"""Several requests to a server at once: each is answered as it is alone, and none is forgotten."""

import threading

from completions_server import piece, said

from chatapp.engine.backends.remote.http import MOST_AT_ONCE
from chatapp.engine.events import Finished
from chatapp.engine.model import Request, Sampling, whole_replies

SHORT = Sampling(max_tokens=8)


def asked(model, *texts):
    return [Request(model.tokenizer.encode(text), SHORT) for text in texts]


class SideBySide:
    """Lets no request be answered before so many have come, and the last of them first."""

    def __init__(self, count):
        self.count, self.here, self.most = count, 0, 0
        self.changed = threading.Condition()

    def __call__(self, request):
        with self.changed:
            self.here += 1
            self.most = max(self.most, self.here)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.most >= self.count, 120)
            self.here -= 1
        return said(f" {request['prompt']}", " indeed")


def test_each_is_answered_as_it_is_alone(server, model):
    server.stream = side_by_side = SideBySide(MOST_AT_ONCE)
    texts = [f"n{number}" for number in range(11)]
    replies = list(whole_replies(model.generate_many(asked(model, *texts))))
    assert [text for text, _ in replies] == [f" {text} indeed" for text in texts]
    assert side_by_side.most == MOST_AT_ONCE


def test_a_request_is_taken_when_there_is_room(server, model):
    taken = []

    def requests():
        for number, request in enumerate(asked(model, *"abcdefghij")):
            taken.append(number)
            yield request

    ended = 0
    for _, event in model.generate_many(requests()):
        assert len(taken) <= ended + MOST_AT_ONCE
        ended += isinstance(event, Finished)
    assert ended == len(taken) == 10


def test_one_that_cannot_be_met_leaves_the_others(server, model):
    requests = asked(model, "one", "word " * 70, "two")
    first, bad, last = whole_replies(model.generate_many(requests))
    assert (first[0], last[0]) == (" Hello.", " Hello.")
    assert bad[1].reason == "error"
    assert "the model's window of 64" in bad[1].message


def test_one_cancelled_leaves_the_others(server, model):
    cancel, released = threading.Event(), threading.Event()
    server.stream = lambda request: (
        [piece(" Well"), lambda: released.wait(120)]
        if request["prompt"] == "slow"
        else said(" Yes", ".")
    )
    slow = Request(model.tokenizer.encode("slow"), SHORT, cancel=cancel)
    reasons = {}
    for number, event in model.generate_many([slow, *asked(model, "one", "two")]):
        if isinstance(event, Finished):
            reasons[number] = event.reason
        if len(reasons) == 2:
            cancel.set()
    released.set()
    assert reasons == {0: "cancelled", 1: "stop", 2: "stop"}


def test_who_leaves_hangs_up(server, model):
    server.stream = [piece(" Well"), server.hang]
    events = model.generate_many(asked(model, "one", "two"))
    next(events)
    events.close()
    assert server.gone.wait(120)
