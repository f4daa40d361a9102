"""From messages to a reply: the one way for every door.

`turn` writes the prompt, lets the model draw, splits thoughts and calls from the text, runs the
tools, goes on after their results, and removes the white space around the reply. A session is this
and a store; `answer` and `complete` store nothing.

Invariant: nobody else makes a request for a reply to messages. The server, which draws many in one
batch, makes its requests by `request_for` and reads the events with `ReplyFilter`.
"""

import threading
import time
from collections.abc import Collection, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

from chatapp.common.foreign import without_surrogates
from chatapp.dialogue.documents.sources import Source, texts_in_prompt
from chatapp.dialogue.events import (
    PARAGRAPH,
    Called,
    Calling,
    Options,
    PromptWritten,
    ReplyEvent,
    TurnEvent,
)
from chatapp.dialogue.writers.choosing import writer_for
from chatapp.dialogue.writers.prompt import (
    Exchange,
    MessageTooLong,
    Prompt,
    Writer,
    with_constraint,
)
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.events import Event, Finished, Token
from chatapp.engine.model import NO_TOKEN, ContextOverflow, Generate, LanguageModel, Request
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.messages import CallPattern, Requested
from chatapp.prompting.thoughts_and_calls import CallFilter, ThoughtFilter

MOST_CALLS = 10
"""Calls of tools in one reply."""

ALTERNATIVES = 5
"""Per token, for a model on a server or a reply under a constraint: as many as every server
supports.
"""

NO_CALL = "no tool was called"

_TOO_MANY = f"it made more than {MOST_CALLS} tool calls in one reply"
_LABELS_OF_THE_WHOLE = (
    "the labels of the prompt file are scored by the model without changes inside; undo the "
    "changes first"
)


def turn(
    model: LanguageModel,
    writer: Writer,
    exchanges: Sequence[Exchange],
    options: Options,
    prompt: Prompt | None = None,
) -> Generator[TurnEvent]:
    """The reply to the last exchange, or the rest of the one that it has.

    Yields each prompt when it is written, the tokens, a `Calling` and a `Called` for each call of a
    tool, and one `Finished`; their texts together are the reply. prompt: of these exchanges and
    options, where it is written already. Raises MessageTooLong and ContextOverflow before anything
    is drawn.
    """
    *history, newest = exchanges
    toolbox, cancel = options.toolbox, options.cancel or threading.Event()
    question = "" if newest.reply or newest.calls or options.forced else newest.user
    reply = _Reply(newest, needs_call=toolbox is not None and bool(question))
    prompt = prompt or write_prompt(writer, exchanges, options)
    options = replace(options, cancel=cancel, changes=options.changes.added_after(len(prompt.ids)))
    yield PromptWritten(prompt)
    choose = None if toolbox is None else toolbox.choose
    if toolbox and choose and question and (chosen := choose(question, cancel)):
        # The model knows no form for a result, so the result is the reply.
        yield reply.add(Calling(toolbox.call(chosen)))
        yield reply.add(Called(*toolbox.run(chosen, cancel, model, None)))
        yield Finished("cancelled" if cancel.is_set() else "stop")
        return
    for number in range(MOST_CALLS + 1):
        left = options.sampling.max_tokens - reply.tokens
        if left <= 0:
            yield reply.end(Finished("length"))
            return
        here = replace(options, sampling=replace(options.sampling, max_tokens=left))
        requested = yield from _until_call(model, writer, prompt, here, reply)
        if requested is None:
            return
        assert toolbox is not None
        is_last = number == MOST_CALLS
        problem = _TOO_MANY if is_last else ""
        called, text = toolbox.run(requested, cancel, model, writer.calls, problem)
        # Where a template writes the call, white space is held back until more text follows.
        yield reply.add(Called(called, text or PARAGRAPH))
        if is_last or cancel.is_set():
            end = Finished("stop", message=_TOO_MANY) if is_last else Finished("cancelled")
            yield reply.end(end)
            return
        options = replace(options, forced=())
        try:
            prompt = write_prompt(writer, [*history, reply.exchange], options)
        except (MessageTooLong, ContextOverflow):
            yield reply.end(Finished("context"))
            return
        yield PromptWritten(prompt)


def answer(
    model: LanguageModel,
    template: ChatTemplate,
    text: str,
    options: Options,
    sources: Sequence[Source] = (),
) -> Generator[TurnEvent]:
    """The reply to a single message; nothing is stored.

    A constraint is also written into the instructions. sources: the passages of documents
    before the message. Raises ValueError when `text` is empty, and as `turn` does.
    """
    if not text.strip():
        raise ValueError("the question is empty")
    system = with_constraint(options.system, template, options.constraint)
    top = ALTERNATIVES if options.constraint else options.top
    exchange = Exchange(text)
    if sources:
        exchange = replace(exchange, passages=texts_in_prompt(sources))
    options = replace(options, system=system, top=top)
    yield from turn(model, writer_for(model, template), [exchange], options)


def complete(model: LanguageModel, text: str, options: Options) -> Generator[Event]:
    """The model's continuation of `text`, which is passed unchanged.

    Spaces at its end are left out, because a word includes the space before it. Raises ValueError
    when `text` is empty, ContextOverflow when it fills the window.
    """
    if not text.strip():
        raise ValueError("the text to continue is empty")
    ids = model.tokenizer.encode(text.rstrip(" "))
    if len(ids) >= model.context:
        raise ContextOverflow(
            f"the text is {len(ids)} tokens long; at most {model.context - 1} fit the model's "
            f"window of {model.context} tokens"
        )
    changes = options.changes.added_after(len(ids))
    request = Request(
        ids,
        options.sampling,
        options.stop,
        options.cancel,
        interventions=changes,
        constraint=options.constraint,
    )
    yield from (options.generate or model.generate)(request)


def write_prompt(writer: Writer, exchanges: Sequence[Exchange], options: Options) -> Prompt:
    """The prompt for a reply. Raises MessageTooLong, ContextOverflow."""
    if options.toolbox is not None:
        writer.use_tools([tool.to_dict() for tool in options.toolbox.tools.values()])
    return writer.write(options.system, exchanges, max_tokens=options.sampling.max_tokens)


def request_for(model: LanguageModel, writer: Writer, prompt: Prompt, options: Options) -> Request:
    """The request for the reply to a prompt.

    Its messages are sent unless the reply's beginning is forced, which needs a text.
    """
    constraint, toolbox = options.constraint, options.toolbox
    if toolbox is not None:
        constraint = toolbox.constraint(model, writer.calls)
    sends_messages = prompt.messages and not options.forced
    return Request(
        prompt.ids,
        options.sampling,
        (*writer.stop, *options.stop),
        options.cancel,
        options.top,
        options.forced,
        messages=prompt.messages_sent if sends_messages else (),
        tools=prompt.tools if sends_messages else (),
        interventions=options.changes,
        constraint=after_thought(constraint, prompt),
    )


def after_thought(constraint: Constraint | None, prompt: Prompt) -> Constraint | None:
    """The constraint for a reply to a prompt: a thought before it is free.

    That of calls begins with a mark of its own.
    """
    if constraint is None or constraint.is_optional or prompt.marks is None:
        return constraint
    return replace(constraint, after=prompt.marks.end) if prompt.is_thinking else constraint


def _until_call(
    model: LanguageModel, writer: Writer, prompt: Prompt, options: Options, reply: "_Reply"
) -> Generator[TurnEvent, None, Requested | None]:
    """The events up to the first call, which is returned, or to the end."""
    tools = () if options.toolbox is None else options.toolbox.tools
    split = ReplyFilter(model, prompt, writer.calls, tools)
    request = request_for(model, writer, prompt, options)
    started = first = time.perf_counter()
    tokens = 0
    with closing(_drawn(model, prompt, request, options.generate or model.generate)) as events:
        for event in events:
            if isinstance(event, Token):
                first = first if tokens else time.perf_counter()
                tokens += 1
            visible, requested = split.push(event)
            if requested is None:
                yield reply.end(visible) if isinstance(visible, Finished) else reply.add(visible)
                continue
            reply.count(tokens, started, first)
            text = visible.text
            if isinstance(visible, Token):
                yield reply.add(visible)
                text = ""
            assert options.toolbox is not None
            yield reply.add(Calling(options.toolbox.call(requested), text))
            return requested
    return None


def _drawn(
    model: LanguageModel, prompt: Prompt, request: Request, generate: Generate
) -> Generator[Event]:
    """What the model draws: chosen among the prompt's labels if it has some, else generated."""
    if prompt.choose is not None and request.interventions:
        yield Finished("error", message=_LABELS_OF_THE_WHOLE)
        return
    label = None
    started = time.perf_counter()
    if prompt.choose is not None and not request.forced:
        label = prompt.choose()
    if label is None:
        yield from generate(request)
        return
    seconds = time.perf_counter() - started
    end = model.tokenizer.end_id if model.tokenizer.names_end else NO_TOKEN
    whole = replace(request, forced=(*label.ids, end), messages=())
    for event in generate(whole):
        if isinstance(event, Finished):
            times = {"time_to_first_token": seconds, "seconds": seconds}
            event = replace(event, **times, message=label.remark)  # type: ignore[arg-type]
        yield event


class ReplyFilter:
    """Splits what a model draws into a thought, the text, and the first call in it.

    pattern: how the model calls tools. tools: the names of those that it may call.
    """

    def __init__(
        self, model: LanguageModel, prompt: Prompt, pattern: CallPattern, tools: Collection[str]
    ) -> None:
        marks, special = prompt.marks, model.tokenizer.special
        self._thoughts = ThoughtFilter(marks, is_open=prompt.is_thinking) if marks else None
        self._calls = CallFilter(pattern, tools) if tools else None
        # As special tokens, marks have no text.
        around = (marks.begin, marks.end) if marks else ()
        self._thought_marks = {special[mark]: mark for mark in around if mark in special}
        self._call_marks = {special[mark]: mark for mark in (pattern.begin,) if mark in special}

    def push(self, event: Event) -> tuple[Event, Requested | None]:
        """The event with its visible text and thought, and the call at its end.

        Push nothing after a call.
        """
        text, thought, requested = event.text, event.thought, None
        is_end = isinstance(event, Finished)
        if self._thoughts is not None:
            thought, text = self._thoughts.push(_with_mark(event, text, self._thought_marks))
            if is_end:
                rest, visible = self._thoughts.flush()
                thought = thought if rest is None else (thought or "") + rest
                text += visible
        if self._calls is not None:
            if thought is None:
                text = _with_mark(event, text, self._call_marks)
            text, requested = self._calls.push(text)
            if is_end and requested is None:
                text += self._calls.flush()
        return replace(event, text=text, thought=thought), requested


def _with_mark(event: Event, text: str, marks: dict[int, str]) -> str:
    """A token's text with the mark that it is."""
    mark = marks.get(event.id, "") if isinstance(event, Token) else ""
    return text.removesuffix(mark) + mark


class Trimmer:
    """Removes the white space around a reply while it is written.

    begun: the reply has a beginning already, so the space before the next word counts. held: white
    space after that. White space is held back until a word follows it.
    """

    def __init__(self, *, begun: bool = False, held: str = "") -> None:
        self._begun, self._held = begun, held

    def push(self, text: str) -> str:
        """The text that becomes visible once `text` is added."""
        text = self._held + without_surrogates(text)
        if not self._begun:
            text = text.lstrip()
        visible = text.rstrip()
        self._begun = self._begun or bool(visible)
        self._held = text[len(visible) :]
        return visible

    def forget(self) -> None:
        """Drop the white space that is held back."""
        self._held = ""


_Event = TypeVar("_Event", bound=ReplyEvent)


class _Reply:
    """A reply as far as it has come.

    exchange: with the visible text, the thoughts and the calls. tokens: of the generations that
    ended in a call.
    """

    def __init__(self, newest: Exchange, *, needs_call: bool) -> None:
        """needs_call: whether its end says so where no tool was called."""
        waits = newest.reply and newest.calls and not newest.rest
        self._trimmer = Trimmer(begun=bool(newest.reply), held=PARAGRAPH if waits else "")
        self._needs_call = needs_call
        self._seconds = self._first = 0.0
        self.exchange, self.tokens = newest, 0

    def add(self, event: _Event) -> _Event:
        """The event with its visible text, and a call with its place; the reply grows by it."""
        if isinstance(event, Called) and event.text == PARAGRAPH:
            self._trimmer.forget()
        visible = self._trimmer.push(event.text)
        text, calls = (self.exchange.reply or "") + visible, self.exchange.calls
        event = replace(event, text=visible)
        if isinstance(event, Calling | Called):
            is_new = isinstance(event, Calling)
            call = replace(event.call, at=len(text) if is_new else calls[-1].at)
            calls = (*calls[: None if is_new else -1], call)
            event = replace(event, call=call)
            self._needs_call = False
        thoughts = self.exchange.thoughts + without_surrogates(event.thought or "")
        self.exchange = replace(self.exchange, reply=text, thoughts=thoughts, calls=calls)
        return event

    def count(self, tokens: int, started: float, first: float) -> None:
        """Count a generation. started, first: the times of its start and its first token."""
        self._first = self._first or first - started
        self._seconds += time.perf_counter() - started
        self.tokens += tokens

    def end(self, last: Finished) -> Finished:
        """The end of the reply, computed from that of its last generation."""
        is_over = last.reason in ("stop", "length", "repetition")
        return replace(
            self.add(last),
            message=last.message or (NO_CALL if is_over and self._needs_call else ""),
            reply_tokens=self.tokens + last.reply_tokens,
            time_to_first_token=self._first or last.time_to_first_token,
            seconds=self._seconds + last.seconds,
        )
