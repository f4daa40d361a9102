"""Replies that call tools: generation pauses, the call runs, and generation continues.

Invariant: only a call runs whose tool is on, which fits its schema and is allowed. The model gets
the outcome of every call, and the reply continues or ends like any other.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from chatapp.dialogue.events import PARAGRAPH, Called, Calling, ReplyEvent
from chatapp.dialogue.reply import reply_events
from chatapp.dialogue.tools.tool import STOPPED, Arguments, Outcome, Tool, failed, misfit_of, run
from chatapp.dialogue.writers.prompt import MessageTooLong, Prompt, Writer
from chatapp.engine.constraint.compiling import ConstraintError
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.events import Event, Finished, Token
from chatapp.engine.model import ContextOverflow, Generate, LanguageModel, Request
from chatapp.prompting.calls import LLAMA, CallFilter
from chatapp.prompting.messages import Call, CallPattern, InlineCalls, Requested

MOST_CALLS = 10
"""In one reply."""

# The note on the exact value of a rounded number; the text of a reply contains only the number.
_FRACTION = re.compile(r"(?<=…) \(-?\d+/\d+\)")

NO_CALL = "no tool was called"

_TOO_MANY = f"it made more than {MOST_CALLS} tool calls in one reply"
_REFUSED = Outcome("refused", "error: the user did not allow this call")

Permit = Callable[[Tool, Arguments, threading.Event], bool]
Schema = Mapping[str, Any]
Choose = Callable[[str, threading.Event], Requested | None]


@dataclass(frozen=True, slots=True)
class Toolbox:
    """tools: those that a model may call, by name. permit: whether a call that needs permission may
    run. choose: the first call for a question, for a model that opens none by itself.
    """

    tools: Mapping[str, Tool]
    permit: Permit
    choose: Choose | None = None

    @property
    def schemas(self) -> dict[str, Schema]:
        """The schemas of the tools' arguments, by name."""
        return {name: tool.parameters for name, tool in self.tools.items()}

    def outcome(self, requested: Requested, cancel: threading.Event) -> Outcome:
        """The outcome of a call."""
        if problem := misfit_of(self.tools, requested.name, requested.arguments):
            return failed(problem)
        tool = self.tools[requested.name]
        if tool.asks and not self.permit(tool, requested.arguments, cancel):
            return STOPPED if cancel.is_set() else _REFUSED
        return run(tool, requested.arguments, cancel)


def chooser_of(model: LanguageModel, writer: Writer, tools: Mapping[str, Tool]) -> Choose | None:
    """`Toolbox.choose` for a model; None for one that opens calls by itself."""
    if writer.tool_choice == "own":
        return None
    from chatapp.dialogue.tools.choosing import Chooser

    return Chooser(model, tools).choose


def out_of_reach(writer: Writer, names: Sequence[str]) -> str:
    """The sentence on the tools that a model cannot call; "" if it can call all."""
    pattern = writer.calls
    if writer.tool_choice == "scored" or not isinstance(pattern, InlineCalls):
        return ""
    others = ", ".join(name for name in names if name != pattern.tool)
    return others and (
        f"this model can call only {pattern.tool}, as {pattern.begin}…{pattern.end}; "
        f"{others} would never be called"
    )


def events_with_calls(
    model: LanguageModel,
    prompt: Prompt,
    request: Request,
    generate: Generate | None = None,
    *,
    toolbox: Toolbox,
    pattern: CallPattern,
    go_on: Callable[[], Prompt],
    question: str = "",
) -> Generator[ReplyEvent]:
    """A reply to a prompt with the tools that it calls; see `reply_events`.

    pattern: how the model calls them. go_on: returns the prompt that continues the reply, after all
    events so far are stored in it. question: for `Toolbox.choose`; "" for a reply that has begun.
    """
    cancel = request.cancel or threading.Event()
    most = request.sampling.max_tokens
    total = _Total(is_new=bool(question))
    chosen = toolbox.choose(question, cancel) if question and toolbox.choose else None
    if chosen is not None:  # the model knows no form for a result, so the result is the reply
        yield Calling(_call(chosen))
        outcome = toolbox.outcome(chosen, cancel)
        text = _fitting(outcome.text, model)
        call = replace(_call(chosen), result=text, status=outcome.ending, inside=len(text))
        yield Called(call, text)
        yield Finished("cancelled" if cancel.is_set() else "stop")
        return
    for number in range(MOST_CALLS + 1):
        if total.tokens >= most:
            yield total.finished(Finished("length"))
            return
        left = replace(request.sampling, max_tokens=most - total.tokens)
        request = replace(request, ids=prompt.ids, sampling=left, cancel=cancel)
        grammar = call_constraint(model, pattern, toolbox.schemas)
        events = reply_events(model, prompt, replace(request, constraint=grammar), generate)
        calls = CallFilter(pattern, toolbox.tools)
        requested = yield from _until_call(events, calls, call_marks(model, pattern), total)
        if requested is None:
            return
        is_last = number == MOST_CALLS
        outcome = failed(_TOO_MANY) if is_last else toolbox.outcome(requested, cancel)
        yield _called(requested, outcome, pattern, model)
        total.has_called = True
        if is_last or cancel.is_set():
            end = Finished("stop", message=_TOO_MANY) if is_last else Finished("cancelled")
            yield total.finished(end)
            return
        try:
            prompt, request = go_on(), replace(request, forced=())
        except (MessageTooLong, ContextOverflow):
            yield total.finished(Finished("context"))
            return


def call_marks(model: LanguageModel, pattern: CallPattern) -> dict[int, str]:
    """The mark of a call if it is a special token, which has no text."""
    special = model.tokenizer.special
    return {special[pattern.begin]: pattern.begin} if pattern.begin in special else {}


def call_schema(pattern: CallPattern, tools: Mapping[str, Schema]) -> Schema:
    """The schema of a call as a JSON object. tools: the schemas of their arguments, by name."""
    key = "parameters" if pattern == LLAMA else "arguments"
    calls: list[Schema] = []
    for name, parameters in tools.items():
        # References count from the whole schema, in which these are only a part.
        place = f"#/anyOf/{len(calls)}/properties/{key}"
        own = json.dumps(dict(parameters)).replace('"$ref": "#', f'"$ref": "{place}')
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, key: json.loads(own)},
                "required": ["name", key],
                "additionalProperties": False,
            }
        )
    return {"anyOf": calls}


def call_constraint(
    model: LanguageModel, pattern: CallPattern, tools: Mapping[str, Schema]
) -> Constraint | None:
    """What follows the mark of a call: the name of a tool and arguments that fit its schema.

    None for a model or a schema that no grammar can follow, and for calls within the text.
    """
    if isinstance(pattern, InlineCalls):
        return None
    try:
        if getattr(model, "vocab_bytes", None) is None:
            return None
        whole = Constraint.of_schema(call_schema(pattern, tools))
    except ConstraintError:
        return None
    return replace(whole, after=pattern.begin, is_optional=True)


def _until_call(
    events: Generator[Event], calls: CallFilter, names: Mapping[int, str], total: "_Total"
) -> Generator[ReplyEvent, None, Requested | None]:
    """The events up to the first call, which is returned, or to the end."""
    started = first = time.perf_counter()
    tokens = 0
    with closing(events):
        for event in events:
            text = event.text
            if isinstance(event, Token):
                first = first if tokens else time.perf_counter()
                tokens += 1
                name = names.get(event.id, "") if event.thought is None else ""
                text = text.removesuffix(name) + name
            visible, requested = calls.push(text)
            if requested is not None:
                total.add(tokens, started, first)
                if isinstance(event, Token):
                    yield replace(event, text=visible)
                    visible = ""
                yield Calling(_call(requested), visible)
                return requested
            if isinstance(event, Finished):
                yield total.finished(replace(event, text=visible + calls.flush()))
            else:
                yield replace(event, text=visible)
    return None


def _call(requested: Requested) -> Call:
    """A call that has not ended; the code that stores the reply knows its place."""
    return Call(requested.name, requested.arguments, STOPPED.text, "running", 0)


def inline_result(outcome: Outcome, pattern: InlineCalls) -> str:
    """The text after a call in the text."""
    value = _FRACTION.sub("", outcome.text.partition("\n")[0])
    return f"{value if outcome.ending == 'done' else '?'}{pattern.close}"


def _called(
    requested: Requested, outcome: Outcome, pattern: CallPattern, model: LanguageModel
) -> Called:
    result = _fitting(outcome.text, model)
    call = replace(_call(requested), result=result, status=outcome.ending)
    if not isinstance(pattern, InlineCalls):
        return Called(call, PARAGRAPH)  # white space, held back until more text follows
    text = inline_result(outcome, pattern)
    return Called(replace(call, inside=len(text)), text)


def _fitting(text: str, model: LanguageModel) -> str:
    """The part of a result that fits in a quarter of the window."""
    room = model.context // 4
    cut = text[: 8 * room]
    while len(model.tokenizer.encode(cut, begins=False)) > room:
        cut = cut[: len(cut) * 3 // 4]
    return text if len(cut) == len(text) else f"{cut}\n[cut to fit the model's window]"


class _Total:
    """Sums up the generations of one reply. tokens: of those that ended in a call."""

    def __init__(self, *, is_new: bool) -> None:
        """is_new: no part of the reply was there before."""
        self.tokens = 0
        self.has_called = not is_new
        self._seconds = 0.0
        self._first = 0.0

    def add(self, tokens: int, started: float, first: float) -> None:
        """Count a generation. started, first: the times of its start and its first token."""
        self._first = self._first or first - started
        self._seconds += time.perf_counter() - started
        self.tokens += tokens

    def finished(self, last: Finished) -> Finished:
        """The end of the reply, computed from that of its last generation."""
        is_over = last.reason in ("stop", "length", "repetition")
        return replace(
            last,
            message=last.message or (NO_CALL if is_over and not self.has_called else ""),
            reply_tokens=self.tokens + last.reply_tokens,
            time_to_first_token=self._first or last.time_to_first_token,
            seconds=self._seconds + last.seconds,
        )
