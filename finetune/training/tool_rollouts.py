"""Replies that call tools while they are drawn.

A reply is drawn until it opens a call; then the result is added, as in a chat, and the reply goes
on after it.

Invariant: a result is the text that a chat would have there. Its tokens are in the reply and in no
loss. A call counts only if its end is the end of a drawn token.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from chatapp.dialogue.tool_calls import Toolbox, inline_result
from chatapp.dialogue.tools.registry import find_tools
from chatapp.dialogue.turn import MOST_CALLS
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Event, Token
from chatapp.engine.model import Request, Tokenizer
from chatapp.prompting.calls import CALCULATOR, CallFilter
from chatapp.prompting.messages import Requested
from finetune.objectives.rewards import DrawnReply


class _Reply:
    """A reply while it is drawn; is_over: nothing more is drawn."""

    def __init__(self, request: Request, toolbox: Toolbox) -> None:
        self.is_over = False
        self._request, self._toolbox = request, toolbox
        self._ids: list[int] = []
        self._results: set[int] = set()
        self._text = ""
        self._calls = 0
        self._requested: Requested | None = None

    @property
    def _drawn(self) -> int:
        return len(self._ids) - len(self._results)

    def next_request(self) -> Request:
        """The request for what follows."""
        self._filter = CallFilter(CALCULATOR, self._toolbox.tools)
        self._cancel = threading.Event()
        sampling = self._request.sampling
        seed = None if sampling.seed is None else sampling.seed + self._calls
        left = sampling.max_tokens - self._drawn
        return replace(
            self._request,
            ids=[*self._request.ids, *self._ids],
            sampling=replace(sampling, max_tokens=left, seed=seed),
            cancel=self._cancel,
        )

    def take(self, event: Event) -> None:
        """Add what was drawn, up to the first call. Raises ModelError."""
        if self._requested is not None:
            return
        visible, requested = self._filter.push(event.text)
        self._text += event.text
        if isinstance(event, Token):
            self._ids.append(event.id)
            if requested is not None and visible == event.text:
                self._requested = requested
                self._cancel.set()
            elif requested is not None:
                self._filter = CallFilter(CALCULATOR, self._toolbox.tools)
            return
        if event.reason == "error":
            raise ModelError(f"a reply could not be drawn: {event.message}")
        if event.end_id is not None:
            self._ids.append(event.end_id)

    def run_call(self, tokenizer: Tokenizer, context: int) -> None:
        """Add the result of the call that was drawn; without one, the reply is over.

        context: the model's window.
        """
        if self._requested is None:
            self.is_over = True
            return
        outcome = self._toolbox.outcome(self._requested, threading.Event())
        ids = tokenizer.encode(inline_result(outcome, CALCULATOR), begins=False)
        self._results |= set(range(len(self._ids), len(self._ids) + len(ids)))
        self._ids += ids
        self._text = self._text[: self._text.rindex(CALCULATOR.begin)]
        self._calls, self._requested = self._calls + 1, None
        self.is_over = (
            self._calls == MOST_CALLS
            or self._drawn >= self._request.sampling.max_tokens
            or len(self._request.ids) + len(self._ids) >= context
        )

    def drawn(self) -> DrawnReply:
        """The whole reply; its text is without calls."""
        return DrawnReply(self._ids, self._text.strip(), frozenset(self._results), self._calls)


def replies_with_calls(
    draw: Callable[[Iterable[Request]], Iterator[tuple[int, Event]]],
    requests: Iterable[Request],
    tools: Iterable[str],
    tokenizer: Tokenizer,
    context: int,
) -> Iterator[DrawnReply]:
    """The replies in the order of their requests, once all of them are finished.

    draw: `LanguageModel.generate_many`. tools: the names of those that replies may call, none of
    which needs permission. context: the model's window. Raises ModelError when a reply cannot be
    drawn.
    """
    toolbox = Toolbox(find_tools().chosen(tools), lambda tool, arguments, cancel: False)
    replies = [_Reply(request, toolbox) for request in requests]
    going_on = replies
    while going_on:
        for number, event in draw([reply.next_request() for reply in going_on]):
            going_on[number].take(event)
        for reply in going_on:
            reply.run_call(tokenizer, context)
        going_on = [reply for reply in going_on if not reply.is_over]
    return (reply.drawn() for reply in replies)
