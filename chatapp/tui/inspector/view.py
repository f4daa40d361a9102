"""What all tabs of the inspector share: how a tab looks at a text, and what it asks for.

Keep: a view shows one `Look`, and asks the inspector, never the model, for what has to be
computed.

What the inspector looks at, gathered on a thread.

Keep: everything here is plain data but for the trace, which is only asked on a thread too; the
screen computes nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from textual.containers import Vertical
from textual.content import Content
from textual.message import Message

from chatapp.prompting.messages import Segment

if TYPE_CHECKING:
    from chatapp.dialogue.session import Reading, Session
    from chatapp.dialogue.store.rows import StoredMessage
    from chatapp.dialogue.writers.prompt import Shot
    from chatapp.lab.inspectable import Inspectable
    from chatapp.lab.predictions import Prediction
    from chatapp.lab.traces import Trace
    from chatapp.passages.sources import Source

EXAMPLE = "The manager hired John because he has extensive experience."
"""The sentence the lectures show attention with: whom is "he" looking at?"""

ALTERNATIVES = 10


@dataclass(frozen=True, slots=True)
class Target:
    """What to look at: a message, or else a text that was not sent, or else the last message.

    instead_of: the user's message that the draft would take the place of.
    """

    message_id: int | None = None
    draft: str = ""
    instead_of: int | None = None


@dataclass
class Look:
    """A text as the model reads it.

    ids, texts: its tokens, of which those from `start` on are the reply. message: the reply's
    row, when there is one to branch from. template: in words, what laid it out; "" is nothing.
    shots, dropped_shots: its demonstrations, and those that did not fit. sources: the passages of
    documents found for it. is_draft: whether it was not sent yet. outdated: whether the reply was
    generated from another prompt. sent_as_messages: whether a server puts the prompt into a
    template of its own. predictions: what was expected after each token, None where that is not
    known. trace, model: None when the model does not show its inside, and then `reason` says so.
    """

    segments: tuple[Segment, ...]
    left_out: "tuple[StoredMessage, ...]"
    ids: tuple[int, ...]
    texts: tuple[str, ...]
    start: int
    message: "StoredMessage | None" = None
    template: str = ""
    shots: "tuple[Shot, ...]" = ()
    dropped_shots: "tuple[Shot, ...]" = ()
    sources: "tuple[Source, ...]" = ()
    is_draft: bool = False
    outdated: bool = False
    sent_as_messages: bool = False
    reason: str = ""
    model: "Inspectable | None" = None
    trace: "Trace | None" = None
    predictions: "tuple[Prediction | None, ...]" = ()

    def close(self) -> None:
        """Let go of the model, which takes much memory: for some time after widgets were removed
        Textual remembers them, and they what they showed.
        """
        self.model = self.trace = None

    def prediction_of(self, position: int) -> "Prediction | None":
        """What was expected in the place of a token; nothing is known of the first."""
        return self.predictions[position - 1] if 0 < position <= len(self.predictions) else None


def look(session: "Session", target: Target, *, example: bool = False) -> Look:
    """Look at something, or at the example sentence in a chat without messages.

    Takes one pass of the model. Raises ValueError in words when the text does not fit.
    """
    from chatapp.lab.inspectable import inspectable

    reading = None if example else _reading(session, target)
    if reading is None:
        segments: tuple[Segment, ...] = (Segment("user", EXAMPLE),)
        ids = tuple(session.model.tokenizer.encode(EXAMPLE))
        start = len(ids)
    else:
        segments = (*reading.prompt.segments, *reading.segments)
        ids, start = (*reading.prompt.ids, *reading.reply_ids), len(reading.prompt.ids)
    model = session.model
    trace: Trace | None = None
    predictions: tuple[Prediction | None, ...] = ()
    reason = ""
    opened = inspectable(model)
    if opened is not None:
        trace = opened.inspect(ids)
        predictions = tuple(trace.predictions(ALTERNATIVES))
        texts = trace.texts
    else:
        reason = f"The model {model.name} does not show its inside: only its text is known."
        texts = tuple(model.tokenizer.decode([id]) for id in ids)
        if reading is not None and start:
            predictions = (*[None] * (start - 1), *_told(reading))
    return Look(
        segments=segments,
        left_out=reading.left_out if reading else (),
        ids=ids,
        texts=texts,
        start=start,
        message=reading.reply if reading else None,
        template=_layout(session) if reading else "",
        shots=reading.prompt.shots if reading else (),
        dropped_shots=reading.prompt.dropped_shots if reading else (),
        sources=reading.prompt.sources if reading else (),
        is_draft=reading is not None and target.message_id is None and bool(target.draft),
        outdated=reading is not None and reading.outdated,
        sent_as_messages=reading is not None and bool(reading.prompt.messages),
        reason=reason,
        model=opened,
        trace=trace,
        predictions=predictions,
    )


def _reading(session: "Session", target: Target) -> "Reading | None":
    """What the model reads for a target; None when there is neither message nor draft."""
    if target.message_id is not None:
        return session.read(target.message_id)
    if target.draft:
        return session.draft(target.draft, target.instead_of)
    messages = session.messages
    return session.read(messages[-1].id) if messages else None


def _told(reading: "Reading") -> "list[Prediction | None]":
    """What a model said of each token of a reply while it drew them."""
    from chatapp.lab.predictions import Candidate, Prediction

    predictions: list[Prediction | None] = []
    for id, token in zip(reading.reply_ids, reading.drawn, strict=False):
        if id != token.id:
            return []
        best = tuple(
            Candidate(each.id, each.text, math.exp(each.logprob), rank)
            for rank, each in enumerate(token.alternatives, start=1)
        )
        rank = next((each.rank for each in best if each.id == id), None)
        actual = Candidate(id, token.piece, math.exp(token.logprob), rank)
        predictions.append(None if math.isnan(token.logprob) else Prediction(None, best, actual))
    return predictions


def _layout(session: "Session") -> str:
    return f"{'prompt file' if session.prompt else 'template'} {session.layout}"


@dataclass
class Compute(Message):
    """A view wants `work` done on a thread, and then `show` with what it gives.

    fail: is told instead, in words, why it could not be done. slot: a newer request of the
    same name makes this one void; "" is never void.
    """

    work: Callable[[], Any]
    show: Callable[[Any], None]
    fail: Callable[[str], None]
    slot: str = ""


@dataclass
class Branch(Message):
    """The user wants another reply that begins with the tokens `begin`."""

    message_id: int
    begin: tuple[int, ...]


class View(Vertical):
    """One tab. hint: its main keys, in words."""

    hint = ""

    def legend(self) -> Content:
        """What its colours say; empty when it says so itself."""
        return Content()

    def show(self, look: Look) -> None:
        """Show another text."""
        raise NotImplementedError

    def take_focus(self) -> None:
        """Give the keys to the first widget that takes them."""
        for widget in self.query("*"):
            if widget.can_focus and widget.display:
                widget.focus()
                return
