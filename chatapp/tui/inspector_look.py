"""What the inspector looks at, gathered on a thread.

The one invariant: everything here is plain data but for the trace, which is only asked on a
thread too; the screen computes nothing.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chatapp.prompting.segments import Segment

if TYPE_CHECKING:
    from chatapp.dialogue.session import Session
    from chatapp.dialogue.store import StoredMessage
    from chatapp.engine.inspection import Inspectable, Prediction, Trace

EXAMPLE = "The manager hired John because he has extensive experience."
"""The sentence the lectures show attention with: whom is "he" looking at?"""

ALTERNATIVES = 10


@dataclass(frozen=True)
class Look:
    """A text as the model reads it.

    ids, texts: its tokens, of which those from `start` on are the reply. message: the reply's
    row, when there is one to branch from. predictions: what was expected after each token;
    empty, like trace and model, when the model does not show its inside, and then `reason`
    says so.
    """

    segments: tuple[Segment, ...]
    left_out: "tuple[StoredMessage, ...]"
    ids: tuple[int, ...]
    texts: tuple[str, ...]
    start: int
    message: "StoredMessage | None" = None
    template: str = ""
    reason: str = ""
    model: "Inspectable | None" = None
    trace: "Trace | None" = None
    predictions: "tuple[Prediction, ...]" = ()

    def before(self, position: int) -> "Prediction | None":
        """What was expected in the place of a token; nothing is known of the first."""
        return self.predictions[position - 1] if 0 < position <= len(self.predictions) else None


def look(session: "Session", message_id: int | None, *, example: bool = False) -> Look:
    """Look at a message, or the last one, or the example sentence when there is none.

    Takes one pass of the model. Raises ValueError in words when the message does not fit.
    """
    from chatapp.engine.inspection import Inspectable

    messages = session.messages
    if message_id is None and messages:
        message_id = messages[-1].id
    if example or message_id is None:
        segments: tuple[Segment, ...] = (Segment("user", EXAMPLE),)
        ids = tuple(session.model.tokenizer.encode(EXAMPLE))
        start, template = len(ids), ""
        message: StoredMessage | None = None
        left_out: tuple[StoredMessage, ...] = ()
    else:
        reading = session.read(message_id)
        segments, message = reading.prompt.segments, reading.reply
        if message is not None and message.text:
            segments = (*segments, *session.template.render_reply(message.text, closed=False))
        ids, start = (*reading.prompt.ids, *reading.reply_ids), len(reading.prompt.ids)
        left_out, template = reading.left_out, session.template.name
    model = session.model
    trace: Trace | None = None
    predictions: tuple[Prediction, ...] = ()
    reason = ""
    if isinstance(model, Inspectable):
        trace = model.inspect(ids)
        predictions = tuple(trace.predictions(ALTERNATIVES))
        texts = trace.texts
    else:
        reason = f"The model {model.name} does not show its inside: only its text is known."
        texts = tuple(model.tokenizer.decode([id]) for id in ids)
    return Look(
        segments=segments,
        left_out=left_out,
        ids=ids,
        texts=texts,
        start=start,
        message=message,
        template=template,
        reason=reason,
        model=model if isinstance(model, Inspectable) else None,
        trace=trace,
        predictions=predictions,
    )
