"""Replies that call the calculator while they are drawn."""

from collections.abc import Iterable, Iterator

import pytest

from chatapp.engine.errors import ModelError
from chatapp.engine.events import Event, Finished, Token
from chatapp.engine.model import Request, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import BUNDLED
from finetune.objectives.rewards import DrawnReply
from finetune.training.tool_rollouts import replies_with_calls

TOKENIZER = load_model(BUNDLED).tokenizer
PROMPT = TOKENIZER.encode("User: What is 20 + 3?\nAssistant:")


class Script:
    """Draws given texts, one for each request of a round, and ends like a model that is cancelled.

    requests: those that it received.
    """

    def __init__(self, *rounds: list[str]) -> None:
        self._rounds = iter(rounds)
        self.requests: list[list[Request]] = []

    def __call__(self, requests: Iterable[Request]) -> Iterator[tuple[int, Event]]:
        taken = list(requests)
        self.requests.append(taken)
        for number, (request, text) in enumerate(zip(taken, next(self._rounds), strict=True)):
            for id in TOKENIZER.encode(text, begins=False):
                assert request.cancel is not None
                if request.cancel.is_set():
                    yield number, Finished("cancelled")
                    break
                yield number, Token(id, TOKENIZER.decode([id]), "", 0.0)
            else:
                yield number, Finished("stop", end_id=TOKENIZER.end_id)


def drawn(script: Script, count: int = 1, **sampling: int) -> list[DrawnReply]:
    given = Sampling(**{"max_tokens": 50, "seed": 7, **sampling})  # type: ignore[arg-type]
    requests = [Request(PROMPT, given)] * count
    return list(replies_with_calls(script, requests, ["calculator"], TOKENIZER, 200))


def test_a_call_is_answered_and_the_reply_goes_on() -> None:
    script = Script([" It is <<20+3= 7 and on", " 23"], [" 23"])
    called, plain = drawn(script, 2)
    text = TOKENIZER.decode(called.ids[:-1])
    assert text == " It is <<20+3=23>> 23"
    assert TOKENIZER.decode([called.ids[place] for place in sorted(called.results)]) == "23>>"
    assert (called.text, called.calls) == ("It is  23", 1)
    assert called.ids[-1] == TOKENIZER.end_id
    assert (plain.text, plain.calls, plain.results) == ("23", 0, frozenset())
    (again,) = script.requests[1]
    assert TOKENIZER.decode(again.ids[len(PROMPT) :]) == " It is <<20+3=23>>"
    assert again.sampling.seed != script.requests[0][0].sampling.seed
    own = len(TOKENIZER.encode(" It is <<20+3=", begins=False))
    assert again.sampling.max_tokens == 50 - own


def test_a_call_that_fails_gets_a_question_mark() -> None:
    (reply,) = drawn(Script(["<<1/0="], [" no"]))
    assert "<<1/0=?>> no" in TOKENIZER.decode(reply.ids)


def test_calls_without_end_come_to_one() -> None:
    script = Script(*[["<<1+1="]] * 20)
    (reply,) = drawn(script, max_tokens=1_000)
    assert 1 <= reply.calls <= 10
    assert len(PROMPT) + len(reply.ids) <= 200 + 10


def test_a_failure_of_the_model_is_one() -> None:
    def fail(requests: Iterable[Request]) -> Iterator[tuple[int, Event]]:
        yield from (
            (number, Finished("error", message="broken")) for number, _ in enumerate(requests)
        )

    with pytest.raises(ModelError, match="broken"):
        list(replies_with_calls(fail, [Request(PROMPT, Sampling())], [], TOKENIZER, 200))
