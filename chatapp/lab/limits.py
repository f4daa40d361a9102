"""What a constraint did to a reply, token by token.

Invariant: the grammar is followed again over the reply's tokens, with the probabilities of the
model's own pass, so a stored reply shows what a new one would.
"""

from collections.abc import Sequence

from chatapp.engine.constraint.compiling import ConstraintError
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.constraint.matching import Matcher
from chatapp.engine.generation import LocalGenerator
from chatapp.lab.predictions import Limit, limit_of
from chatapp.lab.traces import Trace


def limits_of(
    model: LocalGenerator, trace: Trace, start: int, constraint: Constraint
) -> tuple[Limit | None, ...]:
    """What a constraint did at each token from `start` on, in the place of the token.

    None before them, and where it does not apply. Nothing for a reply that does not follow it,
    because it was generated without it, and for a model that cannot follow any.
    """
    try:
        matcher = matcher_after(model, constraint)
    except ConstraintError:
        return ()
    limits: list[Limit | None] = [None] * start
    text = model.tokenizer.stream()
    for position in range(start, len(trace.ids)):
        id, limit = trace.ids[position], None
        if matcher.is_on and not matcher.is_over:
            allowed = matcher.allowed()
            if not allowed.mask[id]:
                return ()
            limit = limit_of(allowed, trace.logits(position - 1, position)[0])
        limits.append(limit)
        matcher.take(id, text.push(id))
    return tuple(limits)


def matcher_after(
    model: LocalGenerator, constraint: Constraint, reply: Sequence[int] = ()
) -> Matcher:
    """The state of a constraint after the first tokens of a reply. Raises ConstraintError."""
    mark = model.tokenizer.special.get(constraint.after)
    matcher = Matcher(constraint, model.vocab_bytes, model.end_ids, mark)
    text = model.tokenizer.stream()
    for id in reply:
        matcher.take(id, text.push(id))
    return matcher
